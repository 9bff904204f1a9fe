"""An outcome in words and as a file: rows and lines for a terminal, `verdict.json` for everything else."""

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attnlab.claims.judging import FAMILY_LEVEL, POWER, ArmRow, Judgement, Outcome
from attnlab.statistics import Interval
from attnlab.whole_files import replacing

FORMAT = 2  # of verdict.json; raised when a key changes its meaning or goes away
ARM_COLUMNS = ("arm", "mean, nats", "95 % CI", "min to max", "perplexity", "seeds")


def arm_rows(arms: Iterable[ArmRow]) -> list[tuple[str, ...]]:
    """The table of arms as text, one tuple per arm in the order of `ARM_COLUMNS`; "-" where nothing finished."""
    rows: list[tuple[str, ...]] = []
    for arm in arms:
        values = list(arm.values.values())
        seeds = f"{len(values)} of {arm.runs}" if len(values) < arm.runs else f"{arm.runs}"
        if arm.diverged:
            seeds += f" ({arm.diverged} diverged)"
        if not values:
            rows.append((arm.arm, "-", "-", "-", "-", seeds))
            continue
        mean = sum(values) / len(values)
        between = f"{arm.interval.low:.3f} to {arm.interval.high:.3f}" if arm.interval else "-"
        spread = f"{min(values):.3f} to {max(values):.3f}"
        rows.append((arm.arm, f"{mean:.3f}", between, spread, f"{math.exp(mean):.2f}", seeds))
    return rows


def verdict_lines(outcome: Outcome) -> list[str]:
    """What to print at the end, most important first: per sub-claim its verdict, number and reason.

    A failed control is part of the reason and so stands before any number; diverged runs close the list.
    """
    lines = []
    for judgement in outcome.judgements:
        lines.append(f"{judgement.subclaim.id} {judgement.verdict}: {judgement.subclaim.statement}")
        lines.append(f"   {judgement.reason}")
        if judgement.interval is not None:
            lines.append(f"   {_measured(judgement, judgement.interval)}")
        if (power := power_statement(judgement)) is not None:
            lines.append(f"   {power}")
    lines += [f"{part.id} not asked: {part.statement}" for part in outcome.not_asked]
    lines += [f"diverged: {run}" for run in outcome.diverged]
    return lines


def markdown_rows(outcome: Outcome, *, how: str, date: str, commit: str) -> list[str]:
    """A row of a Markdown table per sub-claim, as `experiments/README.md` keeps them: what, source, how, verdict, when."""
    rows = []
    for index, judgement in enumerate(outcome.judgements):
        part, interval = judgement.subclaim, judgement.interval
        found = judgement.reason
        if interval is not None:
            unit = f" {part.unit}" if part.unit else ""
            found = (
                f"{interval.mean:.3f}{unit} ({interval.low:.3f} to {interval.high:.3f}, {interval.n} seeds), "
                f"claimed {part.rule}"
            )
        cells = (
            f"{outcome.claim.name} {part.id}: {part.statement.rstrip('.')}",
            part.source,
            "the same run" if index else f"`{how}`",
            f"{judgement.verdict}: {found}",
            date,
            commit,
        )
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return rows


def power_statement(judgement: Judgement) -> str | None:
    """How many paired seeds this effect would have needed, and what this many could have seen; None without a test."""
    if judgement.interval is None or judgement.seeds_needed is None or judgement.detectable is None:
        return None
    seeds, unit = judgement.seeds_needed, judgement.subclaim.unit
    needed = f"{seeds} paired seeds" if seeds <= 1000 else "more than 1000 paired seeds"
    return (
        f"to settle this effect with {100 * POWER:g} % chance takes {needed}; {judgement.interval.n} seeds settle a mean "
        f"that lies {judgement.detectable:.3f} {unit}".rstrip()
        + " or more from the border"
    )


def _measured(judgement: Judgement, interval: Interval) -> str:
    subclaim = judgement.subclaim
    text = (
        f"{subclaim.metric} = {interval.mean:.3f} {subclaim.unit}".rstrip()
        + f", 95 % CI {interval.low:.3f} to {interval.high:.3f} ({interval.n} seeds, {interval.method})"
        + f"; claimed: {subclaim.rule}"
    )
    if subclaim.unit == "nats":
        text += f"; as a ratio of perplexities {math.exp(interval.mean):.2f}"
    if judgement.p_holm is not None:
        holds = "holds" if judgement.survives_holm else "does not hold"
        text += f"; p = {judgement.p_value:.2g}, Holm {judgement.p_holm:.2g}: {holds} at {FAMILY_LEVEL:g}"
    return text


def as_dict(outcome: Outcome) -> dict[str, Any]:
    """The outcome as plain values that JSON can hold, with the same keys whatever the verdict."""
    claim = outcome.claim
    return {
        "format": FORMAT,
        "claim": claim.name,
        "statement": claim.statement,
        "source": claim.source,
        "metric": claim.metric,
        "verdict": str(outcome.verdict),
        "rests_on": list(claim.headline),
        "verdicts": {j.subclaim.id: str(j.verdict) for j in outcome.judgements},
        "judgements": [_judgement(j) for j in outcome.judgements],
        "not_asked": [part.id for part in outcome.not_asked],
        "gaps": [
            {
                "label": row.gap.label,
                "arm": row.gap.arm,
                "reference": row.gap.reference,
                "values": _by_seed(row.values),
                "interval": _interval(row.interval),
                "published": [asdict(number) for number in row.gap.published],
            }
            for row in outcome.gaps
        ],
        "trends": [
            {
                "title": row.trend.title,
                "knob": row.trend.knob,
                "points": [{"at": at, "values": _by_seed(v)} for at, v in row.points.items()],
            }
            for row in outcome.trends
        ],
        "nulls": {
            arm: {
                "sd": null.noise.sd,
                "sd_low": null.noise.low,
                "sd_high": null.noise.high,
                "largest": null.largest,
                "differences": list(null.differences),
                "interval": _interval(null.interval),
            }
            for arm, null in outcome.nulls.items()
        },
        "controls": [
            {"id": c.id, "statement": c.statement, "passed": c.passed, "measured": c.measured}
            for c in outcome.controls
        ],
        "arms": [
            {
                "arm": a.arm,
                "overrides": dict(claim.arms[a.arm]),
                "values": _by_seed(a.values),
                "interval": _interval(a.interval),
                "runs": a.runs,
                "diverged": a.diverged,
            }
            for a in outcome.arms
        ],
        "references": dict(outcome.references),
        "diverged": list(outcome.diverged),
    }


def write_verdict(outcome: Outcome, path: str | os.PathLike[str]) -> None:
    """Writes `as_dict` as JSON; readers see the old file or the new one, never half of one."""
    path = Path(path)
    text = json.dumps(as_dict(outcome), indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def _judgement(judgement: Judgement) -> dict[str, Any]:
    subclaim = judgement.subclaim
    low, high = subclaim.rule.low, subclaim.rule.high
    return {
        "id": subclaim.id,
        "title": subclaim.title,
        "statement": subclaim.statement,
        "source": subclaim.source,
        "metric": subclaim.metric,
        "unit": subclaim.unit,
        "threshold": subclaim.threshold,
        "low": low if math.isfinite(low) else None,
        "high": high if math.isfinite(high) else None,
        "verdict": str(judgement.verdict),
        "reason": judgement.reason,
        "values": _by_seed(judgement.values),
        "interval": _interval(judgement.interval),
        "p_value": judgement.p_value,
        "p_holm": judgement.p_holm,
        "survives_holm": judgement.survives_holm,
        "seeds_needed": judgement.seeds_needed,
        "detectable": judgement.detectable,
        "published": [asdict(number) for number in subclaim.published],
        "controls": [control.id for control in judgement.controls],
    }


def _by_seed(values: Mapping[int, float]) -> dict[str, float]:
    return {str(seed): value for seed, value in values.items()}


def _interval(interval: Interval | None) -> dict[str, Any] | None:
    if interval is None:
        return None
    return {
        "mean": interval.mean,
        "low": interval.low,
        "high": interval.high,
        "level": interval.level,
        "method": interval.method,
        "n": interval.n,
    }
