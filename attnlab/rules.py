"""When is a number on the claimed side? The four verdicts, and the region that decides between three of them."""

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from attnlab import statistics
from attnlab.statistics import Interval


class Verdict(StrEnum):
    """The four answers, as they are printed."""

    REPRODUCED = "REPRODUCED"
    NOT_REPRODUCED = "NOT REPRODUCED"
    INCONCLUSIVE = "INCONCLUSIVE"
    INVALID = "INVALID"


@dataclass(frozen=True)
class Rule:
    """The claimed region: the mean over seeds lies strictly between `low` and `high`."""

    low: float
    high: float

    def decide(self, interval: Interval) -> Verdict:
        """The verdict when every control holds."""
        if self.low < interval.low and interval.high < self.high:
            return Verdict.REPRODUCED
        if interval.high <= self.low or self.high <= interval.low:
            return Verdict.NOT_REPRODUCED
        return Verdict.INCONCLUSIVE

    def p_value(self, values_S: np.ndarray) -> float:
        """One-sided t test of the claimed region; with two borders the larger of the two p (TOST)."""
        tests = []
        if math.isfinite(self.low):
            tests.append(statistics.one_sided_p(values_S, self.low, alternative="greater"))
        if math.isfinite(self.high):
            tests.append(statistics.one_sided_p(values_S, self.high, alternative="less"))
        return max(tests)

    def border(self, mean: float) -> float:
        """The border of the region that is nearest to `mean`."""
        return min(
            (b for b in (self.low, self.high) if math.isfinite(b)), key=lambda b: abs(mean - b)
        )

    def __str__(self) -> str:
        if math.isinf(self.high):
            return f"above {self.low:g}"
        if math.isinf(self.low):
            return f"below {self.high:g}"
        return f"between {self.low:g} and {self.high:g}"


def above(threshold: float) -> Rule:
    """The mean is above `threshold`."""
    return Rule(threshold, math.inf)


def below(threshold: float) -> Rule:
    """The mean is below `threshold`."""
    return Rule(-math.inf, threshold)


def equivalent(delta: float) -> Rule:
    """No difference worth naming: |mean| < `delta`. With a 95 % interval this is TOST at 2.5 % a side.

    Raises:
      ValueError: delta not positive.
    """
    if not 0 < delta < math.inf:
        raise ValueError(f"delta: must be positive and finite, got {delta}")
    return Rule(-delta, delta)
