"""Kinds of absolute positions: the sweep behind `attnlab reproduce position_kinds`.

    attnlab reproduce position_kinds --preset quick

Presets: `smoke` (seconds; for tests), `quick` (one program), `standard`, `gpu`.
"""

from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from configs import presets
from experiments.position_kinds import SEEDS, arms


def get_config(preset: str = "quick") -> ConfigDict:
    """The configuration all arms share.

    Raises:
      ValueError: unknown preset.
    """
    c = presets.start(preset, SEEDS)
    if preset == "quick":
        c.batch_size, c.steps, c.eval.every = 16, 700, 140
    if preset == "standard":
        c.context, c.batch_size, c.steps = 64, 16, 3000
        c.eval.every = 500
    if preset == "gpu":
        c.context, c.batch_size, c.steps = 256, 64, 10_000
        c.model.width, c.model.heads, c.model.kv_heads = 512, 8, 8
        c.optimizer.learning_rate, c.optimizer.warmup_steps = 1e-3, 500
        c.log_every, c.eval.every = 50, 1000
    return c


def sweep_position_kinds(
    preset: str, config: dict[str, Any], seeds: int | None = None
) -> Iterator[dict[str, Any]]:
    """Every arm with every seed."""
    count = SEEDS[preset or "quick"] if seeds is None else seeds
    return presets.paired(arms(config["model"]["width"]), count)
