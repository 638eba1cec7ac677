"""What happened to the machine within a stretch, seen in its steps: the same work took longer for a while.

A virtual machine's neighbours slow a core or its memory for a tenth of a second or for some, which readings before and
after do not see, nor any counter in between. The steps of the work itself show it:

    expected   of an event: the median of its kind over all repeats of the attempt, on a straight line along the text
    block      consecutive events of one repeat, 25 ms together: shorter jitter averages out
    uneven     sum of times / sum of expected, over the lower quartile of the blocks' times / expected, minus 1

Events are of one kind when phase, forwards of each model and positions computed are equal; where that occurs once, when
phase and forwards are. It compares steps of one attempt, never attempts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

import numpy as np
from scipy.stats import theilslopes

from paradigms.measure.recording import Recording

BLOCK_S = 0.025
FLOOR_QUANTILE = 0.25
_FEWEST_FOR_QUANTILE = 4  # below it the fastest is taken
_FEWEST_FOR_TREND, _MOST_FOR_TREND = 8, 128  # the slope is found among all pairs

Place = tuple[int, int]  # repeat, event


def unevenness(recordings: Sequence[Recording]) -> float | None:
    """Share of the time that was spent beyond what the quieter blocks took.

    Returns:
        None where no two blocks can be compared: nothing recurs, or all of it took less than two blocks.
    """
    spent_s = {
        (repeat, event): end_s - start_s
        for repeat, recording in enumerate(recordings)
        for event, (start_s, end_s) in enumerate(pairwise((0.0, *recording.event_s)))
    }
    expected_s: dict[Place, float] = {}
    for places in _alike(recordings):
        expected_s |= zip(places, _expected_s(places, [spent_s[place] for place in places]), strict=True)
    blocks = np.array(_blocks(spent_s, expected_s)).reshape(-1, 2)
    if len(blocks) < 2:
        return None
    slowness = blocks[:, 0] / blocks[:, 1]
    floor = np.quantile(slowness, FLOOR_QUANTILE) if len(blocks) >= _FEWEST_FOR_QUANTILE else slowness.min()
    return max(0.0, float(blocks[:, 0].sum() / blocks[:, 1].sum() / floor - 1))


def _alike(recordings: Sequence[Recording]) -> list[list[Place]]:
    """Places of events of one kind, kinds that occur at least twice."""
    counts = Counter(kind for recording in recordings for kind in recording.event_kinds)
    by_kind: dict[tuple[Any, ...], list[Place]] = defaultdict(list)
    for repeat, recording in enumerate(recordings):
        for event, kind in enumerate(recording.event_kinds):
            by_kind[kind if counts[kind] > 1 else kind[:-1]].append((repeat, event))
    return [places for places in by_kind.values() if len(places) > 1]


def _expected_s(places: Sequence[Place], spent_s: Sequence[float]) -> list[float]:
    """Of each event of a kind."""
    spent_N = np.array(spent_s)
    if len(places) < _FEWEST_FOR_QUANTILE:
        return [float(spent_N.min())] * len(places)
    event_N = np.array([event for _, event in places], dtype=float)
    slope = 0.0
    if len(places) >= _FEWEST_FOR_TREND and np.ptp(event_N) > 0:
        some = np.linspace(0, len(places) - 1, min(len(places), _MOST_FOR_TREND)).round().astype(int)
        fit: Any = theilslopes(spent_N[some], event_N[some])
        slope = float(fit.slope)
    level_s = float(np.median(spent_N - slope * event_N))
    return np.maximum(level_s + slope * event_N, spent_N.min()).tolist()


def _blocks(spent_s: dict[Place, float], expected_s: dict[Place, float]) -> list[tuple[float, float]]:
    """Time and expected time of each block; what is left of a repeat belongs to its last block, or is one by itself."""
    blocks: list[tuple[float, float]] = []
    for _, places in groupby(sorted(expected_s), key=itemgetter(0)):
        of_repeat: list[tuple[float, float]] = []
        spent = expected = 0.0
        for place in places:
            spent, expected = spent + spent_s[place], expected + expected_s[place]
            if expected >= BLOCK_S:
                of_repeat.append((spent, expected))
                spent = expected = 0.0
        if of_repeat:
            of_repeat[-1] = of_repeat[-1][0] + spent, of_repeat[-1][1] + expected
        elif expected > 0:
            of_repeat.append((spent, expected))
        blocks += of_repeat
    return blocks
