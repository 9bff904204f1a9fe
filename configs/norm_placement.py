"""Where the norm stands, by warm-up, learning rate and depth: the sweep behind `attnlab reproduce norm_placement`.

    attnlab reproduce norm_placement --preset quick
    attnlab sweep --config configs/norm_placement.py:standard --dry-run

Presets: `smoke` (seconds; for tests), `quick`, `standard`, `gpu`. A depth is one program.
"""

from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from configs import presets
from experiments.norm_placement import PRESETS, RATES, SEEDS, arms, label


def get_config(preset: str = "quick") -> ConfigDict:
    """The configuration all arms share.

    Raises:
      ValueError: unknown preset.
    """
    c = presets.start(preset, PRESETS)
    c.optimizer.clip_norm = 1e9  # clipping hides what is asked
    if preset == "quick":
        # 54 members. The ledger asks for 12 layers of width 128: `standard` has 12 of width 64.
        c.model.width, c.model.heads, c.model.kv_heads = 32, 2, 2
        c.steps, c.log_every, c.eval.every = 350, 10, 350
        c.eval.windows, c.eval.final_windows = 256, 1024
    if preset == "standard":
        c.steps, c.eval.every = 2000, 400
    if preset == "gpu":
        c.tokenizer = "bpe:4096"
        c.context, c.batch_size, c.steps = 256, 64, 5000
        c.model.width, c.model.heads, c.model.kv_heads = 256, 4, 4
        c.log_every, c.eval.every = 50, 1000
    return c


def sweep_norm_placement(
    preset: str, config: dict[str, Any], seeds: int | None = None
) -> Iterator[dict[str, Any]]:
    """Every arm of the preset with every seed."""
    preset = preset or "quick"
    everything = arms(config["steps"])
    chosen = {
        (name := label(place, depth, warmup, rate)): everything[name]
        for depth, cells in PRESETS[preset].items()
        for place, warmup in cells
        for rate in RATES
    }
    return presets.paired(chosen, SEEDS[preset] if seeds is None else seeds)
