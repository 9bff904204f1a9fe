"""`report.json`: what the page says, for programs; the W&B mirror sends what it names."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnlab.claims import outcomes
from attnlab.report.figures import Drawn
from attnlab.report.source import Facts
from attnlab.whole_files import replacing

FORMAT = 1  # raised when a key changes its meaning or goes away


def write(known: Facts, drawn: Sequence[Drawn], page: Path, path: Path) -> None:
    """Writes the file: sweep, claim, tags, summary (flat), verdict (as in verdict.json), and the files of the report
    relative to it. Two reports that say the same have equal files, whenever they were made.
    """
    outcome = known.outcome
    stored = {
        "format": FORMAT,
        "sweep": known.source.name,
        "claim": known.source.claim.name if known.source.claim else None,
        "tags": _tags(known),
        "summary": summary(known),
        "verdict": outcomes.as_dict(outcome) if outcome is not None else None,
        "page": page.name,
        "figures": [
            {
                "name": item.stem,
                "file": f"figures/{item.png.name}",
                "caption": item.caption,
                "sha256": hashlib.sha256(item.png.read_bytes()).hexdigest(),
            }
            for item in drawn
            if item.png is not None
        ],
    }
    text = json.dumps(stored, indent=1, sort_keys=True, allow_nan=False) + "\n"
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def summary(known: Facts) -> dict[str, Any]:
    """The numbers a dashboard shows: `claim/verdict`, `claim/F1/mean`, `arm/causal-none/val/loss`, `runs/diverged`."""
    found: dict[str, Any] = {}
    outcome = known.outcome
    if outcome is not None:
        found |= {"claim/verdict": str(outcome.verdict), "claim/statement": outcome.claim.statement}
        for judged in outcome.judgements:
            name = f"claim/{judged.subclaim.id}"
            found |= {f"{name}/verdict": str(judged.verdict), f"{name}/reason": judged.reason}
            found[f"{name}/claimed"] = judged.subclaim.threshold
            if judged.interval is not None:
                interval = judged.interval
                found[f"{name}/mean"] = interval.mean
                found |= {f"{name}/low": interval.low, f"{name}/high": interval.high}
            if judged.p_holm is not None:
                found |= {f"{name}/p_holm": judged.p_holm}
    for row in known.arms:
        if row.values:
            mean = sum(row.values.values()) / len(row.values)
            found[f"arm/{row.arm}/{known.metric}"] = mean
    for run in known.source.runs:
        found[f"runs/{run.status}"] = found.get(f"runs/{run.status}", 0) + 1
    return found


def _tags(known: Facts) -> list[str]:
    """Claim, arms and seeds, as the members' own runs are tagged."""
    claim = [known.source.claim.name] if known.source.claim else []
    arms = list(known.results.arms)
    seeds = [f"seed{seed}" for seed in known.results.seeds(arms)]
    return list(dict.fromkeys(["report", *claim, *arms, *seeds]))
