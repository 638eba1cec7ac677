"""Intervals cover as often as they say: enumerated, simulated, and against scipy's tests turned round."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from analysis import intervals

NOISES = {
    "normal": lambda random, size: random.normal(size=size),
    "lognormal": lambda random, size: random.lognormal(0, 1, size=size) - 1,
    "contaminated": lambda random, size: np.where(random.random(size) < 0.1, 20, 1) * random.normal(size=size),
}


@pytest.mark.parametrize("count", range(2, 13))
def test_signed_rank_coverage_is_that_of_all_sign_patterns(count):
    """The interval holds 0 exactly when the test does not reject: counted over 2^n signs of n distinct sizes."""
    depth, coverage = intervals.signed_rank_level(count)
    sizes = 2.0 ** np.arange(count)  # no two Walsh averages are equal in size
    patterns = np.array(list(itertools.product((-1, 1), repeat=count))) * sizes
    first, second = np.triu_indices(count)
    averages = np.sort((patterns[:, first] + patterns[:, second]) / 2, axis=1)
    held = (averages[:, depth - 1] <= 0) & (averages[:, -depth] >= 0)
    assert held.mean() == pytest.approx(coverage, abs=1e-12)


@pytest.mark.parametrize("count", range(2, 13))
def test_median_coverage_is_that_of_all_sides(count):
    """Each value lies on either side of the true median with equal chance."""
    depth, coverage = intervals.median_level(count)
    above = np.array(list(itertools.product((0, 1), repeat=count))).sum(axis=1)
    assert ((above >= depth) & (count - above >= depth)).mean() == pytest.approx(coverage, abs=1e-12)


@pytest.mark.parametrize("count", [5, 6, 7, 8, 11, 15])
def test_signed_rank_interval_is_scipys_test_turned_round(count):
    """What lies just inside is not rejected at the level of the interval, what lies just outside is."""
    differences = np.random.default_rng(count).normal(size=count)
    estimate = intervals.paired_ratio(differences)
    for edge, outwards in ((math.log(estimate.low), -1e-9), (math.log(estimate.high), 1e-9)):
        inside, outside = (
            stats.wilcoxon(differences - edge - shift, method="exact").pvalue for shift in (-outwards, outwards)
        )
        assert outside <= 1 - estimate.coverage + 1e-12 < inside


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-6, 6).map(float), min_size=1, max_size=11))
def test_p_is_that_of_all_sign_patterns_with_ties_and_zeros(differences):
    kept = np.array([value for value in differences if value])
    if not len(kept):
        assert intervals.signed_rank_p(differences) == 1
        return
    ranks = stats.rankdata(np.abs(kept))
    sums = np.array([np.dot(signs, ranks) for signs in itertools.product((0, 1), repeat=len(kept))])
    observed = ranks[kept > 0].sum()
    expected = min(1, 2 * min((sums <= observed).mean(), (sums >= observed).mean()))
    assert intervals.signed_rank_p(differences) == pytest.approx(expected)


def test_levels_are_nearest_95_and_not_below_93():
    for level in (intervals.median_level, intervals.signed_rank_level):
        assert all(level(count)[1] >= 0.93 for count in range(5, 60))
        assert [level(count)[1] for count in (2, 3, 4, 5)] == pytest.approx([0.5, 0.75, 0.875, 0.9375])
        assert level(1)[0] == 0 and math.isnan(level(1)[1])
    assert intervals.signed_rank_level(6)[1] == pytest.approx(0.9375)  # 96.9 % is farther off
    assert intervals.signed_rank_level(7)[1] == pytest.approx(0.953125)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("count", [3, 5, 7, 12, 20])
def test_intervals_cover_as_often_as_they_say(noise, count):
    random, trials = np.random.default_rng(count), 2_000
    drawn = NOISES[noise](random, (trials, count))
    held = [estimate.low <= 0 <= estimate.high for estimate in map(intervals.median, drawn)]
    assert np.mean(held) == pytest.approx(intervals.median_level(count)[1], abs=0.025)
    pairs = drawn - NOISES[noise](random, (trials, count))  # drift is gone, two alike are left
    held = [estimate.low <= 1 <= estimate.high for estimate in map(intervals.paired_ratio, pairs)]
    assert np.mean(held) == pytest.approx(intervals.signed_rank_level(count)[1], abs=0.025)


def test_simulation_would_find_an_interval_that_promises_too_much():
    """Negative control: what the interval of three covers is not what one of seven does."""
    drawn = np.random.default_rng(0).normal(size=(2_000, 3))
    held = [estimate.low <= 0 <= estimate.high for estimate in map(intervals.median, drawn)]
    assert np.mean(held) != pytest.approx(intervals.median_level(7)[1], abs=0.1)


def test_value_of_a_ratio_is_hodges_and_lehmanns():
    assert intervals.paired_ratio(np.log([1.0, 2.0, 4.0])).value == pytest.approx(2.0)
    assert intervals.paired_ratio(np.log([1.0, 1.0, 1.0, 100.0])).value == pytest.approx(1.0)
    assert intervals.paired_ratio([]).count == 0


def test_share_has_scipys_exact_interval():
    estimate = intervals.binomial(19, 20)
    assert estimate.value == 0.95
    assert stats.binom.sf(18, 20, estimate.low) == pytest.approx(0.025, abs=1e-6)
    assert stats.binom.cdf(19, 20, estimate.high) == pytest.approx(0.025, abs=1e-6)


def test_caption_says_count_and_coverage():
    pair = lambda count: (count, intervals.signed_rank_level(count)[1])  # noqa: E731
    assert intervals.describe([pair(4)]) == "87.5 % (4 rounds)"
    assert intervals.describe([pair(3), pair(7), pair(3)]) == "75 to 95.3 % (3 to 7 rounds)"
    assert intervals.describe([pair(1)]) == ""
