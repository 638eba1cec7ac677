"""Figures and tables as the commands print them: plain text, whole lines, three digits."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence


def seconds(value: float | None) -> str:
    """`12.3 ms`; a dash for what is not defined."""
    if value is None:
        return "-"
    for factor, unit in ((1.0, "s"), (1e-3, "ms")):
        if value >= factor:
            return f"{value / factor:.3g} {unit}" if value < 1000 else f"{value:,.0f} s"
    return f"{value / 1e-6:.3g} us"


def number_of_bytes(value: float) -> str:
    """`2.36 MB`, in powers of 1,000."""
    for factor, unit in ((1e15, "PB"), (1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= factor:
            return f"{value / factor:.3g} {unit}" if value < 1000 * factor else f"{value / factor:,.0f} {unit}"
    return f"{value:.0f} B"


def printed(heads: Sequence[str], lines: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> str:
    """Columns as wide as they need, the first one and the last to the left; notes below.

    On a terminal that is narrower, further columns follow below, beside the first one again.
    """
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    blocks = [_block([[row[index] for index in part] for row in (heads, *lines)])
              for part in _parts([heads, *lines], width)]  # fmt: skip
    return "\n".join(["\n\n".join(blocks), *notes]) + "\n"


def _parts(rows: Sequence[Sequence[str]], width: int | None) -> list[list[int]]:
    """Numbers of the columns that stand beside each other, the first one in each."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    parts = [[0]]
    for index in range(1, len(widths)):
        if width is not None and len(parts[-1]) > 1 and sum(widths[i] + 2 for i in parts[-1]) + widths[index] > width:
            parts.append([0])
        parts[-1].append(index)
    return parts


def _block(rows: Sequence[Sequence[str]]) -> str:
    heads = rows[0]
    widths = [max(len(row[index]) for row in rows) for index in range(len(heads))]
    last = len(heads) - 1
    out = []
    for row in rows:
        cells = [
            text.ljust(width) if index in (0, last) else text.rjust(width)
            for index, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        out.append("  ".join(cells).rstrip())
    out.insert(1, "-" * max(map(len, out)))
    return "\n".join(out)
