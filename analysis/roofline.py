"""How close cells come to what their hardware allows: rates of operations and bytes against calibrated peaks, by phase.

Williams, Waterman and Patterson, "Roofline" (2009): a forward of intensity I operations a byte can at best compute
min(peak FLOP/s, I x peak bytes/s). The work of a phase is counted (the ledger of `runs`), its time is measured, and the
peaks are those that torch's own operators reached on the machine (`python -m paradigms.costs calibrate`), not those of
a datasheet; that of bytes is for the bytes that a forward of the cell reads, which may lie in a cache. So a share of 1
is reachable, MFU is the share of the operations, MBU that of the bytes, and the larger of the two is the share of the
roof above a cell.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pandas as pd

from analysis import statistics
from analysis.frames import Frames
from analysis.summary import summarise

PHASES = ("prefill", "decode", "denoise")
FLOPS = ("matmul_flops", "other_flops")
BYTES = ("weight_bytes", "state_read_bytes", "state_written_bytes")
PEAKS = ("peak_flops_per_s", "peak_bytes_per_s")
RATES = ("flops_per_s", "bytes_per_s", "mfu", "mbu")
HOW = "python -m paradigms.costs calibrate"
_ROOF = ["device", "device.threads", "device.dtype", "calibrated_at", "calibration_contended"]


@lru_cache(maxsize=8)
def rates(frames: Frames) -> pd.DataFrame:
    """A row a cell and phase whose work was counted.

    Returns:
        `cell`, `phase`; `flops`, `bytes` and `seconds` of a run of the whole batch; `intensity`, operations a byte;
        `flops_per_s`, `bytes_per_s`, `mfu` and `mbu`, each with `_low` and `_high` over rounds, the shares missing
        without a calibration; `peak_flops_per_s`, `peak_bytes_per_s`, and of their calibration `calibrated_at` and
        `calibration_contended`; the columns of `summarise`.
    """
    runs = _phases(frames)
    wall = frames.requests.groupby(["key", "repeat"])[["prefill_s", "e2e_s"]].max().reset_index()
    timed = runs.merge(wall, on="key")
    after = timed["e2e_s"] - timed["prefill_s"].where(timed["has_prefill"], 0)
    timed["seconds"] = timed["prefill_s"].where(timed["phase"] == "prefill", after)
    timed = timed[timed["seconds"] > 0].copy()
    timed["flops_per_s"], timed["bytes_per_s"] = (timed[name] / timed["seconds"] for name in ("flops", "bytes"))
    timed["mfu"] = timed["flops_per_s"] / timed["peak_flops_per_s"]
    timed["mbu"] = timed["bytes_per_s"] / timed["peak_bytes_per_s"]
    rows = []
    for (cell, phase), group in timed.groupby(["cell", "phase"], sort=False):
        row = {"cell": cell, "phase": phase, "seconds": group["seconds"].median()}
        row |= {name: group[name].median() for name in ("flops", "bytes", *PEAKS)}
        row |= {name: group[name].iloc[-1] for name in _ROOF}
        for name in RATES:
            found = statistics.median_interval(group[name], group["round"])
            row |= {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}
        rows.append(row)
    if not rows:
        return pd.DataFrame(columns=["cell", "phase", "flops", "bytes", "intensity", "seconds", *PEAKS, *RATES, *_ROOF])
    found = pd.DataFrame(rows)
    found["intensity"] = found["flops"] / found["bytes"]
    cells = summarise(frames)
    cells = cells[[name for name in cells if name == "cell" or name not in found]]
    found = cells.merge(found, on="cell")
    return found.sort_values("phase", key=lambda names: names.map(PHASES.index), kind="stable").reset_index(drop=True)


def calibrated(frames: Frames) -> pd.DataFrame:
    """Rows of `rates` that have both shares."""
    found = rates(frames)
    return found[found["mfu"].notna() & found["mbu"].notna()]


def missing(frames: Frames) -> str:
    """Why there is nothing to show, and what to do; empty where there is."""
    if len(calibrated(frames)):
        return ""
    if not len(rates(frames)):
        return "no work was counted in these records; measure them again"
    peaks = frames.ok.reindex(columns=list(PEAKS))
    if peaks["peak_bytes_per_s"].notna().any():
        return "products of this dtype were not calibrated on the machine that measured"
    return f"the machine was not calibrated when it measured: run {HOW}, then measure again"


def by_cell(frames: Frames) -> pd.DataFrame:
    """A row a cell: `mfu_<phase>`, `mbu_<phase>`, `intensity_<phase>`, shares with `_low` and `_high`."""
    found = rates(frames)
    if not len(found):
        return pd.DataFrame({"cell": pd.Series(dtype=object)})
    columns = {}
    for phase, rows in found.set_index("cell").groupby("phase", sort=False):
        columns[f"intensity_{phase}"] = rows["intensity"]
        for name in ("mfu", "mbu"):
            columns |= {f"{name}_{phase}{end}": rows[f"{name}{end}"] for end in ("", "_low", "_high")}
    return pd.DataFrame(columns).rename_axis("cell").reset_index()


def _phases(frames: Frames) -> pd.DataFrame:
    """A row an ok unit and phase: `flops`, `bytes`, peaks, and whether the unit has a prefill of its own.

    The clock knows the first forward and the whole. Where it is not the only prefill (a canvas after another, each with
    its prompt), prefills count to the phase that they serve.
    """
    names = [f"{name}_{phase}" for name in ("forwards", *FLOPS, *BYTES) for phase in PHASES]
    runs = frames.ok.reindex(columns=["key", "cell", "round", *_ROOF, *PEAKS, *names])
    runs[[*PEAKS, *names]] = runs[[*PEAKS, *names]].apply(pd.to_numeric, errors="coerce").astype(float)
    counts = runs[[f"forwards_{phase}" for phase in PHASES]].fillna(0)
    runs["has_prefill"] = counts["forwards_prefill"] == 1
    parts = []
    for phase in PHASES:
        part = runs[["key", "cell", "round", *_ROOF, *PEAKS, "has_prefill"]].assign(phase=phase)
        for total, columns in (("flops", FLOPS), ("bytes", BYTES)):
            own = runs[[f"{name}_{phase}" for name in columns]].sum(axis=1)
            prefill = runs[[f"{name}_prefill" for name in columns]].sum(axis=1)
            part[total] = own + (0 if phase == "prefill" else prefill.where(~runs["has_prefill"], 0))
        runs_it = counts[f"forwards_{phase}"] > 0
        parts.append(part[runs_it & runs["has_prefill"]] if phase == "prefill" else part[runs_it])
    found = pd.concat(parts)
    return found[np.isfinite(found["flops"]) & (found["bytes"] > 0)]
