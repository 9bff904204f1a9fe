"""No position embedding still trains: the sweep behind `attnlab reproduce nope`.

    attnlab reproduce nope --preset quick
    attnlab sweep --config configs/nope.py:quick --dry-run

Presets: `smoke` (seconds; for tests, its verdict means nothing), `quick` (the README's), `standard` (a longer
context, more updates and the larger corpus of the same kind of text).
"""

from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from configs import base
from experiments.nope import ARMS

PRESETS = ("smoke", "quick", "standard")


def get_config(preset: str = "quick") -> ConfigDict:
    """The configuration all arms share.

    Raises:
      ValueError: unknown preset.
    """
    if preset not in PRESETS:
        raise ValueError(f"preset: got {preset!r}; allowed: {', '.join(PRESETS)}")
    c = base.get_config()
    if preset == "smoke":
        c.context, c.batch_size, c.steps = 16, 8, 20
        c.model.layers, c.model.width, c.model.heads, c.model.kv_heads = 2, 16, 2, 2
        c.log_every, c.eval.every, c.eval.windows, c.eval.final_windows = 10, 20, 16, 32
        c.optimizer.warmup_steps = 5
    if preset == "quick":
        # 6 minutes on 2 cores that also do other work, compilation included; 1000 updates took 7.7 there.
        c.steps, c.eval.every = 700, 140
    if preset == "standard":
        c.context, c.batch_size, c.steps = 64, 16, 3000
        c.eval.every = 300
    return c


def sweep_nope(seeds: int = 3) -> Iterator[dict[str, Any]]:
    """Every arm with every seed; a seed fixes parameters and text, so arms are paired."""
    for seed in range(seeds):
        for arm, overrides in ARMS.items():
            yield {"arm": arm, **overrides, "seed.init": seed, "seed.data": seed}
