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
