"""Medians, ratios, slopes and fits with their intervals; what cannot be supported is None, with the reason.

Rounds are the independent repetitions: repeats inside one unit share its process and its moment, so intervals stand on
rounds, never on single requests. `analysis.intervals` has the intervals, which say how often they cover.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from analysis import intervals
from analysis.intervals import LEVEL, NOTHING, Estimate

OUTLYING = 5.0  # robust deviations from a cell's other rounds at which a unit is marked
MOST_EXACT = 200
BEYOND = 10  # samples that must lie beyond a percentile: p90 needs 100, p99 needs 1,000


def median_interval(
    values: pd.Series | Sequence[float], clusters: pd.Series | Sequence[object] | None = None
) -> Estimate:
    """Median over clusters of each cluster's median, with its interval over the clusters.

    Args:
        values: observations; missing ones are ignored.
        clusters: one label an observation (its round); without it every observation stands alone.
    """
    series = pd.Series(np.asarray(values, dtype=float))
    if clusters is not None:
        series = series.groupby(np.asarray(clusters)).median()
    return intervals.median(series.dropna().to_numpy())


def paired_ratio(numerator: pd.Series, denominator: pd.Series) -> Estimate:
    """Ratio of two series indexed by round, over the rounds where both are above zero; drift cancels within a round."""
    ratios = (numerator / denominator).astype(float)
    return intervals.paired_ratio(np.log(ratios[(ratios > 0) & np.isfinite(ratios)]))


def percentile(values: Sequence[float] | pd.Series, percent: float) -> tuple[float | None, str]:
    """A percentile, or None and the reason when fewer than ten samples would lie beyond it."""
    if not 0 < percent < 100:
        raise ValueError(f"percent={percent} is no percentile; it must lie between 0 and 100")
    sample = np.asarray(values, dtype=float)
    sample = sample[~np.isnan(sample)]
    need = math.ceil(round(BEYOND * 100 / min(percent, 100 - percent), 6))
    if len(sample) < need:
        return None, f"p{percent:g} needs {need:,} requests, there are {len(sample):,}"
    return float(np.percentile(sample, percent)), ""


def loglog_slope(x: Sequence[float] | pd.Series, y: Sequence[float] | pd.Series) -> Estimate:
    """Exponent s of y ~ x^s by least squares on logarithms, with the t interval of the fit (none below three points).

    The interval tells how far the points lie from one power law, not how noisy each point is.
    """
    points = pd.DataFrame({"x": np.asarray(x, dtype=float), "y": np.asarray(y, dtype=float)}).dropna()
    points = points[(points["x"] > 0) & (points["y"] > 0)]
    if points["x"].nunique() < 2:
        return NOTHING
    log_x, log_y = np.log(points["x"]), np.log(points["y"])
    if log_y.nunique() == 1:  # linregress gives no error of a fit to constants, nor to what rounds to one
        edge, coverage = (0.0, LEVEL) if len(points) > 2 else (math.nan, math.nan)
        return Estimate(0.0, edge, edge, len(points), coverage)
    fit: Any = stats.linregress(log_x, log_y)
    count = len(points)
    if count < 3:
        return Estimate(float(fit.slope), math.nan, math.nan, count)
    half = float(stats.t.ppf(0.5 + LEVEL / 2, count - 2) * fit.stderr)
    return Estimate(float(fit.slope), float(fit.slope) - half, float(fit.slope) + half, count, LEVEL)


def slope(x: Sequence[float] | pd.Series, y: Sequence[float] | pd.Series) -> Estimate:
    """Slope of a straight line by least squares, with the t interval of the fit (none below three points).

    As with `loglog_slope` the interval tells how far the points lie from one line.
    """
    points = pd.DataFrame({"x": np.asarray(x, dtype=float), "y": np.asarray(y, dtype=float)}).dropna()
    if points["x"].nunique() < 2:
        return NOTHING
    fit: Any = stats.linregress(points["x"], points["y"])
    count, value = len(points), float(fit.slope)
    if count < 3:
        return Estimate(value, math.nan, math.nan, count)
    half = float(stats.t.ppf(0.5 + LEVEL / 2, count - 2) * fit.stderr)
    return Estimate(value, value - half, value + half, count, LEVEL)


@dataclass(frozen=True)
class LatencyFit:
    """E2E = TTFT + (N − 1)·t_step with the measured TTFT of each length and one t_step for all of them.

    Attributes:
        t_step_s: seconds a step, by least squares on relative errors, so that short lengths count as much as long ones.
        residual: measured E2E over predicted, minus 1; indexed by length.
    """

    t_step_s: float
    residual: pd.Series

    @property
    def worst(self) -> float:
        return float(self.residual.abs().max())


def fit_latency(num_tokens: pd.Series, ttft_s: pd.Series, e2e_s: pd.Series) -> LatencyFit | None:
    """Fit the linear law of sequential decoding; None with fewer than two lengths above one token."""
    points = pd.DataFrame({"n": num_tokens, "ttft": ttft_s, "e2e": e2e_s}).dropna().sort_values("n")
    if points.loc[points["n"] > 1, "n"].nunique() < 2:
        return None
    slope_column = ((points["n"] - 1) / points["e2e"]).to_numpy()
    target = ((points["e2e"] - points["ttft"]) / points["e2e"]).to_numpy()
    t_step_s = float(np.linalg.lstsq(slope_column[:, None], target, rcond=None)[0][0])
    predicted = points["ttft"] + (points["n"] - 1) * t_step_s
    residual = points["e2e"] / predicted - 1
    residual.index = pd.Index(points["n"].astype(int))
    return LatencyFit(t_step_s, residual)


def drift(timed: pd.DataFrame, anchors: pd.Index | Sequence[str]) -> pd.DataFrame:
    """How far the anchor cell moved: a row a machine and round, `e2e_s` and `relative` to the median of its rounds.

    Args:
        timed: `Frames.timed`.
        anchors: keys of the anchor's units.
    """
    anchor = timed[timed["key"].isin(anchors)]
    by_round = anchor.groupby(["cell", "machine_id", "round"])["e2e_s"].median().reset_index()
    by_round["relative"] = by_round["e2e_s"] / by_round.groupby("cell")["e2e_s"].transform("median") - 1
    return by_round


def spread_over_rounds(timed: pd.DataFrame, anchors: pd.Index | Sequence[str]) -> tuple[float, float]:
    """How much the other cells vary over rounds: as measured, and after dividing by the anchor's drift.

    Relative standard deviations, the median over cells; rounds without the anchor are left out, and NaN stands for
    nothing to compare.
    """
    moved = drift(timed, anchors).set_index(["machine_id", "round"])["relative"]
    moved = moved[~moved.index.duplicated()]
    others = timed[~timed["key"].isin(anchors)]
    by_round = others.groupby(["cell", "machine_id", "round"])["e2e_s"].median().reset_index()
    by_round["drift"] = moved.reindex(pd.MultiIndex.from_frame(by_round[["machine_id", "round"]])).to_numpy()
    by_round = by_round[by_round["drift"].notna() & (by_round["e2e_s"] > 0)]
    measured = np.log(by_round["e2e_s"])
    divided = measured - np.log1p(by_round["drift"])
    before, after = (values.groupby(by_round["cell"]).std().median() for values in (measured, divided))
    return float(before), float(after)


def outliers(by_unit: pd.DataFrame) -> pd.Series:
    """Units that took another time than the other rounds of their cell: True where they lie OUTLYING deviations off.

    Compared are logarithms, with the median of the other rounds. A deviation is the cell's own, or the typical one of
    all units where that is larger (a few rounds agree by chance), and at least half a per cent; each as 1.48 times a
    median absolute deviation. Cells of fewer than three rounds have none.

    Args:
        by_unit: a row a unit: `cell`, `e2e_s`.

    Returns:
        Booleans with the index of `by_unit`.
    """
    logs = np.log(by_unit["e2e_s"].where(by_unit["e2e_s"] > 0).to_numpy(dtype=float))
    off, own = np.full(len(logs), math.nan), np.full(len(logs), math.nan)
    places = np.flatnonzero(~np.isnan(logs))
    for _, group in pd.Series(places).groupby(by_unit["cell"].to_numpy()[places]):
        units = group.to_numpy()
        if len(units) >= 3:
            others = np.array([np.delete(logs[units], index) for index in range(len(units))])
            centres = np.median(others, axis=1)
            off[units] = logs[units] - centres
            own[units] = np.median(np.abs(others - centres[:, None]), axis=1)
    typical = float(np.nanmedian(np.abs(off))) if np.isfinite(off).any() else 0.0
    scale = np.maximum(1.4826 * np.fmax(own, typical), 0.005)
    return pd.Series(np.abs(off) > OUTLYING * scale, index=by_unit.index)


@dataclass(frozen=True)
class FirstOfAll:
    """Whether what came first in its group was slower.

    Attributes:
        excess: median over groups of the first's time over the median of the rest, minus 1.
        p: chance of ranks so high or higher if the first were like the others.
        groups: how many had two or more.
    """

    excess: float
    p: float
    groups: int


def first_is_slower(values: pd.Series, groups: pd.Series, order: pd.Series) -> FirstOfAll | None:
    """Test by ranks whether the first of each group takes longer than the rest; None without a group of two.

    If it were like the others, its rank would be any with equal chance; the p of the ranks' sum is exact up to
    MOST_EXACT groups and the normal distribution's beyond.

    Args:
        values: times above zero.
        groups: a label a value, such as its unit.
        order: place within the group; the least is the first.
    """
    frame = pd.DataFrame({"value": values, "group": groups, "order": order}).dropna().sort_values("order")
    rank = frame.groupby("group")["value"].rank(method="average")
    size = frame.groupby("group")["value"].transform("size")
    is_first = ~frame.duplicated("group") & (size > 1)
    if not is_first.any():
        return None
    sizes = size[is_first].to_numpy(dtype=int)
    above_least = float(rank[is_first].sum()) - len(sizes)
    if len(sizes) <= MOST_EXACT:
        chance = np.ones(1)
        for count in sizes:
            chance = np.convolve(chance, np.full(count, 1 / count))
        p = float(chance[math.ceil(above_least - 1e-9) :].sum())
    else:
        deviation = math.sqrt(((sizes**2 - 1) / 12).sum())
        p = float(stats.norm.sf((above_least - 0.5 - ((sizes - 1) / 2).sum()) / deviation))
    medians = frame["value"].where(frame.duplicated("group")).groupby(frame["group"]).median()
    firsts = frame[is_first].set_index("group")["value"]
    return FirstOfAll(float((firsts / medians[firsts.index] - 1).median()), p, len(sizes))
