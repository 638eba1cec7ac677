"""Intervals of a set's figures over its texts, which are independent draws.

    mean       x̄ ± t s / √n
    ratio      Σy / Σx, linearised: the residuals y − r x stand for the y            (Cochran 1977, section 6.4)
    of a set   a figure that no text has by itself, such as self-BLEU: its variance is that over random halves of the
               set (delete-half jackknife, Shao and Wu 1989), since the mean of a half that is taken without putting
               back varies by (1 / (n/2) − 1 / n) s² = s² / n, as the mean of a new set would

t has n − 1 degrees of freedom.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

LEVEL = 0.95
ANYWHERE, POSITIVE, SHARE = (-math.inf, math.inf), (0.0, math.inf), (0.0, 1.0)
REPLICATES = 40  # halves: the standard error is then known to 11 %
FEWEST = 4  # texts whose halves are worth a look


@dataclass(frozen=True)
class Estimate:
    """A figure of a set.

    Attributes:
        value: None where no text has one.
        se: its standard error; None where the texts are too few.
        count: texts that it is made of.
    """

    value: float | None
    se: float | None
    count: int

    def interval(self, level: float = LEVEL) -> tuple[float, float] | None:
        if self.value is None or self.se is None:
            return None
        half = float(stats.t.ppf((1 + level) / 2, self.count - 1)) * self.se
        return self.value - half, self.value + half

    def columns(self, name: str, *, between: tuple[float, float] = ANYWHERE) -> dict[str, float | int | None]:
        """`name`, `name_low`, `name_high` and `name_count`; the interval cut at what no such figure exceeds."""
        low, high = self.interval() or (None, None)
        if low is not None and high is not None:
            low, high = max(low, between[0]), min(high, between[1])
        return {name: self.value, f"{name}_low": low, f"{name}_high": high, f"{name}_count": self.count}


NOTHING = Estimate(None, None, 0)


def mean(values: Sequence[float | None]) -> Estimate:
    """The mean of the texts that have a value; how many is in the count."""
    known = np.array([value for value in values if value is not None], float)
    if not len(known):
        return NOTHING
    se = float(known.std(ddof=1)) / math.sqrt(len(known)) if len(known) > 1 else None
    return Estimate(float(known.mean()), se, len(known))


def ratio(numerators: Sequence[float | None], denominators: Sequence[float]) -> Estimate:
    """Σ numerators / Σ denominators over the texts that have a numerator, such as nats over tokens."""
    pairs = [(top, bottom) for top, bottom in zip(numerators, denominators, strict=True) if top is not None]
    total = sum(bottom for _, bottom in pairs)
    if not total:
        return NOTHING
    top_N, bottom_N = np.array(pairs, float).T
    value, count = float(top_N.sum() / total), len(pairs)
    if count < 2:
        return Estimate(value, None, count)
    residual_N = top_N - value * bottom_N
    return Estimate(value, math.sqrt(count / (count - 1) * (residual_N**2).sum()) / total, count)


def of_set(
    figure: Callable[[Sequence[int]], float | None], count: int, *, replicates: int = REPLICATES, seed: int = 0
) -> Estimate:
    """A figure of `count` texts together.

    Args:
        figure: of the texts with these numbers.
    """
    value = figure(range(count)) if count else None
    if value is None:
        return NOTHING
    if count < FEWEST:
        return Estimate(value, None, count)
    found = [figure(half) for half in halves(count, replicates=replicates, seed=seed)]
    known = [one for one in found if one is not None]
    se = float(np.std(known, ddof=1)) if len(known) == len(found) else None
    return Estimate(value, se, count)


def halves(count: int, *, replicates: int, seed: int) -> Iterator[list[int]]:
    """Random halves of the numbers 0 to count − 1."""
    random = np.random.default_rng(seed)
    for _ in range(replicates):
        yield random.permutation(count)[: count // 2].tolist()
