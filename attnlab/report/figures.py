"""Which figures a report has: drawn, saved beside the page, and described in words for those who cannot see them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from matplotlib.figure import Figure

from attnlab import plots
from attnlab.measurements import LossByLength, Measured, Probes, ShuffledPrefix
from attnlab.measurements.context import Reach, TruncatedContext
from attnlab.plots import NothingToDrawError, context_plots, measurement_plots
from attnlab.report.source import Facts, varying
from attnlab.results import Results, Run

LINES = 7  # of one panel: as many as there are colours
PANELS = 2  # of one figure: what a page is wide
HEAT_MAPS = 12

T = TypeVar("T")


@dataclass(frozen=True)
class Drawn:
    """A figure on disk, or the reason why there is none. `section` is the id of the section that it belongs to."""

    section: str
    stem: str
    caption: str
    alt: str
    png: Path | None = None
    svg: Path | None = None
    failure: str | None = None


@dataclass(frozen=True)
class _Wanted:
    section: str
    stem: str
    caption: str
    alt: str
    draw: Callable[[], Figure]


def draw(facts: Facts, directory: Path) -> list[Drawn]:
    """Draws every figure for which there are data, and saves it as PNG and SVG."""
    drawn = []
    directory.mkdir(parents=True, exist_ok=True)
    for wanted in _wanted(facts):
        told = (wanted.section, wanted.stem, wanted.caption, wanted.alt)
        try:
            png, svg = plots.save(wanted.draw(), directory / f"{wanted.stem}.png")
        except NothingToDrawError:
            continue
        except ValueError as error:
            drawn.append(Drawn(*told, failure=str(error)))
        else:
            drawn.append(Drawn(*told, png=png, svg=svg))
    return drawn


def panels(facts: Facts) -> dict[str, list[str]]:
    """Title -> arms whose losses share a scale, at most seven each: one objective, and where that is too many one
    mask, depth, and so on. The position families stay together, because they are what is compared."""
    results = facts.results
    configs = {arm: results.config(arm) for arm in results.arms}
    keys = [key for key in varying(list(configs.values())) if key not in _NOT_PANELS]
    keys.sort(key=lambda key: (key != "objective", key != "mask"))
    groups: dict[tuple[str, ...], list[str]] = {(): list(results.arms)}
    for key in keys:
        values = [repr(config.get(key)) for config in configs.values()]
        usual = max(dict.fromkeys(values), key=values.count)
        split: dict[tuple[str, ...], list[str]] = {}
        for names, arms in groups.items():
            for arm in arms:
                apart = key == "objective" or len(arms) > LINES
                split.setdefault(
                    (*names, *_named(key, configs[arm].get(key), usual)) if apart else names, []
                ).append(arm)
        groups = split
    return {
        ", ".join(names) + (f" ({start // LINES + 1})" if len(arms) > LINES else ""): arms[
            start : start + LINES
        ]
        for names, arms in groups.items()
        for start in range(0, len(arms), LINES)
    }


_NOT_PANELS = ("arm", "positions", "seed.init", "seed.data")


def _named(key: str, value: object, usual: str) -> tuple[str, ...]:
    """What a title says of a knob: nothing where it is as in most arms, save for objective and mask."""
    if key == "objective":
        return (str(value),)
    if key == "mask":
        return (f"{value} mask",)
    return () if repr(value) == usual else (f"{key.split('.')[-1]} {value}",)


def _wanted(facts: Facts) -> Iterator[_Wanted]:
    results, outcome = facts.results, facts.outcome
    if outcome is not None:
        yield _Wanted(
            "forest",
            "verdicts",
            "Each sub-claim on its own scale: seeds, 95 % interval of the mean, and the claimed region.",
            "Forest plot. " + " ".join(_judged(facts)),
            partial(plots.forest, outcome.judgements),
        )
    for own in facts.source.claim.figures if facts.source.claim else ():
        yield _Wanted("own", own.stem, own.caption, own.alt, partial(own.draw, results))
    everything = panels(facts)
    references = {n: x for n, x in results.references.items() if n in ("unigram", "bigram")}
    for stem, some in _numbered("loss_by_tokens", everything):
        yield _Wanted(
            "loss",
            stem,
            "Validation loss by tokens seen. Dashed grey lines: n-gram models of the same text. A cross marks "
            "where a run diverged.",
            f"Lines of {facts.metric} by tokens seen. {_ends(facts, some)}",
            partial(plots.loss_by_tokens, results, some, facts.metric, references),
        )
    if outcome is not None:
        pairs = {row.gap.label: (row.gap.arm, row.gap.reference) for row in outcome.gaps}
        for stem, few in _numbered("gap_by_tokens", pairs, size=LINES):
            yield _Wanted(
                "gap",
                stem,
                "How far one arm is behind another by tokens seen, paired by seed.",
                "Lines of paired differences by tokens seen. " + " ".join(_gaps(facts)),
                partial(plots.gap_by_tokens, results, few, facts.metric),
            )
        # One point is no trend: a preset may ask for one value of the knob only.
        trends = [row for row in outcome.trends if sum(map(bool, row.points.values())) > 1]
        for index, row in enumerate(trends, 1):
            yield _Wanted(
                "gap",
                f"trend_{index}",
                f"{row.trend.title}, paired by seed.",
                f"{row.trend.title}: mean difference at each value of {row.trend.knob}: "
                + ", ".join(
                    f"{at:g}: {sum(v.values()) / len(v):.3f}" for at, v in row.points.items() if v
                ),
                partial(measurement_plots.trend, row),
            )
    yield from _measured(facts, everything)
    if facts.source.masks:
        yield _Wanted(
            "masks",
            "masks",
            "Who may read whom: row = query, column = key, filled = may read.",
            "Masks of the arms: " + ", ".join(facts.source.masks),
            partial(plots.mask_gallery, facts.source.masks),
        )


# What lies in files of the runs: its kind, section, stem of the files, caption, what is shown, and who draws it.
MEASURED: tuple[tuple[type[Measured], str, str, str, str, Callable[..., Figure]], ...] = (
    (
        Probes, "probe", "probe_error",
        "How far a probe of frozen hidden states is from the true position, by layer.",
        "Lines of probe error by layer",
        measurement_plots.probe_error,
    ),
    (
        ShuffledPrefix, "shuffled", "shuffled_prefix",
        "Loss of one target after its prefix as it stood and after the same prefix shuffled. Box: quartiles and "
        "median; whiskers: 5 to 95 % of the sequences; diamond: mean.",
        "Boxes of loss with intact and shuffled prefix",
        measurement_plots.shuffled_prefix,
    ),
    (
        LossByLength, "length", "loss_by_length",
        "Loss of the same last targets with contexts of several lengths.",
        "Lines of loss by length of the context",
        measurement_plots.loss_by_length,
    ),
    (
        TruncatedContext, "future", "truncated",
        "Loss at each position, and the same with the context cut off behind it: what differs was read of the "
        "future.",
        "Lines of loss by position with and without the future",
        context_plots.truncated_context,
    ),
    (
        Reach, "reach", "reach",
        "How much the last prediction depends on the tokens before it, by distance: the mean norm of its gradient, as "
        "a share of all.",
        "Lines of influence by distance",
        context_plots.reach,
    ),
)  # fmt: skip


def _measured(facts: Facts, everything: Mapping[str, Sequence[str]]) -> Iterator[_Wanted]:
    """What was measured on trained members; most sweeps have some of it."""
    results = facts.results
    for stem, some in _numbered("loss_by_position", everything):
        yield _Wanted(
            "position",
            stem,
            "Validation loss at each target position at the end of training.",
            f"Lines of loss by target position for the arms {', '.join(arm for arms in some.values() for arm in arms)}.",
            partial(measurement_plots.loss_by_position, results, some),
        )
    for kind, section, stem, caption, shown, draw in MEASURED:
        for name, few in _chunks(stem, _arms_with(kind.read, results), LINES):
            alt = f"{shown} for the arms {', '.join(few)}."
            yield _Wanted(section, name, caption, alt, partial(draw, results, few))
    for stem, few in _chunks("attention_entropy", results.arms, HEAT_MAPS):
        yield _Wanted(
            "entropy",
            stem,
            "Entropy of each head's attention over the log of its visible keys, mean over seeds: 1 is spread evenly, "
            "0 is on one token.",
            f"Heat maps of attention entropy, layer by head, for the arms {', '.join(few)}.",
            partial(measurement_plots.attention_entropy, results, few),
        )


def _arms_with(read: Callable[[Run], object | None], results: Results) -> list[str]:
    """The arms that were measured; a file that cannot be read counts, so that its figure says so."""
    found = []
    for arm in results.arms:
        try:
            measured = bool(results.measured(read, arm))
        except ValueError:
            measured = True
        if measured:
            found.append(arm)
    return found


def _chunks(stem: str, arms: Sequence[str], size: int) -> Iterator[tuple[str, list[str]]]:
    for name, few in _numbered(stem, dict.fromkeys(arms), size):
        yield name, list(few)


def _numbered(
    stem: str, items: Mapping[str, T], size: int = PANELS
) -> Iterator[tuple[str, dict[str, T]]]:
    names = list(items)
    for start in range(0, len(names), size):
        number = f"_{start // size + 1}" if start else ""
        yield f"{stem}{number}", {name: items[name] for name in names[start : start + size]}


def _judged(facts: Facts) -> list[str]:
    assert facts.outcome is not None
    lines = []
    for judged in facts.outcome.judgements:
        number = (
            f" at {judged.interval.mean:.3f}, interval {judged.interval.low:.3f} to {judged.interval.high:.3f}"
            if judged.interval
            else ""
        )
        lines.append(
            f"{judged.subclaim.id} {judged.verdict}{number}, claimed {judged.subclaim.rule}."
        )
    return lines


def _ends(facts: Facts, some: Mapping[str, Sequence[str]]) -> str:
    shown = {arm for arms in some.values() for arm in arms}
    ends = [
        f"{row.arm} {sum(row.values.values()) / len(row.values):.3f}"
        for row in facts.arms
        if row.arm in shown and row.values
    ]
    return f"Means at the end: {', '.join(ends)}." if ends else "No run has ended."


def _gaps(facts: Facts) -> list[str]:
    assert facts.outcome is not None
    return [
        f"{row.gap.label} ends at {row.interval.mean:.3f} nats."
        for row in facts.outcome.gaps
        if row.interval
    ]
