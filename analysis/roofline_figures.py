"""The roofline of a sweep: its figure, its table and its sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from analysis import roofline, style
from analysis.choices import Choice
from analysis.findings import capital, number, where, with_interval
from analysis.frames import Frames
from analysis.statistics import Estimate
from analysis.summary import headline_cells, labels
from analysis.tables import Table

MARKERS = {"prefill": "^", "decode": "o", "denoise": "s"}
BEYOND = 1.05  # a share of the peak above this is more than noise
_ROOFS = ["device", "device.threads", "device.dtype", "machine_id"]


def choose(frames: Frames) -> list[Choice]:
    """The roofline, where a machine was calibrated."""
    if roofline.missing(frames):
        return []
    return [Choice("roofline", "How close to what the hardware allows", figure, sentence)]


def figure(frames: Frames) -> Figure:
    """Every cell and phase under the roof of its machine; colours are paradigms, shapes are phases."""
    rows = roofline.calibrated(frames)
    with style.look():
        fig, (panel,) = style.panels(1, width=7.4, height=5.0, legend=3.2)
        roofs = _roofs(panel, rows)
        marks = {label: style.mark_of(frames, label) for label in labels(frames) if label in set(rows["label"])}
        for (label, phase), group in rows.groupby(["label", "phase"], sort=False):
            _points(panel, group, marks[str(label)], MARKERS[str(phase)])
        style.log_axis(panel, "x")
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        style.log_axis(panel, "y", unit="FLOP/s")
        panel.set(xlabel="arithmetic intensity, FLOP per byte of weights and state", ylabel="achieved, FLOP/s")
        handles = [_handle(label, mark, "o") for label, mark in marks.items()]
        grey = style.Mark(style.GREY, "o", 7)
        handles += [_handle(phase, grey, MARKERS[phase]) for phase in roofline.PHASES if phase in set(rows["phase"])]
        style.legend(fig, [*handles, *roofs])
        notes = ["Roof: the most that torch's own operators achieved here, bytes at what a forward of the cells reads"]
        if any(map(_is_second, marks.values())):
            notes.append("Half filled: the colours begin again")
        style.caption(fig, frames, *notes)
    return fig


def _roofs(panel: Axes, rows: pd.DataFrame) -> list[Line2D]:
    """The roof of each machine, thread number and dtype: flat where arithmetic binds, slanted where bytes do, a band
    where cells read from memories of different speed.
    """
    low, high = float(rows["intensity"].min()) / 3, float(rows["intensity"].max()) * 3
    handles = []
    groups = list(rows.groupby(_ROOFS, dropna=False, sort=False))
    for index, (key, group) in enumerate(groups):
        peak = float(group["peak_flops_per_s"].max())
        slowest, fastest = float(group["peak_bytes_per_s"].min()), float(group["peak_bytes_per_s"].max())
        x = np.geomspace(min(low, 0.3 * peak / fastest), max(high, 3 * peak / slowest), 200)
        dash = style.dash_of(index)
        panel.plot(x, np.minimum(peak, x * fastest), color=style.GREY, linestyle=dash, linewidth=1.3, zorder=1)
        if fastest > 1.02 * slowest:
            panel.fill_between(x, np.minimum(peak, x * slowest), np.minimum(peak, x * fastest), color=style.GREY,
                               alpha=0.15, linewidth=0, zorder=0)  # fmt: skip
        text = f"roof: {number(peak / 1e9)} GFLOP/s,\n{_between(slowest / 1e9, fastest / 1e9)} GB/s"
        if len(groups) > 1:
            device, threads, dtype, _ = key
            text += f"\n({device}, {threads:g} thread{'s' * (threads != 1)}, {dtype})"
        handles.append(Line2D([], [], color=style.GREY, linestyle=dash, linewidth=1.3, label=text))
    return handles


def _between(low: float, high: float) -> str:
    return number(high) if high <= 1.02 * low else f"{number(low)} to {number(high)}"


def _is_second(mark: style.Mark) -> bool:
    """Whether the colours have begun again."""
    return mark.dash != "-"


def _points(panel: Axes, rows: pd.DataFrame, mark: style.Mark, marker: str) -> None:
    """Cells of one paradigm and phase with their intervals; hollow where the machine was busy or not all was run."""
    reach = [(rows["flops_per_s"] - rows["flops_per_s_low"]).clip(lower=0),
             (rows["flops_per_s_high"] - rows["flops_per_s"]).clip(lower=0)]  # fmt: skip
    panel.errorbar(rows["intensity"], rows["flops_per_s"], yerr=reach, fmt="none", ecolor=mark.color, elinewidth=1,
                   capsize=2, zorder=2)  # fmt: skip
    for hollow, part in rows.groupby(rows["contended"] | rows["extrapolated"]):
        panel.plot(part["intensity"], part["flops_per_s"], linestyle="none", zorder=3, markersize=mark.size,
                   alpha=0.9, **_look(mark, marker, hollow=bool(hollow)))  # fmt: skip


def _look(mark: style.Mark, marker: str, *, hollow: bool = False) -> dict[str, Any]:
    return {
        "marker": marker, "color": mark.color, "markeredgewidth": 1.2, "markerfacecoloralt": "white",
        "markerfacecolor": "white" if hollow else mark.color, "fillstyle": "top" if _is_second(mark) else "full",
    }  # fmt: skip


def _handle(text: str, mark: style.Mark, marker: str) -> Line2D:
    return Line2D([], [], linestyle="none", markersize=6, label=text, **_look(mark, marker))


def _headline(frames: Frames) -> pd.DataFrame:
    """Rows of the headline cells, with the `series` they are named by there."""
    cells = headline_cells(frames)[["cell", "series", "x", "axis"]]
    return roofline.calibrated(frames).merge(cells, on="cell")


def table(frames: Frames) -> Table:
    """A row a headline series and phase: shares of the peaks, rates, intensity."""
    heads = ["paradigm", "phase", "MFU, %", "MBU, %", "GFLOP/s", "GB/s", "FLOP per byte", "roof", "rounds"]
    rows: list[list[str]] = []
    found = _headline(frames) if not roofline.missing(frames) else pd.DataFrame()
    for row in _cell_by_cell(found):
        rows.append([
            row["series"] + (" †" if row["contended"] else "") + (" ‡" if row["extrapolated"] else ""), row["phase"],
            *(with_interval(_estimate(row, name, scale))
              for name, scale in (("mfu", 100), ("mbu", 100), ("flops_per_s", 1e-9), ("bytes_per_s", 1e-9))),
            number(row["intensity"]), _roof(row), f"{row['rounds']:.0f}",
        ])  # fmt: skip
    return Table(f"How close to what the hardware allows, {where(found)}" if len(found) else "", heads, rows)


def _cell_by_cell(found: pd.DataFrame) -> list[pd.Series]:
    """The rows, all phases of a cell together."""
    return [row for _, group in found.groupby("cell", sort=False) for _, row in group.iterrows()] if len(found) else []


def _roof(row: pd.Series) -> str:
    """Which part of the roof lies above the cell."""
    return "operations" if row["intensity"] * row["peak_bytes_per_s"] > row["peak_flops_per_s"] else "bytes"


def _estimate(row: pd.Series, name: str, scale: float) -> Estimate:
    value, low, high = (float(row[key]) * scale for key in (name, f"{name}_low", f"{name}_high"))
    return Estimate(value, low, high, int(row["rounds"]))


def sentence(frames: Frames) -> str:
    """Who comes nearest to the roof, and who stays farthest below, phase by phase."""
    rows = _headline(frames)
    rows = rows.assign(share=rows[["mfu", "mbu"]].max(axis=1))
    parts = []
    for phase, group in rows.groupby("phase", sort=False):
        ordered = group.sort_values("share").to_dict("records")
        text = f"in {phase} {_share(ordered[-1])}"
        parts.append(text + (f", {_share(ordered[0])}" if len(ordered) > 1 else ""))
    place = where(rows)
    text = f"{place}{', ' if place else ''}of what the machine was found to achieve: {'; '.join(parts)}"
    if (rows["share"] > BEYOND).any():
        text += ". More than all is no finding: the machine was slower when it was calibrated, calibrate it again"
    elif rows["calibration_contended"].eq(True).any():
        text += ". Something else ran while the machine was calibrated, so true shares may be lower: calibrate it again"
    return capital(text) + "."


def _share(row: dict[str, Any]) -> str:
    what = "arithmetic" if row["mfu"] >= row["mbu"] else "bandwidth"
    return f"{row['series']} reaches {number(100 * row['share'])} % of the {what}"
