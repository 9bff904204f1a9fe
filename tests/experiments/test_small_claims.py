"""The claims with few arms: residual path, number of heads, kinds of positions. Verdicts, arms, programs."""

from dataclasses import replace

import numpy as np
import pytest
from fake_runs import runs_ending_at

from attnlab.claims.rules import Verdict
from attnlab.cli import CHECKOUT, _plan_of
from attnlab.results import Results
from experiments import heads, position_kinds, residual
from experiments.heads import label

REPRODUCED, REFUTED, INVALID = Verdict.REPRODUCED, Verdict.NOT_REPRODUCED, Verdict.INVALID


def verdicts(claim, runs):
    return {j.subclaim.id: j.verdict for j in claim.judge(Results(runs)).judgements}


def planned(name, preset="quick"):
    return _plan_of(f"{CHECKOUT / 'configs' / name}.py:{preset}", [], name, None)


# Residual path


def with_gradients(finals, first):
    """Runs whose first block gets `first[arm]` times the gradient of the last in the first row, and 1 later."""
    runs = []
    for run in runs_ending_at(finals):
        rows = len(run.history["step"])
        early, seed = first[run.config["arm"]], run.config["seed"]["init"]
        columns = {
            "opt/grad_norm_l00": np.array([early * (1 + 0.01 * seed)] + [1.0] * (rows - 1)),
            "opt/grad_norm_l07": np.ones(rows),
        }
        runs.append(replace(run, history=run.history | columns))
    return runs


ENDS = {arm: [2.0, 2.01, 2.02] if "residual" in arm else [3.2, 3.21, 3.22] for arm in residual.ARMS}
EARLY = {arm: 0.8 if "residual" in arm else 0.01 for arm in residual.ARMS}


def test_a_gradient_that_vanishes_without_a_residual_path_reproduces_it():
    runs = with_gradients(ENDS, EARLY)
    assert set(verdicts(residual.CLAIM, runs).values()) == {REPRODUCED}
    found = residual.first_to_last("replaced")(Results(runs))
    assert found[0] == pytest.approx(np.log(0.01)), "of the first row, not of the last"


@pytest.mark.parametrize(
    ("early", "refuted"),
    [
        ({"replaced": 0.9}, {"T13a"}),
        ({"residual": 0.05}, {"T13b"}),
        ({"replaced, no norm": 0.9, "residual, no norm": 0.05}, {"T13d", "T13e"}),
    ],
)
def test_each_gradient_can_refute_its_part(early, refuted):
    found = verdicts(residual.CLAIM, with_gradients(ENDS, EARLY | early))
    assert {id for id, verdict in found.items() if verdict is REFUTED} == refuted


def test_loss_of_deep_stacks_needs_one_that_learns():
    same = ENDS | {"replaced": ENDS["residual"]}
    assert verdicts(residual.CLAIM, with_gradients(same, EARLY))["T13c"] is REFUTED
    failed = ENDS | {"residual": [2.6] * 3}
    found = verdicts(residual.CLAIM, with_gradients(failed, EARLY))
    assert {id for id, verdict in found.items() if verdict is INVALID} == {"T13c"}


def test_residual_is_one_program_of_eight_layers_and_logs_early():
    plan = planned("residual")
    assert len(plan.groups) == 1
    assert {m.config["model"]["layers"] for m in plan.members} == {residual.LAYERS} == {8}
    assert {m.config["log_every"] for m in plan.members} == {10}
    rules = {s.id: (s.rule.low, s.rule.high) for s in residual.SUBCLAIMS}
    inf = np.inf
    assert rules == {
        "T13a": (-inf, -2.0), "T13b": (-1.0, inf), "T13c": (0.1, inf), "T13d": (-inf, -2.0), "T13e": (-1.0, inf),
    }  # fmt: skip


# Heads

OF_HEADS = {label(1): [2.1, 2.11, 2.12], label(4): [2.0, 2.01, 2.02], label(16): [2.06, 2.07, 2.08]}


def test_several_heads_against_one_and_against_too_many():
    assert verdicts(heads.CLAIM, runs_ending_at(OF_HEADS)) == {
        "T15a": REPRODUCED,
        "T15b": REPRODUCED,
    }
    better = OF_HEADS | {label(16): [1.9, 1.91, 1.92], label(1): [1.95, 1.96, 1.97]}
    assert verdicts(heads.CLAIM, runs_ending_at(better)) == {"T15a": REFUTED, "T15b": REFUTED}
    failed = OF_HEADS | {label(4): [2.5] * 3}
    assert set(verdicts(heads.CLAIM, runs_ending_at(failed)).values()) == {INVALID}


def test_every_number_of_heads_has_the_same_parameters():
    plan = planned("heads")
    assert len(plan.groups) == len(heads.HEADS)
    widths = {(m.config["model"]["width"], m.config["model"]["heads"]) for m in plan.members}
    assert widths == {(64, n) for n in heads.HEADS}
    assert all(m.config["model"]["kv_heads"] == m.config["model"]["heads"] for m in plan.members)
    assert all(64 % n == 0 and 512 % n == 0 for n in heads.HEADS)


# Kinds of positions

KINDS = {
    "learned": [1.95, 1.96, 1.97], "sinusoidal": [1.96, 1.969, 1.981],
    "beside, half": [1.955, 1.966, 1.973], "beside, fifth": [1.949, 1.961, 1.97],
}  # fmt: skip


def test_kinds_that_are_alike_reproduce_it_and_each_can_differ():
    claim = position_kinds.CLAIM
    assert verdicts(claim, runs_ending_at(KINDS)) == dict.fromkeys(
        ("T16", "T18a", "T18b"), REPRODUCED
    )
    for arm, id in (("sinusoidal", "T16"), ("beside, half", "T18a"), ("beside, fifth", "T18b")):
        apart = KINDS | {arm: [1.85, 1.86, 1.87]}
        found = verdicts(claim, runs_ending_at(apart))
        assert [i for i, verdict in found.items() if verdict is REFUTED] == [id]
    failed = KINDS | {"learned": [2.45] * 3}
    assert set(verdicts(claim, runs_ending_at(failed)).values()) == {INVALID}


def test_kinds_of_positions_are_one_program_at_shares_of_any_width():
    assert len(planned("position_kinds").groups) == 1
    for width, half, fifth in ((64, 32, 13), (512, 256, 102), (40, 20, 8)):
        arms = position_kinds.arms(width)
        assert arms["beside, half"]["model.position_dims"] == half
        assert arms["beside, fifth"]["model.position_dims"] == fifth
    rules = {s.id: (s.rule.low, s.rule.high) for s in position_kinds.SUBCLAIMS}
    assert rules == {"T16": (-0.03, 0.03), "T18a": (-0.02, 0.02), "T18b": (-0.02, 0.02)}
