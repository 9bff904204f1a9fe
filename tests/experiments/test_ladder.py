"""The ladder: one gate a rung, and an order that can be found, broken and tied to Page's test."""

import numpy as np
import pytest
from fake_runs import REFERENCES, runs_ending_at
from scipy import stats

from attnlab.claims.rules import Verdict
from attnlab.results import Results
from experiments import ladder
from experiments.ladder import ARMS, CLIMB, RUNGS
from experiments.measures import order

BIGRAM = REFERENCES["bigram"]
FINALS = {
    "bigram": [BIGRAM - 0.01, BIGRAM - 0.005, BIGRAM],
    "positions": [BIGRAM - 0.01, BIGRAM, BIGRAM + 0.002],
    "average": [2.9, 2.91, 2.92],
    "one head": [2.4, 2.41, 2.42],
    "heads": [2.3, 2.31, 2.32],
    "mlp": [2.25, 2.26, 2.27],
    "residual": [2.1, 2.11, 2.12],
    "norm": [2.05, 2.06, 2.07],
}


def judge(**changed):
    finals = FINALS | {name.replace("_", " "): ends for name, ends in changed.items()}
    outcome = ladder.CLAIM.judge(Results(runs_ending_at(finals)))
    return {j.subclaim.id: j for j in outcome.judgements}


def test_a_ladder_that_goes_down_is_reproduced():
    judged = judge()
    assert {id: j.verdict for id, j in judged.items()} == dict.fromkeys(
        ("T3a", "T3b", "T3c", "T3d"), Verdict.REPRODUCED
    )
    assert judged["T3b"].values[1] == pytest.approx(-0.5)
    assert judged["T3c"].values == {0: 1.0, 1: 1.0, 2: 1.0}
    assert judged["T3d"].values[0] == pytest.approx(-0.05)


@pytest.mark.parametrize(
    ("changed", "verdicts"),
    [
        ({"positions": [2.3, 2.31, 2.3]}, {"T3a": Verdict.NOT_REPRODUCED}),
        ({"one_head": [2.9, 2.91, 2.92]}, {"T3b": Verdict.NOT_REPRODUCED}),
        ({"norm": [2.15, 2.16, 2.17]}, {"T3d": Verdict.NOT_REPRODUCED}),
        (
            {"average": [2.0] * 3, "one_head": [2.1] * 3, "norm": [2.9] * 3},
            {"T3b": Verdict.NOT_REPRODUCED, "T3c": Verdict.NOT_REPRODUCED, "T3d": Verdict.NOT_REPRODUCED},
        ),
    ],
)  # fmt: skip
def test_each_part_can_be_refuted(changed, verdicts):
    judged = judge(**changed)
    assert {id: j.verdict for id, j in judged.items()} == {
        id: verdicts.get(id, Verdict.REPRODUCED) for id in judged
    }


def test_a_bigram_rung_that_is_no_bigram_model_voids_everything():
    judged = judge(bigram=[2.6, 2.6, 2.6])
    assert {j.verdict for j in judged.values()} == {Verdict.INVALID}
    assert "bigram-is-bigram failed" in judged["T3a"].reason


def test_order_is_what_pages_trend_test_tests():
    """Page's L is the sum over seeds of rung number times rank; the mean of the measure is linear in it."""
    rng = np.random.default_rng(3)
    ends_SR = rng.normal(size=(4, 6)) - 0.3 * np.arange(6)
    runs = runs_ending_at({arm: list(ends_SR[:, i]) for i, arm in enumerate(CLIMB)})
    ours = order(CLIMB)(Results(runs))
    page = stats.page_trend_test(-ends_SR)
    k, seeds = 6, len(ends_SR)
    middle, most = seeds * k * (k + 1) ** 2 / 4, seeds * k * (k + 1) * (2 * k + 1) / 6
    scaled = (page.statistic - middle) / (most - middle)
    assert np.mean(list(ours.values())) == pytest.approx(scaled)


def test_a_rung_changes_one_thing_of_the_one_before():
    for (before, label), change in zip(
        zip(RUNGS, list(RUNGS)[1:], strict=False), list(RUNGS.values())[1:], strict=True
    ):
        differs = {key for key in ARMS[label] if ARMS[label][key] != ARMS[before].get(key)}
        assert differs == set(change)
    # Turning attention on takes its residual path away, and its scores are all 0: the next rung gives it scores.
    assert RUNGS["average"]["model.logit_scale"] == "uniform"
    assert {**ARMS["norm"], "model.layers": 4} == ARMS["norm, 4 layers"]


def test_thresholds_are_those_of_the_ledger():
    rules = {s.id: (s.rule.low, s.rule.high) for s in ladder.SUBCLAIMS}
    inf = np.inf
    assert rules == {
        "T3a": (-0.02, 0.02), "T3b": (-inf, -0.02), "T3c": (0.0, inf), "T3d": (-inf, 0.02), "T3e": (-inf, 0.02),
    }  # fmt: skip
