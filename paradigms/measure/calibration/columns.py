"""The roof over a cell, for its record: what this machine was found to achieve; analysis then needs no other file."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from paradigms.measure.calibration.stored import calibration_for

COLUMNS = ("peak_flops_per_s", "peak_bytes_per_s", "calibrated_at", "calibration_contended")
PHASES = ("prefill", "decode", "denoise")


def peak_columns(run: Mapping[str, Any], *, threads: int, dtype: str) -> dict[str, Any]:
    """Columns of `runs`, each None where this machine, device and number of threads, or the dtype, is not calibrated.

    Args:
        run: the unit's other columns: `device`, `weight_bytes`, and those of the ledger where its work was counted.

    Returns:
        peak_flops_per_s: `Calibration.peak_flops_per_s` of the dtype.
        peak_bytes_per_s: `Calibration.bandwidth_at` the bytes that a forward of the unit reads on average, weights and
            state, since the next one reads them again; where they were not counted, the bytes of the weights.
        calibrated_at: the calibration's date.
        calibration_contended: whether something else ran meanwhile (`NoiseReader`): peaks may then be too low.

    Warns:
        UserWarning: the calibration cannot be read; it counts as none, since it decides nothing that is measured.
    """
    columns: dict[str, Any] = dict.fromkeys(COLUMNS)
    try:
        found = calibration_for(None, run["device"], threads)
    except ValueError as error:
        warnings.warn(str(error), stacklevel=2)
        return columns
    if found is None:
        return columns
    return {
        "peak_flops_per_s": found.peak_flops_per_s(dtype) if dtype in found.dtypes else None,
        "peak_bytes_per_s": found.bandwidth_at(_read_again_bytes(run)),
        "calibrated_at": found.date,
        "calibration_contended": found.noise.get("contended"),
    }


def _read_again_bytes(run: Mapping[str, Any]) -> float:
    """Bytes that a forward reads, the mean over all of a run."""
    num_forwards = sum(run.get(f"forwards_{phase}") or 0 for phase in PHASES)
    if not num_forwards:
        return run["weight_bytes"]
    names = [f"{what}_bytes_{phase}" for what in ("weight", "state_read") for phase in PHASES]
    return sum(run.get(name) or 0 for name in names) / num_forwards
