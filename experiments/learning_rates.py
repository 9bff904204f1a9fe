"""What several claims measure over a grid of learning rates: how much a wrong one costs, and which still trains.

A grid is peak learning rate -> arm; the arms of a grid differ in it alone. A diverged run counts as the loss before
training and no run counts as more than that, which is the definition of Wortsman et al. 2023 (arXiv 2309.14322,
section 2): "learning rate sensitivity" is the mean over the grid of the loss minus the smallest loss of the grid. It is
0 for a model that is stuck at every rate, so a claim that uses it needs a control that the best rate learns.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats

from attnlab.results import Results
from experiments.measures import METRIC, Check, Measure, by_seed

Grid = Mapping[float, str]

# Of Wortsman et al., half a decade apart.
RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
# Nats above the best loss of the grid up to which a rate still trains.
TRAINS = 0.1
DIVERGED_AS = "the loss before training"


def losses(results: Results, grid: Grid) -> tuple[tuple[int, ...], np.ndarray]:
    """(seeds, losses [rates, seeds]) over the seeds that ended at every rate, rates ascending."""
    arms = in_order(grid)
    seeds = results.complete(arms, may_diverge=arms)
    capped = [results.capped(METRIC, arm) for arm in arms]
    return seeds, np.array([[ends[seed] for seed in seeds] for ends in capped])


def sensitivity(grid: Grid) -> Measure:
    """Learning-rate sensitivity, in nats."""

    def measure(results: Results) -> dict[int, float]:
        seeds, loss_RS = losses(results, grid)
        return by_seed(seeds, loss_RS.mean(axis=0) - loss_RS.min(axis=0))

    return measure


def best(grid: Grid) -> Measure:
    """The smallest loss of the grid, each seed at its own best rate."""

    def measure(results: Results) -> dict[int, float]:
        seeds, loss_RS = losses(results, grid)
        return by_seed(seeds, loss_RS.min(axis=0))

    return measure


def critical_decade(grid: Grid) -> Measure:
    """log10 of the largest rate whose loss is less than `TRAINS` above the best."""

    def measure(results: Results) -> dict[int, float]:
        seeds, loss_RS = losses(results, grid)
        trains_RS = loss_RS < loss_RS.min(axis=0, keepdims=True) + TRAINS
        last_S = [int(np.flatnonzero(trains_R)[-1]) for trains_R in trains_RS.T]
        return by_seed(seeds, np.log10(np.array(sorted(grid))[last_S]))

    return measure


def logit_correlation(grid: Grid, layers: int) -> Measure:
    """Spearman's rank correlation of the largest logit of any layer at the end with the loss, over the rates from the
    best one on: below it the loss is that of too few updates.

    nan where the best rate is the last.
    """

    def measure(results: Results) -> dict[int, float]:
        seeds, loss_RS = losses(results, grid)
        largest = [_largest_logit(results, arm, layers) for arm in in_order(grid)]
        values = []
        for seed, loss_R in zip(seeds, loss_RS.T, strict=True):
            first = int(np.argmin(loss_R))
            logit_R = [ends[seed] for ends in largest]
            if first + 1 < len(loss_R):
                found = stats.spearmanr(logit_R[first:], loss_R[first:])
                values.append(float(found.statistic))
            else:
                values.append(math.nan)
        return by_seed(seeds, np.array(values))

    return measure


def _largest_logit(results: Results, arm: str, layers: int) -> dict[int, float]:
    by_layer = [results.reached(f"attn/max_logit_l{layer:02d}", arm) for layer in range(layers)]
    # A run without one finite logit had none because they overflowed.
    return {
        seed: max(math.inf if math.isnan(at[seed]) else at[seed] for at in by_layer)
        for seed in by_layer[0]
    }


def best_learns(grids: Sequence[Grid], reference: str, margin: float) -> Check:
    """The check that at its best rate every grid ends `margin` nats below a number of the corpus, in every seed."""

    def check(results: Results) -> tuple[bool, str]:
        worst = max(max(best(grid)(results).values(), default=math.inf) for grid in grids)
        level = results.reference(reference)
        return worst <= level - margin, (
            f"at its best rate the worst seed ends at {worst:.3f} nats, allowed up to {level - margin:.3f} "
            f"({reference} {level:.3f}, margin {margin:g})"
        )

    return check


def fails_somewhere(grid: Grid) -> Check:
    """The check that the largest rate no longer trains, in every seed: else the grid ends before the question begins."""

    def check(results: Results) -> tuple[bool, str]:
        _, loss_RS = losses(results, grid)
        least = float(np.min(loss_RS[-1] - loss_RS.min(axis=0), initial=math.inf))
        return TRAINS <= least < math.inf, (
            f"at rate {max(grid):g} the loss is at least {least:.3f} nats above the best, asked for {TRAINS:g}"
        )

    return check


def in_order(grid: Grid) -> tuple[str, ...]:
    """The arms of a grid, rates ascending."""
    return tuple(grid[rate] for rate in sorted(grid))
