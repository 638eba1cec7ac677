"""Predictions beside what was measured: the rows of a file that `analysis.predictions` draws."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from paradigms.records import write_whole


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One figure.

    Attributes:
        source: file or sweep that it was measured in.
        group: figures that are judged together.
        cell: what was run.
        metric, unit: what the figure is.
        predicted: by the model; low, high: its interval, None where nobody has looked.
        measured: None where it has not been, yet.
        constants: where the constants of the prediction come from.
    """

    source: str
    group: str
    cell: str
    metric: str
    unit: str
    predicted: float
    low: float | None = None
    high: float | None = None
    measured: float | None = None
    constants: str

    @property
    def error(self) -> float | None:
        """Relative, of the measured; None where there is none."""
        return self.predicted / self.measured - 1 if self.measured else None


COLUMNS = tuple(field.name for field in fields(Compared))


def write_csv(path: Path, rows: Iterable[Compared]) -> None:
    """A file of them; what is not known is empty."""
    file = io.StringIO()
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _text(value) for name, value in asdict(row).items()})
    write_whole(path, file.getvalue())


def _text(value: object) -> object:
    return f"{value:.6g}" if isinstance(value, float) else value
