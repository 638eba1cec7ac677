"""Time at equal quality, for every two paradigms.

    at equal quality     the highest level that both of a pair reach: costs there, and their ratio

Intervals of ratios are percentiles of a bootstrap that draws trainings, instances or texts, and rounds (where there was
one round its repeats, which share their moment) anew, and finds points, frontiers and level again. With few rounds such
intervals are too narrow: they are shown with their count. At a level that can be gamed, the entropies of the two sides
stand beside it: an equal level at less entropy was bought with it.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, groupby

import numpy as np
import pandas as pd

from analysis.findings import capital, number, with_interval
from analysis.frames import Frames
from analysis.frontier import (
    ENTROPY,
    Line,
    Measure,
    common_level,
    cost_at,
    frontier,
    measures,
    points,
    requests,
    texts_with,
)
from analysis.intervals import LEVEL, Estimate
from analysis.series import SEED
from analysis.tables import Table
from analysis.trainings import of_trainings

ALL_PAIRS = 3  # paradigms of which every pair is shown
DRAWS = 1000
LEAST_DRAWN = 0.95  # share of the draws that must have a level for an interval


@dataclass(frozen=True)
class Equal:
    """Time of two paradigms at equal quality.

    Attributes:
        level: quality that both reach, as the measure counts it; NaN where there is none.
        one_s, other_s: seconds there; NaN where not reached.
        ratio: of the second to the first, with its interval; `count`: rounds, or repeats of the only one, of the side
            that has fewest.
        better: who goes beyond the level; None where neither does.
        best: how far, and `best_s`, what that costs.
        one_entropy_nats, other_entropy_nats: of the texts there, between points as the level is; NaN where unknown.
    """

    setting: str
    measure: Measure
    one: str
    other: str
    level: float
    one_s: float
    other_s: float
    ratio: Estimate
    better: str | None
    best: float
    best_s: float
    is_task: bool
    one_entropy_nats: float
    other_entropy_nats: float


@lru_cache(maxsize=8)
def pairs(frames: Frames) -> tuple[Equal, ...]:
    """Every pair of paradigms of every setting and measure."""
    return tuple(each for measure in measures(frames) for each in _pairs(frames, measure))


def _pairs(frames: Frames, measure: Measure) -> Iterator[Equal]:
    for setting, group in points(frames, measure).groupby("setting", sort=False):
        curves = {str(curve): part for curve, part in group.groupby("curve", sort=False)}
        if len(curves) < 2:
            continue
        lines = {curve: frontier(part["seconds"], measure.sign * part["quality"]) for curve, part in curves.items()}
        drawn = {curve: _drawn_lines(frames, part, measure) for curve, part in curves.items()}
        for one, other in combinations(curves, 2):
            level = common_level(lines[one], lines[other], measure)
            one_s, other_s = cost_at(level, lines[one]), cost_at(level, lines[other])
            tops = {name: float(lines[name][1][-1]) for name in (one, other)}
            better = None if tops[one] == tops[other] else max(tops, key=lambda name: tops[name])
            line = lines[better or one]
            yield Equal(
                str(setting), measure, one, other, measure.sign * level, one_s, other_s,
                _ratio(one_s, other_s, drawn[one], drawn[other], measure), better, measure.sign * float(line[1][-1]),
                float(line[0][-1]), bool(group["is_task"].iloc[0]),
                *(_entropy_at(level, lines[name], curves[name], measure) for name in (one, other)),
            )  # fmt: skip


def _entropy_at(level: float, line: Line, part: pd.DataFrame, measure: Measure) -> float:
    """Token entropy along a frontier, linear in the level between its points."""
    costs, goods = line
    on_line = pd.DataFrame({"seconds": costs, "quality": measure.sign * goods})
    entropies = on_line.merge(part.drop_duplicates(["seconds", "quality"]), how="left")[ENTROPY].to_numpy(dtype=float)
    return float(np.interp(level, goods, entropies)) if len(goods) and not math.isnan(level) else math.nan


@dataclass(frozen=True)
class _Drawn:
    """Frontiers of the draws, and the fewest clusters of time behind a point."""

    lines: list[Line]
    clusters: int


def _drawn_lines(frames: Frames, part: pd.DataFrame, measure: Measure) -> _Drawn:
    """The frontier of a paradigm's points in each draw."""
    rows, random = requests(frames), np.random.default_rng(zlib.crc32(str(part["curve"].iloc[0]).encode()))
    rows = rows[(rows["setting"] == part["setting"].iloc[0]) & (rows["curve"] == part["curve"].iloc[0])]
    costs, goods, clusters = [], [], []
    for _, point in part.iterrows():
        own = rows[rows["series"] == point["series"]]
        times = own.groupby("key")["seconds"].median().dropna().to_numpy()
        if len(times) < 2:
            times = own.groupby(["key", "repeat"])["seconds"].median().dropna().to_numpy()
        clusters.append(len(times))
        costs.append(np.median(times[random.integers(0, len(times), (DRAWS, len(times)))], axis=1))
        goods.append(measure.sign * _drawn_quality(own, measure, float(point["quality"]), random))
    cost_PD, good_PD = np.array(costs), np.array(goods)
    return _Drawn([frontier(cost_PD[:, draw], good_PD[:, draw]) for draw in range(DRAWS)], min(clusters))


def _drawn_quality(rows: pd.DataFrame, measure: Measure, value: float, random: np.random.Generator) -> np.ndarray:
    """Quality of a point in each draw [DRAWS]: of drawn trainings the instances, or the median of drawn texts."""
    texts = texts_with(rows, measure)
    if not len(texts):  # of a whole set, whose parts nobody has
        return np.full(DRAWS, value)
    if measure.share:
        trained = of_trainings(texts, measure.name)
        chosen = random.integers(0, len(trained), (DRAWS, len(trained)))
        count, share = trained["count"].to_numpy(dtype=int)[chosen], trained["share"].to_numpy(dtype=float)[chosen]
        return (random.binomial(count, share) / count).mean(axis=1)
    trained = [part.to_numpy(dtype=float) for _, part in texts.groupby(SEED)[measure.name]]
    chosen_SD, median_SD = random.integers(0, len(trained), (len(trained), DRAWS)), np.empty((len(trained), DRAWS))
    for training, values in enumerate(trained):
        mine_SD = chosen_SD == training
        drawn = values[random.integers(0, len(values), (int(mine_SD.sum()), len(values)))]
        median_SD[mine_SD] = np.median(drawn, axis=1)
    return np.median(median_SD, axis=0)


def _ratio(one_s: float, other_s: float, one: _Drawn, other: _Drawn, measure: Measure) -> Estimate:
    """Of the second to the first, with percentiles of the draws; no interval where one side was timed once, or too few
    draws have a level.
    """
    count = min(one.clusters, other.clusters)
    value = other_s / one_s if one_s > 0 else math.nan
    if math.isnan(value) or count < 2:
        return Estimate(value, math.nan, math.nan, count)
    ratios = []
    for first, second in zip(one.lines, other.lines, strict=True):
        level = common_level(first, second, measure)
        if not math.isnan(level):
            ratios.append(cost_at(level, second) / cost_at(level, first))
    if len(ratios) < LEAST_DRAWN * DRAWS:
        return Estimate(value, math.nan, math.nan, count)
    low, high = np.percentile(ratios, [50 * (1 - LEVEL), 50 * (1 + LEVEL)])
    return Estimate(value, float(min(low, value)), float(max(high, value)), count, LEVEL)


def shown(frames: Frames) -> tuple[Equal, ...]:
    """The pairs that a page has room for: those with the first paradigm; of ALL_PAIRS paradigms every one."""
    found = []
    for _, group in groupby(pairs(frames), key=lambda it: (it.setting, it.measure)):
        of_it = list(group)
        few = len(of_it) <= math.comb(ALL_PAIRS, 2)
        found += of_it if few else [it for it in of_it if it.one == of_it[0].one]
    return tuple(found)


def results(frames: Frames) -> pd.DataFrame:
    """Every pair, a row each: seconds, and the ratio with its interval."""
    return pd.DataFrame(
        {
            "work": it.setting, "measure": it.measure.name, "one": it.one, "other": it.other, "level": it.level,
            "one_s": it.one_s, "other_s": it.other_s, "one_entropy_nats": it.one_entropy_nats,
            "other_entropy_nats": it.other_entropy_nats, "ratio": it.ratio.value, "ratio_low": it.ratio.low,
            "ratio_high": it.ratio.high, "rounds": it.ratio.count, "better": it.better, "best": it.best,
            "best_s": it.best_s,
        }
        for it in pairs(frames)
    )  # fmt: skip


def table(frames: Frames) -> Table:
    """A row a pair: what either takes at the highest quality that both reach, and who goes beyond it at what price."""
    heads = ["work", "measure", "one", "other", "both reach", "one, ms", "other, ms", "other / one", "rounds",
             "beyond it"]  # fmt: skip
    gamed, rows = any(it.measure.gamed for it in shown(frames)), []
    if gamed:
        heads.insert(7, "entropies, nats")
    for it in shown(frames):
        reached = not math.isnan(it.level)
        rows.append([
            it.setting, it.measure.unit, it.one, it.other, number(it.level) if reached else "not reached",
            *(number(1e3 * seconds) if reached else "not reached" for seconds in (it.one_s, it.other_s)),
            *([_entropies(it)] if gamed else []),
            with_interval(it.ratio), str(it.ratio.count), _beyond(it),
        ])  # fmt: skip
    what = {"a request" if it.is_task else "a token" for it in shown(frames)}
    return Table(f"Time {' or '.join(sorted(what)) or 'a token'} at equal quality", heads, rows)


def _entropies(it: Equal) -> str:
    both = (it.one_entropy_nats, it.other_entropy_nats)
    return "–" if any(math.isnan(value) for value in both) else " / ".join(map(number, both))


def _beyond(it: Equal) -> str:
    if it.better is None:
        return "neither"
    behind = it.other if it.better == it.one else it.one
    return f"{it.better} up to {number(it.best)} in {number(1e3 * it.best_s)} ms; not reached by {behind}"


def note(frames: Frames) -> str:
    """What the table's intervals and entropies say; empty where there is no pair."""
    counts = sorted({it.ratio.count for it in pairs(frames)})
    if not counts:
        return ""
    parts = [
        "[ ] 95 % of a bootstrap over trainings, texts and rounds, too narrow with few of them (rounds, or repeats of "
        f"the only one: {' to '.join(dict.fromkeys(map(str, (counts[0], counts[-1]))))})"
    ]
    if any(it.measure.gamed for it in pairs(frames)):
        parts.append("entropies: of the one and the other's tokens at this level; who has less of it is duller there")
    if len(shown(frames)) < len(pairs(frames)):
        parts.append("pairs of the others: equal_quality.csv")
    return capital("; ".join(parts)) + "."
