"""Runs as they are read back from disk, made by hand: what claims and plots are tested on."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

REFERENCES = {"unigram": 3.347, "bigram": 2.4875}


@dataclass(frozen=True)
class FakeRun:
    id: str
    config: dict[str, Any]
    history: dict[str, np.ndarray]
    summary: dict[str, Any] = field(default_factory=dict)
    status: str = "finished"
    path: Path = Path("nowhere")


def fake_run(
    arm: str,
    seed: int,
    losses: list[float] | np.ndarray,
    *,
    status: str = "finished",
    data_seed: int | None = None,
    tokens_per_row: int = 1000,
    references: dict[str, float] | None = None,
    initial: float | None = None,
) -> FakeRun:
    """A run with a training row between every two validations, as a real history has; `initial`: before training."""
    n = 2 * len(losses)
    validation = np.full(n, np.nan)
    validation[1::2] = losses
    steps = np.arange(1, n + 1)
    if initial is not None:
        validation, steps = np.concatenate([[initial], validation]), np.arange(n + 1)
    return FakeRun(
        id=f"{arm}-s{seed}",
        config={
            "arm": arm,
            "seed": {"init": seed, "data": seed if data_seed is None else data_seed},
        },
        history={
            "step": steps,
            "tokens": steps * tokens_per_row,
            "train/loss": np.where(np.isnan(validation), 1.0, np.nan),
            "val/loss": validation,
        },
        summary={"references": dict(REFERENCES if references is None else references)},
        status=status,
    )


def runs_ending_at(finals: dict[str, list[float]]) -> list[FakeRun]:
    """One run per arm and seed, ending at the given losses; the seed is the place in the list."""
    return [
        fake_run(arm, seed, [4.2, (4.2 + loss) / 2, loss])
        for arm, losses in finals.items()
        for seed, loss in enumerate(losses)
    ]
