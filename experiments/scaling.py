"""Dividing attention logits by sqrt(head size) matters more the larger a head is, and early.

    attnlab reproduce scaling --preset quick

q . k of two vectors with unit variance has the head size as its variance (`attnlab check M1`), so without a scale large
heads begin with one-hot attention and small gradients through the softmax (M9). Whether that costs anything after
training is the question: a network may learn its way out. Scale {none, 1/sqrt(head size), 1/head size, 1/sqrt(width),
learned} by head size, at fixed width; two initialisers, several learning rates. Where the softmax starts is seen in the
entropy before the first update, its gradients in the norms by layer from the first rows on.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attnlab.claims import Claim, ClaimFigure, Control, Gap, SubClaim, Trend, below_reference
from attnlab.claims.rules import above, equivalent, positive
from attnlab.results import Results
from experiments.measures import METRIC, Measure, by_seed, in_every_seed, minus

VASWANI = "Vaswani et al. 2017, arXiv 1706.03762, section 3.2.1"
WORTSMAN = "Wortsman et al. 2023, arXiv 2309.14322"
SIX_NOTES = "Six notes on attention"
ON_PAPER = "On paper"

HEAD_DIMS = (4, 16, 64, 256)
SMALL = HEAD_DIMS[:3]  # that fit into a width of 64
SCALES: Mapping[str, Mapping[str, Any]] = {
    "none": {"model.logit_scale": "none"},
    "sqrt": {},
    "inverse": {"model.logit_scale": "inv_head_dim"},
    "width": {"model.logit_scale": "inv_sqrt_width"},
    "learned": {"model.learn_logit_scale": True},
}
TWO = ("none", "sqrt")
# PyTorch's Linear draws from U(-1/sqrt(n), 1/sqrt(n)): a third of the variance that `lecun_normal` gives.
TORCH_GAIN = math.sqrt(1 / 3)
RATE = 4e-3
OTHER_RATES = (1e-3, 2e-3, 8e-3, 1.6e-2)

EARLY = 0.1  # of all updates
# M4, nats: too small by sqrt(heads), logits can be learned back.
RELEARNED = 0.02
# T21: lengths of queries times lengths of keys at the end over those before training.
GROWTH = 1.5
BELOW_BIGRAM = 0.1


def label(scale: str, head_dim: int, variant: str = "") -> str:
    """The arm of a cell: `none-h16`, `none-h16-torch`, `none-h16-lr0.001`."""
    return f"{scale}-h{head_dim}" + (f"-{variant}" if variant else "")


def arms(width: int) -> dict[str, dict[str, Any]]:
    """Every arm at a width: as many heads as fit into it."""
    found: dict[str, dict[str, Any]] = {}
    for head_dim in (size for size in HEAD_DIMS if size <= width):
        heads = {"model.heads": width // head_dim, "model.kv_heads": width // head_dim}
        for scale, way in SCALES.items():
            found[label(scale, head_dim)] = {**heads, **way}
        for scale in TWO:
            cell = {**heads, **SCALES[scale]}
            found[label(scale, head_dim, "torch")] = {**cell, "model.init_gain": TORCH_GAIN}
            for rate in OTHER_RATES:
                changed = {**cell, "optimizer.learning_rate": rate}
                found[label(scale, head_dim, f"lr{rate:g}")] = changed
        found[label("sqrt", head_dim, "qknorm")] = {**heads, "model.qk_norm": "layernorm"}
    return found


PRESETS = ("smoke", "quick", "standard", "gpu")
SEEDS = {"smoke": 2, "quick": 3, "standard": 3, "gpu": 3}
# In minutes, every scale at every head size; the initialiser and two more rates where they matter most.
VARIANTS = ("none-h64-torch", "sqrt-h64-torch", "sqrt-h16-qknorm")
OF_RATE = tuple(label(scale, 64, f"lr{rate:g}") for scale in TWO for rate in (1e-3, 1.6e-2))


def members(preset: str, width: int) -> dict[str, dict[str, Any]]:
    """The arms of a preset."""
    everything = arms(width)
    if preset not in ("smoke", "quick"):
        return everything
    plain = {label(scale, size) for scale in SCALES for size in SMALL}
    chosen = plain | set(VARIANTS) | set(OF_RATE if preset == "quick" else ())
    return {arm: overrides for arm, overrides in everything.items() if arm in chosen}


def early(arm: str, metric: str = METRIC) -> Measure:
    """A metric at the first validation behind a tenth of the updates."""

    def measure(results: Results) -> dict[int, float]:
        runs = results.runs(arm)
        found = {}
        for seed in results.complete((arm,)):
            steps = np.asarray(runs[seed].history["step"])
            values = np.asarray(runs[seed].history[metric], np.float64)
            there = np.isfinite(values) & (steps >= EARLY * steps.max())
            found[seed] = float(values[there][0])
        return found

    return measure


def early_cost(head_dim: int, variant: str = "") -> Measure:
    """Nats by which the unscaled arm is behind the scaled one after a tenth of the updates."""
    return minus(*(early(label(scale, head_dim, variant)) for scale in TWO))


def slope(head_dims: Sequence[int]) -> Measure:
    """Least-squares slope of the early cost over log2 of the head size."""

    def measure(results: Results) -> dict[int, float]:
        costs = [early_cost(size)(results) for size in head_dims]
        seeds = [seed for seed in costs[0] if all(seed in cost for cost in costs)]
        cost_HS = np.array([[cost[seed] for seed in seeds] for cost in costs])
        return by_seed(seeds, np.polyfit(np.log2(head_dims), cost_HS, deg=1)[0])

    return measure


def mean_at(
    arm: str, columns: str, values: Callable[[Results, str, str], Mapping[int, float]]
) -> Measure:
    """Mean over the columns that begin so (all layers, all heads) of what `values` reads of each."""

    def measure(results: Results) -> dict[int, float]:
        history = next(iter(results.runs(arm).values())).history
        names = [name for name in history if name.startswith(columns)]
        by_column = [values(results, name, arm) for name in names]
        seeds = [seed for seed in by_column[0] if all(seed in ends for ends in by_column)]
        return {seed: float(np.mean([ends[seed] for ends in by_column])) for seed in seeds}

    return measure


def entropy_at_start(arm: str) -> Measure:
    """Mean over layers and heads of entropy / ln(visible keys), before the first update."""
    return mean_at(arm, "attn/entropy_l", lambda results, column, a: results.initial(column, a))


def growth(arm: str) -> Measure:
    """|q| |k| at the end over the same before training, each a mean over layers."""

    def measure(results: Results) -> dict[int, float]:
        def product(values: Callable[[Results, str, str], Mapping[int, float]]) -> dict[int, float]:
            q, k = (mean_at(arm, f"attn/{x}_norm_l", values)(results) for x in "qk")
            return {seed: q[seed] * k[seed] for seed in q if seed in k}

        start = product(lambda r, column, a: r.initial(column, a))
        end = product(lambda r, column, a: r.final(column, a))
        return {seed: end[seed] / start[seed] for seed in end}

    return measure


def _c3(name: str, head_dims: Sequence[int]) -> SubClaim:
    return SubClaim(
        id=name,
        title=f"the cost of no scale grows with the head size, up to {head_dims[-1]}",
        statement="Early in training, leaving the scale out costs more the larger the heads are.",
        source=f"{VASWANI}; {ON_PAPER} L24",
        metric="slope of (none - 1/sqrt) over log2(head size), after a tenth of the updates",
        unit="nats per doubling",
        rule=positive(),
        arms=tuple(label(scale, size) for size in head_dims for scale in TWO),
        controls=("scaled-learns", "unscaled-starts-sharp"),
        measure=slope(head_dims),
    )


SUBCLAIMS = (
    _c3("C3", SMALL),
    _c3("C3-256", HEAD_DIMS),
    SubClaim(
        id="C3-init",
        title="with PyTorch's initialiser it costs less",
        statement="An initialiser with a third of the variance hides most of what no scale costs.",
        source="attnlab: follows from M3, a logit variance of head size / 9",
        metric="early cost of no scale at head size 64, lecun - torch",
        unit="nats",
        rule=positive(),
        arms=tuple(label(s, 64, v) for s in TWO for v in ("", "torch")),
        controls=("scaled-learns", "unscaled-starts-sharp"),
        measure=minus(early_cost(64), early_cost(64, "torch")),
    ),
    SubClaim(
        id="M4a",
        title="width for head size is learned away",
        statement="Dividing by sqrt(width), sqrt(heads) too much, costs nothing at the end.",
        source=f"against {SIX_NOTES} L124",
        metric="1/sqrt(width) - 1/sqrt(head size), head size 4",
        unit="nats",
        rule=equivalent(RELEARNED),
        arms=(label("width", 4), label("sqrt", 4)),
        controls=("scaled-learns",),
        measure=minus(
            mean_at(label("width", 4), METRIC, lambda r, column, a: r.final(column, a)),
            mean_at(label("sqrt", 4), METRIC, lambda r, column, a: r.final(column, a)),
        ),
    ),
    SubClaim(
        id="M4b",
        title="width for head size starts flatter",
        statement="Before training it spreads attention more evenly.",
        source=f"{SIX_NOTES} L124",
        metric="entropy / ln(keys) before training, 1/sqrt(width) - 1/sqrt(head size), head size 4",
        unit="",
        rule=positive(),
        arms=(label("width", 4), label("sqrt", 4)),
        controls=(),
        measure=minus(
            entropy_at_start(label("width", 4)), entropy_at_start(label("sqrt", 4))
        ),
    ),
    SubClaim(
        id="T21a",
        title="the scale is right at the start only",
        statement="With 1/sqrt(head size), queries and keys grow in training.",
        source=f'{SIX_NOTES} L77: "Nothing constrains q and k to stay unit-Gaussian once training starts"',
        metric="|q| |k| at the end over before training, head size 16",
        unit="",
        rule=above(GROWTH),
        arms=(label("sqrt", 16),),
        controls=("scaled-learns",),
        measure=growth(label("sqrt", 16)),
    ),
    SubClaim(
        id="T21b",
        title="a norm holds them",
        statement="They grow more than with LayerNorm on queries and keys, whose gains alone can grow.",
        source=f"{WORTSMAN}, section 3.1",
        metric="|q| |k| at the end over before training, without the norm - with it, head size 16",
        unit="",
        rule=positive(),
        arms=(label("sqrt", 16), label("sqrt", 16, "qknorm")),
        controls=("scaled-learns",),
        measure=minus(growth(label("sqrt", 16)), growth(label("sqrt", 16, "qknorm"))),
    ),
)  # fmt: skip

CONTROLS = (
    Control(
        id="scaled-learns",
        statement="with the scale, heads of 16 use more than the previous character",
        arms=(label("sqrt", 16),),
        check=below_reference(METRIC, label("sqrt", 16), "bigram", margin=BELOW_BIGRAM),
    ),
    Control(
        id="unscaled-starts-sharp",
        statement="without the scale, heads of 64 begin with sharper attention",
        arms=(label("none", 64), label("sqrt", 64)),
        check=in_every_seed(
            minus(entropy_at_start(label("sqrt", 64)), entropy_at_start(label("none", 64))),
            0.1,
            1.0,
            "entropy / ln(keys) before training, scaled - unscaled,",
        ),
    ),
)

_SCALED = {"1/sqrt(head size)": "sqrt", "none": "none", "1/head size": "inverse", "1/sqrt(width)": "width", "learned": "learned"}  # fmt: skip
_PANELS = {
    f"head size {size}": {name: label(scale, size) for name, scale in _SCALED.items()}
    for size in HEAD_DIMS
}


def _entropy(results: Results) -> Any:
    from attnlab.plots import metric_plots  # matplotlib takes seconds to import

    return metric_plots.mean_by_step(
        results, _PANELS, r"attn/entropy_l\d+h\d+", ylabel="entropy / ln(visible keys), mean over heads"
    )  # fmt: skip


def _gradient(results: Results) -> Any:
    from attnlab.plots import metric_plots

    return metric_plots.mean_by_step(
        results, _PANELS, r"opt/grad_norm_l\d+", ylabel="gradient norm of a layer", log=True
    )


CLAIM = Claim(
    name="scaling",
    statement="Leaving out the division by sqrt(head size) costs more the larger the heads are.",
    source=f"{VASWANI}; {SIX_NOTES} L61-77; {ON_PAPER} L21-24",
    metric=METRIC,
    arms=arms(width=256),
    subclaims=SUBCLAIMS,
    controls=CONTROLS,
    presets={
        "smoke": "seconds; shows that the machinery runs, its verdicts mean nothing",
        "quick": "width 64, heads of 4, 16 and 64, three learning rates at 64",
        "standard": "width 256, heads up to 256, five learning rates; half a day on two cores",
        "gpu": "width 256, 6 layers, T 256; for an accelerator",
    },
    seeds=SEEDS["quick"],
    rests_on=("C3",),
    gaps=tuple(
        Gap(f"{name}, head size {size}", label(scale, size), label("sqrt", size))
        for size in HEAD_DIMS
        for name, scale in _SCALED.items()
        if scale != "sqrt"
    ),
    trends=(
        Trend("Cost of no scale at the end by head size", "head size", {
            size: (label("none", size), label("sqrt", size)) for size in HEAD_DIMS
        }),
        Trend("Cost of no scale at the end by head size, PyTorch's initialiser", "head size", {
            size: (label("none", size, "torch"), label("sqrt", size, "torch")) for size in HEAD_DIMS
        }),
        Trend("Cost of no scale at the end by learning rate, head size 64", "learning rate", {
            RATE: (label("none", 64), label("sqrt", 64)),
            **{r: (label("none", 64, f"lr{r:g}"), label("sqrt", 64, f"lr{r:g}")) for r in OTHER_RATES},
        }),
    ),
    figures=(
        ClaimFigure(
            "entropy_by_step",
            "Entropy of attention by update: 1 is spread evenly over the visible keys, 0 is on one.",
            "Lines of mean attention entropy by update, a panel a head size, a line a scale of the logits.",
            _entropy,
        ),
        ClaimFigure(
            "gradient_by_step",
            "Gradient norm of a layer, before clipping, by update.",
            "Lines of the mean gradient norm of the layers by update, a panel a head size, a line a scale.",
            _gradient,
        ),
    ),
)  # fmt: skip
