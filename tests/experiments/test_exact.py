"""The exact ledger: every claim holds, for any seed; nothing of it is missing, unsourced or unproved."""

import functools

import pytest

from attnlab.checks import Outcome, run_check
from experiments.exact import CHECKS, ERRATA, SOURCES

BY_ID = {check.id: check for check in CHECKS}
LEDGER = [f"I{n}" for n in range(1, 40)] + [f"M{n}" for n in range(1, 11)]


@functools.cache
def outcome_of(id: str, seed: int) -> Outcome:
    return run_check(BY_ID[id], seed)


def assert_holds(id: str, seed: int) -> None:
    outcome = outcome_of(id, seed)
    assert not outcome.error, outcome.error
    assert outcome.finding is not None
    failed = [m for m in outcome.finding.measurements if not m.passed]
    assert not failed, "\n".join(f"{m.quantity}: {m.measured} {m.requirement}" for m in failed)


@pytest.mark.parametrize("id", BY_ID)
def test_claim_holds(id: str) -> None:
    assert_holds(id, seed=0)


# All ids of one seed, then the next seed: checks that share a large sample draw it once.
@pytest.mark.slow
@pytest.mark.parametrize("id", BY_ID)
@pytest.mark.parametrize("seed", range(1, 20))
def test_claim_holds_for_any_seed(id: str, seed: int) -> None:
    assert_holds(id, seed)


@pytest.mark.parametrize("id", [id for id in BY_ID if id.startswith("I")])
def test_exact_claim_holds_for_other_seeds(id: str) -> None:
    for seed in (1, 2):
        assert_holds(id, seed)


def test_the_ledger_is_complete_and_in_order() -> None:
    assert list(BY_ID) == LEDGER


def test_every_claim_is_a_sentence_with_a_source_that_is_named() -> None:
    for check in CHECKS:
        assert check.statement.lstrip("`")[0].isalpha(), check.id
        assert check.statement.endswith("."), check.id
        assert check.source, check.id
        named = [name for name in SOURCES if name in check.source]
        published = any(year in check.source for year in ("20", "arXiv"))
        assert named or published, f"{check.id}: {check.source!r} names no source"


def test_errata_are_complete_and_point_at_checks_that_exist() -> None:
    assert [erratum.id for erratum in ERRATA] == [f"E{n}" for n in range(1, 23)]
    for erratum in ERRATA:
        assert set(erratum.proof) <= set(BY_ID), erratum.id
        assert erratum.proof or erratum.how, f"{erratum.id} says nothing about how it is known"


@pytest.mark.parametrize(("id", "stem"), [("M2", "peak_mass"), ("M8", "gradient_by_layer")])
def test_figures_are_drawn_from_the_finding(id: str, stem: str) -> None:
    check = BY_ID[id]
    assert check.figures is not None
    finding = outcome_of(id, seed=0).finding
    assert finding is not None
    figure = check.figures(finding)[stem]
    (axis,) = figure.axes
    assert len(axis.get_lines()) >= 2
    assert axis.get_xlabel()
    assert axis.get_ylabel()
