"""The sections of the page, each from the facts alone; a section without data is left out."""

import json
import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnlab import judging, outcomes
from attnlab.claims import Published
from attnlab.judging import FAMILY_LEVEL, Judgement
from attnlab.report.figures import Drawn
from attnlab.report.markup import Markup, badge, element, figure, join, table, text
from attnlab.report.source import Facts, varying
from attnlab.results import FINISHED, fate
from attnlab.statistics import Interval, Null

REASONS = 3  # of a verdict that are spelled out; the rest stands in the list of runs


@dataclass(frozen=True)
class Section:
    """A heading with what is under it; `id` is where links lead."""

    id: str
    title: str
    content: Markup

    def html(self) -> Markup:
        heading = element("h2", self.title)
        return element("section", heading, self.content, id=self.id, aria_label=self.title)


def header(facts: Facts) -> Markup:
    """The claim in one sentence, the verdict in colour and words, and how the sweep stands."""
    source, claim, outcome = facts.source, facts.source.claim, facts.outcome
    kicker = f"attnlab report of the sweep {source.name}"
    if claim is None:
        return join(
            [
                element("p", kicker, class_="kicker"),
                element("h1", source.name),
                element("p", "A sweep without a claim: its numbers are shown, nothing is judged."),
                _standing(facts),
            ]
        )
    parts = [element("p", kicker, class_="kicker"), element("h1", claim.statement)]
    if outcome is not None:
        rests = " and ".join(claim.headline)
        parts.append(
            element(
                "div",
                badge(outcome.verdict),
                element("span", f"The statement rests on {rests}.", class_="muted"),
                class_="answer",
            )
        )
    if facts.not_judged is not None:
        parts.append(note("Not judged", facts.not_judged))
    if facts.results.unfinished():
        parts.append(
            note(
                "Not finished",
                "Some runs have not ended. A verdict before the end would be a look until the answer pleases, so "
                "every part that needs them is INVALID for now.",
            )
        )
    parts += [element("p", "Source of the claim: ", claim.source, class_="muted"), _standing(facts)]
    return join(parts)


def note(title: str, words: object) -> Markup:
    """Something a reader must not miss."""
    return element("div", element("strong", f"{title}. "), words, class_="note", role="note")


def _standing(facts: Facts) -> Markup:
    statuses: dict[str, int] = {}
    for run in facts.source.runs:
        statuses[run.status] = statuses.get(run.status, 0) + 1
    listed = ", ".join(f"{count} {status}" for status, count in statuses.items())
    sentence = f"{len(facts.source.runs)} runs in {len(facts.results.arms)} arms: {listed}."
    return element("p", sentence, class_="muted")


def sections(facts: Facts, drawn: Sequence[Drawn]) -> Iterator[Section]:
    """Every section that has data, in the order of the page."""
    built: list[tuple[str, str, Callable[[], object]]] = [
        ("verdicts", "Verdicts", lambda: _verdicts(facts)),
        ("forest", "The sub-claims at a glance", lambda: _figures(drawn, "forest")),
        ("ended", "Runs that did not finish", lambda: _unfinished(facts)),
        ("loss", "Loss by tokens", lambda: _figures(drawn, "loss")),
        ("gap", "Gaps between arms", lambda: _figures(drawn, "gap")),
        ("position", "Loss by position", lambda: _figures(drawn, "position")),
        ("probe", "Position probe by layer", lambda: _figures(drawn, "probe")),
        ("shuffled", "Shuffled against intact prefix", lambda: _figures(drawn, "shuffled")),
        ("length", "Loss by context length", lambda: _figures(drawn, "length")),
        ("entropy", "Attention entropy", lambda: _figures(drawn, "entropy")),
        ("masks", "Masks", lambda: _figures(drawn, "masks")),
        ("arms", "Arms at the end of training", lambda: _arms(facts)),
        ("config", "What differs between arms", lambda: _config(facts)),
        ("published", "Published numbers beside ours", lambda: _published(facts)),
        ("null", "Each arm against itself", lambda: _nulls(facts)),
        ("environment", "How it was made", lambda: _environment(facts)),
    ]
    for name, title, build in built:
        content = build()
        if content:
            yield Section(name, title, text(content))


def _figures(drawn: Sequence[Drawn], section: str) -> Markup:
    shown: list[Markup] = []
    for item in drawn:
        if item.section != section:
            continue
        if item.png is None or item.svg is None:
            shown.append(note("No figure yet", f"{item.stem}: {item.failure}"))
        else:
            link = f"figures/{item.png.name}"
            shown.append(figure(item.png, item.svg, alt=item.alt, caption=item.caption, link=link))
    return join(shown)


def _verdicts(facts: Facts) -> Markup:
    outcome = facts.outcome
    if outcome is None:
        return Markup("")
    columns = ("sub-claim", "verdict", "measured", "95 % CI", "claimed", "after Holm", "seeds")
    rows = [_verdict_row(judgement) for judgement in outcome.judgements]
    caption = (
        f"The verdict follows from the interval alone. After Holm: whether the claimed region still holds when the "
        f"{len(rows)} sub-claims are tested together at {100 * FAMILY_LEVEL:g} % (one-sided, the level of a 95 % interval)."
    )
    shown = table(
        columns,
        rows,
        caption=caption,
        stacked=True,
        words=("verdict", "claimed", "after Holm", "seeds"),
    )
    details = [_explained(judgement) for judgement in outcome.judgements]
    if outcome.not_asked:
        ids = ", ".join(f"{part.id} ({part.title})" for part in outcome.not_asked)
        details.append(note("Not asked", f"This sweep has no arms for {ids}."))
    return join([shown, *details])


def _verdict_row(judgement: Judgement) -> tuple[object, ...]:
    subclaim, interval = judgement.subclaim, judgement.interval
    return (
        f"{subclaim.id}, {subclaim.title}",
        badge(judgement.verdict),
        _with_unit(f"{interval.mean:.3f}", subclaim.unit) if interval else "no number",
        _between(interval),
        _with_unit(str(subclaim.rule), subclaim.unit),
        _holm(judgement),
        f"{interval.n}" if interval else "0",
    )


def _holm(judgement: Judgement) -> str:
    if judgement.p_holm is None:
        return "not tested"
    return f"{'holds' if judgement.survives_holm else 'does not hold'} (p {judgement.p_holm:.2g})"


def _explained(judgement: Judgement) -> Markup:
    """What a sub-claim says, why its verdict is what it is, and what its seeds could have seen."""
    subclaim, interval = judgement.subclaim, judgement.interval
    told: list[tuple[str, str | None]] = [
        ("claim", subclaim.statement),
        ("why", _reason(judgement.reason)),
        ("metric", _with_unit(subclaim.metric + ("," if subclaim.unit else ""), subclaim.unit)),
    ]
    if interval is not None:
        values = ", ".join(f"seed {seed} {x:.3f}" for seed, x in judgement.values.items())
        told.append(("values", f"{values}; interval by {interval.method}"))
        if subclaim.unit == "nats":
            told.append(("effect", f"as a ratio of perplexities {math.exp(interval.mean):.2f}"))
    told.append(("power", outcomes.power_statement(judgement)))
    for control in judgement.controls:
        held = "held" if control.passed else "FAILED"
        told.append(("control", f"{control.id} {held}: {control.statement}; {control.measured}"))
    told.append(("source", subclaim.source))
    heading = element("h3", f"{subclaim.id}, {subclaim.title} ", badge(judgement.verdict))
    return join([heading, _described(told)])


def _described(pairs: Iterable[tuple[str, object]]) -> Markup:
    """A list of terms and what they are; pairs without a value are left out."""
    shown = [join([element("dt", name), element("dd", value)]) for name, value in pairs if value]
    return element("dl", *shown)


def _reason(reason: str) -> str:
    parts = reason.split("; ")
    if len(parts) <= REASONS:
        return reason
    return f"{'; '.join(parts[:REASONS])}; and {len(parts) - REASONS} more, listed below"


def _unfinished(facts: Facts) -> Markup:
    rows = [
        (
            arm,
            str(seed),
            run.status,
            fate(run),
            _last(run.history.get("train/loss")),
            _last(run.history.get(facts.metric)),
        )
        for arm in facts.results.arms
        for seed, run in facts.results.runs(arm).items()
        if run.status != FINISHED
    ]
    if not rows:
        return Markup("")
    columns = ("arm", "seed", "status", "what became of it", "last train/loss", facts.metric)
    return table(
        columns,
        rows,
        caption="None of these is part of a mean or an interval, and none is left out of the count.",
        words=("status", "what became of it"),
    )


def _last(values: Any) -> str:
    finite = [float(x) for x in (() if values is None else values) if not math.isnan(float(x))]
    return f"{finite[-1]:.4f}" if finite else "none"


def _arms(facts: Facts) -> Markup:
    if not facts.arms:
        return Markup("")
    shown = table(
        outcomes.ARM_COLUMNS,
        outcomes.arm_rows(facts.arms),
        caption=f"{facts.metric} at the end, over the seeds that finished.",
    )
    references = ", ".join(f"{n} {x:.4f}" for n, x in facts.results.references.items())
    more = element("p", f"References of the corpus, nats: {references}.") if references else ""
    return join([shown, more])


def _config(facts: Facts) -> Markup:
    results = facts.results
    configs = {arm: results.config(arm) for arm in results.arms}
    keys = varying(list(configs.values()), ignore=("arm", "seed.init", "seed.data"))
    rows = [(arm, *(_value(config.get(key)) for key in keys)) for arm, config in configs.items()]
    shown: list[object] = []
    if keys:
        shown.append(
            table(
                ("arm", *keys),
                rows,
                caption="Everything that is not the same in all arms, seeds aside.",
                words=keys,
            )
        )
    first = next(iter(configs.values()))
    common = [(key, _value(value)) for key, value in first.items() if key not in (*keys, *_PER_RUN)]
    if common:
        listed = table(
            ("knob", "value"), common, caption="The same in every arm.", words=("value",)
        )
        shown.append(element("details", element("summary", "All other knobs"), listed))
    return join(shown)


_PER_RUN = ("arm", "seed.init", "seed.data")


def _published(facts: Facts) -> Markup:
    outcome = facts.outcome
    if outcome is None:
        return Markup("")
    rows: list[tuple[object, ...]] = []
    for judged in outcome.judgements:
        what = f"{judged.subclaim.id}: {judged.subclaim.metric}"
        if judged.subclaim.published:
            rows += _beside(what, judged.subclaim.published, judged.interval, judged.subclaim.unit)
    for row in outcome.gaps:
        what = f"{row.gap.label}: {row.gap.arm} - {row.gap.reference}"
        rows += _beside(what, row.gap.published, row.interval, "nats")
    if not rows:
        return Markup("")
    return table(
        ("what", "published", "at", "by", "ours (95 % CI)"),
        rows,
        caption=f"Ours: {_setting(facts)}. Other sizes, other text: compare the sign and the order of magnitude.",
        words=("at", "by"),
    )


def _beside(
    what: str, published: Iterable[Published], interval: Interval | None, unit: str
) -> list[tuple[object, ...]]:
    ours = "no number"
    if interval is not None:
        ours = _with_unit(f"{interval.mean:.4f} ({_between(interval, digits=4)})", unit)
    found: list[tuple[object, ...]] = []
    for number in published:
        by = f"{number.source} ({number.note})" if number.note else number.source
        theirs = _with_unit(f"{number.value:.4g}", number.unit)
        found.append((what, theirs, number.setting, by, ours))
    return found or [(what, "none known", "", "", ours)]


def _setting(facts: Facts) -> str:
    """Size and budget of the sweep in words, as far as its configurations say."""
    configs = [facts.results.config(arm) for arm in facts.results.arms]
    words = []
    for key, name in (
        ("corpus", "corpus"),
        ("context", "context"),
        ("model.layers", "layers"),
        ("model.width", "width"),
        ("steps", "updates"),
        ("batch_size", "windows per update"),
    ):
        values = dict.fromkeys(str(config[key]) for config in configs if key in config)
        if values:
            words.append(f"{name} {' / '.join(values)}")
    return ", ".join(words) or "see the configuration"


def _nulls(facts: Facts) -> Markup:
    nulls: Mapping[str, Null] = judging.nulls(facts.arms)
    if not nulls:
        return Markup("")
    rows = [
        (
            arm,
            f"{null.noise.n}",
            f"{null.noise.sd:.4f}",
            f"{null.noise.low:.4f} to {null.noise.high:.4f}",
            f"{null.noise.sd_difference:.4f}",
            f"{null.largest:.4f}",
            _null_interval(null),
        )
        for arm, null in nulls.items()
    ]
    columns = (
        "arm",
        "seeds",
        "sd",
        "95 % CI of sd",
        "sd of a difference",
        "largest difference",
        "A/A mean, 95 % CI",
    )
    caption = (
        f"The A/A null: {facts.metric} of the same arm under different seeds, nats. A difference between arms below "
        "this scatter is noise. A/A: disjoint pairs of seeds, first minus second; one interval in twenty misses 0 by "
        "chance."
    )
    return table(columns, rows, caption=caption)


def _null_interval(null: Null) -> str:
    if null.interval is None:
        return "needs 4 seeds"
    return f"{_between(null.interval, digits=4)}{'' if null.holds else ' (MISSES 0)'}"


def _environment(facts: Facts) -> Markup:
    parts: list[object] = []
    sessions: dict[str, Mapping[str, Any]] = {}
    for records in facts.source.environments.values():
        for record in records:
            sessions.setdefault(json.dumps(record, sort_keys=True), record)
    for index, record in enumerate(sessions.values(), 1):
        if len(sessions) > 1:
            parts.append(element("h3", f"Session {index} of {len(sessions)}"))
        parts.append(_session(record))
    if facts.source.wandb_url is not None:
        link = element("a", facts.source.wandb_url, href=facts.source.wandb_url)
        parts.append(element("p", "W&B: ", link))
    return join(parts)


def _session(record: Mapping[str, Any]) -> Markup:
    git, data = record.get("git") or {}, record.get("data") or {}
    commit = git.get("commit") or "unknown: not run from a git checkout"
    if git.get("dirty"):
        commit += ", with uncommitted changes"
    packages = record.get("packages") or {}
    platform = record.get("platform") or {}
    facts = {
        "commit": commit,
        "corpus": ", ".join(str(data[key]) for key in ("name", "sha256") if key in data),
        "device": record.get("device"),
        "Python": record.get("python"),
        "packages": ", ".join(f"{name} {version}" for name, version in packages.items() if version),
        "machine": ", ".join(f"{key} {value}" for key, value in platform.items()),
        "variables": ", ".join(f"{k}={v}" for k, v in (record.get("variables") or {}).items()),
    }
    command = record.get("command")
    shown = [element("pre", element("code", shlex.join(command)))] if command else []
    return join([*shown, _described(facts.items())])


def _between(interval: Interval | None, digits: int = 3) -> str:
    return f"{interval.low:.{digits}f} to {interval.high:.{digits}f}" if interval else "-"


def _with_unit(number: str, unit: str) -> str:
    return f"{number} {unit}".rstrip()


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
