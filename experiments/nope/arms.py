"""The arms of the flagship: label -> what differs from the shared configuration, and which preset trains which.

Nothing else differs between arms: no arm has a learning rate of its own. Arms with one data seed read the same text.
"""

from collections.abc import Iterator, Mapping
from typing import Any

# Paired seeds. The sub-claims about large effects are settled by few; parity with learned positions (F2a) asks whether
# a difference of 0.03 nats is there, and a difference between seeds is about as large.
SEEDS = {"smoke": 3, "quick": 3, "standard": 5, "gpu": 3}
PARITY_SEEDS = 12
PARITY_ARMS = ("causal-none", "causal-learned")

PREFIX_SHARES = (0.25, 0.5, 0.75)
WINDOWS = (8, 32)

CAUSAL = {"mask": "causal", "objective": "next_token"}
MLM = {"mask": "full", "objective": "masked_lm(0.15)"}

# Smaller than the 25 M parameters of the `gpu` preset, embeddings aside.
SIZES: Mapping[str, Mapping[str, int]] = {
    "5m": {"model.layers": 6, "model.width": 256, "model.heads": 4, "model.kv_heads": 4},
    "15m": {"model.layers": 8, "model.width": 384, "model.heads": 6, "model.kv_heads": 6},
}


def arms(context: int) -> dict[str, dict[str, Any]]:
    """Every arm, for a context of so many tokens: the share of a prefix is a number of tokens.

    Arms of another depth or size than the preset's say so in their label.
    """
    both = ("none", "learned")
    found: dict[str, dict[str, Any]] = {}
    for positions in (*both, "rope", "alibi", "sinusoidal"):
        found[f"causal-{positions}"] = {**CAUSAL, "positions": positions}
        found[f"mlm-{positions}"] = {**MLM, "positions": positions}
    for positions in both:
        found[f"mlm50-{positions}"] = {**MLM, "objective": "masked_lm(0.5)", "positions": positions}
        for share in PREFIX_SHARES:
            text = f"prefix_lm({round(share * context)})"
            label = f"prefix{100 * share:.0f}-{positions}"
            found[label] = {"mask": text, "objective": text, "positions": positions}
        for width in WINDOWS:
            label = f"window{width}-{positions}"
            found[label] = {**CAUSAL, "mask": f"sliding_window({width})", "positions": positions}
        for depth in (1, 2):
            label = f"causal-{positions}-depth{depth}"
            found[label] = {**CAUSAL, "positions": positions, "model.layers": depth}
        found[f"bos-{positions}"] = {**CAUSAL, "positions": positions, "bos": True}
    for label, size in SIZES.items():
        for positions in (*both, "rope"):
            found[f"causal-{positions}-{label}"] = {**CAUSAL, "positions": positions, **size}
    for positions in (*both, "rope"):
        found[f"shuffled-{positions}"] = {**CAUSAL, "positions": positions, "order": "shuffled"}
    return found


# What can be settled in minutes: that it trains (F1), that it is the mask (F3), that position is used (F5), and that
# it takes depth (F6).
QUICK = (
    "causal-none",
    "causal-learned",
    "mlm-none",
    "mlm-learned",
    "causal-none-depth1",
    "causal-learned-depth1",
)
# On accelerators the sizes are what is new.
GPU = (
    *("causal-none", "causal-learned", "causal-rope", "causal-alibi", "mlm-none", "mlm-learned"),
    "window8-none",
    *(f"causal-{positions}-{size}" for size in SIZES for positions in ("none", "learned", "rope")),
)


def members(preset: str, context: int, seeds: int | None) -> Iterator[dict[str, Any]]:
    """Flat overrides of every member of a preset; a seed fixes parameters and text, so arms are paired."""
    everything = arms(context)
    small = tuple(arm for arm in everything if not arm.endswith(tuple(SIZES)))
    chosen = {"smoke": QUICK, "quick": QUICK, "standard": small, "gpu": GPU}[preset]
    count = SEEDS[preset] if seeds is None else seeds
    for seed in range(max(count, PARITY_SEEDS if preset == "standard" and seeds is None else 0)):
        for arm in chosen if seed < count else PARITY_ARMS:
            yield {"arm": arm, **everything[arm], "seed.init": seed, "seed.data": seed}
