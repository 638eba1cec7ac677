"""Long runs of forwards that differ by one position each, as a few of them that stand for the others.

What a forward costs is nearly linear in the length behind it, so a sum over thousands of steps is a sum over tens of
them with weights (the trapezoid rule): exact where it is linear, and both ends stay, which decide peak and first token.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise

from paradigms.work import ForwardShape

WHOLE = 256  # runs of so many are left as they are
PLACES = 65


def thinned(shapes: Iterable[ForwardShape]) -> Iterator[ForwardShape]:
    """The same forwards in order; of a long run some, to whose `times` those between them are added."""
    run: list[ForwardShape] = []
    for shape in shapes:
        if run and not _follows(run[-1], shape):
            yield from _chosen(run)
            run = []
        run.append(shape)
    yield from _chosen(run)


def _follows(before: ForwardShape, shape: ForwardShape) -> bool:
    """Whether only lengths have grown, each by one or not at all."""
    grown = {name: getattr(shape, name) - getattr(before, name) for name in ("tokens", "seen", "kept", "written")}
    same = replace(before, **{name: getattr(shape, name) for name in grown})
    return same == shape and set(grown.values()) <= {0, 1}


def _chosen(run: list[ForwardShape]) -> Iterator[ForwardShape]:
    if len(run) <= WHOLE:
        yield from run
        return
    places = [round(index * (len(run) - 1) / (PLACES - 1)) for index in range(PLACES)]
    between = [right - left - 1 for left, right in pairwise(places)]
    for place, before, after in zip(places, [0, *between], [*between, 0], strict=True):
        yield replace(run[place], times=run[place].times * (1 + (before + after) / 2))
