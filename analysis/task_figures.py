"""Figures of tasks: accuracy of every paradigm by task, and what becomes of a planted error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis import style, tasks
from analysis.choices import Choice
from analysis.frames import Frames
from analysis.trainings import of_trainings

BARS = "95 % over trainings, t, no narrower than over instances (Clopper and Pearson)"
GUESS = "Dotted: what a guess gets right"


def choose(frames: Frames) -> list[Choice]:
    """Figures of the tasks that were asked; none where none was."""
    found = tasks.groups(frames)
    chosen = []
    if len(found[found["planted"] == 0]):
        chosen.append(Choice("tasks_accuracy", "Accuracy by task", accuracy, tasks.sentence))
    if len(tasks.by_size(frames)):
        chosen.append(Choice("tasks_sizes", "Accuracy against size", against_size, tasks.size_sentence))
    planted = found[found["planted"] > 0]
    if len(planted) and planted[["behind", "revised"]].notna().any(axis=None):
        chosen.append(Choice("tasks_planted", "With an error planted", planted_errors, tasks.plants_sentence))
    return chosen


def accuracy(frames: Frames) -> Figure:
    """A row a task, a mark a paradigm: mean and interval, each training as a dot beneath."""
    found = tasks.groups(frames)
    found = found[found["planted"] == 0]
    with style.look():
        fig, (panel,) = _rows_of_tasks(found, panels=1, width=7.4)
        _marks(panel, frames, found, "correct")
        _trainings(panel, frames, found)
        guessed = _guesses(panel, found)
        panel.set_xlabel("answers that are right")
        style.legend(fig, _handles(frames, found))
        notes = []
        if found["seeds"].gt(1).any():
            notes.append(f"Bars: {BARS}; dots: each training")
        if found["seeds"].eq(1).any():
            notes.append("*: one training, bar of 95 % over instances alone")
        style.caption(fig, frames, *notes, GUESS if guessed else "", medians=False, hollow=False)
    return fig


def against_size(frames: Frames) -> Figure:
    """A panel a task that was asked at several sizes, a line a paradigm."""
    found = tasks.by_size(frames)
    kinds = list(dict.fromkeys(found["kind"]))
    with style.look():
        fig, panels = style.panels(len(kinds))
        for panel, kind in zip(panels, kinds, strict=True):
            rows = found[found["kind"] == kind]
            for series, own in rows.groupby("series", sort=False):
                style.points(panel, own, "size", "correct", _mark(frames, found, str(series)))
            values = sorted(set(rows["size"]))
            if values[0] > 0 and values[-1] >= 4 * values[0]:
                panel.set_xscale("log", base=2)
            panel.set_xticks(values, [f"{value:g}" for value in values])
            panel.minorticks_off()
            known = rows.drop_duplicates("size")["chance"]
            if known.notna().any():
                panel.plot(rows.drop_duplicates("size")["size"], known, color=style.GREY, linestyle=":", zorder=1)
            panel.set_ylim(-0.04, 1.04)
            panel.set(title=kind, xlabel=str(rows["size_name"].iloc[0]), ylabel="answers that are right")
        style.legend(fig, [style.handle(str(one), _mark(frames, found, one)) for one in dict.fromkeys(found["series"])])
        guess = GUESS if found["chance"].notna().any() else ""
        style.caption(fig, frames, f"Bars: {BARS}", guess, medians=False, hollow=False)
    return fig


def planted_errors(frames: Frames) -> Figure:
    """What is right behind a planted error, beside the accuracy without one, and how often the plant was revised."""
    found = tasks.groups(frames)
    without = found[found["planted"] == 0]
    found = found[found["planted"] > 0]
    with style.look():
        fig, panels = _rows_of_tasks(found, panels=2, width=4.6)
        titles = {"behind": "Right behind the plant", "revised": "Plants revised"}
        for panel, (name, title) in zip(panels, titles.items(), strict=True):
            _marks(panel, frames, found, name)
            panel.set(title=title, xlabel="share of answers")
        place = _places(found)
        for _, row in without.iterrows():
            for planted in sorted(set(found["planted"])):
                y = place.get((tasks.asked(row["task"], planted), row["series"]))
                if y is not None:
                    color = _mark(frames, found, row["series"]).color
                    panels[0].plot(row["correct"], y, marker="|", markersize=11, markeredgewidth=2, color=color)
        style.legend(fig, _handles(frames, found))
        revised = "Revised: not there at the end, which may come of giving up every plant and writing the place anew"
        style.caption(
            fig, frames, f"Strokes: accuracy without a plant. Bars: {BARS}", revised, medians=False, hollow=False
        )
    return fig


def _rows_of_tasks(found: pd.DataFrame, *, panels: int, width: float) -> tuple[Figure, list[Axes]]:
    """Panels side by side, a band a task, the first at the top."""
    names, series = _names(found), list(dict.fromkeys(found["series"]))
    height = 1.7 + len(names) * max(0.55, 0.19 * len(series))
    fig, axes = style.panels(panels, width=width, height=max(height, 2.6))
    for panel in axes:
        panel.set_xlim(-0.03, 1.03)
        panel.set_ylim(len(names) - 0.5, -0.5)
        panel.set_yticks(range(len(names)), names if panel is axes[0] else [""] * len(names))
        panel.grid(visible=False, axis="y")
        for line in range(1, len(names)):
            panel.axhline(line - 0.5, color="#e6e8eb", linewidth=0.8, zorder=0)
        panel.set_ylabel("task" if panel is axes[0] else "")
    return fig, axes


def _names(found: pd.DataFrame) -> list[str]:
    return list(
        dict.fromkeys(tasks.asked(task, plant) for task, plant in zip(found["task"], found["planted"], strict=True))
    )


def _places(found: pd.DataFrame) -> dict[tuple[str, str], float]:
    """Where on the y axis a task's series stands."""
    names, series = _names(found), list(dict.fromkeys(found["series"]))
    step = 0.76 / max(len(series), 2)
    return {
        (name, one): row + step * (index - (len(series) - 1) / 2)
        for row, name in enumerate(names)
        for index, one in enumerate(series)
    }


def _mark(frames: Frames, found: pd.DataFrame, series: str) -> style.Mark:
    """The paradigm's own, or one of the series where a paradigm has several."""
    order = list(dict.fromkeys(found["series"]))
    label = found.loc[found["series"] == series, "label"]
    if found.groupby("label")["series"].nunique().max() == 1 and len(label):
        return replace(style.mark_of(frames, str(label.iloc[0])), size=7)
    return replace(style.mark(order.index(series) if series in order else 0, len(order)), size=7)


def _marks(panel: Axes, frames: Frames, found: pd.DataFrame, name: str) -> None:
    place = _places(found)
    for _, row in found[found[name].notna()].iterrows():
        y, mark = place[tasks.asked(row["task"], row["planted"]), row["series"]], _mark(frames, found, row["series"])
        value, down, up = tasks.shares(found.loc[[row.name]], name)[:, 0]
        panel.errorbar(
            value, y, xerr=[[down], [up]], fmt="none", ecolor=mark.color, elinewidth=1.2, capsize=2.5, zorder=2
        )
        panel.plot(value, y, marker=mark.marker, markersize=mark.size, color=mark.color, linestyle="none", zorder=3)
        if row["seeds"] < 2:
            panel.annotate("*", (value, y), xytext=(5, 1), textcoords="offset points", fontsize=9, color=mark.color)


def _trainings(panel: Axes, frames: Frames, found: pd.DataFrame) -> None:
    """Accuracy of each training, small, under the mean."""
    place, rows = _places(found), tasks.answers(frames)
    for _, row in found[found["seeds"] > 1].iterrows():
        own = rows[(rows["task"] == row["task"]) & (rows["planted"] == 0) & (rows["series"] == row["series"])]
        each = of_trainings(own)["share"]
        y = place[tasks.asked(row["task"], 0), row["series"]] + 0.3 * _step(place)
        color = _mark(frames, found, row["series"]).color
        panel.plot(each, [y] * len(each), linestyle="none", marker=".", markersize=4, color=color, alpha=0.8, zorder=2)


def _step(place: dict[tuple[str, str], float]) -> float:
    """Distance between two series of a task."""
    values: Sequence[float] = sorted(place.values())
    return min((later - sooner for sooner, later in pairwise(values)), default=0.4)


def _guesses(panel: Axes, found: pd.DataFrame) -> bool:
    """A dotted stroke at the level of guessing, where it is known."""
    drawn = False
    for row, (_, group) in enumerate(found.groupby("task", sort=False)):
        known = group["chance"].dropna()
        if len(known):
            panel.plot(
                [known.iloc[0]] * 2, [row - 0.45, row + 0.45], color=style.GREY, linestyle=":", linewidth=1.4, zorder=1
            )
            drawn = True
    return drawn


def _handles(frames: Frames, found: pd.DataFrame) -> list[Line2D]:
    return [style.handle(str(one), _mark(frames, found, one), line=False) for one in dict.fromkeys(found["series"])]
