"""From runs to verdicts: controls first, then each sub-claim, with every number the answer rests on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from attnlab import statistics
from attnlab.claims.rules import Rule, Verdict, conjunction
from attnlab.results import DIVERGED, Results
from attnlab.statistics import Interval, Null

if TYPE_CHECKING:
    from attnlab.claims.claim import Claim, Control, Gap, SubClaim, Trend

# The chance, of settling a sub-claim, that the statements about power are made for.
POWER = 0.8
# A 95 % interval beyond a border is a one-sided test at this level; Holm's correction keeps it for the family.
FAMILY_LEVEL = 0.025


@dataclass(frozen=True)
class ControlResult:
    """A control, whether it held, and what was measured."""

    id: str
    statement: str
    passed: bool
    measured: str


@dataclass(frozen=True)
class Judgement:
    """A sub-claim's verdict and everything it rests on.

    `values` are the measured numbers by seed. They are left out, with the interval, when a control failed: such
    numbers mean nothing. `p_value` is of the t test that belongs to the rule and `p_holm` the same after
    Holm's correction over the sub-claims of the claim; neither decides the verdict. `seeds_needed`: paired
    seeds that would put the interval on this side of the border with 80 % chance, were the true mean the one
    seen here. `detectable`: how far from the border the true mean must be to be told from it with 80 % chance by
    as many seeds as there are, in the metric's unit.
    """

    subclaim: SubClaim
    verdict: Verdict
    reason: str
    controls: tuple[ControlResult, ...]
    values: Mapping[int, float]
    interval: Interval | None = None
    p_value: float | None = None
    p_holm: float | None = None
    seeds_needed: int | None = None
    detectable: float | None = None

    @property
    def survives_holm(self) -> bool | None:
        """Whether the sub-claim still holds when the family is tested at 2.5 % as a whole; None without a test."""
        return None if self.p_holm is None else self.p_holm < FAMILY_LEVEL


@dataclass(frozen=True)
class ArmRow:
    """An arm at the end of training: its metric by finished seed, out of `runs` runs."""

    arm: str
    values: Mapping[int, float]
    interval: Interval | None
    runs: int
    diverged: int


@dataclass(frozen=True)
class GapRow:
    """A gap of the claim: the paired difference by seed; `interval` is None below two seeds that finished."""

    gap: Gap
    values: Mapping[int, float]
    interval: Interval | None


@dataclass(frozen=True)
class TrendRow:
    """A trend of the claim: the paired differences by seed at each value of the knob, ascending."""

    trend: Trend
    points: Mapping[float, Mapping[int, float]]


@dataclass(frozen=True)
class Outcome:
    """What a claim's runs say; `attnlab.claims.outcomes` prints and stores it.

    `not_asked`: sub-claims whose arms the sweep was planned without. `nulls` compares each arm that finished in
    two seeds with itself.
    """

    claim: Claim
    judgements: tuple[Judgement, ...]
    not_asked: tuple[SubClaim, ...]
    controls: tuple[ControlResult, ...]
    arms: tuple[ArmRow, ...]
    gaps: tuple[GapRow, ...]
    trends: tuple[TrendRow, ...]
    nulls: Mapping[str, Null]
    references: Mapping[str, float]
    diverged: tuple[str, ...]

    @property
    def verdict(self) -> Verdict:
        """The verdict on the claim's sentence: on all of the sub-claims that it rests on, asked or not."""
        parts = {judgement.subclaim.id: judgement.verdict for judgement in self.judgements}
        return conjunction(parts.get(name, Verdict.INVALID) for name in self.claim.headline)


def judge(claim: Claim, results: Results) -> Outcome:
    """The verdict on every sub-claim that the sweep asks about.

    A preset may leave arms out. A sub-claim or control of which it has none or not all is not asked, which is another
    thing than a run that is missing: every member of a sweep is listed before the first one trains. Nor is one asked
    whose number was measured on no run at all.

    Raises:
      ValueError: arms of no sub-claim at all, fewer than 2 seeds, or arms that cannot be paired.
    """
    there = frozenset(results.arms)
    possible = [part for part in claim.subclaims if there.issuperset(_arms_needed(part, claim))]
    checked = {c.id: _check(c, results) for c in claim.controls if there.issuperset(c.arms)}
    asked = [part for part in possible if _is_asked(part, results, checked)]
    if not asked:
        raise ValueError(
            f"arms: no sub-claim of {claim.name} can be asked of a sweep with {', '.join(results.arms)}; "
            f"the claim needs arms among {', '.join(claim.arms)}"
        )
    judgements = [_judge(part, claim, results, checked) for part in asked]
    # A sub-claim without an answer still belongs to the family: leaving it out would favour the others.
    holm = statistics.holm([1.0 if j.p_value is None else j.p_value for j in judgements])
    arms = arm_rows(claim.metric, [arm for arm in claim.arms if arm in there], results)
    gaps = [gap for gap in claim.gaps if there.issuperset((gap.arm, gap.reference))]
    return Outcome(
        claim=claim,
        judgements=tuple(
            j if j.p_value is None else replace(j, p_holm=p)
            for j, p in zip(judgements, holm, strict=True)
        ),
        not_asked=tuple(part for part in claim.subclaims if part not in asked),
        controls=tuple(checked.values()),
        arms=arms,
        gaps=tuple(_gap_row(claim.metric, gap, results) for gap in gaps),
        trends=tuple(_trend_row(claim.metric, trend, results) for trend in claim.trends),
        nulls=nulls(arms),
        references=results.references,
        diverged=results.diverged(),
    )


def _is_asked(subclaim: SubClaim, results: Results, checked: Mapping[str, ControlResult]) -> bool:
    """Whether there is, or may yet be, a number to judge."""
    if not results.complete(subclaim.arms, may_diverge=subclaim.may_diverge):
        return True
    try:
        return bool(subclaim.measure(results))
    except ValueError:
        # Behind a failed control a number need not exist: the share of a distance that is not positive.
        if all(checked[name].passed for name in subclaim.controls):
            raise
        return True


def _arms_needed(subclaim: SubClaim, claim: Claim) -> dict[str, None]:
    """The arms of a sub-claim, then those of its controls, each once."""
    own = dict.fromkeys(subclaim.arms)
    for control in claim.controls:
        if control.id in subclaim.controls:
            own |= dict.fromkeys(control.arms)
    return own


def _may_diverge(subclaim: SubClaim, claim: Claim) -> set[str]:
    """The arms whose diverged runs a sub-claim and its controls know what to make of; all others must finish."""
    chosen = [control for control in claim.controls if control.id in subclaim.controls]
    parts: list[SubClaim | Control] = [subclaim, *chosen]
    return {
        arm
        for arm in _arms_needed(subclaim, claim)
        if all(arm in part.may_diverge for part in parts if arm in part.arms)
    }


def arm_rows(metric: str, arms: Iterable[str], results: Results) -> tuple[ArmRow, ...]:
    """Each arm at the end of training, in the given order.

    Raises:
      ValueError: unknown arm or metric.
    """
    return tuple(_arm_row(metric, arm, results) for arm in arms)


def nulls(arms: Iterable[ArmRow]) -> dict[str, Null]:
    """The A/A comparison of every arm that finished in at least two seeds."""
    return {
        row.arm: statistics.aa_null(list(row.values.values()))
        for row in arms
        if len(row.values) >= 2
    }


def _check(control: Control, results: Results) -> ControlResult:
    allowed = control.may_diverge
    empty = [arm for arm in control.arms if not results.complete((arm,), may_diverge=allowed)]
    if empty:
        passed, measured = False, f"no finished run of {', '.join(empty)}"
    else:
        passed, measured = control.check(results)
    return ControlResult(control.id, control.statement, passed, measured)


def _judge(
    subclaim: SubClaim, claim: Claim, results: Results, checked: Mapping[str, ControlResult]
) -> Judgement:
    controls = tuple(checked[name] for name in subclaim.controls)
    arms = list(_arms_needed(subclaim, claim))
    if len(results.seeds(arms)) < 2:
        raise ValueError(
            f"seeds: a verdict on {subclaim.id} needs at least 2, got {len(results.seeds(arms))}"
        )
    troubles = [f"control {c.id} failed: {c.measured}" for c in controls if not c.passed]
    failed = bool(troubles)
    may_diverge = _may_diverge(subclaim, claim)
    troubles += results.gaps(arms, may_diverge=may_diverge)
    seeds = results.complete(arms, may_diverge=may_diverge)
    if failed or len(seeds) < 2:
        return Judgement(subclaim, Verdict.INVALID, "; ".join(troubles), controls, {})
    values = dict(subclaim.measure(results))
    missing = [str(seed) for seed in seeds if seed not in values]
    if missing:
        troubles.append(f"not measured on seed {', '.join(missing)}")
    if len(values) < 2:
        return Judgement(subclaim, Verdict.INVALID, "; ".join(troubles), controls, values)
    values_S = np.array(list(values.values()))
    interval = statistics.mean_interval(values_S)
    if troubles:
        return Judgement(subclaim, Verdict.INVALID, "; ".join(troubles), controls, values, interval)
    verdict = subclaim.rule.decide(interval)
    needed = _seeds_needed(subclaim.rule, values_S)
    sd = float(np.std(values_S, ddof=1))
    return Judgement(
        subclaim=subclaim,
        verdict=verdict,
        reason=_reason(verdict, subclaim.rule, needed) + _counted(subclaim, results),
        controls=controls,
        values=values,
        interval=interval,
        p_value=subclaim.rule.p_value(values_S),
        seeds_needed=needed,
        detectable=(
            statistics.smallest_difference(len(values_S), sd, chance=POWER) if sd > 0 else None
        ),
    )


def _seeds_needed(rule: Rule, values_S: np.ndarray) -> int | None:
    mean, sd = float(np.mean(values_S)), float(np.std(values_S, ddof=1))
    distance = abs(mean - rule.border(mean))
    if not (sd > 0 and distance > 0):
        return None
    return statistics.seeds_needed(sd, distance, chance=POWER)


def _reason(verdict: Verdict, rule: Rule, needed: int | None) -> str:
    if verdict is Verdict.REPRODUCED:
        return f"the interval lies wholly {rule}"
    if verdict is Verdict.NOT_REPRODUCED:
        return f"no part of the interval lies {rule}"
    straddles = f"part of the interval lies {rule}, part does not"
    if needed is None:
        return straddles
    seeds = f"about {needed}" if needed <= 1000 else "more than 1000"
    return f"{straddles}; if the mean seen here is true, {seeds} seeds would settle it with {100 * POWER:g} % chance"


def _counted(subclaim: SubClaim, results: Results) -> str:
    """Which diverged runs are part of the number, and as what."""
    diverged = results.diverged(subclaim.may_diverge)
    if not diverged:
        return ""
    runs = "1 diverged run counts" if len(diverged) == 1 else f"{len(diverged)} diverged runs count"
    return f"; {runs} as {subclaim.diverged_as}"


def _arm_row(metric: str, arm: str, results: Results) -> ArmRow:
    runs, values = results.runs(arm), results.final(metric, arm)
    interval = statistics.mean_interval(list(values.values())) if len(values) >= 2 else None
    diverged = sum(run.status == DIVERGED for run in runs.values())
    return ArmRow(arm, values, interval, runs=len(runs), diverged=diverged)


def _gap_row(metric: str, gap: Gap, results: Results) -> GapRow:
    values = _paired_difference(metric, gap.arm, gap.reference, results)
    interval = statistics.mean_interval(list(values.values())) if len(values) >= 2 else None
    return GapRow(gap, values, interval)


def _trend_row(metric: str, trend: Trend, results: Results) -> TrendRow:
    points = {
        at: _paired_difference(metric, *pair, results)
        for at, pair in sorted(trend.points.items())
        if set(pair) <= set(results.arms)
    }
    return TrendRow(trend, points)


def _paired_difference(metric: str, arm: str, reference: str, results: Results) -> dict[int, float]:
    seeds, loss = results.paired(metric, (arm, reference))
    gap_S = loss[arm] - loss[reference]
    return {seed: float(value) for seed, value in zip(seeds, gap_S, strict=True)}
