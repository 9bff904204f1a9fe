"""From runs to verdicts: controls first, no seed left out in silence, every number on the record."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from fake_runs import fake_run, runs_ending_at

from attnlab import claims
from attnlab.claims import Claim, Control, Gap, Published, SubClaim, Trend, below_reference
from attnlab.claims.judging import Judgement
from attnlab.claims.rules import Verdict, above, below, equivalent
from attnlab.results import Results
from attnlab.statistics import power

CHECKOUT = Path(__file__).resolve().parents[1]


def gap(results: Results) -> dict[int, float]:
    seeds, loss = results.paired("val/loss", ("treated", "plain"))
    return dict(zip(seeds, (loss["treated"] - loss["plain"]).tolist(), strict=True))


def make_claim(*rules, controls=("plain-learns",), measure=gap) -> Claim:
    return Claim(
        name="toy",
        statement="Treatment costs more than half a nat.",
        source="this test",
        metric="val/loss",
        arms={"treated": {"x": 1}, "plain": {"x": 0}, "other": {"x": 2}},
        subclaims=tuple(
            SubClaim(
                id=f"S{i}",
                title="it costs",
                statement="Treatment costs more.",
                source="this test",
                metric="treated - plain",
                unit="nats",
                rule=rule,
                arms=("treated", "plain"),
                controls=controls,
                measure=measure,
            )
            for i, rule in enumerate(rules)
        ),
        controls=(
            Control(
                id="plain-learns",
                statement="plain beats the bigram model",
                arms=("plain",),
                check=below_reference("val/loss", "plain", "bigram", margin=0.1),
            ),
            Control(
                id="other-learns",
                statement="other beats the unigram model",
                arms=("other",),
                check=below_reference("val/loss", "other", "unigram", margin=0.0),
            ),
        ),
        presets={},
    )


FINALS = {"treated": [2.6, 2.65, 2.7], "plain": [1.9, 2.0, 1.95], "other": [2.0, 2.0, 2.1]}


def judge_one(rule, runs, **kwargs):
    (judgement,) = make_claim(rule, **kwargs).judge(Results(runs)).judgements
    return judgement


@pytest.mark.parametrize(
    ("rule", "verdict"),
    [
        (above(0.5), Verdict.REPRODUCED),
        (above(1.0), Verdict.NOT_REPRODUCED),
        (above(0.7), Verdict.INCONCLUSIVE),
        (below(1.0), Verdict.REPRODUCED),
        (equivalent(0.03), Verdict.NOT_REPRODUCED),
    ],
)
def test_verdict_follows_the_interval_of_paired_differences(rule, verdict):
    judgement = judge_one(rule, runs_ending_at(FINALS))
    assert judgement.verdict is verdict
    assert judgement.values == pytest.approx({0: 0.7, 1: 0.65, 2: 0.75})
    # t(0.975, 2 df) * 0.05 / sqrt(3) around 0.7
    assert judgement.interval.low == pytest.approx(0.7 - 4.302653 * 0.05 / math.sqrt(3), abs=1e-6)


def test_inconclusive_says_how_many_seeds_would_settle_it():
    judgement = judge_one(above(0.68), runs_ending_at(FINALS))
    assert judgement.seeds_needed == 52  # sd 0.05 at a distance of 0.02: (2.80 * 2.5)^2 + 2
    assert "about 52 seeds would settle it with 80 % chance" in judgement.reason


def test_mean_on_the_border_asks_for_no_absurd_number_of_seeds():
    assert "more than 1000 seeds" in judge_one(above(0.7001), runs_ending_at(FINALS)).reason


def test_failed_control_makes_its_subclaim_invalid_and_is_named_with_its_number():
    runs = runs_ending_at(FINALS | {"plain": [1.9, 2.45, 1.95]})
    judgement = judge_one(below(9.0), runs)
    assert judgement.verdict is Verdict.INVALID
    assert judgement.reason.startswith("control plain-learns failed: worst seed of plain at 2.450")
    assert "up to 2.387 (bigram 2.487, margin 0.1)" in judgement.reason
    assert judgement.interval is None
    assert judgement.values == {}


def test_number_that_does_not_exist_is_an_error_only_where_its_controls_held():
    def measure(results):
        raise ValueError("a share of nothing")

    runs = runs_ending_at(FINALS | {"plain": [1.9, 2.45, 1.95]})
    judgement = judge_one(above(0.5), runs, measure=measure)
    assert judgement.verdict is Verdict.INVALID
    assert "control plain-learns failed" in judgement.reason
    with pytest.raises(ValueError, match="a share of nothing"):
        judge_one(above(0.5), runs_ending_at(FINALS), measure=measure)


def test_control_of_another_subclaim_does_not_matter():
    runs = runs_ending_at(FINALS | {"other": [9.0, 9.0, 9.0]})
    assert judge_one(above(0.5), runs).verdict is Verdict.REPRODUCED
    both = judge_one(above(0.5), runs, controls=("plain-learns", "other-learns"))
    assert both.verdict is Verdict.INVALID
    assert "other-learns" in both.reason


@pytest.mark.parametrize("status", ["diverged", "interrupted"])
@pytest.mark.parametrize("arm", ["treated", "plain"])
def test_needed_run_that_did_not_finish_makes_the_verdict_invalid(arm, status):
    runs = [r for r in runs_ending_at(FINALS) if r.id != f"{arm}-s1"]
    judgement = judge_one(above(0.5), [*runs, fake_run(arm, 1, [4.2, 3.0], status=status)])
    assert judgement.verdict is Verdict.INVALID
    assert f"{arm} seed 1" in judgement.reason
    assert status in judgement.reason
    assert set(judgement.values) == {0, 2}, "the seeds that did finish stay on the record"
    assert judgement.interval.n == 2
    assert judgement.p_value is None


def test_a_run_that_never_started_makes_the_verdict_invalid():
    runs = [r for r in runs_ending_at(FINALS) if r.id != "plain-s2"]
    runs.append(fake_run("plain", 2, [], status="waiting"))
    judgement = judge_one(above(0.5), runs)
    assert judgement.verdict is Verdict.INVALID
    assert judgement.reason == "plain seed 2 is waiting before its first row"


def test_what_was_not_measured_makes_the_verdict_invalid():
    claim = make_claim(above(0.5), measure=lambda results: {0: 0.7})
    (judgement, *_) = claim.judge(Results(runs_ending_at(FINALS))).judgements
    assert judgement.verdict is Verdict.INVALID
    assert judgement.reason == "not measured on seed 1, 2"
    assert judgement.values == {0: 0.7}


def test_diverged_run_of_an_arm_that_is_not_needed_is_reported_and_changes_nothing():
    runs = [r for r in runs_ending_at(FINALS) if r.id != "other-s0"]
    runs.append(fake_run("other", 0, [4.2, 3.0], status="diverged"))
    outcome = make_claim(above(0.5)).judge(Results(runs))
    assert outcome.judgements[0].verdict is Verdict.REPRODUCED
    assert outcome.diverged == ("other seed 0 diverged after step 4",)
    (row,) = [row for row in outcome.arms if row.arm == "other"]
    assert (row.runs, row.diverged, set(row.values)) == (3, 1, {1, 2})


def test_diverged_run_of_an_arm_that_only_a_control_needs_makes_the_verdict_invalid():
    runs = [r for r in runs_ending_at(FINALS) if r.id != "other-s0"]
    runs.append(fake_run("other", 0, [4.2, 3.0], status="diverged"))
    judgement = judge_one(above(0.5), runs, controls=("plain-learns", "other-learns"))
    assert judgement.verdict is Verdict.INVALID
    assert judgement.reason == "other seed 0 diverged after step 4"


def highest_rate(results: Results) -> dict[int, float]:
    """A measure in the manner of learning-rate sensitivity."""
    plain, treated = (results.capped("val/loss", arm) for arm in ("plain", "treated"))
    return {seed: treated[seed] - plain[seed] for seed in treated if seed in plain}


def counting(*runs, fate: str = "diverged", control: bool = False, **kwargs) -> Judgement:
    """A sub-claim that counts diverged runs as the loss before training, on runs of which treated s1 did not finish."""
    claim = make_claim(above(0.5), measure=highest_rate, **kwargs)
    (part,) = claim.subclaims
    controls = tuple(replace(c, counts_diverged=control) for c in claim.controls)
    part = replace(part, diverged_as="the loss before training")
    finished = [
        fake_run(arm, seed, [4.0, end], initial=4.2)
        for arm, ends in FINALS.items()
        for seed, end in enumerate(ends)
        if (arm, seed)
        not in {("treated", 1), *((r.config["arm"], r.config["seed"]["init"]) for r in runs)}
    ]
    failed = fake_run("treated", 1, [4.0, 9.0], status=fate, initial=4.2)
    results = Results([*finished, failed, *runs])
    claim = replace(claim, subclaims=(part,), controls=controls)
    return claim.judge(results).judgements[0]


def test_subclaim_that_says_what_a_diverged_run_counts_as_is_answered_and_says_so():
    judged = counting()
    assert judged.values == pytest.approx({0: 0.7, 1: 4.2 - 2.0, 2: 0.75})
    assert judged.verdict is Verdict.INCONCLUSIVE
    assert judged.reason.endswith("; 1 diverged run counts as the loss before training")


def test_run_that_has_not_ended_is_no_result_even_where_diverged_ones_are():
    judged = counting(fate="interrupted")
    assert judged.verdict is Verdict.INVALID
    assert judged.reason == "treated seed 1 is interrupted after step 4"
    assert set(judged.values) == {0, 2}


def test_diverged_run_of_a_control_counts_only_where_the_control_says_so():
    diverged = fake_run("plain", 0, [4.0, 3.0], status="diverged", initial=4.2)
    judged = counting(diverged)
    assert (judged.verdict, judged.reason) == (
        Verdict.INVALID,
        "plain seed 0 diverged after step 4",
    )
    judged = counting(diverged, control=True)
    assert judged.verdict is not Verdict.INVALID
    assert judged.values[0] == pytest.approx(2.6 - 4.2)
    assert "2 diverged runs count as" in judged.reason


def test_no_finished_run_at_all_is_invalid_rather_than_an_error():
    runs = [replace(run, status="diverged") for run in runs_ending_at(FINALS)]
    judgement = judge_one(above(0.5), runs)
    assert judgement.verdict is Verdict.INVALID
    assert "no finished run of plain" in judgement.reason


def test_one_seed_is_refused():
    with pytest.raises(ValueError, match="seeds: a verdict on S0 needs at least 2, got 1"):
        judge_one(above(0.5), runs_ending_at({arm: v[:1] for arm, v in FINALS.items()}))


def without(arm: str) -> list:
    return [r for r in runs_ending_at(FINALS) if not r.id.startswith(arm)]


def test_arms_that_no_subclaim_needs_may_be_left_out_of_a_sweep():
    outcome = make_claim(above(0.5)).judge(Results(without("other")))
    assert outcome.verdict is Verdict.REPRODUCED
    assert [row.arm for row in outcome.arms] == ["treated", "plain"]
    assert [control.id for control in outcome.controls] == ["plain-learns"]


def test_subclaim_whose_arms_the_sweep_lacks_is_not_asked_and_said_so():
    claim = make_claim(above(0.5), above(0.5))
    last = replace(claim.subclaims[1], controls=("other-learns",))
    outcome = replace(claim, subclaims=(claim.subclaims[0], last)).judge(Results(without("other")))
    assert [j.subclaim.id for j in outcome.judgements] == ["S0"]
    assert outcome.not_asked == (last,)
    assert outcome.judgements[0].p_holm == outcome.judgements[0].p_value, "a family of one"
    assert outcome.verdict is Verdict.INVALID, "the statement rests on both"


def test_sweep_about_something_else_is_refused():
    with pytest.raises(
        ValueError, match=r"no sub-claim of toy can be asked of a sweep with x; .*treated"
    ):
        make_claim(above(0.5)).judge(Results(runs_ending_at({"x": [1.0, 2.0]})))


def test_statement_rests_on_the_subclaims_named_beforehand():
    claim = make_claim(above(0.5), above(1.0))
    results = Results(runs_ending_at(FINALS))
    assert claim.judge(results).verdict is Verdict.NOT_REPRODUCED
    assert replace(claim, rests_on=("S0",)).judge(results).verdict is Verdict.REPRODUCED


def test_holm_decides_at_the_level_of_the_interval():
    # One sub-claim alone holds; nineteen hopeless ones beside it take the correction beyond 2.5 %.
    results = Results(runs_ending_at(FINALS))
    alone = make_claim(above(0.5)).judge(results).judgements[0]
    family = make_claim(above(0.5), *[above(9.0)] * 19).judge(results).judgements[0]
    assert alone.verdict is family.verdict is Verdict.REPRODUCED
    assert (alone.survives_holm, family.survives_holm) == (True, False)


def test_gaps_and_trends_are_paired_by_seed():
    gap = Gap("cost", "treated", "plain", (Published(0.005, "nats", "1B", "a paper"),))
    trend = Trend("cost by x", "x", {2: ("other", "plain"), 1: ("treated", "plain")})
    claim = replace(make_claim(above(0.5)), gaps=(gap,), trends=(trend,))
    outcome = claim.judge(Results(runs_ending_at(FINALS)))
    assert outcome.gaps[0].values == pytest.approx({0: 0.7, 1: 0.65, 2: 0.75})
    assert outcome.gaps[0].interval.mean == pytest.approx(0.7)
    assert list(outcome.trends[0].points) == [1, 2], "in order of the knob"
    assert outcome.trends[0].points[2] == pytest.approx({0: 0.1, 1: 0.0, 2: 0.15})


def test_every_arm_is_compared_with_itself():
    outcome = make_claim(above(0.5)).judge(Results(runs_ending_at(FINALS)))
    assert set(outcome.nulls) == {"treated", "plain", "other"}
    assert outcome.nulls["plain"].largest == pytest.approx(0.1)


def test_power_is_stated_for_the_distance_to_the_border():
    judgement = judge_one(above(0.5), runs_ending_at(FINALS))
    # sd 0.05: 3 seeds see what lies `detectable` away, and 0.2 away needs as many seeds as power says.
    assert power(3, 0.05, judgement.detectable) == pytest.approx(0.8, abs=1e-6)
    assert power(judgement.seeds_needed, 0.05, 0.2) >= 0.8


def test_holm_counts_every_subclaim_even_an_invalid_one():
    # Three sub-claims, the last one INVALID: the smallest p is still multiplied by three.
    claim = make_claim(above(0.5), above(0.6), above(0.5))
    last = replace(claim.subclaims[2], controls=("other-learns",))
    claim = replace(claim, subclaims=(*claim.subclaims[:2], last))
    first, second, third = claim.judge(
        Results(runs_ending_at(FINALS | {"other": [9.0, 9.0, 9.0]}))
    ).judgements
    assert first.p_holm == pytest.approx(3 * first.p_value)
    assert second.p_holm == pytest.approx(max(2 * second.p_value, first.p_holm))
    assert third.p_value is third.p_holm is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arms": ("treated", "typo")}, r"S0\.arms: got 'typo'; allowed: treated, plain, other"),
        ({"controls": ("typo",)}, r"S0\.controls: got 'typo'; allowed: plain-learns, other-learns"),
    ],
)
def test_claim_that_names_what_it_does_not_have_is_refused(change, message):
    claim = make_claim(above(0.5))
    with pytest.raises(ValueError, match=message):
        replace(claim, subclaims=(replace(claim.subclaims[0], **change),))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rests_on": ("S9",)}, "rests_on: got 'S9'; allowed: S0"),
        ({"gaps": (Gap("g", "treated", "typo"),)}, r"gaps\['g'\]: got 'typo'"),
        ({"trends": (Trend("t", "x", {1: ("typo", "plain")}),)}, r"trends\['t'\]: got 'typo'"),
    ],
)
def test_claim_that_rests_on_or_draws_what_it_does_not_have_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(make_claim(above(0.5)), **change)


def test_every_listed_experiment_exists_and_a_typo_is_answered():
    for module in claims.EXPERIMENTS.values():
        path = CHECKOUT.joinpath(*module.split("."))
        assert path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()
    assert claims.experiment_module("nope") == "experiments.nope"
    with pytest.raises(ValueError, match="claim: got 'nop'; did you mean 'nope'"):
        claims.experiment_module("nop")
    with pytest.raises(ValueError, match="allowed: nope"):
        claims.experiment_module("zzz")
