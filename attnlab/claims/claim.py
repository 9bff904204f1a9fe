"""A claim is a program with a verdict: what is said, what would show it, and what was found.

Everything that decides the answer (arms, metric, threshold, controls) is written in the claim's module before
a run exists. The answer to each sub-claim is one of four words:

    REPRODUCED      every control holds and the confidence interval lies wholly in the claimed region
    NOT REPRODUCED  every control holds and the interval lies wholly outside it
    INCONCLUSIVE    every control holds and the interval straddles its border
    INVALID         a control failed, or a run that the answer needs diverged or has not ended

The last rule is deliberate. Leaving a diverged seed out would flatter the arm that diverges, and putting a
number in its place would invent data; so this experiment cannot answer, and says which member is why. The one
exception is a sub-claim about divergence itself, whose metric says beforehand what a diverged run counts as
(`SubClaim.diverged_as`). A sweep judged half-way is INVALID too: the number of seeds was fixed beforehand, and looking until the interval happens
to lie on the right side is not allowed.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from attnlab.claims import judging
from attnlab.claims.judging import Outcome
from attnlab.claims.rules import Rule
from attnlab.results import Results

# Every claim, and the module that holds it; only the command line loads them. Each module has `CLAIM: Claim`.
EXPERIMENTS: Mapping[str, str] = {
    "nope": "experiments.nope",
    "leak": "experiments.leak",
    "skipping": "experiments.skipping",
    "rnn": "experiments.rnn",
    "qk_norm": "experiments.qk_norm",
    "scaling": "experiments.scaling",
    "norm_placement": "experiments.norm_placement",
    "norm_kind": "experiments.norm_kind",
    "ladder": "experiments.ladder",
    "families": "experiments.families",
    "residual": "experiments.residual",
    "heads": "experiments.heads",
    "position_kinds": "experiments.position_kinds",
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

    `check(results)` looks at the finished runs and gives (holds, what was measured, in words). `counts_diverged`: it
    knows what to make of diverged runs; otherwise every run of `arms` must finish.
    """

    id: str
    statement: str
    arms: tuple[str, ...]
    check: Callable[[Results], tuple[bool, str]]
    counts_diverged: bool = False

    @property
    def may_diverge(self) -> tuple[str, ...]:
        """The arms of which a diverged run is a result."""
        return self.arms if self.counts_diverged else ()


@dataclass(frozen=True)
class Published:
    """A number somebody published, printed beside ours: what it is, at which size and budget, and where it stands.

    `note` says what to keep in mind when comparing, for example that it rests on one seed.
    """

    value: float
    unit: str
    setting: str
    source: str
    note: str = ""


@dataclass(frozen=True)
class SubClaim:
    """One testable sentence.

    `measure(results)` gives one number per seed that finished in every arm of `arms`; the mean of these is what
    `rule` is about. `metric` says in words what the number is, `unit` in what ("nats"; "" for a share).
    `controls` are ids of the claim's controls. `published` are numbers for the same metric. `diverged_as`: what the
    metric makes of a diverged run of `arms`, in words ("the loss before training"); empty where such a run leaves the
    sub-claim without an answer.
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
    published: tuple[Published, ...] = ()
    diverged_as: str = ""

    @property
    def may_diverge(self) -> tuple[str, ...]:
        """The arms of which a diverged run is a result."""
        return self.arms if self.diverged_as else ()

    @property
    def threshold(self) -> str:
        return f"95 % CI {self.rule} {self.unit}".rstrip()


@dataclass(frozen=True)
class Gap:
    """How far `arm` ends behind `reference`, paired by seed, in the claim's metric: reported, not judged.

    `published` are numbers for the same difference.
    """

    label: str
    arm: str
    reference: str
    published: tuple[Published, ...] = ()


@dataclass(frozen=True)
class Trend:
    """How a gap depends on one knob: at each value of it, (arm, arm it is compared with). Reported, not judged.

    `knob` says in words what varies ("layers", "context, tokens", "share of the prefix").
    """

    title: str
    knob: str
    points: Mapping[float, tuple[str, str]]


@dataclass(frozen=True)
class Measurement:
    """What is measured on the trained members of some arms: a kind that `attnlab.measuring` knows.

    `presets`: in which; in all of them when empty.
    """

    kind: str
    arms: tuple[str, ...]
    presets: tuple[str, ...] = ()


@dataclass(frozen=True)
class ClaimFigure:
    """A figure that only this claim needs; the report shows it behind the verdicts.

    `draw(results)` gives a matplotlib figure in the style of `attnlab.plots`, and raises `plots.NothingToDrawError` where
    the sweep has no such runs. It imports what it draws with itself: listing claims must not take seconds. `stem` names
    the files, `alt` says in words what is drawn.
    """

    stem: str
    caption: str
    alt: str
    draw: Callable[[Results], Any]


@dataclass(frozen=True)
class Claim:
    """A sentence about attention with all that decides it.

    `metric` is the number every arm reports, in nats. `arms` maps each arm's label to the flat config overrides
    that define it. `presets` maps each preset of `configs/<name>.py` to one line that says what it is for.
    `rests_on`: ids of the sub-claims that together are the statement; all of them when empty.

    Raises:
      ValueError: an arm, a control or a sub-claim is named that the claim does not have.
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
    rests_on: tuple[str, ...] = ()
    gaps: tuple[Gap, ...] = ()
    trends: tuple[Trend, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    figures: tuple[ClaimFigure, ...] = ()

    def __post_init__(self) -> None:
        ids = [control.id for control in self.controls]
        for control in self.controls:
            _all_known(f"{control.id}.arms", control.arms, self.arms)
        for subclaim in self.subclaims:
            _all_known(f"{subclaim.id}.arms", subclaim.arms, self.arms)
            _all_known(f"{subclaim.id}.controls", subclaim.controls, ids)
        _all_known("rests_on", self.rests_on, [subclaim.id for subclaim in self.subclaims])
        for gap in self.gaps:
            _all_known(f"gaps[{gap.label!r}]", (gap.arm, gap.reference), self.arms)
        for measurement in self.measurements:
            _all_known(f"measurements[{measurement.kind!r}]", measurement.arms, self.arms)
            _all_known(f"measurements[{measurement.kind!r}]", measurement.presets, self.presets)
        for trend in self.trends:
            for pair in trend.points.values():
                _all_known(f"trends[{trend.title!r}]", pair, self.arms)

    def measured_in(self, preset: str | None) -> tuple[Measurement, ...]:
        """What is measured in a preset; everything where it is None."""
        return tuple(
            m for m in self.measurements if preset is None or not m.presets or preset in m.presets
        )

    @property
    def headline(self) -> tuple[str, ...]:
        """Ids of the sub-claims whose conjunction is the statement."""
        return self.rests_on or tuple(subclaim.id for subclaim in self.subclaims)

    def judge(self, results: Results) -> Outcome:
        """The verdict on every sub-claim.

        Raises:
          ValueError: an arm without runs, fewer than 2 seeds, or arms that cannot be paired.
        """
        return judging.judge(self, results)


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


def _all_known(field: str, names: Iterable[str], allowed: Iterable[str]) -> None:
    for name in names:
        if name not in allowed:
            raise ValueError(f"{field}: got {name!r}; allowed: {', '.join(allowed) or 'none'}")
