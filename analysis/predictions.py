"""Predicted against measured, as a figure: `python -m analysis.predictions FILE.csv [--out FILE.png]`.

Reports show it of every folder that holds a predictions.csv: `python -m paradigms.costs compare` puts one into a
sweep's, and runs/published/reference has that of published measurements.

The file has a row a figure of a cell: source, group, cell, metric, unit, predicted, low, high, measured, constants.
Panels are units, since seconds and bytes share no axis; rows that nothing was measured for are left out.
"""

from __future__ import annotations

import argparse
import os
import sys
import textwrap
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import style
from analysis.choices import Choice
from analysis.frames import Frames

FILE = "predictions.csv"
COLUMNS = ("source", "group", "cell", "metric", "unit", "predicted", "low", "high", "measured", "constants")
BANDS = (0.15, 0.35)  # relative errors that are shaded
UNITS = {"s": "seconds", "B": "bytes", "": "ratio"}
BAD_INPUT = 2


def read(path: Path) -> pd.DataFrame:
    """A file of predictions.

    Raises:
        ValueError: it is something else, or lacks columns.
    """
    try:
        rows = pd.read_csv(path, keep_default_na=False, na_values={name: [""] for name in ("low", "high", "measured")})
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} is no file of predictions ({reason}); give a predictions.csv") from error
    if lacking := [name for name in COLUMNS if name not in rows]:
        raise ValueError(f"{path} is no file of predictions: it lacks {', '.join(lacking)}")
    return rows.astype({name: float for name in ("predicted", "low", "high", "measured")})


def choose(frames: Frames) -> list[Choice]:
    """The figure of what was predicted in the folders of a report, where something was measured beside it."""
    found = [read(folder / FILE) for folder in frames.folders if (folder / FILE).is_file()]
    rows = pd.concat(found, ignore_index=True) if found else pd.DataFrame()
    if rows.empty or not rows["measured"].gt(0).any():
        return []
    machines = "; ".join(sorted(set(frames.runs["machine"].dropna())))
    draw = partial(figure, rows, note=f"Sweeps measured on {machines}.")
    return [Choice("predictions", "Predicted and measured", lambda _: draw(), lambda _: f"{sentence(rows)}.")]


def errors(rows: pd.DataFrame) -> pd.Series:
    """Predicted / measured - 1 of what was measured."""
    found = rows[rows["measured"].notna() & rows["measured"].ne(0)]
    return found["predicted"] / found["measured"] - 1


def sentence(rows: pd.DataFrame) -> str:
    """Median and 90th percentile of the errors, and how many lie within each band."""
    missed = errors(rows).abs()
    shares = ", ".join(f"{(missed <= band).mean():.0%} within {band:.0%}" for band in BANDS)
    middle, high = missed.median(), missed.quantile(0.9)
    return f"{len(missed)} figures: median error {middle:.1%}, 90th percentile {high:.1%}; {shares}"


def figure(rows: pd.DataFrame, *, note: str = "") -> Figure:
    """Predicted against measured on logarithmic axes, one panel a unit, one marker a group; the note ends the caption.

    Raises:
        ValueError: nothing was measured.
    """
    shown = rows[rows["measured"].gt(0) & rows["predicted"].gt(0)]
    if shown.empty:
        raise ValueError("none of the predictions has a measurement beside it; measure the cells first")
    units = [unit for unit in UNITS if unit in set(shown["unit"])]
    units += [unit for unit in dict.fromkeys(shown["unit"]) if unit not in UNITS]
    groups = list(dict.fromkeys(shown["group"]))
    with style.look():
        fig, panels = style.panels(len(units), height=max(4.2, 0.6 + 0.47 * len(groups)), legend=4.4)
        handles = []
        for panel, unit in zip(panels, units, strict=True):
            of_unit = shown[shown["unit"] == unit]
            _bands(panel, of_unit)
            for group, part in of_unit.groupby("group", sort=False):
                mark = style.mark(groups.index(group), len(groups))
                panel.plot(
                    part["measured"], part["predicted"], linestyle="none", marker=mark.marker, color=mark.color,
                    markersize=5.5, alpha=0.8, markeredgewidth=0.4, markeredgecolor="white", zorder=3,
                )  # fmt: skip
            for which in "xy":
                style.log_axis(panel, which, unit=unit)
            name = UNITS.get(unit, unit)
            panel.set(xlabel=f"measured, {name}", ylabel=f"predicted, {name}")
        for index, group in enumerate(groups):
            missed = errors(shown[shown["group"] == group]).abs()
            found = f"{len(missed)}: median {missed.median():.1%}, worst {missed.max():.1%}"
            text = f"{textwrap.fill(str(group), 42)}\n{found}"
            handles.append(style.handle(text, style.mark(index, len(groups)), line=False))
        style.legend(fig, handles)
        notes = f"{sentence(shown)}. Line: equal; bands: {' and '.join(f'±{band:.0%}' for band in BANDS)}. {note}"
        wrapped = "\n".join(textwrap.wrap(notes, width=int(fig.get_figwidth() * 15)))
        fig.supxlabel(wrapped, x=0.008, ha="left", fontsize=8, color=style.GREY)
    return fig


def _bands(panel: Axes, rows: pd.DataFrame) -> None:
    """The line of equality and how far off counts as near, over all that is shown."""
    values = rows[["measured", "predicted"]].to_numpy()
    x = np.array([values.min() / 1.5, values.max() * 1.5])
    panel.plot(x, x, color=style.GREY, linewidth=1, zorder=1)
    for band, shade in zip(BANDS, (0.16, 0.08), strict=True):
        panel.fill_between(x, x * (1 - band), x * (1 + band), color=style.GREY, alpha=shade, linewidth=0, zorder=0)
    panel.set(xlim=x, ylim=x)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m analysis.predictions", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("file", type=Path, help="predictions.csv")
    parser.add_argument("--out", type=Path, default=None, help="figure; by default the file's name with .png")
    options = parser.parse_args(arguments)
    try:
        rows = read(options.file)
        out = options.out or options.file.with_suffix(".png")
        figure(rows).savefig(out, dpi=150)
        print(f"{sentence(rows)}: {out}", flush=True)
    except BrokenPipeError:  # of `| head`; the figure is written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    except OSError as error:
        print(f"error: {error.filename}: {(error.strerror or str(error)).lower()}; name another file", file=sys.stderr)
        return BAD_INPUT
    return 0


if __name__ == "__main__":
    sys.exit(main())
