"""What changed between two sweeps of the same cells, beyond noise: another code, another machine, another day.

    python -m analysis.compare OLD NEW [--out changes.md] [--fail-on slower,bigger,worse,failed] [--relative]

Cells are matched by the factors that both sweeps know. Times are compared over rounds (`analysis.moderated`), bytes to
the byte, texts pairwise by request; p values are adjusted for their number (Holm): of twenty comparisons of unchanged
sweeps one raises an alarm, however many cells they have. The rounds of two sweeps lie apart in time, so a machine that
is slower on another day shows as slower cells. What the fixed work beside the units took on either day is said first,
and `--relative` divides by the median over cells, which such a day shares.

Exit code: 0 when nothing of `--fail-on` was found, 1 when something was, 2 for bad input.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from analysis import changes
from analysis.changes import VERDICTS, Changes, compare
from analysis.findings import number
from analysis.frames import load
from analysis.tables import Table, size

FAIL_ON = "slower,bigger,worse,failed"


def table(found: pd.DataFrame) -> Table:
    """A row a comparison."""
    heads = ["cell", "figure", "old", "new", "new / old", "rounds or texts", "p, adjusted", "verdict"]
    rows = []
    for row in found.to_dict("records"):
        show = size if row["unit"] == "bytes" else number
        ratio = number(row["ratio"])
        if not math.isnan(row["low"]):
            ratio += f" [{number(row['low'])}, {number(row['high'])}]"
        rows.append([row["name"], row["figure"], show(row["old"]), show(row["new"]), ratio, row["counts"],
                     number(row["adjusted"], 2), row["verdict"]])  # fmt: skip
    return Table("Comparisons", heads, rows)


def totals(found: pd.DataFrame) -> list[str]:
    """A line a figure: how many of which verdict, and the ratios' range."""
    lines = []
    for figure, group in found.groupby("figure", sort=False):
        counts = ", ".join(f"{count} {verdict}" for verdict, count in group["verdict"].value_counts().items())
        ratio = group["ratio"].dropna()
        spread = f"; ratios {number(ratio.min())} to {number(ratio.max())}, median {number(ratio.median())}"
        lines.append(f"{figure}: {counts}{spread if len(ratio) else ''}")
    return lines


def markdown(told: Changes) -> str:
    """The whole comparison as a document."""
    parts = [f"# {told.title}", _listed(told.differences), "## In sum", _listed(totals(told.found)),
             "## Every comparison", table(told.found).markdown()]  # fmt: skip
    for title, names in (("Only in the old", told.only_old), ("Only in the new", told.only_new)):
        parts += [f"## {title}", _listed(names)] if names else []
    return "\n\n".join(parts) + "\n"


def _listed(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _print(told: Changes, console: Console) -> None:
    console.print(told.title, highlight=False, markup=False)
    for line in told.differences:
        console.print(f"  {line}", highlight=False, markup=False)
    shown = table(told.found[~told.found["verdict"].isin(("same", "undecided"))])
    if shown.rows:
        rich = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
        for index, head in enumerate(shown.heads):
            rich.add_column(head, justify="left" if index < 2 else "right")
        for row in shown.rows:
            rich.add_row(*map(escape, row))
        console.print(rich)
    for line in totals(told.found):
        console.print(line, highlight=False, markup=False)
    for title, names in (("only in the old", told.only_old), ("only in the new", told.only_new)):
        if names:
            console.print(f"{title}: {len(names)} cells: {'; '.join(names)}", highlight=False, markup=False)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m analysis.compare", description="What changed between two sweeps, beyond noise."
    )
    parser.add_argument("old", help="folder of a sweep, such as runs/published/side_by_side")
    parser.add_argument("new", help="folder of another sweep of the same cells")
    parser.add_argument("--out", help="write all comparisons here, as Markdown")
    parser.add_argument(
        "--fail-on",
        default=FAIL_ON,
        help=f"verdicts that give exit code 1, of {', '.join(VERDICTS)} (default: {FAIL_ON})",
    )
    parser.add_argument(
        "--margin", type=float, default=changes.MARGIN, help="smallest change that counts (default: %(default)s)"
    )
    parser.add_argument("--relative", action="store_true", help="divide times by the median ratio over all cells")
    options = parser.parse_args(arguments)
    fail_on = [word.strip() for word in options.fail_on.split(",") if word.strip()]
    unknown = [word for word in fail_on if word not in VERDICTS]
    try:
        if unknown:
            raise ValueError(f"--fail-on: {', '.join(unknown)} is no verdict; they are {', '.join(VERDICTS)}")
        if Path(options.old).exists() and Path(options.old).resolve() == Path(options.new).resolve():
            raise ValueError(f"{options.old} is both old and new; name two folders")
        told = compare(load(options.old), load(options.new), margin=options.margin, relative=options.relative)
        _print(told, Console(width=None if sys.stdout.isatty() else 160))
        if options.out:
            Path(options.out).write_text(markdown(told), encoding="utf-8")
            print(options.out)
    except ValueError as error:
        parser.exit(2, f"analysis.compare: {error}\n")
    except OSError as error:
        parser.exit(2, f"analysis.compare: cannot write {error.filename}: {error.strerror}; name another with --out\n")
    bad = int(told.found["verdict"].isin(fail_on).sum())
    if bad:
        print(f"{bad} of {len(told.found)} comparisons: {' or '.join(fail_on)}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
