"""Measures that several claims share: one number per seed, from the runs of a sweep; and checks made of them.

A measure is given `Results` and gives {seed: number} over the seeds that finished in every arm it reads; claims judge
the mean of these. Differences are paired: two arms of one seed start from the same parameters and read the same text.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from scipy import stats

from attnlab.results import Results

METRIC = "val/loss"

Measure = Callable[[Results], dict[int, float]]
Check = Callable[[Results], tuple[bool, str]]


def final(arm: str, metric: str = METRIC) -> Measure:
    """Where `arm` ends."""

    def measure(results: Results) -> dict[int, float]:
        return dict(results.final(metric, arm))

    return measure


def difference(arm: str, reference: str, metric: str = METRIC) -> Measure:
    """How far `arm` ends above `reference`, in the metric's unit."""

    def measure(results: Results) -> dict[int, float]:
        seeds, ends = results.paired(metric, (arm, reference))
        return by_seed(seeds, ends[arm] - ends[reference])

    return measure


def difference_of_differences(
    first: tuple[str, str], second: tuple[str, str], metric: str = METRIC
) -> Measure:
    """(a - b) - (c - d), in the metric's unit.

    The losses of two objectives are not on one scale, so only differences within an objective are compared.
    """

    def measure(results: Results) -> dict[int, float]:
        seeds, ends = results.paired(metric, (*first, *second))
        gaps = [ends[arm] - ends[reference] for arm, reference in (first, second)]
        return by_seed(seeds, gaps[0] - gaps[1])

    return measure


def above_corpus(arm: str, reference: str, metric: str = METRIC) -> Measure:
    """How far `arm` ends above a number of the corpus ("unigram", "bigram"), in nats."""

    def measure(results: Results) -> dict[int, float]:
        level = results.reference(reference)
        return {seed: value - level for seed, value in results.final(metric, arm).items()}

    return measure


def slope(points: Mapping[float, tuple[str, str]], metric: str = METRIC) -> Measure:
    """Least-squares slope of the difference (first - second arm) over a knob, per unit of the knob."""

    def measure(results: Results) -> dict[int, float]:
        seeds, ends = results.paired(metric, distinct(points.values()))
        gap_PS = np.stack([ends[arm] - ends[reference] for arm, reference in points.values()])
        return by_seed(seeds, np.polyfit(list(points), gap_PS, deg=1)[0])

    return measure


def minus(first: Measure, second: Measure) -> Measure:
    """The difference of two measures, over the seeds of both."""

    def measure(results: Results) -> dict[int, float]:
        a, b = first(results), second(results)
        return {seed: a[seed] - b[seed] for seed in a if seed in b}

    return measure


def ratio(first: Measure, second: Measure) -> Measure:
    """The first measure over the second, over the seeds of both."""

    def measure(results: Results) -> dict[int, float]:
        a, b = first(results), second(results)
        return {seed: a[seed] / b[seed] for seed in a if seed in b}

    return measure


def smallest(*several: Measure) -> Measure:
    """The smallest of several measures in each seed, over the seeds of all: "each of these is above ..."."""

    def measure(results: Results) -> dict[int, float]:
        found = [one(results) for one in several]
        seeds = [seed for seed in found[0] if all(seed in other for other in found)]
        return {seed: min(one[seed] for one in found) for seed in seeds}

    return measure


def largest(*several: Measure) -> Measure:
    """The largest of several measures in each seed, over the seeds of all: "each of these is below ..."."""

    def measure(results: Results) -> dict[int, float]:
        found = [one(results) for one in several]
        seeds = [seed for seed in found[0] if all(seed in other for other in found)]
        return {seed: max(one[seed] for one in found) for seed in seeds}

    return measure


def rise(arms: Sequence[str], metric: str = METRIC) -> Measure:
    """The largest step up along arms in which the metric is claimed to fall or stay, in the metric's unit.

    Not above 0 where it never rises: the distance of the order found from the order claimed.
    """

    def measure(results: Results) -> dict[int, float]:
        seeds, ends = results.paired(metric, arms)
        return by_seed(seeds, np.max(np.diff([ends[arm] for arm in arms], axis=0), axis=0))

    return measure


def order(arms: Sequence[str], metric: str = METRIC) -> Measure:
    """How well the metric falls along arms: 1 in the order given, -1 in the opposite one.

    Spearman's rank correlation, that is Page's (1963) L of a seed on a scale from -1 to 1: Page's test for a trend over
    seeds (`scipy.stats.page_trend_test`) is a test of the mean of these.
    """

    def measure(results: Results) -> dict[int, float]:
        seeds, ends = results.paired(metric, arms)
        expected = np.arange(len(arms), 0, -1)
        values = np.transpose([ends[arm] for arm in arms])
        return by_seed(
            seeds, np.array([stats.spearmanr(expected, row).statistic for row in values])
        )

    return measure


def in_every_seed(measure: Measure, low: float, high: float, what: str) -> Check:
    """The check that a measured number lies between two borders in every seed."""

    def check(results: Results) -> tuple[bool, str]:
        values = list(measure(results).values())
        if not values:
            return False, f"{what}: not measured"
        inside = low <= min(values) and max(values) <= high
        return (
            inside,
            f"{what} from {min(values):.3g} to {max(values):.3g}, allowed {low:g} to {high:g}",
        )

    return check


def distinct(pairs: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """Every arm of several pairs, once, in order."""
    return tuple(dict.fromkeys(arm for pair in pairs for arm in pair))


def by_seed(seeds: Sequence[int], values_S: np.ndarray) -> dict[int, float]:
    """{seed: value} of an array with one value per seed."""
    return {seed: float(value) for seed, value in zip(seeds, values_S, strict=True)}
