"""Computing all scores and then masking, against computing only what the mask allows: which is faster, and from when.

    attnlab reproduce skipping --preset quick

One causal attention layer, forward and backward, once as two matrix products with the mask between them and once by
tiles that skip what lies above the diagonal. The tiles save half of the products and pay for being many, so that the
answer is a length and not a yes or no; and it belongs to the machine that gave it. Every arm also does one update of
training, which shows that both compute the same.
"""

from collections.abc import Mapping
from typing import Any

from attnlab.claims import Claim, ClaimFigure, Control, Measurement, SubClaim
from attnlab.claims.rules import above
from attnlab.measurements.times import AttentionTime
from attnlab.results import Results
from experiments.measures import METRIC, Measure, difference, in_every_seed, ratio, smallest

ONE_LINE = "One line changed"
LENGTHS = (128, 256, 512, 1024, 2048, 4096)
ASKED = (
    128,
    256,
    512,
    1024,
    4096,
)  # 2048 is for the figure: each length takes two programs to compile
WAYS = {"all": "dense", "skipping": "blockwise"}
SAME = 1e-4  # nats between two ways to compute one number

PRESETS = {
    "smoke": LENGTHS[:2],
    "quick": ASKED,
    "standard": LENGTHS,
    "gpu": LENGTHS,
}
SEEDS = {"smoke": 2, "quick": 5, "standard": 10, "gpu": 10}


def label(way: str, length: int) -> str:
    """The arm: `skipping-T1024`."""
    return f"{way}-T{length}"


ARMS: Mapping[str, Mapping[str, Any]] = {
    label(way, length): {"context": length, "model.attention": implementation}
    for length in LENGTHS
    for way, implementation in WAYS.items()
}


def seconds(arm: str) -> Measure:
    """Of one attention, forward and backward: the median."""

    def measure(results: Results) -> dict[int, float]:
        return {seed: m.median for seed, m in results.measured(AttentionTime.read, arm).items()}

    return measure


def saved(length: int) -> Measure:
    """Time of computing all over that of skipping: above 1 where skipping is faster."""
    return ratio(seconds(label("all", length)), seconds(label("skipping", length)))


def cost(length: int) -> Measure:
    """The other way round: above 1 where computing all is faster."""
    return ratio(seconds(label("skipping", length)), seconds(label("all", length)))


def both(*lengths: int) -> tuple[str, ...]:
    """The arms of some lengths."""
    return tuple(label(way, length) for length in lengths for way in WAYS)


def _draw(results: Results) -> Any:
    from attnlab.plots import rate_plots

    there = [n for n in LENGTHS if set(both(n)) <= set(results.arms)]
    return rate_plots.by_size(
        {"all scores / skipping": {n: saved(n)(results) for n in there}},
        xlabel="context, tokens",
        ylabel="time of computing all over that of skipping",
    )


CONTROLS = tuple(
    Control(
        id=f"same-numbers-{length}",
        statement=f"at T {length} both ways give the same loss after an update",
        arms=both(length),
        check=in_every_seed(
            difference(label("skipping", length), label("all", length)), -SAME, SAME, "difference"
        ),
    )
    for length in LENGTHS
)

CLAIM = Claim(
    name="skipping",
    statement="Computing all scores and then masking is faster than computing only the lower triangle.",
    source=f"{ONE_LINE} L238",
    metric=METRIC,
    arms=ARMS,
    subclaims=(
        SubClaim(
            id="T20a",
            title="at every length",
            statement="From T 128 to 4096 computing all is the faster way at every length.",
            source=f"{ONE_LINE} L238, which names no length",
            metric="time of skipping / time of all, the smallest over lengths",
            unit="",
            rule=above(1.0),
            arms=both(*ASKED),
            controls=tuple(f"same-numbers-{length}" for length in ASKED),
            measure=smallest(*(cost(length) for length in ASKED)),
        ),
        SubClaim(
            id="T20b",
            title="at a short length",
            statement="At T 128 computing all is the faster way.",
            source=f"{ONE_LINE} L238",
            metric="time of skipping / time of all, T 128",
            unit="",
            rule=above(1.0),
            arms=both(128),
            controls=("same-numbers-128",),
            measure=cost(128),
        ),
        SubClaim(
            id="T20c",
            title="skipping wins in the end",
            statement="At T 4096 tiles that skip are the faster way.",
            source="attnlab: half of the products are not needed",
            metric="time of all / time of skipping, T 4096",
            unit="",
            rule=above(1.0),
            arms=both(4096),
            controls=("same-numbers-4096",),
            measure=saved(4096),
        ),
    ),
    controls=CONTROLS,
    presets={
        "smoke": "T 128 and 256; shows that the machinery runs",
        "quick": "T 128 to 4096, 4 heads of 64, one sequence, 5 repetitions",
        "standard": "2048 too, 10 repetitions",
        "gpu": "the same with 8 sequences at once, for an accelerator",
    },
    seeds=SEEDS["quick"],
    rests_on=("T20a",),
    measurements=(Measurement("attention_time", tuple(ARMS)),),
    figures=(
        ClaimFigure(
            stem="skipping_by_length",
            caption="How much faster skipping is, by context: above 1 it wins. On the machine under How it was made.",
            alt="time of computing all scores over that of skipping, by context length",
            draw=_draw,
        ),
    ),
)  # fmt: skip
