"""No position embedding still trains: the sweep behind `attnlab reproduce nope`.

    attnlab reproduce nope --preset quick
    attnlab sweep --config configs/nope.py:standard --dry-run

Presets: `smoke` (seconds; for tests, its verdicts mean nothing), `quick` (the README's), `standard` (every arm, twice
the context), `gpu` (5, 15 and 25 M parameters, BPE, T 1024; Shakespeare is soon known by heart at that size, so give
it a larger text: `attnlab sweep --config configs/nope.py:gpu --config.corpus=hf:NAME`).
"""

from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from configs import base
from experiments.nope.arms import SEEDS, members


def get_config(preset: str = "quick") -> ConfigDict:
    """The configuration all arms share.

    Raises:
      ValueError: unknown preset.
    """
    if preset not in SEEDS:
        raise ValueError(f"preset: got {preset!r}; allowed: {', '.join(SEEDS)}")
    c = base.get_config()
    if preset == "smoke":
        c.context, c.batch_size, c.steps = 16, 8, 20
        c.model.layers, c.model.width, c.model.heads, c.model.kv_heads = 2, 16, 2, 2
        c.log_every, c.eval.every, c.eval.windows, c.eval.final_windows = 10, 20, 16, 32
        c.optimizer.warmup_steps = 5
    if preset == "quick":
        # Under 6 minutes on 2 cores, compilation included.
        c.steps, c.eval.every = 700, 140
    if preset == "standard":
        c.context, c.batch_size, c.steps = 64, 16, 1000
        c.eval.every = 200
    if preset == "gpu":
        c.tokenizer = "bpe:4096"
        c.context, c.batch_size, c.steps = 1024, 32, 10_000
        c.model.layers, c.model.width, c.model.heads, c.model.kv_heads = 8, 512, 8, 8
        c.model.activations = "bfloat16"
        c.optimizer.learning_rate, c.optimizer.warmup_steps = 1e-3, 500
        c.log_every, c.eval.every = 50, 1000
    return c


def sweep_nope(
    preset: str, config: dict[str, Any], seeds: int | None = None
) -> Iterator[dict[str, Any]]:
    """Every arm of the preset with every seed."""
    return members(preset or "quick", config["context"], seeds)
