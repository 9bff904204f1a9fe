"""Checks that can fail: put a wrong implementation in the place of the right one, and its claims turn red."""

import contextlib

import pytest
from tiny import quick_compilation
from wrong_implementations import MUTANTS, replaced

from attnlab.checks import run_check
from experiments.exact import CHECKS

BY_ID = {check.id: check for check in CHECKS}


@pytest.mark.parametrize("name", MUTANTS)
def test_wrong_implementation_is_caught(name: str) -> None:
    mutant = MUTANTS[name]
    # Another way of compiling shares no programs: worth it only where they are all made anew.
    quickly = quick_compilation() if mutant.retraced is None else contextlib.nullcontext()
    with quickly, replaced(mutant):
        passed = [id for id in mutant.caught_by if run_check(BY_ID[id], seed=0).passed]
    assert not passed, f"{name}: not noticed by {passed}"


def test_every_claim_catches_something() -> None:
    caught = {id for mutant in MUTANTS.values() for id in mutant.caught_by}
    assert caught == set(BY_ID)
