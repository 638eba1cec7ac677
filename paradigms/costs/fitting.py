"""Fits what timed cells have in common: seconds as a sum of features, each with a factor of at least 0.

Features are seconds themselves as far as possible (operations over a measured rate, bytes over a measured bandwidth),
so that factors near 1 are what physics expects and a factor of 0 says that something does not show. Errors count
relative to the time of a cell, and slow outliers, which a busy machine makes, count less than their square.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

TOLERATED = 0.1  # relative error from which on a cell's weight falls
ROUNDS = 8

Features = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Law:
    """Seconds as a sum of features.

    Attributes:
        factors: of each feature.
        errors: of each cell, (law - measured) / measured.
        left_out: the same, each cell predicted from the others; nan where there are too few.
    """

    factors: dict[str, float]
    errors: tuple[float, ...]
    left_out: tuple[float, ...]

    def seconds(self, features: Features) -> float:
        return sum(self.parts(features).values())

    def parts(self, features: Features) -> dict[str, float]:
        """Seconds of each feature."""
        return {name: factor * features.get(name, 0.0) for name, factor in self.factors.items()}


def fit(features: Sequence[Features], seconds: Sequence[float], known_s: Sequence[float] | None = None) -> Law:
    """The law that comes nearest to these cells.

    Args:
        features: of each cell.
        seconds: of each cell.
        known_s: seconds of each cell that something else explains already.

    Raises:
        ValueError: no cells, or a cell without time.
    """
    if not seconds or min(seconds) <= 0:
        raise ValueError(f"{len(seconds)} cells, the quickest of {min(seconds, default=0)} s; each must take time")
    names = list(dict.fromkeys(name for cell in features for name, value in cell.items() if value))
    design = np.array([[cell.get(name, 0.0) for name in names] for cell in features])
    measured = np.array(seconds)
    known = np.zeros(len(measured)) if known_s is None else np.array(known_s)
    every = np.arange(len(measured))
    factors = _factors(design, measured, known)
    errors = (known + design @ factors) / measured - 1
    left_out = np.full(len(measured), np.nan)
    for cell in every if len(every) > 1 else []:
        others = every[every != cell]
        without = _factors(design[others], measured[others], known[others])
        left_out[cell] = (known[cell] + design[cell] @ without) / measured[cell] - 1
    return Law(
        factors=dict(zip(names, factors.tolist(), strict=True)),
        errors=tuple(errors.tolist()),
        left_out=tuple(left_out.tolist()),
    )


def _factors(design: NDArray, measured: NDArray, known: NDArray) -> NDArray:
    """Non-negative least squares of relative errors, repeated with outliers weighing less (Huber)."""
    scale = np.maximum((design / measured[:, None]).max(0), np.finfo(float).tiny)
    relative, target = design / measured[:, None] / scale, 1 - known / measured
    weights = np.ones(len(measured))
    factors = np.zeros(design.shape[1])
    for _ in range(ROUNDS):
        before = factors
        factors, _ = nnls(relative * weights[:, None], target * weights)
        if np.allclose(factors, before, rtol=1e-6):
            break
        missed = np.abs(relative @ factors - target)
        weights = np.sqrt(TOLERATED / np.maximum(missed, TOLERATED))
    return factors / scale
