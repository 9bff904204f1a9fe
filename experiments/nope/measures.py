"""What only this claim measures: one number per seed; what others measure too is in `experiments.measures`."""

from collections.abc import Mapping

import numpy as np

from attnlab import statistics
from attnlab.measurements import LossByLength, Probes, ShuffledPrefix
from attnlab.results import Results
from experiments.measures import METRIC, Measure, by_seed

# The share of its targets' context that is prefix -> arms without and with positions. 0 is the causal mask.
DOSE: Mapping[float, tuple[str, str]] = {
    0.0: ("causal-none", "causal-learned"),
    0.25: ("prefix25-none", "prefix25-learned"),
    0.5: ("prefix50-none", "prefix50-learned"),
    0.75: ("prefix75-none", "prefix75-learned"),
}


def closure(results: Results) -> dict[int, float]:
    """(bigram - none) / (bigram - learned); 0 is the bigram model, 1 is learned positions."""
    seeds, loss = results.paired(METRIC, ("causal-none", "causal-learned"))
    bigram = results.reference("bigram")
    share_S = statistics.paired_ratio(bigram - loss["causal-none"], bigram - loss["causal-learned"])
    return by_seed(seeds, share_S)


def shuffling_cost(arm: str) -> Measure:
    """Mean over sequences of the loss of one target behind a shuffled prefix, minus behind the intact one."""

    def measure(results: Results) -> dict[int, float]:
        found = results.measured(ShuffledPrefix.read, arm)
        return {seed: float(np.mean(m.shuffled - m.intact)) for seed, m in found.items()}

    return measure


def probe_error(arm: str, curve: str = Probes.TRAINED, kind: type[Probes] = Probes) -> Measure:
    """Error of the best layer's position probe over that of the best guess that looks at nothing."""

    def measure(results: Results) -> dict[int, float]:
        found = results.measured(kind.read, arm)
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
