"""Paired statistics over seeds: intervals, equivalence, multiplicity, power.

The unit of replication is the seed. Arms that share a seed share their initial key and their data order, so
what is analysed is one difference (or ratio) per seed, and nothing below the seed: tokens and windows
of one run are not independent replications of it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # loads scipy.stats at its first use: it takes a second, and planning needs none of it
from numpy.typing import ArrayLike

# Below this many seeds the bootstrap has too few distinct resamples to be trusted alone.
FEW_SEEDS = 7


@dataclass(frozen=True)
class Interval:
    """A confidence interval of a mean over `n` seeds, at confidence `level`, and how it was obtained."""

    mean: float
    low: float
    high: float
    level: float
    method: str
    n: int

    @property
    def width(self) -> float:
        return self.high - self.low


def mean_interval(
    differences: ArrayLike, *, level: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> Interval:
    """Interval of the mean of one number per seed, in the numbers' own unit.

    Bias-corrected and accelerated bootstrap (Efron 1987, as in scipy). Below 7 seeds it is compared with the
    Student t interval and the wider of the two is returned: with n seeds there are only C(2n-1, n)
    distinct resamples (10 for n = 3), and the bootstrap is then too narrow. Values that are all
    equal give an interval of zero width. `seed` fixes the resampling: the same data give the same bits.

    Raises:
      ValueError: fewer than 2 values, a value that is not finite, or a level outside (0, 1).
    """
    values_S = _per_seed("differences", differences)
    _inside("level", level)
    n, mean = len(values_S), float(np.mean(values_S))
    if _all_equal(values_S):
        return Interval(mean, mean, mean, level, "all values equal", n)
    bounds = scipy.stats.bootstrap(
        (values_S,),
        np.mean,
        confidence_level=level,
        n_resamples=resamples,
        method="BCa",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    bca = Interval(mean, float(bounds.low), float(bounds.high), level, "BCa bootstrap", n)
    if n >= FEW_SEEDS and math.isfinite(bca.width):
        return bca
    half = float(scipy.stats.t.ppf((1 + level) / 2, n - 1) * scipy.stats.sem(values_S))
    student = Interval(mean, mean - half, mean + half, level, "paired t", n)
    return bca if bca.width > student.width else student


def paired_ratio(numerators: ArrayLike, denominators: ArrayLike) -> np.ndarray:
    """One ratio per seed, to be given to `mean_interval`.

    The mean of ratios, not the ratio of means: each seed is then one replication of the whole quotient.

    Raises:
      ValueError: lengths differ, or a denominator is not positive (a share of nothing has no meaning).
    """
    top_S = _per_seed("numerators", numerators)
    bottom_S = _per_seed("denominators", denominators)
    if top_S.shape != bottom_S.shape:
        raise ValueError(
            f"numerators, denominators: need one of each per seed, got {len(top_S)} and {len(bottom_S)}"
        )
    if not np.all(bottom_S > 0):
        raise ValueError(f"denominators: must be positive in every seed, got {bottom_S.tolist()}")
    return top_S / bottom_S


def ratio_interval(
    numerators: ArrayLike,
    denominators: ArrayLike,
    *,
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Interval:
    """Interval of sum(numerators) / sum(denominators) over the blocks of one text: a mean loss from sums and counts.

    Blocks of consecutive windows are resampled, numerator and denominator together (BCa, as in scipy). It says how far
    another text of this kind and length would move the number, and nothing about another seed.

    Raises:
      ValueError: fewer than 2 blocks, lengths that differ, or a denominator that is not positive.
    """
    top_K, bottom_K = _per_block("numerators", numerators), _per_block("denominators", denominators)
    _inside("level", level)
    if top_K.shape != bottom_K.shape or not np.all(bottom_K > 0):
        raise ValueError(
            f"numerators, denominators: need one of each per block and denominators > 0, got {len(top_K)} and "
            f"{len(bottom_K)}, the smallest {bottom_K.min():g}; allowed: fewer, larger blocks"
        )
    mean, n = float(top_K.sum() / bottom_K.sum()), len(top_K)
    if _all_equal(top_K / bottom_K):
        return Interval(mean, mean, mean, level, "all values equal", n)
    bounds = scipy.stats.bootstrap(
        (top_K, bottom_K),
        lambda top, bottom, axis: top.sum(axis=axis) / bottom.sum(axis=axis),
        paired=True,
        confidence_level=level,
        n_resamples=resamples,
        method="BCa",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Interval(
        mean, float(bounds.low), float(bounds.high), level, "BCa bootstrap over blocks", n
    )


def one_sided_p(values: ArrayLike, threshold: float, *, alternative: str) -> float:
    """Student t test that the mean of one number per seed is `greater` or `less` than `threshold`.

    Raises:
      ValueError: fewer than 2 values, a value that is not finite, or another alternative.
    """
    values_S = _per_seed("values", values)
    if alternative not in ("greater", "less"):
        raise ValueError(f"alternative: got {alternative!r}; allowed: greater, less")
    if _all_equal(values_S):
        beyond = values_S[0] > threshold if alternative == "greater" else values_S[0] < threshold
        return 0.0 if beyond else 1.0
    return float(scipy.stats.ttest_1samp(values_S, threshold, alternative=alternative).pvalue)


@dataclass(frozen=True)
class Equivalence:
    """Two one-sided tests: `p_lower` against mean <= -delta, `p_upper` against mean >= delta."""

    p_lower: float
    p_upper: float

    @property
    def p_value(self) -> float:
        return max(self.p_lower, self.p_upper)


def tost(differences: ArrayLike, delta: float) -> Equivalence:
    """Two one-sided t tests that |mean| < `delta` (Schuirmann 1987).

    p < a is the same statement as "the 1 - 2a t interval lies inside (-delta, delta)"; a verdict that asks this
    of a 95 % interval is therefore TOST at a = 0.025.

    Raises:
      ValueError: delta not positive, fewer than 2 values, or a value that is not finite.
    """
    _positive("delta", delta)
    return Equivalence(
        p_lower=one_sided_p(differences, -delta, alternative="greater"),
        p_upper=one_sided_p(differences, delta, alternative="less"),
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p values of a family, in the given order (Holm 1979): reject where the adjusted value < alpha.

    Raises:
      ValueError: a value outside [0, 1].
    """
    for p in p_values:
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"p_values: each must lie in [0, 1], got {p}")
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def power(n: int, sd: float, delta: float, *, level: float = 0.95) -> float:
    """Chance that `n` paired seeds show a true mean difference `delta` when differences scatter by `sd`.

    Two-sided t test at `level`, exact under normality (noncentral t).

    Raises:
      ValueError: n < 2, or sd or delta not positive.
    """
    if n < 2:
        raise ValueError(f"n: must be at least 2 seeds, got {n}")
    _positive("sd", sd)
    _positive("delta", delta)
    critical = scipy.stats.t.ppf((1 + level) / 2, n - 1)
    shift = delta / sd * math.sqrt(n)
    # Beyond 8 standard errors the far tail is below 1e-15, and scipy's series for it ends in nan.
    far = scipy.stats.nct.cdf(-critical, n - 1, shift) if shift < 8.0 else 0.0
    return float(scipy.stats.nct.sf(critical, n - 1, shift) + far)


def seeds_needed(sd: float, delta: float, *, chance: float = 0.9, level: float = 0.95) -> int:
    """Fewest paired seeds with at least this chance to show a true difference `delta`.

    About ((1.96 + 1.28) sd/delta)^2 + 2 at the defaults; computed from `power` up to 10,000 seeds, and by
    that formula beyond.

    Raises:
      ValueError: sd or delta not positive, or chance outside (0, 1).
    """
    _positive("sd", sd)
    _positive("delta", delta)
    _inside("chance", chance)
    z = scipy.stats.norm.ppf((1 + level) / 2) + scipy.stats.norm.ppf(chance)
    # The normal approximation never asks for more than the t test does, so the search starts there.
    n = max(2, math.floor((z * sd / delta) ** 2))
    if n > 10_000:
        return n + 2
    while power(n, sd, delta, level=level) < chance:
        n += 1
    return n


def smallest_difference(n: int, sd: float, *, chance: float = 0.8, level: float = 0.95) -> float:
    """The true mean difference that `n` paired seeds show with this chance, in the unit of `sd`.

    What an experiment could have seen: a difference smaller than this may exist and still not appear.

    Raises:
      ValueError: n < 2, sd not positive, or chance outside (0, 1).
    """
    _positive("sd", sd)
    _inside("chance", chance)
    upper = sd
    while power(n, sd, upper, level=level) < chance:
        upper *= 2.0
    # As the difference vanishes the power falls to 1 - level, which may already be chance enough.
    if power(n, sd, 1e-9 * sd, level=level) >= chance:
        return 0.0
    return float(
        scipy.optimize.brentq(
            lambda delta: power(n, sd, delta, level=level) - chance, 1e-9 * sd, upper, rtol=1e-9
        )
    )


@dataclass(frozen=True)
class Noise:
    """Scatter between seeds of one arm: `sd` with its interval [low, high], in the values' unit."""

    sd: float
    low: float
    high: float
    n: int

    @property
    def sd_difference(self) -> float:
        """Scatter of an A/A difference: the same arm under two independent seeds."""
        return math.sqrt(2.0) * self.sd


def aa_noise(values: ArrayLike, *, level: float = 0.95) -> Noise:
    """How far runs of ONE arm lie apart when only the seed differs; the chi-square interval of the sd.

    A difference between arms that is smaller than this is noise, whatever its sign. From 3 seeds the interval
    spans a factor of 12: publish it.

    Raises:
      ValueError: fewer than 2 values, or a value that is not finite.
    """
    values_S = _per_seed("values", values)
    n = len(values_S)
    sd = float(np.std(values_S, ddof=1))
    tails = scipy.stats.chi2.ppf([(1 + level) / 2, (1 - level) / 2], n - 1)
    low, high = (float(sd * math.sqrt((n - 1) / tail)) for tail in tails)
    return Noise(sd, low, high, n)


@dataclass(frozen=True)
class Null:
    """An arm against itself: what a comparison shows where there is nothing to show.

    `largest` is the largest difference between two seeds. `differences` are those of disjoint pairs of seeds (first
    minus second, third minus fourth, ...), and `interval` is of their mean, None below two pairs.
    """

    noise: Noise
    largest: float
    differences: tuple[float, ...]
    interval: Interval | None

    @property
    def holds(self) -> bool | None:
        """Whether the interval contains 0, as it must 19 times in 20; None where there is no interval."""
        return None if self.interval is None else self.interval.low <= 0.0 <= self.interval.high


def aa_null(values: ArrayLike) -> Null:
    """The A/A comparison of ONE arm, from its value in each seed.

    The pairs are disjoint, so that the differences are independent; the order is that of the seeds, fixed
    before the runs.

    Raises:
      ValueError: fewer than 2 values, or a value that is not finite.
    """
    values_S = _per_seed("values", values)
    even = len(values_S) // 2 * 2
    pairs = values_S[0:even:2] - values_S[1:even:2]
    interval = mean_interval(pairs) if len(pairs) >= 2 else None
    return Null(aa_noise(values_S), float(np.ptp(values_S)), tuple(pairs.tolist()), interval)


def _per_seed(name: str, values: ArrayLike) -> np.ndarray:
    values_S = np.asarray(values, dtype=np.float64)
    if values_S.ndim != 1 or len(values_S) < 2:
        raise ValueError(
            f"{name}: need one number per seed and at least 2 seeds, got shape {values_S.shape}"
        )
    if not np.all(np.isfinite(values_S)):
        raise ValueError(f"{name}: every value must be finite, got {values_S.tolist()}")
    return values_S


def _per_block(name: str, values: ArrayLike) -> np.ndarray:
    values_K = np.asarray(values, dtype=np.float64)
    if values_K.ndim != 1 or len(values_K) < 2 or not np.all(np.isfinite(values_K)):
        raise ValueError(
            f"{name}: need one finite number per block and at least 2 blocks, got shape {values_K.shape}"
        )
    return values_K


def _all_equal(values_S: np.ndarray) -> bool:
    # Losses are float32: a relative spread of 1e-12 is rounding, and BCa divides 0 by 0 there.
    return bool(np.ptp(values_S) <= 1e-12 * np.max(np.abs(values_S)))


def _positive(name: str, value: float) -> None:
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name}: must be positive and finite, got {value}")


def _inside(name: str, value: float) -> None:
    if not 0.0 < value < 1.0:
        raise ValueError(f"{name}: must lie strictly between 0 and 1, got {value}")
