"""One head or many: the sweep behind `attnlab reproduce heads`.

    attnlab reproduce heads --preset quick

Presets: `smoke` (seconds; for tests), `quick` (five programs, one per number of heads), `standard`, `gpu`.
"""

from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from configs import presets
from experiments.heads import ARMS, PRESETS, SEEDS


def get_config(preset: str = "quick") -> ConfigDict:
    """The configuration all arms share.

    Raises:
      ValueError: unknown preset.
    """
    c = presets.start(preset, PRESETS)
    if preset == "quick":
        c.model.layers = 2
        c.batch_size, c.steps, c.eval.every = 16, 1500, 300
    if preset == "standard":
        c.steps, c.eval.every = 3000, 500
    if preset == "gpu":
        c.context, c.batch_size, c.steps = 256, 64, 10_000
        c.model.layers, c.model.width = 6, 512
        c.optimizer.learning_rate, c.optimizer.warmup_steps = 1e-3, 500
        c.log_every, c.eval.every = 50, 1000
    return c


def sweep_heads(
    preset: str, config: dict[str, Any], seeds: int | None = None
) -> Iterator[dict[str, Any]]:
    """Every number of heads with every seed."""
    preset = preset or "quick"
    arms = {arm: ARMS[arm] for arm in PRESETS[preset]}
    return presets.paired(arms, SEEDS[preset] if seeds is None else seeds)
