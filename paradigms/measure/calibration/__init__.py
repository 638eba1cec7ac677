"""What this machine achieves: bandwidth by working set, products by shape, overhead of an operator, best threads."""

from __future__ import annotations

from paradigms.measure.calibration.columns import peak_columns
from paradigms.measure.calibration.measured import Extent, calibrate
from paradigms.measure.calibration.stored import (
    BandwidthPoint,
    Calibration,
    MatmulPoint,
    ThreadTimes,
    calibration_for,
    calibration_path,
)

__all__ = [
    "BandwidthPoint",
    "Calibration",
    "Extent",
    "MatmulPoint",
    "ThreadTimes",
    "calibrate",
    "calibration_for",
    "calibration_path",
    "peak_columns",
]
