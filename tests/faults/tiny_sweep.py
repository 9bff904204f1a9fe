"""Three members of one program: one trains for 100 updates, one for 20, one diverges at its second."""

from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    c = base.get_config()
    c.corpus, c.context, c.batch_size, c.steps = "random:17", 8, 4, 100
    c.model.layers, c.model.width, c.model.heads, c.model.kv_heads = 1, 16, 2, 2
    c.optimizer.warmup_steps = 30
    c.log_every, c.eval.every, c.eval.windows, c.eval.final_windows = 10, 20, 16, 32
    return c


def sweep_tiny(seeds: int = 1) -> Iterator[dict[str, Any]]:
    for seed in range(seeds):
        same = {"seed.init": seed, "seed.data": seed}
        yield {"arm": "long", **same}
        yield {"arm": "short", "steps": 20, **same}
        yield {"arm": "diverging", "optimizer.learning_rate": 1e30, **same}
