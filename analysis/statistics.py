"""Medians, ratios, slopes and fits with their intervals; what cannot be supported is None, with the reason.

Rounds are the independent repetitions: repeats inside one unit share its process and its moment, so intervals resample
rounds, never single requests. Of R rounds the range covers the true median with probability 1 − 2^(1−R) at best (75 %
for three), and a bootstrap cannot know more: `range_coverage` lets a caption say so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

LEVEL = 0.95
RESAMPLES = 2_000
BEYOND = 10  # samples that must lie beyond a percentile: p90 needs 100, p99 needs 1,000


@dataclass(frozen=True)
class Estimate:
    """A value, its interval (NaN where the data cannot give one), and how many independent clusters stand behind it."""

    value: float
    low: float
    high: float
    count: int

    def __post_init__(self) -> None:
        assert not self.low > self.high, "an interval runs from low to high"


NOTHING = Estimate(math.nan, math.nan, math.nan, 0)


def median_interval(
    values: pd.Series | Sequence[float], clusters: pd.Series | Sequence[object] | None = None
) -> Estimate:
    """Median over clusters of each cluster's median, with a percentile bootstrap interval over the clusters.

    Args:
        values: observations; missing ones are ignored.
        clusters: one label an observation (its round); without it every observation stands alone.
    """
    series = pd.Series(np.asarray(values, dtype=float))
    if clusters is not None:
        series = series.groupby(np.asarray(clusters)).median()
    centres = series.dropna().to_numpy()
    if not len(centres):
        return NOTHING
    value = float(np.median(centres))
    if len(centres) < 2:
        return Estimate(value, math.nan, math.nan, 1)
    if np.ptp(centres) == 0:
        return Estimate(value, value, value, len(centres))
    drawn = stats.bootstrap(
        (centres,),
        np.median,
        n_resamples=RESAMPLES,
        confidence_level=LEVEL,
        method="percentile",
        rng=np.random.default_rng(0),
    )
    interval = drawn.confidence_interval
    return Estimate(value, float(interval.low), float(interval.high), len(centres))


def range_coverage(num_rounds: int) -> float:
    """Chance that the true median lies between the smallest and the largest of `num_rounds` independent values."""
    return max(0.0, 1.0 - 2.0 ** (1 - num_rounds))


def paired_ratio(numerator: pd.Series, denominator: pd.Series) -> Estimate:
    """Median ratio of two series indexed by round, over the rounds both have; drift cancels within a round."""
    ratios = (numerator / denominator).dropna()
    return median_interval(ratios)


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
        edge = 0.0 if len(points) > 2 else math.nan
        return Estimate(0.0, edge, edge, len(points))
    fit: Any = stats.linregress(log_x, log_y)
    count = len(points)
    if count < 3:
        return Estimate(float(fit.slope), math.nan, math.nan, count)
    half = float(stats.t.ppf(0.5 + LEVEL / 2, count - 2) * fit.stderr)
    return Estimate(float(fit.slope), float(fit.slope) - half, float(fit.slope) + half, count)


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
