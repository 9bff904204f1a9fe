"""The flagship's judgement, on results made by hand: what would reproduce it, refute it, and void it."""

from dataclasses import replace

import numpy as np
import pytest
from fake_runs import REFERENCES, fake_run, runs_ending_at

from attnlab.claims.rules import Verdict
from attnlab.measurements import LossByLength, Probes, ProbesBeyondReach, ShuffledPrefix
from attnlab.results import Results
from experiments import nope
from experiments.nope import subclaims
from experiments.nope.arms import GPU, PARITY_ARMS, QUICK, members

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


def test_results_like_the_prototypes_reproduce_both_and_not_parity():
    judged = judge()
    assert {id: j.verdict for id, j in judged.items()} == {
        "F1": Verdict.REPRODUCED, "F2a": Verdict.NOT_REPRODUCED, "F3": Verdict.REPRODUCED,
    }, "what was not measured is not asked"  # fmt: skip
    bigram = REFERENCES["bigram"]
    assert judged["F1"].values[1] == pytest.approx((bigram - 2.08) / (bigram - 1.95))
    assert judged["F3"].values[2] == pytest.approx((3.28 - 2.41) - (2.09 - 1.955))


def test_decoder_that_hardly_beats_the_bigram_model_does_not_reproduce_f1():
    judged = judge(causal_none=[2.46, 2.47, 2.45])
    assert judged["F1"].verdict is Verdict.NOT_REPRODUCED
    assert judged["F1"].interval.high < subclaims.CLOSURE


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
        ("causal_learned", [2.4, 2.4, 2.4], "learned-beats-bigram", {"F1", "F2a", "F3"}),
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
    judged = {j.subclaim.id: j for j in outcome.judgements}
    first, third = judged["F1"], judged["F3"]
    assert first.verdict is Verdict.REPRODUCED
    assert (third.verdict, third.reason) == (
        Verdict.INVALID,
        "mlm-none seed 0 diverged after step 4",
    )


# What is measured on trained members


@pytest.fixture
def measured(tmp_path):
    """Runs of the decoder without positions and of what it is compared with, and a place for what is measured."""
    arms = (
        "causal-none",
        "causal-none-depth1",
        "causal-rope",
        "causal-alibi",
        "causal-learned",
        "mlm-none",
        "window8-none",
    )
    runs = runs_ending_at(FINALS | {a: [1.9, 1.91, 1.92] for a in arms if a not in FINALS})
    runs = [replace(run, path=tmp_path / run.id) for run in runs]
    for run in runs:
        run.path.mkdir()
    return runs


def write(runs, arm, made):
    for run in runs:
        if run.config["arm"] == arm:
            made.write(run.path)


def verdict_of(id, runs):
    judged = {j.subclaim.id: j for j in nope.CLAIM.judge(Results(runs)).judgements}
    return judged[id]


def test_f5_is_the_cost_of_shuffling_and_one_layer_must_not_feel_it(measured):
    intact, shuffled = np.array([2.0, 2.2]), np.array([2.5, 2.9])
    write(measured, "causal-none", ShuffledPrefix(intact, shuffled))
    write(measured, "causal-none-depth1", ShuffledPrefix(intact, intact + 1e-6))
    found = verdict_of("F5", measured)
    assert found.verdict is Verdict.REPRODUCED
    assert found.values[0] == pytest.approx(0.6)
    write(measured, "causal-none-depth1", ShuffledPrefix(intact, intact + 1e-3))
    found = verdict_of("F5", measured)
    assert found.verdict is Verdict.INVALID
    assert "one-layer-sees-a-set failed" in found.reason


def test_f4_is_the_best_layer_against_half_of_a_blind_guess(measured):
    def probes(trained, fresh):
        return Probes(
            32, {"trained": np.array([[8.0, *trained]]), "random init": np.array([[8.0, *fresh]])}
        )

    write(measured, "causal-none", probes([5.0, 3.0], [6.0, 5.0]))
    write(measured, "mlm-none", probes([8.1, 7.9], [8.1, 8.0]))
    write(measured, "window8-none", ProbesBeyondReach(20, {"trained": np.array([[5.0, 4.6]])}))
    found = verdict_of("F4", measured)
    assert found.verdict is Verdict.REPRODUCED
    assert found.values[2] == pytest.approx(3.0 / 8.0)
    write(measured, "mlm-none", probes([8.1, 7.0], [8.1, 8.0]))
    assert "probe-of-the-encoder-is-blind failed" in verdict_of("F4", measured).reason
    write(measured, "mlm-none", probes([8.1, 7.9], [8.1, 8.0]))
    write(measured, "causal-none", probes([5.0, 3.0], [6.0, 2.9]))
    assert "training-adds-to-the-probe failed" in verdict_of("F4", measured).reason
    write(measured, "causal-none", probes([5.0, 3.0], [6.0, 5.0]))
    write(measured, "window8-none", ProbesBeyondReach(20, {"trained": np.array([[5.0, 4.4]])}))
    assert "probe-beyond-the-reach-is-blind failed" in verdict_of("F4", measured).reason


def test_f8_compares_what_is_lost_at_twice_the_context(measured):
    lengths = np.array([32, 48, 64])
    write(measured, "causal-none", LossByLength(32, lengths, np.array([2.0, 2.0, 2.1])))
    write(measured, "causal-rope", LossByLength(32, lengths, np.array([1.9, 2.3, 2.9])))
    write(measured, "causal-alibi", LossByLength(32, lengths, np.array([1.9, 1.9, 3.1])))
    assert verdict_of("F8a", measured).values[1] == pytest.approx(0.9)
    assert verdict_of("F8b", measured).values[1] == pytest.approx(-0.2)


def test_f6_and_f7_are_differences_of_differences_and_a_slope():
    dose = {f"prefix{p}-{x}": [end] * 3 for p, a, b in ((25, 2.2, 1.9), (50, 2.4, 1.9), (75, 2.6, 1.9))
            for x, end in (("none", a), ("learned", b))}  # fmt: skip
    finals = {"causal-none": [2.0] * 3, "causal-learned": [1.9] * 3} | dose
    finals |= {"causal-none-depth1": [2.4, 2.41, 2.42], "causal-learned-depth1": [2.2] * 3}
    judged = {
        j.subclaim.id: j for j in nope.CLAIM.judge(Results(runs_ending_at(finals))).judgements
    }
    assert judged["F6"].values[0] == pytest.approx((2.4 - 2.2) - (2.0 - 1.9))
    assert judged["F6"].verdict is Verdict.REPRODUCED
    # Gaps .1, .3, .5, .7 at shares 0, .25, .5, .75.
    assert judged["F7"].values[1] == pytest.approx(0.8)


# The arms


def test_arms_differ_in_what_the_claim_is_about_and_in_nothing_else():
    allowed = {"mask", "objective", "positions", "bos", "order", "model.layers"}
    sized = {arm for arm in nope.ARMS if arm.endswith(("-5m", "-15m"))}
    for arm, overrides in nope.ARMS.items():
        assert {"mask", "objective", "positions"} <= set(overrides)
        assert set(overrides) <= allowed or arm in sized
    assert len({tuple(sorted(o.items())) for o in nope.ARMS.values()}) == len(nope.ARMS)
    # What is compared differs in its positions alone.
    compared = [(g.arm, g.reference) for g in nope.CLAIM.gaps]
    compared += [pair for trend in nope.CLAIM.trends for pair in trend.points.values()]
    for pair in compared:
        one, other = ({**nope.ARMS[arm]} for arm in pair)
        assert one.pop("positions") != other.pop("positions")
        assert one == other


@pytest.mark.parametrize("context", [16, 32, 64, 1024])
def test_the_share_of_a_prefix_is_of_the_context_at_hand(context):
    standard = {m["arm"]: m for m in members("standard", context, 2)}
    for percent in (25, 50, 75):
        text = f"prefix_lm({context * percent // 100})"
        assert standard[f"prefix{percent}-none"]["mask"] == text
        assert standard[f"prefix{percent}-none"]["objective"] == text


def test_each_preset_asks_what_it_says():
    def asked(preset):
        arms = {m["arm"] for m in members(preset, 64, None)}
        controls = {c.id: c.arms for c in nope.CLAIM.controls}
        return {
            s.id
            for s in nope.SUBCLAIMS
            if arms.issuperset(s.arms) and all(arms.issuperset(controls[c]) for c in s.controls)
        }

    everything = {s.id for s in nope.SUBCLAIMS}
    assert asked("standard") == everything
    assert asked("quick") == asked("smoke") == {"F1", "F2a", "F3", "F5", "F6"}
    assert {m["arm"] for m in members("gpu", 64, None)} == set(GPU)
    assert set(QUICK) < set(nope.ARMS)


def test_parity_gets_the_seeds_that_a_small_difference_needs():
    standard = list(members("standard", 64, None))
    seeds = {arm: [m["seed.init"] for m in standard if m["arm"] == arm] for arm in nope.ARMS}
    assert all(len(seeds[arm]) == 12 for arm in PARITY_ARMS)
    assert {len(s) for arm, s in seeds.items() if arm not in PARITY_ARMS and s} == {5}
    assert all(m["seed.init"] == m["seed.data"] for m in standard)
    assert {m["seed.init"] for m in members("standard", 64, 2)} == {0, 1}


def test_thresholds_are_those_of_the_ledger():
    # Written down before the first run; a change here changes what was claimed.
    inf = np.inf
    rules = {s.id: (s.rule.low, s.rule.high) for s in nope.SUBCLAIMS}
    assert rules == {
        "F1": (0.5, inf), "F2a": (-0.03, 0.03), "F3": (0.5, inf), "F4": (-inf, 0.5), "F5": (0.2, inf),
        "F6": (0.05, inf), "F7": (0.0, inf), "F8a": (0.0, inf), "F8b": (0.0, inf),
        "N1": (-0.02, 0.02), "N2": (-0.02, 0.02),
    }  # fmt: skip
    s = subclaims
    margins = s.LEARNED_BELOW_BIGRAM, s.MLM_LEARNED_BELOW_UNIGRAM, s.MLM_NONE_ABOVE_UNIGRAM
    assert margins == (0.1, 0.3, 0.05)
    assert (s.SET_MODEL, s.BLIND) == (1e-5, (0.95, 1.05))


def test_every_gap_of_the_claim_is_measured_beside_what_was_published():
    outcome = nope.CLAIM.judge(Results(runs_ending_at(FINALS)))
    ours = {row.gap.label: row.interval.mean for row in outcome.gaps}
    assert ours["full mask, 15 % hidden"] == pytest.approx(3.275 - 2.41)
    assert ours["causal mask"] == pytest.approx((2.08 + 2.08 + 2.09 - 1.94 - 1.95 - 1.955) / 3)
    published = [number for row in outcome.gaps for number in row.gap.published]
    assert all(number.source and number.setting and number.unit == "nats" for number in published)
