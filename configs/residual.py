"""Eight layers with a residual path and without: the sweep behind `attnlab reproduce residual`.

    attnlab reproduce residual --preset quick

Presets: `smoke` (seconds; for tests), `quick` (one program), `standard`, `gpu`.
"""

from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from configs import presets
from experiments.residual import ARMS, LAYERS, SEEDS


def get_config(preset: str = "quick") -> ConfigDict:
    """The configuration all arms share.

    Raises:
      ValueError: unknown preset.
    """
    c = presets.start(preset, SEEDS)
    c.model.layers = LAYERS
    if preset != "smoke":
        c.log_every = 10  # the first row is of the tenth update
        # Of a block without a residual path at 4e-3 nothing is known; this is safe for eight layers.
        c.optimizer.learning_rate = 2e-3
    if preset == "quick":
        c.batch_size, c.steps, c.eval.every = 16, 400, 100
    if preset == "standard":
        c.steps, c.eval.every = 1600, 400
    if preset == "gpu":
        c.context, c.batch_size, c.steps = 256, 64, 10_000
        c.model.width, c.model.heads, c.model.kv_heads = 512, 8, 8
        c.optimizer.learning_rate, c.optimizer.warmup_steps = 1e-3, 500
        c.eval.every = 1000
    return c


def sweep_residual(
    preset: str, config: dict[str, Any], seeds: int | None = None
) -> Iterator[dict[str, Any]]:
    """Every arm with every seed."""
    return presets.paired(ARMS, SEEDS[preset or "quick"] if seeds is None else seeds)
