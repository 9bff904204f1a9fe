"""Intervals and tests against values worked by hand, exact enumeration, and published power tables."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from attnlab import statistics


def test_student_interval_of_three_seeds_by_hand():
    interval = statistics.mean_interval([1.0, 2.0, 3.0])
    half = 4.302652730 / math.sqrt(3)  # t(0.975, 2 df) * sd / sqrt(n), sd = 1
    assert (interval.method, interval.n, interval.level) == ("paired t", 3, 0.95)
    np.testing.assert_allclose(
        [interval.mean, interval.low, interval.high], [2.0, 2.0 - half, 2.0 + half], rtol=1e-8
    )


def test_bca_interval_equals_exact_enumeration():
    values = np.array([0.1, 0.4, 0.5, 0.9, 1.3, 2.2, 5.0])
    # The means of all 7^7 resamples, and Efron's formulas.
    triples = np.array([sum(three) for three in itertools.product(values, repeat=3)])
    sixes = np.add.outer(triples, triples).ravel()
    sums = np.add.outer(sixes, values).ravel() / 7
    centre = values.mean()
    below = (np.sum(sums < centre - 1e-12) + np.sum(sums < centre + 1e-12)) / (2 * len(sums))
    z0 = stats.norm.ppf(below)
    jackknife = np.array([np.delete(values, i).mean() for i in range(7)])
    gaps = jackknife.mean() - jackknife
    acceleration = np.sum(gaps**3) / (6 * np.sum(gaps**2) ** 1.5)
    tails = []
    for z in stats.norm.ppf([0.025, 0.975]):
        tails.append(stats.norm.cdf(z0 + (z0 + z) / (1 - acceleration * (z0 + z))))
    low, high = np.quantile(sums, tails)
    interval = statistics.mean_interval(values, resamples=50_000)
    assert interval.method == "BCa bootstrap"
    assert interval.low == pytest.approx(low, abs=0.02 * (high - low))
    assert interval.high == pytest.approx(high, abs=0.02 * (high - low))
    assert high - centre > 1.3 * (centre - low), (
        "the case must be skewed, or a t interval passes too"
    )


def test_below_seven_seeds_the_wider_interval_is_used():
    rng = np.random.default_rng(0)
    for n in range(2, 7):
        values = rng.normal(size=n)
        bca = stats.bootstrap((values,), np.mean, method="BCa", rng=0).confidence_interval
        student = stats.t.interval(0.95, n - 1, values.mean(), stats.sem(values))
        widest = max(bca.high - bca.low, student[1] - student[0])
        assert statistics.mean_interval(values).width == pytest.approx(widest, rel=0.02)


def test_three_seed_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(1)
    intervals = [statistics.mean_interval(rng.normal(size=3), resamples=200) for _ in range(300)]
    covered = np.mean([i.low < 0.0 < i.high for i in intervals])
    assert covered > 0.91  # a bootstrap alone covers about three times in four


def test_same_data_give_the_same_bits():
    values = np.random.default_rng(2).normal(size=9)
    assert statistics.mean_interval(values) == statistics.mean_interval(values.copy())


@pytest.mark.parametrize("spread", [0.0, 1e-17])
def test_equal_values_give_a_point_instead_of_nan(spread):
    interval = statistics.mean_interval([0.1, 0.1 + spread, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1])
    assert interval.low == interval.mean == interval.high == pytest.approx(0.1)
    assert interval.method == "all values equal"


@pytest.mark.parametrize("values", [[], [1.0], [[1.0, 2.0]], [1.0, math.nan], [1.0, math.inf]])
def test_what_is_not_two_finite_seeds_is_refused(values):
    with pytest.raises(ValueError, match="differences"):
        statistics.mean_interval(values)


@pytest.mark.parametrize("level", [0.0, 1.0, 95.0])
def test_level_outside_the_unit_interval_is_refused(level):
    with pytest.raises(ValueError, match=f"level.*{level}"):
        statistics.mean_interval([1.0, 2.0], level=level)


def test_ratio_is_taken_within_a_seed():
    ratio_S = statistics.paired_ratio([1.0, 6.0], [2.0, 4.0])
    np.testing.assert_array_equal(ratio_S, [0.5, 1.5])
    assert statistics.mean_interval(ratio_S).mean == 1.0  # the ratio of the means would be 7/6


@pytest.mark.parametrize("denominators", [[1.0, 0.0], [1.0, -2.0]])
def test_share_of_nothing_is_refused(denominators):
    with pytest.raises(ValueError, match="denominators: must be positive"):
        statistics.paired_ratio([1.0, 1.0], denominators)


def test_ratio_of_unequal_lengths_is_refused():
    with pytest.raises(ValueError, match="got 2 and 3"):
        statistics.paired_ratio([1.0, 1.0], [1.0, 1.0, 1.0])


def test_one_sided_p_by_hand():
    # t = sqrt(3) with 2 degrees of freedom; the t(2) tail is (1 - t / sqrt(2 + t^2)) / 2.
    tail = (1 - math.sqrt(3 / 5)) / 2
    assert statistics.one_sided_p([1, 2, 3], 1.0, alternative="greater") == pytest.approx(tail)
    assert statistics.one_sided_p([1, 2, 3], 1.0, alternative="less") == pytest.approx(1 - tail)
    with pytest.raises(ValueError, match="two-sided"):
        statistics.one_sided_p([1, 2, 3], 1.0, alternative="two-sided")


def test_one_sided_p_of_equal_values_is_certain_and_not_nan():
    assert statistics.one_sided_p([2.0, 2.0], 1.0, alternative="greater") == 0.0
    assert statistics.one_sided_p([2.0, 2.0], 2.0, alternative="greater") == 1.0
    assert statistics.one_sided_p([2.0, 2.0], 1.0, alternative="less") == 1.0


def test_tost_by_hand():
    equivalence = statistics.tost([-0.01, 0.0, 0.01], 0.03)
    tail = (1 - math.sqrt(27 / 29)) / 2  # t = 0.03 / (0.01 / sqrt(3)) = sqrt(27)
    assert equivalence.p_lower == pytest.approx(tail)
    assert equivalence.p_upper == pytest.approx(tail)
    skewed = statistics.tost([0.011, -0.004, 0.02, 0.013, 0.006], 0.03)
    assert skewed.p_lower == pytest.approx(0.00030164859, rel=1e-6)  # statsmodels 0.15, ttost_mean
    assert skewed.p_value == skewed.p_upper == pytest.approx(0.00323630447, rel=1e-6)


def test_tost_at_a_agrees_with_the_interval_of_level_one_minus_two_a():
    rng = np.random.default_rng(3)
    agreed = set()
    for _ in range(200):
        values = rng.normal(rng.uniform(-0.06, 0.06), 0.02, size=6)
        low, high = stats.t.interval(0.95, 5, values.mean(), stats.sem(values))
        inside = bool(low > -0.05 and high < 0.05)
        assert (statistics.tost(values, 0.05).p_value < 0.025) == inside
        agreed.add(inside)
    assert agreed == {True, False}


@pytest.mark.parametrize("delta", [0.0, -0.1, math.inf, math.nan])
def test_equivalence_needs_a_positive_margin(delta):
    with pytest.raises(ValueError, match="delta"):
        statistics.tost([0.0, 0.1], delta)


def test_holm_by_hand():
    adjusted = statistics.holm([0.01, 0.04, 0.03, 0.005])
    np.testing.assert_allclose(adjusted, [0.03, 0.06, 0.06, 0.02])
    assert statistics.holm([0.9, 0.8]) == [1.0, 1.0]
    assert statistics.holm([]) == []
    with pytest.raises(ValueError, match=r"1\.5"):
        statistics.holm([1.5])


def test_power_matches_reference_values():
    # Paired t test, two-sided 5 %: statsmodels 0.15, TTestPower.
    assert statistics.power(20, 1.0, 0.5) == pytest.approx(0.56450442, abs=1e-7)
    assert statistics.power(10, 1.0, 1.0) == pytest.approx(0.80309686, abs=1e-7)
    assert statistics.power(5, 0.01, 1e-9) == pytest.approx(0.05, abs=1e-4)


def test_power_is_the_share_of_experiments_that_succeed():
    rng = np.random.default_rng(4)
    samples = rng.normal(0.02, 0.02, size=(20_000, 8))
    p_values = stats.ttest_1samp(samples, 0.0, axis=1).pvalue
    assert statistics.power(8, 0.02, 0.02) == pytest.approx(np.mean(p_values < 0.05), abs=0.01)


@pytest.mark.parametrize(
    ("sd", "delta", "seeds"),
    [(0.005, 0.02, 3), (0.005, 0.005, 13), (0.01, 0.02, 5), (0.01, 0.005, 44), (0.02, 0.005, 171)],
)
def test_seeds_needed_for_ninety_percent_power(sd, delta, seeds):
    assert statistics.seeds_needed(sd, delta) == seeds
    assert abs(seeds - (((1.96 + 1.28) * sd / delta) ** 2 + 2)) <= 1.1
    assert statistics.power(seeds, sd, delta) >= 0.9 > statistics.power(seeds - 1, sd, delta)


def test_seeds_needed_of_a_vanishing_difference_is_a_large_number_and_not_an_error():
    assert statistics.seeds_needed(1.0, 1e-3) == pytest.approx(10_507_424, abs=5)
    assert statistics.seeds_needed(1.0, 1e-16) > 10**30


@pytest.mark.parametrize(("sd", "delta"), [(0.0, 1.0), (1.0, 0.0), (math.nan, 1.0)])
def test_seeds_needed_refuses_what_has_no_answer(sd, delta):
    with pytest.raises(ValueError, match="must be positive"):
        statistics.seeds_needed(sd, delta)


def test_noise_between_seeds_by_hand():
    noise = statistics.aa_noise([1.0, 2.0, 3.0])
    # Chi-square quantiles of 2 degrees of freedom are -2 ln(1 - p).
    low, high = (math.sqrt(2 / (-2 * math.log(1 - p))) for p in (0.975, 0.025))
    np.testing.assert_allclose([noise.sd, noise.low, noise.high], [1.0, low, high])
    assert noise.sd_difference == pytest.approx(math.sqrt(2))


def test_smallest_difference_is_the_inverse_of_power():
    # Cohen's d of 1.0 is seen with 80.31 % by 10 paired seeds: statsmodels 0.15, TTestPower.
    assert statistics.smallest_difference(10, 1.0, chance=0.80309686) == pytest.approx(
        1.0, abs=1e-6
    )
    for n, sd in ((2, 0.01), (3, 5.0), (50, 1e-6)):
        found = statistics.smallest_difference(n, sd)
        assert statistics.power(n, sd, found) == pytest.approx(0.8, abs=1e-6)


def test_smallest_difference_is_nothing_where_chance_is_the_false_positive_rate():
    assert statistics.smallest_difference(5, 1.0, chance=0.04) == 0.0


@pytest.mark.parametrize("chance", [0.0, 1.0, 80])
def test_chance_outside_the_unit_interval_is_refused(chance):
    for ask in (statistics.smallest_difference, statistics.seeds_needed):
        with pytest.raises(ValueError, match=f"chance.*{chance}"):
            ask(3, 1.0, chance=chance)


def test_statsmodels_agrees_where_it_is_installed():
    power = pytest.importorskip("statsmodels.stats.power")
    weights = pytest.importorskip("statsmodels.stats.weightstats")
    multi = pytest.importorskip("statsmodels.stats.multitest")
    values = np.random.default_rng(5).normal(0.01, 0.02, size=9)
    assert statistics.power(7, 0.02, 0.03) == pytest.approx(power.TTestPower().power(1.5, 7, 0.05))
    theirs = weights.DescrStatsW(values).ttost_mean(-0.03, 0.03)[0]
    assert statistics.tost(values, 0.03).p_value == pytest.approx(theirs)
    p_values = [0.02, 0.001, 0.04, 0.3, 0.011]
    np.testing.assert_allclose(
        statistics.holm(p_values), multi.multipletests(p_values, method="holm")[1]
    )


def test_null_takes_disjoint_pairs_in_the_order_of_the_seeds():
    null = statistics.aa_null([1.0, 1.5, 3.0, 2.0, 9.0])
    assert null.differences == (-0.5, 1.0), "a fifth seed has no partner"
    assert null.largest == 8.0
    assert null.interval.mean == 0.25
    assert null.holds is True
    assert null.noise == statistics.aa_noise([1.0, 1.5, 3.0, 2.0, 9.0])


def test_null_of_one_pair_has_a_scatter_and_no_interval():
    null = statistics.aa_null([1.0, 1.5, 1.2])
    assert (null.interval, null.holds) == (None, None)
    assert null.largest == 0.5


def test_null_notices_seeds_that_are_not_exchangeable():
    drifting = [2.0 + 0.1 * (i % 2) + 0.001 * i for i in range(12)]
    assert statistics.aa_null(drifting).holds is False


# Blocks of a text


def test_ratio_interval_is_that_of_scipy_on_equal_blocks():
    """Equal denominators make it the interval of a mean."""
    rng = np.random.default_rng(0)
    nats_K = rng.gamma(4.0, 1.0, 40)
    found = statistics.ratio_interval(nats_K, np.full(40, 2.0))
    expected = statistics.mean_interval(nats_K / 2.0)
    assert found.mean == pytest.approx(expected.mean)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=2e-3)
    assert found.n == 40


def test_ratio_interval_weighs_blocks_by_their_targets():
    nats_K, targets_K = np.array([2.0, 30.0, 2.4]), np.array([1.0, 10.0, 1.2])
    assert statistics.ratio_interval(nats_K, targets_K).mean == pytest.approx(34.4 / 12.2)


def test_ratio_interval_covers_the_truth_as_often_as_it_says():
    """Blocks with a common shift each: tokens within one are not independent, and the interval knows."""
    rng = np.random.default_rng(1)
    covered = 0
    for trial in range(200):
        targets_K = rng.integers(20, 40, 50)
        nats_K = targets_K * (2.0 + 0.3 * rng.normal(size=50))
        found = statistics.ratio_interval(nats_K, targets_K, resamples=999, seed=trial)
        covered += found.low <= 2.0 <= found.high
    assert 0.95 * 200 - 4 * 3.1 <= covered <= 199


@pytest.mark.parametrize(
    ("nats", "targets"),
    [([1.0], [1.0]), ([1.0, 2.0], [1.0, 0.0]), ([1.0, 2.0], [1.0]), ([np.nan, 1.0], [1.0, 1.0])],
)
def test_ratio_interval_refuses_what_has_no_blocks(nats, targets):
    with pytest.raises(ValueError, match=r"numerators|denominators"):
        statistics.ratio_interval(nats, targets)


def test_equal_blocks_give_an_interval_without_width():
    found = statistics.ratio_interval([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert (found.low, found.mean, found.high) == (2.0, 2.0, 2.0)
