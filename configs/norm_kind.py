"""Five norms: the sweep behind `attnlab reproduce norm_kind`.

    attnlab reproduce norm_kind --preset quick
    attnlab sweep --config configs/norm_kind.py:gpu --dry-run

Presets: `smoke` (seconds; for tests), `quick`, `standard`, `gpu`. One program each.
"""

from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from configs import presets
from experiments.norm_kind import ARMS, PRESETS, SEEDS


def get_config(preset: str = "quick") -> ConfigDict:
    """The configuration all arms share.

    Raises:
      ValueError: unknown preset.
    """
    c = presets.start(preset, PRESETS)
    if preset == "quick":
        # 15 members. Two layers in place of four: what a norm reads is seen in one.
        c.steps, c.eval.every, c.model.layers = 500, 100, 2
    if preset == "standard":
        c.steps, c.eval.every = 2000, 400
    if preset == "gpu":
        c.tokenizer = "bpe:4096"
        c.context, c.batch_size, c.steps = 256, 64, 5000
        c.model.layers, c.model.width, c.model.heads, c.model.kv_heads = 8, 256, 4, 4
        c.optimizer.learning_rate, c.optimizer.warmup_steps = 1e-3, 250
        c.log_every, c.eval.every = 50, 1000
    return c


def sweep_norm_kind(
    preset: str, config: dict[str, Any], seeds: int | None = None
) -> Iterator[dict[str, Any]]:
    """Every arm of the preset with every seed."""
    return presets.paired(ARMS, SEEDS[preset or "quick"] if seeds is None else seeds)
