"""How memory grows with each further token, fitted over the lengths of a series, and how much of it is fragmentation.

Bytes a token and request: the slope of a straight line over positions (prompt + output), with the interval of the fit,
beside that of the state's formula. A cache that is reserved in steps, or a peak that is reached in the prompt at short
outputs, is no straight line, and the interval says so.

Fragmentation is what is held over what tensors take. CUDA: the allocator's peaks, reserved / allocated. A CPU's process
also holds interpreter, libraries and weights, which do not grow with length: there it is the growth of the resident
high-water mark over that of the tensors' peak, where both surely grow. It counts freed memory that is kept
(`keeps_freed_memory`) and all else that a longer run leaves behind, so it is an upper bound of the allocator's share.
"""

from __future__ import annotations

import math

import pandas as pd

from analysis import statistics
from analysis.findings import number, with_interval
from analysis.frames import Frames
from analysis.statistics import Estimate
from analysis.summary import BATCH_SIZE, OUTPUT_LEN, PROMPT_LEN, series_over
from analysis.tables import Table

AXES = (OUTPUT_LEN, PROMPT_LEN)
COLUMNS = (
    "state_used_bytes",
    "state_formula_bytes",
    "peak_tensor_bytes",
    "cuda_peak_allocated_bytes",
    "peak_rss_bytes",
)


def growth(frames: Frames) -> pd.DataFrame:
    """A row a series over output or prompt length.

    Returns:
        `series`, `axis`, `first`, `last` (positions), an Estimate of bytes a token and request for each of COLUMNS, and
        `fragmentation`; NaN where a figure was not recorded at two lengths.
    """
    rows = []
    for axis in AXES:
        for name, line in series_over(frames, axis).groupby("series", sort=False):
            positions = line[OUTPUT_LEN] + line[PROMPT_LEN]
            row = {"series": str(name), "axis": axis, "first": positions.min(), "last": positions.max()}
            row |= {column: statistics.slope(positions, line[column] / line[BATCH_SIZE]) for column in COLUMNS}
            rows.append(row | {"fragmentation": _fragmentation(line, row)})
    return pd.DataFrame(rows, columns=["series", "axis", "first", "last", *COLUMNS, "fragmentation"])


def _fragmentation(line: pd.DataFrame, row: dict[str, Estimate]) -> float:
    reserved = (line["cuda_peak_reserved_bytes"] / line["cuda_peak_allocated_bytes"]).max()
    if pd.notna(reserved):
        return float(reserved)
    tensors, resident = row["peak_tensor_bytes"], row["peak_rss_bytes"]
    return resident.value / tensors.value if tensors.low > 0 and resident.low > 0 else math.nan


def _text(slope: Estimate, digits: int = 3) -> str:
    return "0" if abs(slope.value) < 1e-6 else with_interval(slope, digits)


def table(frames: Frames) -> Table:
    """The same as text; no rows where no length varies or memory was not measured."""
    heads = ["paradigm", "positions", "state, bytes a token", "by its formula", "peak, bytes a token",
             "resident, bytes a token", "held / used"]  # fmt: skip
    rows = []
    for row in growth(frames).to_dict("records"):
        on_gpu = row["cuda_peak_allocated_bytes"].count > 0
        peak = row["cuda_peak_allocated_bytes" if on_gpu else "peak_tensor_bytes"]
        if row["state_used_bytes"].count or peak.count:
            rows.append([
                row["series"], f"{row['first']:,.0f} to {row['last']:,.0f}", _text(row["state_used_bytes"], 4),
                _text(row["state_formula_bytes"], 4).split(" [")[0], _text(peak),
                "–" if on_gpu else _text(row["peak_rss_bytes"]), number(row["fragmentation"]),
            ])  # fmt: skip
    return Table("Growth of memory", heads, rows)
