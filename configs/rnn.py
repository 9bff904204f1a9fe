"""Attention against a GRU of as many parameters: the sweep behind `attnlab reproduce rnn`.

    attnlab reproduce rnn --preset quick

Presets: `smoke` (seconds; for tests), `quick`, `standard` (up to T 2048, more updates), `gpu`. Arms are one program per
length and mixer: both change shapes.
"""

from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from configs import presets
from experiments.rnn import PRESETS, SEEDS, arms

RACE_UPDATES = {"smoke": 10, "quick": 500, "standard": 2000, "gpu": 5000}


def get_config(preset: str = "quick") -> ConfigDict:
    """The configuration all arms share; most of them train only long enough to be timed.

    Raises:
      ValueError: unknown preset.
    """
    c = presets.start(preset, PRESETS)
    # As many sequences at every length, or the time of an update would not show what length costs.
    c.batch_size, c.steps, c.log_every = 4, 5, 5
    c.eval.every, c.eval.windows, c.eval.final_windows = 50, 32, 64
    c.model.layers, c.model.width, c.model.heads, c.model.kv_heads = 2, 96, 4, 4
    if preset == "smoke":
        c.model.width, c.model.heads, c.model.kv_heads = 12, 2, 2
    if preset == "gpu":
        c.batch_size, c.eval.windows = 32, 32
        c.model.layers, c.model.width, c.model.heads, c.model.kv_heads = 6, 384, 6, 6
        c.optimizer.learning_rate, c.optimizer.warmup_steps = 1e-3, 200
    return c


def sweep_rnn(
    preset: str, config: dict[str, Any], seeds: int | None = None
) -> Iterator[dict[str, Any]]:
    """Every arm of the preset with every seed."""
    preset = preset or "quick"
    chosen = arms(PRESETS[preset], RACE_UPDATES[preset])
    return presets.paired(chosen, SEEDS[preset] if seeds is None else seeds)
