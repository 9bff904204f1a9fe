"""The leak experiment: its cells are the law's, and what would reproduce it, refute it, and void it."""

from dataclasses import replace

import numpy as np
import pytest
from fake_runs import runs_ending_at

from attnlab.claims.rules import Verdict
from attnlab.masks import mask_text
from attnlab.measurements.context import Samples, TruncatedContext
from attnlab.objectives import Objective
from attnlab.results import Results
from experiments import leak
from experiments.leak import ARMS, CAUSAL, FULL, label

T = 8


def finals(**changed):
    """Losses as the law predicts them, in nats; a leak of one in eight places stays honest."""
    honest = {0: 0.02, 1: 2.2, 2: 2.7}
    ends = {}
    for arm in leak.QUICK:
        o = ARMS[arm]
        mask, offset = arm.split("-")[0], int(o["objective"][-2])
        leaking = offset > 0 and leak.leaks(mask, offset, o["model.layers"])
        if leaking:
            end = 1.4 if o["positions"] == "none" else 0.3 * offset
        else:
            # One key too many, and two ahead is as one ahead.
            end = honest[max(0, offset - (mask == "plus1"))]
        ends[arm] = [end, end + 0.01, end - 0.01]
    return ends | changed


@pytest.fixture
def runs(tmp_path):
    """Runs that end so, and what is measured on them."""

    def make(cut=3.0, score=2.9, last=2.3, future_of_causal=0.0, **changed):
        made = [replace(run, path=tmp_path / run.id) for run in runs_ending_at(finals(**changed))]
        for run in made:
            arm = run.config["arm"]
            run.path.mkdir(exist_ok=True)
            whole = np.full(T, 2.2)
            truncated = whole + future_of_causal if "causal" in arm else np.full(T, cut)
            TruncatedContext(whole, truncated).write(run.path)
            written = score if arm == FULL else 2.4
            Samples("thee", score=written, filling=3.0, full=2.4, real=1.9).write(run.path)
            run.summary["val/loss_by_position"] = [0.1] * (T - 1) + [last if arm == FULL else 2.2]
        return made

    return make


def judged(runs):
    return {j.subclaim.id: j for j in leak.CLAIM.judge(Results(runs)).judgements}


def test_results_as_the_law_says_reproduce_everything(runs):
    found = judged(runs())
    assert {id: j.verdict for id, j in found.items()} == dict.fromkeys(found, Verdict.REPRODUCED)
    assert len(found) == len(leak.SUBCLAIMS)
    assert found["T1a"].values[1] == pytest.approx(0.31 - 2.21)
    assert found["T1b"].values[0] == pytest.approx(3.0 - 2.2)
    assert found["T1c"].values[2] == pytest.approx(2.3 - 2.2)
    assert found["T1g"].values[0] == pytest.approx(2.9 - 2.4)
    assert found["T2"].values[0] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("changed", "refuted"),
    [
        ({"cut": 2.3, "score": 2.3, label("causal", 2): [2.3, 2.31, 2.29]}, {"T1b", "T1g", "T2"}),
        ({"last": 3.2, label("full", 1, "none"): [0.3] * 3}, {"T1c", "T1d"}),
        ({FULL: [2.2, 2.21, 2.19]}, {"T1a", "T1d", "T1f"}),
        ({label("plus1", 2): [2.2, 2.21, 2.19]}, {"T1e", "T1f"}),
        ({label("strict", 1, depth=1): [0.3] * 3}, {"T1f"}),
    ],
)  # fmt: skip
def test_what_refutes_a_part_refutes_no_other(runs, changed, refuted):
    found = judged(runs(**changed))
    verdicts = {id for id, j in found.items() if j.verdict is Verdict.NOT_REPRODUCED}
    assert verdicts == refuted
    assert all(j.verdict is Verdict.REPRODUCED for id, j in found.items() if id not in refuted)


def test_a_causal_arm_that_reads_the_future_voids_what_rests_on_it(runs):
    found = judged(runs(future_of_causal=0.01))
    void = {id for id, j in found.items() if j.verdict is Verdict.INVALID}
    assert void == {"T1b", "T2"}
    assert "two-ahead-reads-no-future failed" in found["T2"].reason


def test_an_arm_that_cannot_even_copy_voids_the_leaks(runs):
    found = judged(runs(**{label("causal", 0): [0.5] * 3}))
    void = {id for id, j in found.items() if j.verdict is Verdict.INVALID}
    assert void == {"T1a", "T1d", "T1e", "T1f"}


def test_cells_are_what_the_law_is_about():
    """Reach of the stacked masks, against the arithmetic that the sub-claims use."""
    for mask, text in leak.MASKS.items():
        allowed = np.asarray(mask_text.parse(text, T).as_array())[0, 0] | np.eye(T, dtype=bool)
        for depth in leak.DEPTHS:
            reads = np.linalg.matrix_power(allowed.astype(int), depth) > 0
            for offset in (1, 2):
                assert bool(np.diagonal(reads, offset).any()) == leak.leaks(mask, offset, depth)
    for arm, overrides in ARMS.items():
        mask, offset, positions, depth = arm.split("-")
        assert overrides["mask"] == leak.MASKS[mask]
        assert int(Objective.parse(overrides["objective"]).offset) == int(offset[1])
        assert overrides["positions"] == positions
        assert overrides["model.layers"] == int(depth.removeprefix("depth"))


def test_quick_asks_everything_and_thresholds_are_those_of_the_ledger():
    assert {arm for s in leak.SUBCLAIMS for arm in s.arms} <= set(leak.QUICK)
    assert {arm for c in leak.CONTROLS for arm in c.arms} <= set(leak.QUICK)
    rules = {s.id: (s.rule.low, s.rule.high) for s in leak.SUBCLAIMS}
    inf = np.inf
    assert rules == {
        "T1a": (-inf, -0.5), "T1b": (0.3, inf), "T1c": (-0.3, 0.3), "T1d": (0.3, inf),
        "T1e": (0.5, inf), "T1f": (0.0, inf), "T1g": (0.0, inf), "T2": (0.3, inf),
    }  # fmt: skip
    assert (CAUSAL, FULL) == ("causal-s1-learned-depth2", "full-s1-learned-depth2")
