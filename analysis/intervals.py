"""Intervals that cover as often as they say, however few the rounds: exact, without a distribution, at discrete levels.

- A median: two order statistics (David & Nagaraja, Order Statistics, 7.1). It asks for independence alone.
- A ratio of pairs: the median of the Walsh averages of the log ratios (Hodges & Lehmann 1963), between the Walsh
  averages that Wilcoxon's signed-rank test does not reject. It asks that log ratios lie symmetrically about the true
  one, as those of two alike paradigms do.

Both have only some levels: of those at or above 93 % the one nearest 95 % is taken. With fewer than five pairs or
values none is, and the widest is given: 87.5 % for four, 75 % for three. `Estimate.coverage` carries what was reached.
A bootstrap of a median says "95 %" and covers 75 % of the time with three rounds, 88 % with seven, 92 to 94 % with
eight to twenty (simulated: normal, lognormal and contaminated noise, to within 1 %).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import stats

LEVEL = 0.95
LEAST = 0.93  # a level below this is not called 95 %


@dataclass(frozen=True)
class Estimate:
    """A value, its interval (NaN where the data cannot give one), and what stands behind it.

    Attributes:
        count: independent clusters: rounds, pairs of rounds, texts.
        coverage: how often such an interval holds the true value; NaN where there is no interval.
    """

    value: float
    low: float
    high: float
    count: int
    coverage: float = math.nan

    def __post_init__(self) -> None:
        assert not self.low > self.high, "an interval runs from low to high"


NOTHING = Estimate(math.nan, math.nan, math.nan, 0)


def median(values: Sequence[float] | np.ndarray) -> Estimate:
    """The median, between two order statistics; no interval of a single value."""
    ordered = np.sort(np.asarray(values, dtype=float))
    count = len(ordered)
    if not count:
        return NOTHING
    depth, coverage = median_level(count)
    if not depth:
        return Estimate(float(ordered[0]), math.nan, math.nan, count)
    low, high = float(ordered[depth - 1]), float(ordered[count - depth])
    return Estimate(float(np.median(ordered)), low, high, count, coverage)


def paired_ratio(log_ratios: Sequence[float] | np.ndarray) -> Estimate:
    """The ratio behind logarithms of ratios of pairs: Hodges and Lehmann's estimate, the signed-rank interval."""
    ratios = np.asarray(log_ratios, dtype=float)
    count = len(ratios)
    if not count:
        return NOTHING
    first, second = np.triu_indices(count)
    averages = np.exp(np.sort((ratios[first] + ratios[second]) / 2))
    depth, coverage = signed_rank_level(count)
    value = float(np.median(averages))
    if not depth:
        return Estimate(value, math.nan, math.nan, count)
    return Estimate(value, float(averages[depth - 1]), float(averages[-depth]), count, coverage)


@lru_cache
def median_level(count: int) -> tuple[int, float]:
    """How deep from either end the order statistics lie, counted from 1, and how often they hold the true median.

    (0, NaN) for a single value.
    """
    return _nearest(2 * stats.binom.cdf(np.arange(count // 2), count, 0.5))


@lru_cache
def signed_rank_level(count: int) -> tuple[int, float]:
    """How deep from either end the Walsh averages lie, counted from 1, and how often they hold the true value."""
    if count < 2:
        return 0, math.nan
    return _nearest(2 * np.cumsum(signed_ranks(count))[: count * (count + 1) // 4])


def _nearest(missed: np.ndarray) -> tuple[int, float]:
    """Depth and coverage, given how often the intervals of depths 1, 2, ... miss."""
    covered = 1 - missed
    if not len(covered):
        return 0, math.nan
    allowed = np.flatnonzero(covered >= LEAST)
    best = allowed[np.argmin(np.abs(covered[allowed] - LEVEL))] if len(allowed) else 0
    return int(best) + 1, float(covered[best])


@lru_cache
def signed_ranks(count: int) -> np.ndarray:
    """Probability of each sum of positive ranks, 0 to n(n + 1)/2, when every sign is a coin's."""
    chance = np.ones(1)
    for rank in range(1, count + 1):
        with_rank = np.zeros(len(chance) + rank)
        with_rank[: len(chance)] += chance / 2
        with_rank[rank:] += chance / 2
        chance = with_rank
    return chance


def signed_rank_p(differences: Sequence[float] | np.ndarray) -> float:
    """Two-sided p of Wilcoxon's signed-rank test against no difference; exact, by the permutations of the signs.

    Zeros are left out, ties share their mean rank.
    """
    kept = np.asarray(differences, dtype=float)
    kept = kept[kept != 0]
    if not len(kept):
        return 1.0
    doubled = np.rint(2 * stats.rankdata(np.abs(kept))).astype(int)  # mean ranks are halves
    chance = np.ones(1)
    for rank in doubled:
        with_rank = np.zeros(len(chance) + rank)
        with_rank[: len(chance)] += chance / 2
        with_rank[rank:] += chance / 2
        chance = with_rank
    observed = int(doubled[kept > 0].sum())
    tails = np.cumsum(chance)
    return float(min(1.0, 2 * min(tails[observed], 1 - (tails[observed - 1] if observed else 0.0))))


def binomial(hits: int, trials: int) -> Estimate:
    """A share with its exact interval (Clopper & Pearson 1934), which covers at least 95 % of the time."""
    if not trials:
        return NOTHING
    interval = stats.binomtest(hits, trials).proportion_ci(LEVEL, method="exact")
    return Estimate(hits / trials, float(interval.low), float(interval.high), trials, LEVEL)


def describe(intervals: Iterable[tuple[int, float]], noun: str = "round") -> str:
    """What intervals promise, for a caption: `75 % (3 rounds)`, `75 to 95.3 % (3 to 7 rounds)`.

    Args:
        intervals: (count, coverage) of each that is shown; those without coverage are left out.
    """
    known = sorted({pair for pair in intervals if not math.isnan(pair[1])})
    if not known:
        return ""
    counts = [count for count, _ in known]
    covered = sorted({f"{100 * coverage:.3g}" for _, coverage in known}, key=float)
    share = covered[0] if len(covered) == 1 else f"{covered[0]} to {covered[-1]}"
    number = f"{counts[0]:,}" if counts[0] == counts[-1] else f"{counts[0]:,} to {counts[-1]:,}"
    return f"{share} % ({number} {noun}{'s' * (counts[-1] != 1)})"
