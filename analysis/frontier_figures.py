"""Figures of quality against time, forwards and bytes of state: a panel a cost, a row of panels for what is asked."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter

from analysis import frontier, intervals, style
from analysis.choices import Choice
from analysis.frames import Frames
from analysis.frontier import Measure

MOST_ROWS = 6  # of panels
FAINT = "#b4bac2"
COSTS = {"seconds": "s", "nfe": "", "state_used_bytes": "B"}


def choose(frames: Frames) -> list[Choice]:
    """A figure a measure of quality that some text has which ended by itself."""
    return [
        Choice(
            f"frontier_{measure.name}",
            f"Frontier: {measure.title[:1].lower()}{measure.title[1:]}",
            partial(figure, measure=measure),
            partial(frontier.sentence, measure=measure),
        )
        for measure in frontier.measures(frames)
    ]


def figure(frames: Frames, measure: Measure) -> Figure:
    """Points with intervals of both axes, each paradigm's frontier as a line, dominated points grey."""
    found = frontier.points(frames, measure)
    settings = list(dict.fromkeys(found["setting"]))
    shown = settings[:MOST_ROWS]
    costs = [cost for cost in COSTS if found[cost].notna().any()]
    beside = [*costs, frontier.ENTROPY] if measure.gamed and found[frontier.ENTROPY].notna().any() else costs
    with style.look():
        fig, grid = _grid(len(shown), len(beside))
        for setting, panels in zip(shown, grid, strict=True):
            rows = found[found["setting"] == setting]
            for cost, panel in zip(beside, panels, strict=True):
                _panel(panel, frames, rows, cost, measure)
                if panel is not panels[0]:  # all of a row show one quality
                    panel.set_ylabel("")
            if len(settings) > 1 or rows["is_task"].any():
                panels[0].set_title(setting)
        style.legend(fig, _handles(frames, found[found["setting"].isin(shown)]))
        style.caption(fig, frames, *_notes(found, measure, len(settings) - len(shown)), medians=False)
    return fig


def _grid(rows: int, columns: int) -> tuple[Figure, list[list[Axes]]]:
    fig = Figure(figsize=(3.2 * columns + 2.7, 0.9 + 3.0 * rows), layout="constrained")
    axes = fig.subplots(rows, columns, squeeze=False)
    sns.despine(fig)
    return fig, [list(row) for row in axes]


def _panel(panel: Axes, frames: Frames, rows: pd.DataFrame, cost: str, measure: Measure) -> None:
    rows = rows[rows[cost].notna()]
    entropy = cost == frontier.ENTROPY
    worse = pd.Series(False, index=rows.index)
    if len(rows) and not entropy:
        worse = pd.Series(frontier.dominated(rows[cost], measure.sign * rows["quality"]), index=rows.index)
    for _, part in rows.groupby("curve", sort=False):
        if not entropy:
            mark = style.mark_of(frames, str(part["label"].iloc[0]))
            costs, goods = frontier.frontier(part[cost], measure.sign * part["quality"])
            panel.plot(costs, measure.sign * goods, color=mark.color, linestyle=mark.dash, alpha=0.85, zorder=2)
    for is_worse in (True, False):  # what is grey lies beneath
        for label, part in rows[worse == is_worse].groupby("label", sort=False):
            mark = replace(style.mark_of(frames, str(label)), size=7)
            style.points(panel, part, cost, "quality", replace(mark, color=FAINT) if is_worse else mark, line=False)
    if measure.share:
        panel.set_ylim(-0.04, 1.04)
    else:
        panel.margins(y=0.12)
    panel.margins(x=0.12)
    panel.tick_params(axis="x", labelsize=8)  # a decade of times stands side by side
    if entropy:
        pass
    elif len(rows) and (rows[cost] > 0).all():
        style.log_axis(panel, "x", unit=COSTS[cost])
    else:  # no state at all has no place on a log axis
        panel.xaxis.set_major_formatter(EngFormatter(unit=COSTS[cost], sep=" " if COSTS[cost] else ""))
    panel.set(xlabel=_cost_name(rows, cost), ylabel=measure.unit + (" (lower: likelier)" if measure.gamed else ""))


def _cost_name(rows: pd.DataFrame, cost: str) -> str:
    if cost == "seconds":
        return "end to end of a request,\nseconds" if rows["is_task"].any() else "end to end / tokens,\nseconds a token"
    return {"nfe": "forwards a request (NFE)", "state_used_bytes": "state used, bytes",
            frontier.ENTROPY: "token entropy, nats\n(higher: less dull)"}[cost]  # fmt: skip


def _handles(frames: Frames, found: pd.DataFrame) -> list[Line2D]:
    """Of a curve whose points have labels of their own, sizes of a block say, one each."""
    marks = found.drop_duplicates(["curve", "label"])
    own = marks.groupby("curve")["label"].transform("size") > 1
    handles = [
        style.handle(str(name), replace(style.mark_of(frames, str(label)), size=7))
        for name, label in zip(marks["curve"].where(~own, marks["label"]), marks["label"], strict=True)
    ]
    grey = style.handle("dominated: another costs no\nmore and is no worse", style.Mark(FAINT, "o", 7), line=False)
    return [*handles, grey]


def _notes(found: pd.DataFrame, measure: Measure, hidden: int) -> list[str]:
    rounds = intervals.describe((count, intervals.median_level(count)[1]) for count in set(found["units"].astype(int)))
    notes = [f"Every point was judged by its own generations, {frontier.ends(found)}"]
    notes.append(f"Across: medians over units, bars with {rounds.replace('round', 'unit')}" if rounds
                 else "Across: timed in one unit, no intervals")  # fmt: skip
    if measure.share:
        notes.append("Up: means, bars 95 % over trainings, or over instances where there was one training")
    else:
        alone, several = found[found["trainings"] < 2], sorted(set(found.loc[found["trainings"] > 1, "trainings"]))
        notes.append(style.texts_note(alone.rename(columns={"scored": "generations"})))
        levels = intervals.describe(((count, intervals.median_level(count)[1]) for count in several), "training")
        notes.append(f"Quality of several trainings: medians over them, bars with {levels}" if levels else "")
    notes.append("Grey by the figures alone: bars may overlap")
    if hidden:
        notes.append(f"{hidden} more kinds of work are in frontier.csv")
    return notes
