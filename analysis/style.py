"""How every figure looks: one colour and marker a paradigm, legends outside the data, the machine in the caption.

Colours are seaborn's colour-blind palette without its yellow, which is lost on white; markers repeat the distinction
for print.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from analysis import intervals
from analysis.frames import Frames
from analysis.summary import labels

GREY = "#5b6470"
_PALETTE = [sns.color_palette("colorblind").as_hex()[index] for index in (0, 1, 2, 3, 4, 5, 9, 6, 7)]
_MARKERS = "os^DvPX<>*"
_DASHES = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (5, 1, 1, 1)), (0, (7, 2, 2, 2)))
_RC: dict[Any, Any] = {
    "figure.facecolor": "white", "axes.facecolor": "white", "savefig.facecolor": "white", "axes.titlelocation": "left",
    "axes.titlesize": 11, "axes.titleweight": "bold", "axes.labelsize": 10, "xtick.labelsize": 9, "ytick.labelsize": 9,
    "legend.fontsize": 9, "legend.frameon": False, "grid.color": "#e6e8eb", "axes.edgecolor": "#c4c9cf",
    "lines.linewidth": 1.6, "svg.fonttype": "path", "svg.hashsalt": "paradigms", "font.family": "DejaVu Sans",
}  # fmt: skip


@contextmanager
def look() -> Iterator[None]:
    """The theme, for one figure, without changing anybody else's."""
    with sns.axes_style("whitegrid"), matplotlib.rc_context(_RC):
        yield


def panels(count: int, *, width: float = 4.6, height: float = 3.9, legend: float = 2.9) -> tuple[Figure, list[Axes]]:
    """A row of panels, with room at the right for one legend."""
    fig = Figure(figsize=(width * count + legend, height), layout="constrained")
    axes = fig.subplots(1, count, squeeze=False)[0]
    sns.despine(fig)
    return fig, list(axes)


@dataclass(frozen=True)
class Mark:
    """Colour, marker and line of a paradigm; later ones are smaller, so that coinciding points show one inside the
    other, and dashed once the colours begin again.
    """

    color: str
    marker: str
    size: float
    dash: Any = "-"


def mark_of(frames: Frames, label: str) -> Mark:
    """The mark of a paradigm, equal in every figure of these frames."""
    order = labels(frames)
    return mark(order.index(label), len(order))


def mark(index: int, count: int) -> Mark:
    """The mark of the index-th of `count` series."""
    size = 9.5 - 5.0 * index / max(count - 1, 4)
    dash = dash_of(index // len(_PALETTE))
    return Mark(_PALETTE[index % len(_PALETTE)], _MARKERS[index % len(_MARKERS)], size, dash)


def dash_of(index: int) -> Any:
    """Line style of the index-th series of one paradigm."""
    return _DASHES[index % len(_DASHES)]


def points(axes: Axes, rows: pd.DataFrame, x: str, y: str, mark: Mark, *, dash: Any = "-", line: bool = True) -> None:
    """A series with its intervals; contended points are hollow, extrapolated ones hollow with a dot inside."""
    rows = rows[rows[y].notna() & rows[x].notna()]
    if not len(rows):
        return
    if line:
        axes.plot(rows[x], rows[y], color=mark.color, linestyle=_dash(mark, dash), alpha=0.85, zorder=2)
    bars = {"fmt": "none", "ecolor": mark.color, "elinewidth": 1, "capsize": 2.5, "zorder": 2}
    axes.errorbar(rows[x], rows[y], xerr=_reach(rows, x), yerr=_reach(rows, y), **bars)
    for hollow, part in rows.groupby(rows["contended"] | rows["extrapolated"]):
        axes.plot(
            part[x], part[y], linestyle="none", marker=mark.marker, markersize=mark.size if line else 7,
            markeredgewidth=1.4,
            color=mark.color, markerfacecolor="white" if hollow else mark.color, zorder=3,
        )  # fmt: skip
    part = rows[rows["extrapolated"]]
    axes.plot(part[x], part[y], linestyle="none", marker=".", markersize=3.5, color=mark.color, zorder=4)


def _reach(rows: pd.DataFrame, name: str) -> list[pd.Series] | None:
    """How far the interval of a figure reaches down and up; None for one without intervals."""
    if f"{name}_low" not in rows:
        return None
    return [(rows[name] - rows[f"{name}_low"]).clip(lower=0), (rows[f"{name}_high"] - rows[name]).clip(lower=0)]


def handle(text: str, mark: Mark, *, dash: Any = "-", line: bool = True) -> Line2D:
    linestyle = _dash(mark, dash) if line else "none"
    return Line2D(
        [], [], color=mark.color, marker=mark.marker, markersize=min(mark.size, 7), linestyle=linestyle, label=text
    )


def _dash(mark: Mark, of_series: Any) -> Any:
    """The line of a series: its own among several of one paradigm, else the paradigm's."""
    return mark.dash if of_series == "-" else of_series


def legend(fig: Figure, handles: list[Line2D]) -> None:
    """One legend, right of the panels."""
    fig.legend(handles=handles, loc="outside right upper", labelspacing=0.9, handlelength=2.4)


def caption(fig: Figure, frames: Frames, *extra: str, medians: bool = True, hollow: bool = True) -> None:
    """Machine and what the marks mean, below the panels.

    Args:
        fig: the figure.
        frames: what is drawn.
        extra: sentences, without their stops.
        medians: bars are intervals of medians over rounds.
        hollow: marks hang on the clock, and are hollow where it is not to be trusted.
    """
    machines = [str(name) for name in dict.fromkeys(frames.runs["machine"].dropna())]
    rounds = frames.ok.groupby("cell")["round"].nunique()
    parts = [", ".join(machines) or "machine not recorded", rounds_note(set(rounds)) if medians else "", *extra]
    if hollow and frames.ok["contended"].any():
        parts.append("Hollow: the machine was slow or busy with something else in at least one round")
    if hollow and frames.ok["extrapolated"].any():
        parts.append("Hollow with a dot: extrapolated from a few forwards, in at least one round")
    sentences = ". ".join(part[0].upper() + part[1:] for part in parts if part) + "."
    text = "\n".join(textwrap.wrap(sentences, width=int(fig.get_figwidth() * 15)))
    fig.supxlabel(text, x=0.008, ha="left", fontsize=8, color=GREY)


def rounds_note(counts: Collection[int]) -> str:
    """What the bars are, and how often they cover, given the rounds of each cell."""
    covered = intervals.describe((count, intervals.median_level(count)[1]) for count in counts)
    return f"Medians over rounds, bars cover the true ones with {covered}" if covered else "One round: no intervals"


def texts_note(rows: pd.DataFrame) -> str:
    """The same of quality figures, which stand on distinct generations."""
    counts = set(rows["generations"].dropna().astype(int))
    covered = intervals.describe(((count, intervals.median_level(count)[1]) for count in counts), "text")
    return f"Quality: medians over distinct generations, bars with {covered}" if covered else ""


def log_axis(axes: Axes, which: str, *, values: pd.Series | None = None, unit: str = "") -> None:
    """Logarithmic axis with ticks that need no exponent: exactly `values`, or 1, 2, 5 with SI prefixes and `unit`."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    axis.set_minor_formatter(NullFormatter())
    if values is not None:
        axis.set_major_locator(FixedLocator(sorted(set(values))))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axis.set_minor_locator(NullLocator())
        return
    low, high = axis.get_view_interval()
    subs = (1.0,) if high / low > 200 else (1.0, 2.0, 5.0) if high / low > 5 else (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
    axis.set_major_locator(LogLocator(subs=subs, numticks=12))
    axis.set_major_formatter(EngFormatter(unit=unit, sep=" " if unit else ""))


def wrap(items: list[str], width: int) -> str:
    """Items joined with semicolons, broken between items only."""
    lines = [""]
    for index, item in enumerate(items):
        piece = item + (";" if index < len(items) - 1 else "")
        if lines[-1] and len(lines[-1]) + 1 + len(piece) > width:
            lines.append(piece)
        else:
            lines[-1] = f"{lines[-1]} {piece}".strip()
    return "\n".join(lines)
