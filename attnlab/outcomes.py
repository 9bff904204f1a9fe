"""An outcome in words and as a file: rows and lines for a terminal, `verdict.json` for everything else."""

import json
import math
import os
from pathlib import Path
from typing import Any

from attnlab.claims import Judgement, Outcome
from attnlab.statistics import Interval

FORMAT = 1  # of verdict.json; raised when a key changes its meaning or goes away
ARM_COLUMNS = ("arm", "mean, nats", "95 % CI", "min to max", "perplexity", "seeds")


def arm_rows(outcome: Outcome) -> list[tuple[str, ...]]:
    """The table of arms as text, one tuple per arm in the order of `ARM_COLUMNS`; "-" where nothing finished."""
    rows: list[tuple[str, ...]] = []
    for arm in outcome.arms:
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
    lines += [f"diverged: {run}" for run in outcome.diverged]
    return lines


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
        text += f"; p = {judgement.p_value:.2g}, Holm {judgement.p_holm:.2g}"
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
        "verdicts": {j.subclaim.id: str(j.verdict) for j in outcome.judgements},
        "judgements": [_judgement(j) for j in outcome.judgements],
        "controls": [
            {"id": c.id, "statement": c.statement, "passed": c.passed, "measured": c.measured}
            for c in outcome.controls
        ],
        "arms": [
            {
                "arm": a.arm,
                "overrides": dict(claim.arms[a.arm]),
                "values": {str(seed): value for seed, value in a.values.items()},
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
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


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
        "values": {str(seed): value for seed, value in judgement.values.items()},
        "interval": _interval(judgement.interval),
        "p_value": judgement.p_value,
        "p_holm": judgement.p_holm,
        "seeds_needed": judgement.seeds_needed,
        "controls": [control.id for control in judgement.controls],
    }


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
