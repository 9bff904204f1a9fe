"""Norms of queries and keys over learning rates and sizes: the sweep behind `attnlab reproduce qk_norm`.

    attnlab reproduce qk_norm --preset quick
    attnlab sweep --config configs/qk_norm.py:gpu --dry-run

Presets: `smoke` (seconds; for tests), `quick`, `standard`, `gpu`. A size is one program for all of its norms and rates;
the cap on logits is static, so its members are another one.
"""

from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from configs import presets
from experiments.qk_norm import PRESETS, RATES, SEEDS, arms, label


def get_config(preset: str = "quick") -> ConfigDict:
    """The configuration all arms share.

    Raises:
      ValueError: unknown preset.
    """
    c = presets.start(preset, PRESETS)
    c.positions = "rope"
    c.optimizer.b2, c.optimizer.weight_decay, c.optimizer.final_fraction = 0.95, 0.0, 0.0
    if preset == "quick":
        # 147 members. The ledger asks for 2000 updates of 32 windows and 0.8 M parameters: that is `standard`.
        c.batch_size, c.steps, c.log_every, c.eval.every = 16, 250, 25, 50
        c.eval.windows, c.eval.final_windows = 256, 512
    if preset == "standard":
        c.context, c.batch_size, c.steps = 64, 32, 2000
        c.eval.every = 100
    if preset == "gpu":
        c.tokenizer = "bpe:4096"
        c.context, c.batch_size, c.steps = 256, 64, 5000
        c.log_every, c.eval.every = 50, 250
    if preset != "smoke":
        c.optimizer.warmup_steps = c.steps // 20
    return c


def sweep_qk_norm(
    preset: str, config: dict[str, Any], seeds: int | None = None
) -> Iterator[dict[str, Any]]:
    """Every arm of the preset with every seed."""
    preset = preset or "quick"
    everything = arms(config["context"])
    chosen = {
        (name := label(norm, size, rate)): everything[name]
        for size, norms in PRESETS[preset].items()
        for norm in norms
        for rate in RATES
    }
    return presets.paired(chosen, SEEDS[preset] if seeds is None else seeds)
