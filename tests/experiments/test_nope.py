"""The flagship's judgement, on results made by hand: what would reproduce it, refute it, and void it."""

import numpy as np
import pytest
from fake_runs import REFERENCES, fake_run, runs_ending_at

from attnlab.results import Results
from attnlab.rules import Verdict
from experiments import nope

# Near what a 4-layer, width-64 prototype gave on tiny Shakespeare, with less scatter in the encoder.
FINALS = {
    "causal-learned": [1.94, 1.95, 1.955],
    "causal-none": [2.08, 2.08, 2.09],
    "causal-rope": [1.85, 1.86, 1.855],
    "mlm-learned": [2.40, 2.42, 2.41],
    "mlm-none": [3.27, 3.275, 3.28],
}


def judge(**finals: list[float]):
    """Verdict by sub-claim, with some arms' final losses replaced."""
    changed = FINALS | {arm.replace("_", "-"): losses for arm, losses in finals.items()}
    return {j.subclaim.id: j for j in nope.CLAIM.judge(Results(runs_ending_at(changed))).judgements}


def test_results_like_the_prototypes_reproduce_both():
    judged = judge()
    assert [j.verdict for j in judged.values()] == [Verdict.REPRODUCED, Verdict.REPRODUCED]
    bigram = REFERENCES["bigram"]
    assert judged["F1"].values[1] == pytest.approx((bigram - 2.08) / (bigram - 1.95))
    assert judged["F3"].values[2] == pytest.approx((3.28 - 2.41) - (2.09 - 1.955))


def test_decoder_that_hardly_beats_the_bigram_model_does_not_reproduce_f1():
    judged = judge(causal_none=[2.46, 2.47, 2.45])
    assert judged["F1"].verdict is Verdict.NOT_REPRODUCED
    assert judged["F1"].interval.high < nope.CLOSURE


def test_encoder_that_manages_without_positions_refutes_f3_and_is_no_failed_control():
    judged = judge(mlm_none=[2.42, 2.43, 2.44])
    assert judged["F3"].verdict is Verdict.NOT_REPRODUCED
    assert judged["F1"].verdict is Verdict.REPRODUCED


def test_scattered_encoder_seeds_are_inconclusive():
    judged = judge(mlm_learned=[2.35, 2.49, 2.60])
    assert judged["F3"].verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("arm", "losses", "control", "invalid"),
    [
        ("causal_learned", [2.4, 2.4, 2.4], "learned-beats-bigram", {"F1", "F3"}),
        ("mlm_learned", [3.1, 3.1, 3.0], "mlm-learned-learns", {"F3"}),
        ("mlm_none", [3.3, 3.3, 3.5], "mlm-none-knows-frequencies", {"F3"}),
    ],
)
def test_each_control_voids_exactly_what_rests_on_it(arm, losses, control, invalid):
    judged = judge(**{arm: losses})
    assert {i for i, j in judged.items() if j.verdict is Verdict.INVALID} == invalid
    assert all(f"control {control} failed" in judged[i].reason for i in invalid)


def test_diverged_encoder_voids_f3_alone_and_is_named():
    runs = [r for r in runs_ending_at(FINALS) if r.id != "mlm-none-s0"]
    runs.append(fake_run("mlm-none", 0, [4.2, 9.0], status="diverged"))
    outcome = nope.CLAIM.judge(Results(runs))
    first, third = outcome.judgements
    assert first.verdict is Verdict.REPRODUCED
    assert (third.verdict, third.reason) == (
        Verdict.INVALID,
        "mlm-none seed 0 diverged after step 4",
    )


def test_arms_differ_in_what_the_claim_is_about_and_in_nothing_else():
    assert {frozenset(overrides) for overrides in nope.ARMS.values()} == {
        frozenset({"mask", "objective", "positions"})
    }
    assert len({tuple(sorted(o.items())) for o in nope.ARMS.values()}) == len(nope.ARMS)
    for mask in ("causal", "full"):
        objectives = {o["objective"] for o in nope.ARMS.values() if o["mask"] == mask}
        assert len(objectives) == 1, "within a mask only the positions may differ"


def test_thresholds_are_those_of_the_ledger():
    # Written down before the first run; a change here changes what was claimed.
    rules = {s.id: (s.rule.low, s.rule.high) for s in nope.SUBCLAIMS}
    assert rules == {"F1": (0.5, np.inf), "F3": (0.5, np.inf)}
    margins = nope.LEARNED_BELOW_BIGRAM, nope.MLM_LEARNED_BELOW_UNIGRAM, nope.MLM_NONE_ABOVE_UNIGRAM
    assert margins == (0.1, 0.3, 0.05)
    assert nope.SEEDS == nope.CLAIM.seeds == 3


def test_every_gap_of_the_claim_is_measured_beside_what_was_published():
    outcome = nope.CLAIM.judge(Results(runs_ending_at(FINALS)))
    ours = {row.gap.label: row.interval.mean for row in outcome.gaps}
    assert ours["full mask"] == pytest.approx(3.275 - 2.41)
    assert ours["causal mask"] == pytest.approx((2.08 + 2.08 + 2.09 - 1.94 - 1.95 - 1.955) / 3)
    published = [number for row in outcome.gaps for number in row.gap.published]
    assert all(number.source and number.setting and number.unit == "nats" for number in published)
