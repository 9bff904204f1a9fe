"""What the config files of claims share: where a preset starts from, the smallest of them, and paired members."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict

from configs import base


def start(preset: str, known: Iterable[str]) -> ConfigDict:
    """The base configuration; made tiny for the preset `smoke`, whose verdicts mean nothing.

    Raises:
      ValueError: a preset that is not known.
    """
    if preset not in (allowed := tuple(known)):
        raise ValueError(f"preset: got {preset!r}; allowed: {', '.join(allowed)}")
    c = base.get_config()
    if preset == "smoke":
        c.context, c.batch_size, c.steps = 8, 8, 20
        c.model.layers, c.model.width, c.model.heads, c.model.kv_heads = 2, 16, 2, 2
        c.log_every, c.eval.every, c.eval.windows, c.eval.final_windows = 10, 20, 16, 32
        c.optimizer.warmup_steps = 5
    return c


def paired(arms: Mapping[str, Mapping[str, Any]], seeds: int) -> Iterator[dict[str, Any]]:
    """Flat overrides of every member: each arm with each seed, which fixes parameters and text alike."""
    for seed in range(seeds):
        for label, overrides in arms.items():
            yield {"arm": label, **overrides, "seed.init": seed, "seed.data": seed}
