"""Shares of right answers over the trainings of a paradigm: their interval, and who wins.

    of one training      share of distinct instances that are right, between the limits of Clopper and Pearson (1934)
    over S trainings     mean ± t(0.975, S − 1) s / √S, never narrower than Clopper and Pearson for as many instances as
                         one training answered: all answer the same ones, and three that agree tell little of a fourth
    winners              the best mean, and all that Welch's t does not tell from it at 5 % (Holm, over the others); the
                         variance of a mean is s² / S with S − 1 degrees of freedom, or the binomial p (1 − p) / n of
                         one training's instances where that is more, which is known
    one training         Clopper and Pearson's interval and the binomial variance alone, marked *: another training of
                         the same paradigm may lie outside

The t interval takes the accuracies of trainings for normal, which those of a task learnt by some of them are not: the
single ones stand beside it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pandas as pd
from scipy import stats

from analysis import intervals
from analysis.intervals import LEVEL, NOTHING, Estimate
from analysis.series import SEED

ALONE, SHARED, NOT = "wins", "shares the win", "behind"


def of_trainings(rows: pd.DataFrame, column: str = "correct") -> pd.DataFrame:
    """Share and number of instances of each training, indexed by its seed."""
    known = rows[rows[column].notna()]
    return known.groupby(SEED)[column].agg(share="mean", count="size")


def over_trainings(rows: pd.DataFrame, column: str = "correct") -> Estimate:
    """Mean share over trainings with its interval (see above); `count` is the number of trainings."""
    trained = of_trainings(rows, column)
    if not len(trained):
        return NOTHING
    mean, instances, seeds = float(trained["share"].mean()), int(trained["count"].min()), len(trained)
    least = intervals.binomial(round(mean * instances), instances)
    low, high = min(least.low, mean), max(least.high, mean)
    if seeds > 1:
        half = float(stats.t.ppf(0.5 + LEVEL / 2, seeds - 1) * trained["share"].std() / math.sqrt(seeds))
        low, high = min(low, mean - half), max(high, mean + half)
    return Estimate(mean, max(low, 0.0), min(high, 1.0), seeds, LEVEL)


@dataclass(frozen=True)
class Mean:
    """A mean share as the comparison sees it: its variance, and the degrees of freedom that is known with."""

    value: float
    variance: float
    df: float

    @classmethod
    def of(cls, rows: pd.DataFrame, column: str = "correct") -> Mean:
        trained = of_trainings(rows, column)
        if not len(trained):
            return cls(math.nan, math.nan, math.inf)
        value, instances, seeds = float(trained["share"].mean()), int(trained["count"].min()), len(trained)
        smoothed = (value * instances + 1) / (instances + 2)  # else all right or all wrong would have no variance
        least = smoothed * (1 - smoothed) / instances
        between = float(trained["share"].var()) / seeds if seeds > 1 else 0.0
        return cls(value, between, seeds - 1) if between > least else cls(value, least, math.inf)


def difference_p(one: Mean, other: Mean) -> float:
    """Two-sided p of Welch's t against equal means; of the normal distribution where both variances are binomial."""
    variance = one.variance + other.variance
    t = abs(one.value - other.value) / math.sqrt(variance)
    spread = sum(mean.variance**2 / mean.df for mean in (one, other))
    return float(2 * (stats.t.sf(t, variance**2 / spread) if spread else stats.norm.sf(t)))


def standing(means: dict[str, Mean]) -> dict[str, str]:
    """Of each: ALONE, SHARED or NOT. Nobody wins who has nothing right."""
    known = {name: mean for name, mean in means.items() if not math.isnan(mean.value)}
    best = max(known, key=lambda name: known[name].value, default=None)
    verdicts = dict.fromkeys(means, NOT)
    if best is None or known[best].value == 0:
        return verdicts
    others = {name: difference_p(known[best], known[name]) for name in known if name != best}
    verdicts[best], steps = SHARED, len(others)
    # Holm's steps down: what stands behind the first that cannot be told apart cannot be either.
    for name in sorted(others, key=lambda name: others[name]):
        if others[name] * steps > 1 - LEVEL:
            break
        del others[name]
        steps -= 1
    for name in others:
        if known[name].value > 0:
            verdicts[name] = SHARED
    if list(verdicts.values()).count(SHARED) == 1:
        verdicts[best] = ALONE
    return verdicts
