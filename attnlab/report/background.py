"""What a verdict rests on: arms, configurations, published numbers, the A/A null, and how the runs were made."""

import json
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from attnlab.claims import Published, judging, outcomes
from attnlab.report.markup import Markup, between, described, element, join, table, with_unit
from attnlab.report.source import Facts, varying
from attnlab.statistics import Interval, Null


def arms(facts: Facts) -> Markup:
    """The table of arms, and the n-gram losses of the corpus."""
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


def config(facts: Facts) -> Markup:
    """What differs between arms, and under a fold everything else."""
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


def published(facts: Facts) -> Markup:
    """What others found, each number beside ours."""
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
        ours = with_unit(f"{interval.mean:.4f} ({between(interval, digits=4)})", unit)
    found: list[tuple[object, ...]] = []
    for number in published:
        by = f"{number.source} ({number.note})" if number.note else number.source
        theirs = with_unit(f"{number.value:.4g}", number.unit)
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


def nulls(facts: Facts) -> Markup:
    """The A/A null: how far runs of one arm lie apart."""
    by_arm = judging.nulls(facts.arms)
    if not by_arm:
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
        for arm, null in by_arm.items()
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
    return f"{between(null.interval, digits=4)}{'' if null.holds else ' (MISSES 0)'}"


def environment(facts: Facts) -> Markup:
    """Commands, commits, software and machines of all sessions that differ."""
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
    return join([*shown, described(facts.items())])


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
