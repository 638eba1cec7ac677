"""What came out of the reference, for people: a line a group, and a file of all rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from paradigms.costs.compared import Compared, write_csv
from paradigms.costs.reference.predictions import predictions

# What is promised of a group: largest median and largest error.
BOUNDS = {
    "LLaDA-8B step, 1,000 positions and more": (0.10, 0.25),
    "Llama-3-8B decode": (0.10, 0.25),
    "Llama-3-8B end to end": (0.10, 0.25),
    "gpt-fast, third row": (0.10, 0.25),
    "SSM-Scope memory, kv": (0.02, 0.02),
    "Speculation, small and base drafts": (0.25, 0.25),
}
HEADS = ("group", "rows", "median error", "worst", "promised", "constants from")


def summary(rows: Sequence[Compared]) -> list[list[str]]:
    """A line a group, in the order of the rows; the worst error with its sign."""
    groups: dict[str, list[Compared]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row)
    return [_line(group, of) for group, of in groups.items()]


def errors(rows: Sequence[Compared]) -> list[float]:
    """Relative errors of the rows that were measured."""
    return [row.error for row in rows if row.error is not None]


def _line(group: str, rows: Sequence[Compared]) -> list[str]:
    found = errors(rows)
    bound = BOUNDS.get(group)
    promised = "reported only" if bound is None else f"median {bound[0]:.0%}, worst {bound[1]:.0%}"
    constants = " · ".join(dict.fromkeys(row.constants for row in rows))
    worst = max(found, key=abs)
    return [group, str(len(rows)), f"{median(map(abs, found)):.1%}", f"{worst:+.1%}", promised, constants]


def markdown(rows: Sequence[Compared]) -> str:
    """Both tables: groups, and every row."""
    lines = ["# Published measurements, predicted", ""]
    lines += _table(HEADS, summary(rows))
    lines += ["", "Rows that gave a constant to their own group are left out. Errors: predicted / measured - 1.", ""]
    lines += _table(
        ("source", "cell", "metric", "predicted", "published", "error"),
        [
            [
                row.source,
                row.cell,
                row.metric,
                f"{row.predicted:.4g} {row.unit}".strip(),
                f"{row.measured:.4g} {row.unit}".strip(),
                f"{row.error:+.1%}" if row.error is not None else "-",
            ]
            for row in rows
        ],
    )
    return "\n".join(lines) + "\n"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(line)} |" for line in (heads, ["---"] * len(heads), *rows)]


def write(folder: Path) -> list[Compared]:
    """Predict everything and leave predictions.csv and predictions.md in a folder."""
    rows = predictions()
    write_csv(folder / "predictions.csv", rows)
    (folder / "predictions.md").write_text(markdown(rows), encoding="utf-8")
    return rows
