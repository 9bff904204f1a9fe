"""The scale of attention logits by head size: the sweep behind `attnlab reproduce scaling`.

    attnlab reproduce scaling --preset quick
    attnlab sweep --config configs/scaling.py:standard --dry-run

Presets: `smoke` (seconds; for tests), `quick`, `standard`, `gpu`. A head size is one program.
"""

from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from configs import presets
from experiments.scaling import PRESETS, RATE, SEEDS, members


def get_config(preset: str = "quick") -> ConfigDict:
    """The configuration all arms share.

    Raises:
      ValueError: unknown preset.
    """
    c = presets.start(preset, PRESETS)
    c.optimizer.learning_rate = RATE
    if preset == "smoke":
        c.model.width = 64  # or heads of 64 do not fit
    if preset == "quick":
        # 66 members. The ledger asks for a width of 256, heads of 256 and five rates: that is `standard`.
        c.batch_size, c.steps, c.log_every, c.eval.every = 16, 400, 10, 40
        c.model.layers, c.eval.windows, c.eval.final_windows = 2, 128, 512
    if preset == "standard":
        c.steps, c.eval.every = 1000, 100
        c.model.width, c.model.layers = 256, 2
    if preset == "gpu":
        c.tokenizer = "bpe:4096"
        c.context, c.batch_size, c.steps = 256, 64, 5000
        c.model.width, c.model.layers = 256, 6
        c.log_every, c.eval.every = 50, 250
    if preset != "smoke":
        c.optimizer.warmup_steps = c.steps // 20
    return c


def sweep_scaling(
    preset: str, config: dict[str, Any], seeds: int | None = None
) -> Iterator[dict[str, Any]]:
    """Every arm of the preset with every seed."""
    preset = preset or "quick"
    chosen = members(preset, config["model"]["width"])
    return presets.paired(chosen, SEEDS[preset] if seeds is None else seeds)
