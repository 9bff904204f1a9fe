"""One head or many, at the same parameters and the same arithmetic: how many is best.

    attnlab reproduce heads --preset quick

The width is divided among the heads, so a head of one has all of it and a head of sixteen a sixteenth. Each number of heads
is a shape, hence a program.
"""

from collections.abc import Mapping
from typing import Any

from attnlab.claims import Claim, Control, Gap, Published, SubClaim, Trend, below_reference
from attnlab.claims.rules import positive
from experiments.measures import METRIC, difference

VASWANI = "Vaswani et al. 2017, arXiv 1706.03762, Table 3 (A)"
HEADS = (1, 2, 4, 8, 16)
MIDDLE = 4
MIDDLE_BELOW_BIGRAM = 0.1


def label(heads: int) -> str:
    """`1 head`, `4 heads`."""
    return f"{heads} head" + "s" * (heads > 1)


ARMS: Mapping[str, Mapping[str, Any]] = {
    label(n): {"model.heads": n, "model.kv_heads": n} for n in HEADS
}
SEEDS = {"smoke": 2, "quick": 3, "standard": 5, "gpu": 5}
QUICK = (label(1), label(MIDDLE), label(16))
PRESETS = {"smoke": QUICK, "quick": tuple(ARMS), "standard": tuple(ARMS), "gpu": tuple(ARMS)}
# The arithmetic held constant, 24.9, 25.5, 25.8, 25.8 and 25.4 BLEU for 1, 4, 8, 16 and 32 heads; more is better there.
SETTING = "WMT 2014 English-German, the base model; more BLEU is better"
ONE_BEHIND = (Published(-0.9, "BLEU", f"1 head against 8, {SETTING}", VASWANI, "one seed"),)
MANY_BEHIND = (Published(-0.4, "BLEU", f"32 heads against 8, {SETTING}", VASWANI, "one seed"),)

CONTROLS = (
    Control(
        id="middle-beats-bigram",
        statement="four heads use more than the previous character",
        arms=(label(MIDDLE),),
        check=below_reference(METRIC, label(MIDDLE), "bigram", margin=MIDDLE_BELOW_BIGRAM),
    ),
)

SUBCLAIMS = (
    SubClaim(
        id="T15a",
        title="one head is too few",
        statement="At the same parameters one head ends above four.",
        source=f"On paper L59; {VASWANI}",
        metric="1 head - 4 heads",
        unit="nats",
        rule=positive(),
        arms=(label(1), label(MIDDLE)),
        controls=("middle-beats-bigram",),
        measure=difference(label(1), label(MIDDLE)),
        published=ONE_BEHIND,
    ),
    SubClaim(
        id="T15b",
        title="too many are too many",
        statement="At the same parameters sixteen heads end above four.",
        source=VASWANI,
        metric="16 heads - 4 heads",
        unit="nats",
        rule=positive(),
        arms=(label(16), label(MIDDLE)),
        controls=("middle-beats-bigram",),
        measure=difference(label(16), label(MIDDLE)),
        published=MANY_BEHIND,
    ),
)

CLAIM = Claim(
    name="heads",
    statement="Several heads are better than one of the same parameters, and there can be too many.",
    source=f"On paper L59; {VASWANI}",
    metric=METRIC,
    arms=ARMS,
    subclaims=SUBCLAIMS,
    controls=CONTROLS,
    presets={
        "smoke": "seconds; shows that the machinery runs, its verdicts mean nothing",
        "quick": "two layers of width 64, heads of 64 to 4; minutes on a laptop",
        "standard": "four layers, five seeds",
        "gpu": "width 512, heads of 512 to 32; for an accelerator",
    },
    seeds=SEEDS["quick"],
    gaps=tuple(Gap(f"{label(n)} against {label(MIDDLE)}", label(n), label(MIDDLE)) for n in HEADS if n != MIDDLE),
    trends=(
        Trend(
            f"Cost of a number of heads, against {MIDDLE}",
            "heads",
            {n: (label(n), label(MIDDLE)) for n in HEADS if n != MIDDLE},
        ),
    ),
)  # fmt: skip
