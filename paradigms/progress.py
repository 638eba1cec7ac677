"""What a sweep shows while it runs: the stage, how far it is, how long still.

On a terminal that is one live line below the messages, redrawn once a second, so that drawing takes no time from what
is measured beside it. Elsewhere (a log file, a pipe, several lanes at once) it is one plain line a unit.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar


class Progress(Protocol):
    """What a lane reports to. `left_s` is None as long as nothing is known."""

    def stage(self, name: str, total: int) -> None:
        """A stage of `total` steps begins."""

    def start(self, name: str, left_s: float | None = None) -> None:
        """A step of the stage begins."""

    def done(self, name: str, seconds: float, note: str = "") -> None:
        """The step has ended; a note says what went wrong."""

    def say(self, line: str) -> None:
        """A message, or a line that the running step printed."""

    def close(self) -> None:
        """Nothing more will come."""


class PlainProgress:
    """One line an event.

    Args:
        prefix: set before each line, to tell lanes apart.
    """

    def __init__(self, console: Console | None = None, prefix: str = "") -> None:
        self._console = console or Console()
        self._prefix = prefix
        self._stage, self._total, self._step, self._left_s = "", 0, 0, None

    def stage(self, name: str, total: int) -> None:
        self._stage, self._total, self._step = name, total, 0

    def start(self, name: str, left_s: float | None = None) -> None:
        self._left_s = left_s
        if self._step == 0 and left_s is None:
            self.say(f"{self._stage}: {self._total} to do, first {name}")

    def done(self, name: str, seconds: float, note: str = "") -> None:
        self._step += 1
        left = f", {duration(self._left_s)} left" if self._left_s and self._step < self._total else ""
        self.say(f"{self._stage} {self._step}/{self._total}: {name}, {duration(seconds)}{left}{note and '  ' + note}")

    def say(self, line: str) -> None:
        self._console.print(f"{self._prefix}{line}", markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        pass


class LiveProgress:
    """A bar on a terminal."""

    def __init__(self, console: Console | None = None) -> None:
        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.fields[cell]}"),
            console=console,
            refresh_per_second=1,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._bar.add_task("", total=None, left="", cell="")
        self._bar.start()

    def stage(self, name: str, total: int) -> None:
        self._bar.reset(self._task, description=name, total=total, left="", cell="")

    def start(self, name: str, left_s: float | None = None) -> None:
        self._bar.update(self._task, cell=name, left="" if left_s is None else f"{duration(left_s)} left", refresh=True)

    def done(self, name: str, seconds: float, note: str = "") -> None:
        self._bar.advance(self._task)
        if note:
            self.say(f"{name}: {note}")

    def say(self, line: str) -> None:
        self._bar.console.print(line, markup=False, highlight=False)

    def close(self) -> None:
        self._bar.stop()


def progress(*, lane: int = 0, num_lanes: int = 1, console: Console | None = None) -> Progress:
    """The display that suits where the output goes."""
    console = console or Console()
    if num_lanes > 1:
        return PlainProgress(console, prefix=f"lane {lane}: ")
    return LiveProgress(console) if console.is_terminal else PlainProgress(console)


class TimeLeft:
    """Estimates the time that units need from those that have run: the same cell's if there is one, else the mean.

    Args:
        cells: of all units to come, one entry a unit.
    """

    def __init__(self, cells: Sequence[int]) -> None:
        self._left = Counter(cells)
        self._seconds: dict[int, float] = {}
        self._num_unknown = len(cells)  # units to come of cells that have not run
        self._mean_sum_s = self._known_s = 0.0  # over cells that have run: of one unit each, of all units to come

    def saw(self, cell: int, seconds: float) -> None:
        """A unit of this cell has run."""
        before_s, left = self._seconds.get(cell), self._left[cell]
        if before_s is None:
            self._num_unknown -= left
        else:
            self._mean_sum_s -= before_s
            self._known_s -= before_s * left
        self._seconds[cell], self._left[cell] = seconds, left - 1
        self._mean_sum_s += seconds
        self._known_s += seconds * (left - 1)

    def estimate_s(self) -> float | None:
        """Seconds that the units to come will take; None before anything has run."""
        if not self._seconds:
            return None
        return max(0.0, self._known_s + self._num_unknown * self._mean_sum_s / len(self._seconds))


def duration(seconds: float) -> str:
    """Seconds for people: `0.8 s`, `45 s`, `3 min 05 s`, `2 h 10 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def count(number: int, noun: str) -> str:
    """`1 cell`, `42 cells`."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def shown(path: Path) -> str:
    """A path as short as a person can use it from here."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative
