"""Deep transformers with the norm behind the sum (post-norm) need a warm-up; with the norm in front (pre-norm) they do not.

    attnlab reproduce norm_placement --preset quick

Xiong et al. 2020: with post-norm the gradients of the layers next to the output are large before training, whatever the
depth, so a large rate in the first updates throws the network off; with pre-norm they shrink with depth. On IWSLT14 De-En
post-norm reached 8.45 BLEU without a warm-up and about 34 with one, pre-norm about 34 without. Asked here: the largest
learning rate that still trains (ends below the bigram model), by place of the norm, warm-up and depth. Gradients are not
clipped, because clipping hides the effect; pre-norm has its norm before the head.

A diverged run counts as the loss before training, as in qk_norm.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from attnlab.claims import Claim, ClaimFigure, Control, SubClaim
from attnlab.claims.rules import above, positive
from attnlab.results import Results
from experiments import learning_rates
from experiments.learning_rates import DIVERGED_AS, Grid
from experiments.measures import METRIC, Measure, by_seed, in_every_seed, minus

XIONG = "Xiong et al. 2020, arXiv 2002.04745"
ON_PAPER = "On paper"

RATES = (3e-3, 1e-2, 3e-2)
WARMUPS = {"w0": 0.0, "w10": 0.1}  # share of all updates
SHALLOW = 2
DEPTHS = (SHALLOW, 6, 12)
PLACES: Mapping[str, Mapping[str, Any]] = {
    "pre": {},
    "post": {"model.norm_placement": "post"},
    "sandwich": {"model.norm_placement": "sandwich"},
    "none": {"model.norm": "none"},
}
BOTH = ("pre", "post")

# T7a, decades: the largest rate that trains is at least half as large again with pre-norm in every reading of the interval.
RATIO = math.log10(1.5)
# Control, decades: two layers may differ by one step of the grid.
ONE_STEP = 0.53


def label(place: str, depth: int, warmup: str, rate: float) -> str:
    """The arm of a cell: `post-l6-w0-0.003`."""
    return f"{place}-l{depth}-{warmup}-{rate:g}"


def grid(place: str, depth: int, warmup: str) -> Grid:
    """Learning rate -> arm."""
    return {rate: label(place, depth, warmup, rate) for rate in RATES}


def arms(steps: int) -> dict[str, dict[str, Any]]:
    """Every arm, for so many updates: a warm-up is a share of them."""
    return {
        label(place, depth, warmup, rate): {
            **way,
            "model.layers": depth,
            "optimizer.warmup_steps": round(share * steps),
            "optimizer.learning_rate": rate,
        }
        for depth in DEPTHS
        for warmup, share in WARMUPS.items()
        for place, way in PLACES.items()
        for rate in RATES
    }


# Preset -> depth -> (place, warm-up) that are trained at every rate.
_PAIRS = tuple((place, warmup) for place in BOTH for warmup in WARMUPS)
_ALL = tuple((place, warmup) for place in PLACES for warmup in WARMUPS)
_WITHOUT = tuple((place, "w0") for place in BOTH)
PRESETS: Mapping[str, Mapping[int, tuple[tuple[str, str], ...]]] = {
    "smoke": {SHALLOW: _WITHOUT, 6: _PAIRS},
    "quick": {SHALLOW: _WITHOUT, 6: _PAIRS},
    "standard": {SHALLOW: _ALL, 6: _ALL, 12: _ALL},
    "gpu": {SHALLOW: _ALL, 6: _ALL, 12: _ALL},
}
SEEDS = {"smoke": 2, "quick": 3, "standard": 5, "gpu": 5}


def critical(grid: Grid) -> Measure:
    """log10 of the largest rate that ends below the bigram model.

    Where none does, a step of the grid below its smallest rate: no arm can gain by a grid that ends too early.
    """

    def measure(results: Results) -> dict[int, float]:
        seeds, loss_RS = learning_rates.losses(results, grid)
        trains_RS = loss_RS < results.reference("bigram")
        rates = [10 ** (math.log10(min(grid)) - 0.5), *sorted(grid)]
        last_S = [int(np.flatnonzero([True, *trains_R])[-1]) for trains_R in trains_RS.T]
        return by_seed(seeds, np.log10(np.array(rates)[last_S]))

    return measure


def gap(depth: int, warmup: str) -> Measure:
    """Decades by which pre-norm's largest rate is above post-norm's."""
    return minus(*(critical(grid(place, depth, warmup)) for place in BOTH))


def gradient_tilt(place: str, depth: int) -> Measure:
    """log10 of the gradient of the last block over that of the first, at the first row of the smallest rate."""
    arm = label(place, depth, "w10", min(RATES))

    def measure(results: Results) -> dict[int, float]:
        values = {}
        for seed in results.complete((arm,), may_diverge=(arm,)):
            history = results.runs(arm)[seed].history
            ends = [np.asarray(history[f"opt/grad_norm_l{i:02d}"], np.float64) for i in (0, depth - 1)]  # fmt: skip
            first, last = (column[np.isfinite(column)] for column in ends)
            if len(first) and len(last):
                values[seed] = math.log10(last[0] / first[0])
        return values

    return measure


def _of(place_and_warmup: tuple[tuple[str, str], ...], depth: int) -> tuple[str, ...]:
    return tuple(
        arm for p, w in place_and_warmup for arm in learning_rates.in_order(grid(p, depth, w))
    )


def _subclaims(depth: int) -> tuple[SubClaim, ...]:
    controls = (f"pre-norm-trains-{depth}", "shallow-hardly-differs")
    tilt = tuple(label(place, depth, "w10", min(RATES)) for place in BOTH)
    return (
        SubClaim(
            id=f"T7a-{depth}",
            title=f"without warm-up post-norm fails at smaller rates, {depth} layers",
            statement="Without a warm-up the largest rate that trains is smaller with post-norm than with pre-norm.",
            source=f"{XIONG}, section 3.1; {ON_PAPER} L28, L60",
            metric="log10 of the largest rate that trains, pre - post, no warm-up",
            unit="decades",
            rule=above(RATIO),
            arms=_of(_WITHOUT, depth),
            controls=controls,
            measure=gap(depth, "w0"),
            diverged_as=DIVERGED_AS,
        ),
        SubClaim(
            id=f"T7b-{depth}",
            title=f"a warm-up closes the gap, {depth} layers",
            statement="With a warm-up of a tenth of the updates the two differ by less.",
            source=f"{XIONG}, section 3.1",
            metric="pre - post without warm-up minus the same with it",
            unit="decades",
            rule=positive(),
            arms=_of(_PAIRS, depth),
            controls=controls,
            measure=minus(gap(depth, "w0"), gap(depth, "w10")),
            diverged_as=DIVERGED_AS,
        ),
        SubClaim(
            id=f"M8-{depth}",
            title=f"post-norm's gradients lean to the output, {depth} layers",
            statement="At the first updates the last block has a larger gradient relative to the first with post-norm.",
            source=f"{XIONG}, Theorem 1",
            metric="log10 of last block's gradient over the first's, post - pre, first row",
            unit="decades",
            rule=positive(),
            arms=tilt,
            controls=(),
            measure=minus(gradient_tilt("post", depth), gradient_tilt("pre", depth)),
            diverged_as="its gradients before it diverged",
        ),
    )  # fmt: skip


def _pre_norm_trains(depth: int) -> Control:
    return Control(
        id=f"pre-norm-trains-{depth}",
        statement="pre-norm without a warm-up beats the bigram model at its best rate",
        arms=_of((("pre", "w0"),), depth),
        check=learning_rates.best_learns((grid("pre", depth, "w0"),), "bigram", 0.0),
        counts_diverged=True,
    )


CONTROLS = (
    *(_pre_norm_trains(depth) for depth in DEPTHS[1:]),
    Control(
        id="shallow-hardly-differs",
        statement="with two layers the largest rates that train are at most one step of the grid apart",
        arms=_of(_WITHOUT, SHALLOW),
        check=in_every_seed(gap(SHALLOW, "w0"), -ONE_STEP, ONE_STEP, "pre - post, decades,"),
        counts_diverged=True,
    ),
)


def _loss_by_rate(results: Results) -> Any:
    from attnlab.plots import rate_plots  # matplotlib takes seconds to import

    panels = {
        f"{depth} layers, {'no warm-up' if warmup == 'w0' else 'warm-up 10 %'}": {
            place: grid(place, depth, warmup) for place in PLACES
        }
        for depth in DEPTHS
        for warmup in WARMUPS
    }
    references = {
        name: results.references[name] for name in ("bigram",) if name in results.references
    }
    return rate_plots.loss_by_rate(results, panels, METRIC, references)


def _gradient_by_layer(results: Results) -> Any:
    from attnlab.plots import metric_plots

    panels = {
        f"{depth} layers": {place: label(place, depth, "w10", min(RATES)) for place in PLACES}
        for depth in DEPTHS
    }
    return metric_plots.first_by_layer(
        results, panels, "opt/grad_norm", ylabel="gradient norm of a block, first row"
    )


CLAIM = Claim(
    name="norm_placement",
    statement="Without a warm-up a deep post-norm transformer fails at learning rates at which pre-norm trains.",
    source=f"{XIONG}; {ON_PAPER} L28, L55, L60",
    metric=METRIC,
    arms=arms(steps=2000),
    subclaims=tuple(part for depth in DEPTHS[1:] for part in _subclaims(depth)),
    controls=CONTROLS,
    presets={
        "smoke": "seconds; shows that the machinery runs, its verdicts mean nothing",
        "quick": "pre and post, 2 and 6 layers of width 32, three rates",
        "standard": "four places, 2, 6 and 12 layers of width 64; hours on two cores",
        "gpu": "four places, 2, 6 and 12 layers of width 256; for an accelerator",
    },
    seeds=SEEDS["quick"],
    rests_on=("T7a-6", "T7b-6"),
    figures=(
        ClaimFigure(
            "loss_by_rate",
            "Final loss by peak learning rate, depth and warm-up. A diverged run counts as the loss before training.",
            "Lines of final validation loss by learning rate, a panel a depth and warm-up, a line a place of the norm.",
            _loss_by_rate,
        ),
        ClaimFigure(
            "gradient_by_layer",
            "Gradient norm of each block at the first row of metrics, smallest rate with warm-up.",
            "Lines of gradient norm by layer, a panel a depth, a line a place of the norm.",
            _gradient_by_layer,
        ),
    ),
)
