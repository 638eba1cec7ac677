"""The small table that ends a sweep: one line a cell, medians over its units, straight from the records."""

from __future__ import annotations

import statistics
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from paradigms.records import RecordWarning, read_table

MAX_SWEPT = 5  # factors that fit beside the figures


def overview(folder: Path, cell_keys: Sequence[str], swept: Sequence[str]) -> Table:
    """Table of cells, in the order of their keys.

    Args:
        folder: of the sweep.
        cell_keys: `cell_key` of the cells to show.
        swept: factors in which they differ; those that follow from the paradigm's label are left out.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecordWarning)  # the lane has told of damaged lines
        return _table(folder, cell_keys, swept)


def _table(folder: Path, cell_keys: Sequence[str], swept: Sequence[str]) -> Table:
    runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in {run["key"]: run for run in read_table(folder, "runs") if "key" in run}.values():
        runs[run.get("cell_key", "")].append(run)
    cell_of = {run["key"]: key for key in cell_keys for run in runs[key] if run["status"] == "ok"}
    requests: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for request in read_table(folder, "requests"):
        if request.get("key") in cell_of:
            requests[cell_of[request["key"]]].append(request)

    shown = _not_told(swept, [runs[key][-1] for key in cell_keys if runs[key]])[:MAX_SWEPT]
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("paradigm")
    for name in [*(name.rpartition(".")[2].replace("_", " ") for name in shown), *_FIGURES, "units"]:
        table.add_column(name, justify="right")
    for key in cell_keys:
        if not runs[key]:
            continue
        factors = runs[key][-1]
        figures = _figures(runs[key], requests[key])
        statuses = Counter(run["status"] for run in runs[key])
        units = ", ".join(str(count) if status == "ok" else f"{count} {status}" for status, count in statuses.items())
        units += ", extrapolated" if any(run.get("extrapolated") for run in runs[key]) else ""
        table.add_row(_label(factors), *(str(factors.get(factor)) for factor in shown), *figures, units)
    return table


def _not_told(swept: Sequence[str], cells: Sequence[dict[str, Any]]) -> list[str]:
    """Factors in which cells of one label differ; those of the work always."""
    values: dict[str, set[tuple[str, str]]] = {}
    for name in swept:
        values[name] = {(_label(cell), str(cell.get(name))) for cell in cells}
    labels = {_label(cell) for cell in cells}
    return [name for name in swept if name.startswith("workload.") or len(values[name]) > len(labels)]


def _label(factors: dict[str, Any]) -> str:
    return str(factors.get("paradigm.label") or factors.get("paradigm.name") or factors.get("cell"))


_FIGURES = ("E2E s", "ms/token", "TTFT ms", "TPOT ms", "forwards", "state KiB", "bits/byte")


def _figures(runs: Sequence[dict[str, Any]], requests: Sequence[dict[str, Any]]) -> list[str]:
    def median(rows: Iterable[dict[str, Any]], name: str) -> float | None:
        values = [row[name] for row in rows if row.get(name) is not None]
        return statistics.median(values) if values else None

    e2e_s, tokens = median(requests, "e2e_s"), median(requests, "committed_tokens")
    bits = _text(median(runs, "bits_per_byte"), 1, 2)
    is_bound = any(run.get("bits_per_byte_is_bound") for run in runs)
    return [
        _text(e2e_s, 1, 3),
        _text(e2e_s / tokens if e2e_s and tokens else None, 1e3, 2),
        _text(median(requests, "ttft_s"), 1e3, 1),
        _text(median(requests, "tpot_s"), 1e3, 2),
        _text(median(requests, "nfe"), 1, 0),
        _text(median(runs, "state_used_bytes"), 1 / 1024, 0),
        f"≤ {bits}" if bits and is_bound else bits,
    ]


def _text(value: float | None, factor: float, digits: int) -> str:
    return "" if value is None else f"{value * factor:.{digits}f}"
