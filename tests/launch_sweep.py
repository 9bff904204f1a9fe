"""A configuration file for tests of whole jobs: two arms, two seeds, one small program. Presets: "", "long"."""

from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from configs import base


def get_config(preset: str = "") -> ConfigDict:
    c = base.get_config()
    c.corpus, c.context, c.batch_size, c.steps = "random:17", 8, 4, 2000
    c.model.layers, c.model.width, c.model.heads, c.model.kv_heads = 1, 16, 2, 2
    c.log_every, c.eval.every, c.eval.windows, c.eval.final_windows = 20, 1000, 16, 32
    if preset == "long":
        c.steps = 40_000
        c.eval.every = 20_000
    return c


def sweep_tiny(seeds: int = 2) -> Iterator[dict[str, Any]]:
    for seed in range(seeds):
        for arm in ("causal", "full"):
            yield {"arm": arm, "mask": arm, "seed.init": seed, "seed.data": seed}
