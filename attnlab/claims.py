"""A claim is a program with a verdict: what is said, what would show it, and what was found.

Everything that decides the answer (arms, metric, threshold, controls) is written in the claim's module before
a run exists. The answer to each sub-claim is one of four words:

    REPRODUCED      every control holds and the confidence interval lies wholly in the claimed region
    NOT REPRODUCED  every control holds and the interval lies wholly outside it
    INCONCLUSIVE    every control holds and the interval straddles its border
    INVALID         a control failed, or a run that the answer needs diverged or has not ended

The last rule is deliberate. Leaving a diverged seed out would flatter the arm that diverges, and putting a
number in its place would invent data; so this experiment cannot answer, and says which member is why. A sweep
judged half-way is INVALID too: the number of seeds was fixed beforehand, and looking until the interval happens
to lie on the right side is not allowed.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnlab import statistics
from attnlab.results import DIVERGED, Results
from attnlab.rules import Rule, Verdict
from attnlab.statistics import Interval

# Every claim, and the module that holds it; only the command line loads them. Each module has
# `CLAIM: Claim` and `figures(results, outcome) -> {file stem: Figure}`.
EXPERIMENTS: Mapping[str, str] = {
    "nope": "experiments.nope",
}


def experiment_module(name: str) -> str:
    """Dotted name of the module that holds a claim.

    Raises:
      ValueError: no such claim.
    """
    if name in EXPERIMENTS:
        return EXPERIMENTS[name]
    near = difflib.get_close_matches(name, EXPERIMENTS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"allowed: {', '.join(EXPERIMENTS)}"
    raise ValueError(f"claim: got {name!r}; {hint}")


@dataclass(frozen=True)
class Control:
    """What must hold for an answer to mean anything.

    `check(results)` looks at the finished runs and gives (holds, what was measured, in words).
    """

    id: str
    statement: str
    arms: tuple[str, ...]
    check: Callable[[Results], tuple[bool, str]]


@dataclass(frozen=True)
class SubClaim:
    """One testable sentence.

    `measure(results)` gives one number per seed that finished in every arm of `arms`; the mean of these is what
    `rule` is about. `metric` says in words what the number is, `unit` in what ("nats"; "" for a share).
    `controls` are ids of the claim's controls.
    """

    id: str
    title: str
    statement: str
    source: str
    metric: str
    unit: str
    rule: Rule
    arms: tuple[str, ...]
    controls: tuple[str, ...]
    measure: Callable[[Results], Mapping[int, float]]

    @property
    def threshold(self) -> str:
        return f"95 % CI {self.rule} {self.unit}".rstrip()


@dataclass(frozen=True)
class Claim:
    """A sentence about attention with all that decides it.

    `metric` is the number every arm reports, in nats. `arms` maps each arm's label to the flat config overrides
    that define it. `presets` maps each preset of `configs/<name>.py` to one line that says what it is for.

    Raises:
      ValueError: a sub-claim or control that names an arm or a control which the claim does not have.
    """

    name: str
    statement: str
    source: str
    metric: str
    arms: Mapping[str, Mapping[str, Any]]
    subclaims: tuple[SubClaim, ...]
    controls: tuple[Control, ...]
    presets: Mapping[str, str]
    seeds: int = 3

    def __post_init__(self) -> None:
        ids = [control.id for control in self.controls]
        for control in self.controls:
            _all_known(f"{control.id}.arms", control.arms, list(self.arms))
        for subclaim in self.subclaims:
            _all_known(f"{subclaim.id}.arms", subclaim.arms, list(self.arms))
            _all_known(f"{subclaim.id}.controls", subclaim.controls, ids)

    def judge(self, results: Results) -> "Outcome":
        """The verdict on every sub-claim.

        Raises:
          ValueError: an arm without runs, fewer than 2 seeds, or arms that cannot be paired.
        """
        checked = {control.id: _check(control, results) for control in self.controls}
        judgements = [_judge(part, self, results, checked) for part in self.subclaims]
        # A sub-claim without an answer still belongs to the family: leaving it out would favour the others.
        holm = statistics.holm([1.0 if j.p_value is None else j.p_value for j in judgements])
        return Outcome(
            claim=self,
            judgements=tuple(
                j if j.p_value is None else replace(j, p_holm=p)
                for j, p in zip(judgements, holm, strict=True)
            ),
            controls=tuple(checked.values()),
            arms=tuple(_arm_row(self.metric, arm, results) for arm in self.arms),
            references=results.references,
            diverged=results.diverged(),
        )


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
    Holm's correction over the sub-claims of the claim; neither decides. `seeds_needed`: paired seeds that would
    put the interval on this side of the border with 90 % chance, were the true mean the one seen here.
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


@dataclass(frozen=True)
class ArmRow:
    """An arm at the end of training: its metric by finished seed, out of `runs` runs."""

    arm: str
    values: Mapping[int, float]
    interval: Interval | None
    runs: int
    diverged: int


@dataclass(frozen=True)
class Outcome:
    """What a claim's runs say; `attnlab.outcomes` prints and stores it."""

    claim: Claim
    judgements: tuple[Judgement, ...]
    controls: tuple[ControlResult, ...]
    arms: tuple[ArmRow, ...]
    references: Mapping[str, float]
    diverged: tuple[str, ...]


def below_reference(
    metric: str, arm: str, reference: str, *, margin: float
) -> Callable[[Results], tuple[bool, str]]:
    """The check that in every seed an arm ends at least `margin` nats below a number of the corpus."""

    def check(results: Results) -> tuple[bool, str]:
        worst = max(results.final(metric, arm).values())
        level = results.reference(reference)
        return worst <= level - margin, (
            f"worst seed of {arm} at {worst:.3f} nats, allowed up to {level - margin:.3f} "
            f"({reference} {level:.3f}, margin {margin:g})"
        )

    return check


def _check(control: Control, results: Results) -> ControlResult:
    empty = [arm for arm in control.arms if not results.complete((arm,))]
    if empty:
        passed, measured = False, f"no finished run of {', '.join(empty)}"
    else:
        passed, measured = control.check(results)
    return ControlResult(control.id, control.statement, passed, measured)


def _judge(
    subclaim: SubClaim, claim: Claim, results: Results, checked: Mapping[str, ControlResult]
) -> Judgement:
    controls = tuple(checked[name] for name in subclaim.controls)
    arms = [*subclaim.arms]
    for control in claim.controls:
        if control.id in subclaim.controls:
            arms += [arm for arm in control.arms if arm not in arms]
    if len(results.seeds(arms)) < 2:
        raise ValueError(
            f"seeds: a verdict on {subclaim.id} needs at least 2, got {len(results.seeds(arms))}"
        )
    troubles = [f"control {c.id} failed: {c.measured}" for c in controls if not c.passed]
    failed = bool(troubles)
    troubles += results.gaps(arms)
    if failed or len(results.complete(arms)) < 2:
        return Judgement(subclaim, Verdict.INVALID, "; ".join(troubles), controls, {})
    values = dict(subclaim.measure(results))
    values_S = np.array(list(values.values()))
    interval = statistics.mean_interval(values_S)
    if troubles:
        return Judgement(subclaim, Verdict.INVALID, "; ".join(troubles), controls, values, interval)
    verdict = subclaim.rule.decide(interval)
    needed = _seeds_needed(subclaim.rule, values_S)
    return Judgement(
        subclaim=subclaim,
        verdict=verdict,
        reason=_reason(verdict, subclaim.rule, needed),
        controls=controls,
        values=values,
        interval=interval,
        p_value=subclaim.rule.p_value(values_S),
        seeds_needed=needed,
    )


def _seeds_needed(rule: Rule, values_S: np.ndarray) -> int | None:
    mean, sd = float(np.mean(values_S)), float(np.std(values_S, ddof=1))
    distance = abs(mean - rule.border(mean))
    return statistics.seeds_needed(sd, distance) if sd > 0 and distance > 0 else None


def _reason(verdict: Verdict, rule: Rule, needed: int | None) -> str:
    if verdict is Verdict.REPRODUCED:
        return f"the interval lies wholly {rule}"
    if verdict is Verdict.NOT_REPRODUCED:
        return f"no part of the interval lies {rule}"
    straddles = f"part of the interval lies {rule}, part does not"
    if needed is None:
        return straddles
    seeds = f"about {needed}" if needed <= 1000 else "more than 1000"
    return f"{straddles}; if the mean seen here is true, {seeds} seeds would settle it"


def _arm_row(metric: str, arm: str, results: Results) -> ArmRow:
    runs, values = results.runs(arm), results.final(metric, arm)
    interval = statistics.mean_interval(list(values.values())) if len(values) >= 2 else None
    diverged = sum(run.status == DIVERGED for run in runs.values())
    return ArmRow(arm, values, interval, runs=len(runs), diverged=diverged)


def _all_known(field: str, names: tuple[str, ...], allowed: list[str]) -> None:
    for name in names:
        if name not in allowed:
            raise ValueError(f"{field}: got {name!r}; allowed: {', '.join(allowed) or 'none'}")
