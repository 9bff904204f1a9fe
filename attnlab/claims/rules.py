"""When is a number on the claimed side? The four verdicts, and the region that decides between three of them."""

import math
from collections.abc import Iterable
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


def conjunction(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict on "all of these": one part refuted refutes it, one part without an answer leaves it without one.

    Raises:
      ValueError: no verdict.
    """
    found = set(verdicts)
    if not found:
        raise ValueError("verdicts: need at least one")
    for decisive in (Verdict.NOT_REPRODUCED, Verdict.INVALID, Verdict.INCONCLUSIVE):
        if decisive in found:
            return decisive
    return Verdict.REPRODUCED


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


def between(low: float, high: float) -> Rule:
    """The mean lies strictly between two finite borders.

    Raises:
      ValueError: a border that is not finite, or low not below high.
    """
    if not -math.inf < low < high < math.inf:
        raise ValueError(f"low, high: must be finite and in order, got {low} and {high}")
    return Rule(low, high)


def positive() -> Rule:
    """Only the sign is claimed: the mean is above 0."""
    return above(0.0)


def negative() -> Rule:
    """Only the sign is claimed: the mean is below 0."""
    return below(0.0)


def equivalent(delta: float) -> Rule:
    """No difference worth naming: |mean| < `delta`. With a 95 % interval this is TOST at 2.5 % a side.

    Raises:
      ValueError: delta not positive.
    """
    if not 0 < delta < math.inf:
        raise ValueError(f"delta: must be positive and finite, got {delta}")
    return Rule(-delta, delta)
