"""Training and validation against epochs: when a text that is read again has taught all that it can.

Both are bits per byte of text, train_nats / (ln 2 x bytes of a training token), so that their distance is what was
learnt by heart. Records of trainings before `train_bytes_per_token` was written have no training curve, and are left to
the figure of losses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pandas as pd
from matplotlib.figure import Figure

from analysis import findings, style
from analysis.choices import Choice
from analysis.frames import Frames

FEWEST_EPOCHS = 2.0  # less than that has hardly been read again
RISE = 0.01  # bits per byte by which validation must have become worse for a sentence to say so


@dataclass(frozen=True)
class Course:
    """One checkpoint.

    Attributes:
        name, label: what to call it, and whose colour it takes.
        is_bound: both curves are upper bounds.
        rows: by `epoch`, with `train_bits_per_byte` and `val_bits_per_byte`.
    """

    name: str
    label: str
    is_bound: bool
    rows: pd.DataFrame

    @property
    def best(self) -> pd.Series:
        """The validation minimum; of equal ones the first."""
        return self.rows.loc[self.rows["val_bits_per_byte"].idxmin()]

    @property
    def last(self) -> pd.Series:
        return self.rows.iloc[-1]

    @property
    def rise(self) -> float:
        """Bits per byte by which validation text has become worse after its minimum."""
        return float(self.last["val_bits_per_byte"] - self.best["val_bits_per_byte"])


def courses(frames: Frames) -> list[Course]:
    """Every checkpoint that read its text at least twice and whose records have both curves."""
    found = []
    for curve in findings.curves(frames):
        rows = curve.rows.sort_values("epoch")
        bytes_of_token = pd.to_numeric(rows.get("train_bytes_per_token", pd.Series(math.nan, index=rows.index)))
        rows = rows.assign(train_bits_per_byte=rows["train_nats"] / (math.log(2) * bytes_of_token))
        rows = rows[rows["epoch"].notna() & rows["train_bits_per_byte"].notna()].reset_index(drop=True)
        if len(rows) and rows["epoch"].max() >= FEWEST_EPOCHS:
            is_bound = curve.is_bound or ("is_bound" in rows and bool(rows["is_bound"].eq(True).any()))
            found.append(Course(curve.name, curve.label, is_bound, rows))
    return found


def choose(frames: Frames) -> list[Choice]:
    """The figure, where there is something to show."""
    return (
        [Choice("epochs", "The same text again: training and validation", figure, sentence)] if courses(frames) else []
    )


def figure(frames: Frames) -> Figure:
    """Bits per byte against epochs: validation solid, training dotted, a star at the validation minimum."""
    with style.look():
        fig, (panel,) = style.panels(1, width=7.2)
        handles = []
        for course in courses(frames):
            mark = replace(style.mark_of(frames, course.label), marker=".")
            look = {"color": mark.color, "zorder": 2}
            panel.plot(course.rows["epoch"], course.rows["val_bits_per_byte"], marker=".", **look)
            panel.plot(course.rows["epoch"], course.rows["train_bits_per_byte"], linestyle=":", **look)
            panel.plot(
                course.best["epoch"], course.best["val_bits_per_byte"], linestyle="none", marker="*", markersize=15,
                color=mark.color, markeredgecolor="white", zorder=4,
            )  # fmt: skip
            bound = "\n(upper bounds)" if course.is_bound else ""
            handles.append(style.handle(f"{course.name}{bound}\n{_minimum(course)}", mark))
        panel.set(xlabel="epochs: times that the training text was read", ylabel="bits per byte")
        panel.set_xlim(left=0)
        style.legend(fig, handles)
        style.caption(
            fig,
            frames,
            "Solid: validation text, star: its minimum. Dotted: training text, a mean since the point before",
            _windows(frames),
            medians=False,
            hollow=False,
        )
    return fig


def sentence(frames: Frames) -> str:
    """Where each was best, and what came after."""
    parts = []
    for course in courses(frames):
        most = "at most " if course.is_bound else ""
        at = f"{most}{course.best['val_bits_per_byte']:.2f} bits per byte after {course.best['epoch']:.1f} epochs"
        end = f"{course.last['val_bits_per_byte']:.2f} after {course.last['epoch']:.1f}"
        then = (
            f"then worse: {end}, its training text at {most}{course.last['train_bits_per_byte']:.2f}"
            if course.rise > RISE
            else f"and no worse since ({end})"
        )
        parts.append(f"{course.name} {at}, {then}")
    return f"Validation text is known best: {'; '.join(parts)}."


def _minimum(course: Course) -> str:
    return f"best {course.best['val_bits_per_byte']:.2f} after {course.best['epoch']:.1f} epochs"


def _windows(frames: Frames) -> str:
    """How much text a validation reads."""
    columns = ["train.validation_windows", "train.validation_len"]
    if not set(columns) <= set(frames.ok):
        return ""
    counts = frames.ok[columns].dropna().drop_duplicates()
    texts = [f"{windows:.0f} windows of at most {length:.0f} tokens" for windows, length in counts.astype(float).values]
    return f"Validated on {' or '.join(texts)}, the same each time" if texts else ""
