"""Where two quantities change places along an axis of whole numbers, and between which values they might.

A prediction that is off by up to a factor of 1 + s may misjudge which of two is faster as long as they differ by less
than that, so the interval of a crossing is the stretch around it where their ratio stays within 1 + s.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

SAME = 1e-9  # relative: what sums of floats in another order differ by
PLACES = 25  # that are looked at; what changes places twice between two of them is not seen


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """A change of places.

    Attributes:
        at: the first value where the one that was smaller no longer is.
        low, high: the stretch in which it might lie; None where the spread is not known.
        low_open, high_open: whether it goes on beyond what was looked at.
        smaller_before: 0 or 1, which of the two is smaller below.
    """

    at: int
    low: int | None
    high: int | None
    low_open: bool = False
    high_open: bool = False
    smaller_before: int


def crossings(
    first: Callable[[int], float], second: Callable[[int], float], low: int, high: int, *, spread: float | None
) -> list[Crossing]:
    """Changes of places of two positive quantities between two values.

    Raises:
        ValueError: a range of nothing.
    """
    if not 1 <= low < high:
        raise ValueError(f"a range from {low} to {high} is empty; give a --low of at least 1 that is below --high")

    @cache
    def ratio(value: int) -> float:
        found = math.log(first(value) / second(value))
        return found if abs(found) > SAME else 0.0

    places = sorted({round(low * (high / low) ** (index / (PLACES - 1))) for index in range(PLACES)})
    found, differed = [], False
    for left, right in pairwise(places):
        before, after = ratio(left), ratio(right)
        differed = differed or before != 0  # two that have only been equal do not change places
        if not differed or (before < 0) == (after < 0):
            continue
        at = _first(left, right, lambda value, before=before: (ratio(value) < 0) != (before < 0))
        found.append(_with_interval(at, ratio, places, spread, smaller_before=0 if before < 0 else 1))
    return found


def _with_interval(
    at: int, ratio: Callable[[int], float], places: list[int], spread: float | None, *, smaller_before: int
) -> Crossing:
    if spread is None:
        return Crossing(at=at, low=None, high=None, smaller_before=smaller_before)
    limit = math.log1p(spread)

    def sure(value: int) -> bool:
        return abs(ratio(value)) > limit

    low = next((place for place in reversed([*places, at - 1]) if place < at and sure(place)), None)
    high = next((place for place in [at, *places] if place >= at and sure(place)), None)
    return Crossing(
        at=at,
        low=places[0] if low is None else at if low == at - 1 else _first(low, at - 1, lambda value: not sure(value)),
        high=places[-1] if high is None else at if high == at else _first(at, high, sure) - 1,
        low_open=low is None,
        high_open=high is None,
        smaller_before=smaller_before,
    )


def _first(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The first value above `low` where something holds that holds at `high` and not at `low`."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
