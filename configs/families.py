"""One network, four masks: the sweep behind `attnlab reproduce families`.

    attnlab reproduce families --preset quick
    attnlab sweep --config configs/families.py:standard --dry-run

Presets: `smoke` (seconds; for tests), `quick` (two programs, of two layers and of four), `standard`, `gpu`.
"""

from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict

from configs import presets
from experiments.families import PARITY, PARITY_SEEDS, SEEDS, arms


def get_config(preset: str = "quick") -> ConfigDict:
    """The configuration all arms share.

    Raises:
      ValueError: unknown preset.
    """
    c = presets.start(preset, SEEDS)
    if preset == "quick":
        # 39 members, 27 of them of four layers: half the batch, for minutes on two cores.
        c.batch_size, c.steps, c.eval.every = 16, 500, 100
    if preset == "standard":
        c.context, c.batch_size, c.steps = 64, 16, 1500
        c.eval.every = 300
    if preset == "gpu":
        c.tokenizer = "bpe:4096"
        c.context, c.batch_size, c.steps = 512, 64, 10_000
        c.model.width, c.model.heads, c.model.kv_heads = 512, 8, 8
        c.model.activations = "bfloat16"
        c.optimizer.learning_rate, c.optimizer.warmup_steps = 1e-3, 500
        c.log_every, c.eval.every = 50, 1000
    return c


def sweep_families(
    preset: str, config: dict[str, Any], seeds: int | None = None
) -> Iterator[dict[str, Any]]:
    """Every arm with every seed; the two that are said to be equal with more."""
    preset = preset or "quick"
    everything = arms(config["context"])
    count = SEEDS[preset] if seeds is None else seeds
    yield from presets.paired(everything, count)
    more = {arm: everything[arm] for arm in PARITY}
    for member in presets.paired(more, PARITY_SEEDS[preset] if seeds is None else seeds):
        if member["seed.init"] >= count:
            yield member
