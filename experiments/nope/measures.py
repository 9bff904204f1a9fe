"""What the sub-claims measure: one number per seed, from the runs of a sweep."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from attnlab import statistics
from attnlab.measurements import LossByLength, Probes, ShuffledPrefix
from attnlab.results import Results

METRIC = "val/loss"

# The share of its targets' context that is prefix -> arms without and with positions. 0 is the causal mask.
DOSE: Mapping[float, tuple[str, str]] = {
    0.0: ("causal-none", "causal-learned"),
    0.25: ("prefix25-none", "prefix25-learned"),
    0.5: ("prefix50-none", "prefix50-learned"),
    0.75: ("prefix75-none", "prefix75-learned"),
}
Measure = Callable[[Results], dict[int, float]]


def closure(results: Results) -> dict[int, float]:
    """(bigram - none) / (bigram - learned); 0 is the bigram model, 1 is learned positions."""
    seeds, loss = results.paired(METRIC, ("causal-none", "causal-learned"))
    bigram = results.reference("bigram")
    share_S = statistics.paired_ratio(bigram - loss["causal-none"], bigram - loss["causal-learned"])
    return _by_seed(seeds, share_S)


def difference(arm: str, reference: str) -> Measure:
    """Nats by which `arm` ends above `reference`."""

    def measure(results: Results) -> dict[int, float]:
        seeds, loss = results.paired(METRIC, (arm, reference))
        return _by_seed(seeds, loss[arm] - loss[reference])

    return measure


def difference_of_differences(first: tuple[str, str], second: tuple[str, str]) -> Measure:
    """(a - b) - (c - d), in nats.

    The losses of two objectives are not on one scale, so only differences within an objective are compared.
    """

    def measure(results: Results) -> dict[int, float]:
        seeds, loss = results.paired(METRIC, (*first, *second))
        gaps = [loss[arm] - loss[reference] for arm, reference in (first, second)]
        return _by_seed(seeds, gaps[0] - gaps[1])

    return measure


def dose_slope(results: Results) -> dict[int, float]:
    """Slope of the gap (none - learned) over the share of the prefix, nats per whole context."""
    seeds, loss = results.paired(METRIC, [arm for pair in DOSE.values() for arm in pair])
    gap_PS = np.stack([loss[none] - loss[learned] for none, learned in DOSE.values()])
    return _by_seed(seeds, np.polyfit(list(DOSE), gap_PS, deg=1)[0])


def shuffling_cost(arm: str) -> Measure:
    """Mean over sequences of the loss of one target behind a shuffled prefix, minus behind the intact one."""

    def measure(results: Results) -> dict[int, float]:
        found = results.measured(ShuffledPrefix.read, arm)
        return {seed: float(np.mean(m.shuffled - m.intact)) for seed, m in found.items()}

    return measure


def probe_error(arm: str, curve: str = Probes.TRAINED) -> Measure:
    """Error of the best layer's position probe over that of the best guess that looks at nothing."""

    def measure(results: Results) -> dict[int, float]:
        found = results.measured(Probes.read, arm)
        return {
            seed: float(np.min(np.mean(m.curves[curve], axis=0)) / (m.positions / 4))
            for seed, m in found.items()
            if curve in m.curves
        }

    return measure


def stretch(arm: str, factor: float = 2.0) -> Measure:
    """Loss of the same last targets with `factor` times the training context, minus with the training context."""

    def measure(results: Results) -> dict[int, float]:
        values = {}
        for seed, m in results.measured(LossByLength.read, arm).items():
            loss = dict(zip(m.lengths.tolist(), m.loss.tolist(), strict=True))
            if factor * m.trained in loss and m.trained in loss:
                values[seed] = loss[factor * m.trained] - loss[m.trained]
        return values

    return measure


def minus(first: Measure, second: Measure) -> Measure:
    """The difference of two measures, over the seeds of both."""

    def measure(results: Results) -> dict[int, float]:
        a, b = first(results), second(results)
        return {seed: a[seed] - b[seed] for seed in a if seed in b}

    return measure


def _by_seed(seeds: Sequence[int], values_S: np.ndarray) -> dict[int, float]:
    return {seed: float(value) for seed, value in zip(seeds, values_S, strict=True)}
