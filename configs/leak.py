"""A decoder without its mask: the sweep behind `attnlab reproduce leak`.

    attnlab reproduce leak --preset quick
    attnlab sweep --config configs/leak.py:standard --dry-run

Presets: `smoke` (seconds; for tests), `quick` (two programs, one per depth), `standard`, `gpu`.
"""

from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from configs import presets
from experiments.leak import ARMS, PRESETS, SEEDS


def get_config(preset: str = "quick") -> ConfigDict:
    """The configuration all arms share.

    Raises:
      ValueError: unknown preset.
    """
    c = presets.start(preset, PRESETS)
    if preset != "smoke":
        # T as in the notes: at 8 the loss of a leak ends near a fifth of an honest one, far enough from both.
        c.context, c.batch_size = 8, 64
    if preset == "quick":
        # 57 members, 24 of them of one layer. A causal arm is below the bigram model after 200 updates.
        c.steps, c.eval.every = 500, 100
    if preset == "standard":
        c.steps, c.eval.every = 2000, 400
    if preset == "gpu":
        c.context, c.batch_size, c.steps = 64, 128, 5000
        c.model.width, c.model.heads, c.model.kv_heads = 256, 8, 8
        c.optimizer.learning_rate, c.optimizer.warmup_steps = 1e-3, 200
        c.log_every, c.eval.every = 50, 1000
    return c


def sweep_leak(
    preset: str, config: dict[str, Any], seeds: int | None = None
) -> Iterator[dict[str, Any]]:
    """Every arm of the preset with every seed."""
    preset = preset or "quick"
    arms = {arm: ARMS[arm] for arm in PRESETS[preset]}
    return presets.paired(arms, SEEDS[preset] if seeds is None else seeds)
