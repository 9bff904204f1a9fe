"""From bigram to block: the sweep behind `attnlab reproduce ladder`.

    attnlab reproduce ladder --preset quick
    attnlab sweep --config configs/ladder.py:standard --dry-run

Presets: `smoke` (seconds; for tests), `quick` (two programs, of one head and of several), `standard`, `gpu`.
"""

from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from configs import presets
from experiments.ladder import ARMS, PRESETS, SEEDS


def get_config(preset: str = "quick") -> ConfigDict:
    """The configuration all arms share.

    Raises:
      ValueError: unknown preset.
    """
    c = presets.start(preset, PRESETS)
    c.model.layers = 1
    # A table of counts has large logits where a pair never occurs; decay would keep the bigram rungs from it.
    c.optimizer.weight_decay = 0.0
    if preset == "smoke":
        c.model.heads = c.model.kv_heads = 4
    if preset == "quick":
        # As long as the bigram rungs take to be within 0.02 nats of the counts.
        c.batch_size, c.steps, c.eval.every = 16, 2000, 400
    if preset == "standard":
        c.steps, c.eval.every = 5000, 1000
    if preset == "gpu":
        c.context, c.batch_size, c.steps = 256, 64, 10_000
        c.model.width = 256
        c.optimizer.learning_rate, c.optimizer.warmup_steps = 1e-3, 200
        c.log_every, c.eval.every = 50, 1000
    return c


def sweep_ladder(
    preset: str, config: dict[str, Any], seeds: int | None = None
) -> Iterator[dict[str, Any]]:
    """Every rung of the preset with every seed."""
    preset = preset or "quick"
    arms = {arm: ARMS[arm] for arm in PRESETS[preset]}
    return presets.paired(arms, SEEDS[preset] if seeds is None else seeds)
