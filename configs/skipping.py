"""All scores and a mask against tiles that skip: the sweep behind `attnlab reproduce skipping`.

    attnlab reproduce skipping --preset quick

Presets: `smoke` (seconds; for tests), `quick`, `standard` (more repetitions), `gpu` (more sequences at once).
"""

from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from configs import presets
from experiments.skipping import ARMS, PRESETS, SEEDS, both


def get_config(preset: str = "quick") -> ConfigDict:
    """The configuration all arms share: one layer, and one update of training.

    Raises:
      ValueError: unknown preset.
    """
    c = presets.start(preset, PRESETS)
    c.batch_size, c.steps, c.log_every = 1, 1, 1
    c.eval.every, c.eval.windows, c.eval.final_windows = 1, 1, 1
    c.optimizer.warmup_steps = 0
    c.model.layers = 1
    if preset != "smoke":
        c.model.width, c.model.heads, c.model.kv_heads = 256, 4, 4
    if preset == "gpu":
        c.batch_size, c.eval.windows, c.eval.final_windows = 8, 8, 8
    return c


def sweep_skipping(
    preset: str, config: dict[str, Any], seeds: int | None = None
) -> Iterator[dict[str, Any]]:
    """Every arm of the preset with every repetition."""
    preset = preset or "quick"
    arms = {arm: ARMS[arm] for arm in both(*PRESETS[preset])}
    return presets.paired(arms, SEEDS[preset] if seeds is None else seeds)
