"""Predictions of all cells of a sweep, written down before it runs, and held against it afterwards.

    python -m paradigms.costs predict-sweep experiment=side_by_side experiment=context
    python -m paradigms.costs compare runs/published/predictions/FILE.csv runs/side_by_side runs/context
    python -m analysis.report runs/side_by_side      # then shows both sides

The cells are composed as the sweep composes them. Constants come from this machine's calibration; how many tokens
become final by a forward, where the text decides that, from an earlier sweep of the same cells (`--nfe-from`), since
nothing but text can tell.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from paradigms.build import build
from paradigms.cell import Cell
from paradigms.cli import planned_cells
from paradigms.costs.calibrated import CalibratedDevice
from paradigms.costs.compared import Compared, write_csv
from paradigms.costs.prediction import predict
from paradigms.costs.this_machine import device_of
from paradigms.measure.environment import machine, machine_id
from paradigms.plan import PlannedCell
from paradigms.records import read_table
from paradigms.work import BatchShape

FOLDER = Path("runs/published/predictions")
METRICS = {"e2e_s": "s", "ttft_s": "s", "tpot_s": "s"}  # of requests, and of `prediction.Prediction`
BESIDE = "predictions.csv"  # in a sweep's folder, both sides: its report shows them
NEAR, FAR = 0.15, 0.35  # relative errors that are asked about
NUM_WORST = 10


def add_parsers(subparsers: Any) -> None:
    """The commands `predict-sweep` and `compare`."""
    asking = subparsers.add_parser("predict-sweep", help="predict all cells of sweeps, and write that to a file")
    asking.add_argument(
        "overrides", nargs="+", help="as of python -m paradigms; experiment=... may be given repeatedly"
    )
    asking.add_argument("--nfe-from", type=Path, action="append", default=[], help="folder of an earlier sweep")
    asking.add_argument("--out", type=Path, default=None, help=f"default: {FOLDER}/<machine>-<date>.csv")
    asking.set_defaults(run=run_predict)
    comparing = subparsers.add_parser(
        "compare", help="hold such a file against the records of sweeps, and put both sides into their folders"
    )
    comparing.add_argument("file", type=Path)
    comparing.add_argument("folders", nargs="+", type=Path, help="of sweeps that were predicted")
    comparing.add_argument("--out", type=Path, default=None, help="write the file with what was measured")
    comparing.set_defaults(run=run_compare)


def run_predict(arguments: argparse.Namespace) -> int:
    """See `add_parsers`; the exit code."""
    experiments = [line for line in arguments.overrides if line.startswith("experiment=")]
    rest = [line for line in arguments.overrides if line not in experiments]
    rows: list[Compared] = []
    for own in [[line] for line in experiments] or [[]]:
        rows += predictions([*own, *rest], arguments.nfe_from)
    out = arguments.out or FOLDER / f"{machine_id()}-{datetime.now(UTC):%Y-%m-%d}.csv"
    write_csv(out, rows)
    cells = len({(row.source, row.cell) for row in rows})
    print(f"{cells} cells predicted: {out}")
    return 0


def predictions(overrides: Sequence[str], nfe_from: Sequence[Path]) -> list[Compared]:
    """One row a metric and cell of a sweep.

    Raises:
        ValueError: an impossible cell, a machine without calibration, something that it was not calibrated for, or a
            cell whose forwards depend on its text and that no earlier sweep measured.
    """
    pace = tokens_per_forward(nfe_from)
    devices: dict[tuple[str, int], CalibratedDevice] = {}
    source, cells = planned_cells(overrides)
    rows: list[Compared] = []
    for planned in cells:
        cell: Cell = build(planned.config)
        name = "cuda" if cell.device.name == "auto" and machine()["gpus"] else cell.device.name.replace("auto", "cpu")
        key = (name, cell.device.threads)
        if key not in devices:
            devices[key] = device_of(*key)
        rows += _rows(source, planned, cell, devices[key], pace)
    return rows


def _rows(
    source: str, planned: PlannedCell, cell: Cell, device: CalibratedDevice, pace: Mapping[str, tuple[float, str]]
) -> Iterator[Compared]:
    constants = f"calibration of {device.calibration.date}"
    tokens = None
    if cell.decoder.depends_on_values:
        if planned.name not in pace:
            raise ValueError(
                f"{planned.name}: the text decides how many forwards this takes; give the folder of an earlier sweep "
                "that measured this cell: --nfe-from FOLDER"
            )
        tokens, where = pace[planned.name]
        constants += f"; tokens per forward from {where}"
    batch = BatchShape(
        rows=cell.workload.batch_size, prompt_len=cell.workload.prompt_len, output_len=cell.workload.output_len
    )
    predicted = predict(
        cell.model,  # type: ignore[arg-type]
        cell.decoder,
        batch,
        device,
        dtype=cell.device.dtype,
        execution=cell.device.execution,
        tokens_per_forward=tokens,
    )
    for metric, unit in METRICS.items():
        value = getattr(predicted, metric)
        if value is None:
            continue
        spread = predicted.spread
        yield Compared(
            source=source,
            group=f"this machine, {metric}",
            cell=planned.name,
            metric=metric,
            unit=unit,
            predicted=value,
            low=None if spread is None else value / (1 + spread),
            high=None if spread is None else value * (1 + spread),
            constants=constants,
        )


def tokens_per_forward(folders: Iterable[Path]) -> dict[str, tuple[float, str]]:
    """Cell -> tokens of a row that became final by a forward on average, and the folder that says so."""
    found: dict[str, tuple[float, str]] = {}
    for folder in folders:
        for cell, requests in _requests(folder).items():
            rates = [request["committed_tokens"] / request["nfe"] for request in requests if request.get("nfe")]
            if rates:
                found[cell] = median(rates), folder.as_posix()
    return found


def _requests(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Requests of each cell's finished units.

    Raises:
        ValueError: a folder without records.
    """
    names = {run["key"]: run["cell"] for run in read_table(folder, "runs") if run.get("status") == "ok"}
    if not names:
        raise ValueError(f"{folder} holds no finished unit; give the folder of a sweep")
    found: dict[str, list[dict[str, Any]]] = {}
    for request in read_table(folder, "requests"):
        if request["key"] in names:
            found.setdefault(names[request["key"]], []).append(request)
    return found


# ---------------------------------------------------------------- against what was measured


def run_compare(arguments: argparse.Namespace) -> int:
    """See `add_parsers`; the exit code."""
    predicted = read_csv(arguments.file)
    rows = with_measured(predicted, arguments.folders)
    for line in summary(rows, unit_errors(predicted, arguments.folders)):
        print(line)
    for folder in arguments.folders:
        write_csv(folder / BESIDE, [row for row in rows if row.source == sweep_of(folder)])
    if arguments.out is not None:
        write_csv(arguments.out, rows)
    return 0


def read_csv(path: Path) -> list[Compared]:
    """What `write_csv` wrote.

    Raises:
        ValueError: something else.
    """
    try:
        rows = _read_csv(path)
    except (KeyError, TypeError, ValueError):
        rows = []
    if not rows:
        raise ValueError(f"{path} is no file of predictions; give one that predict-sweep wrote")
    return rows


def _read_csv(path: Path) -> list[Compared]:
    with open(path, encoding="utf-8", newline="") as file:
        return [
            Compared(
                source=row["source"],
                group=row["group"],
                cell=row["cell"],
                metric=row["metric"],
                unit=row["unit"],
                predicted=float(row["predicted"]),
                low=_number(row["low"]),
                high=_number(row["high"]),
                measured=_number(row["measured"]),
                constants=row["constants"],
            )
            for row in csv.DictReader(file)
        ]


def _number(text: str) -> float | None:
    return float(text) if text else None


def sweep_of(folder: Path) -> str:
    """Name of the sweep that a folder holds, as its records say it; that of the folder, where they do not.

    Raises:
        ValueError: no folder of a sweep.
    """
    if not (folder / "records").is_dir():
        raise ValueError(f"{folder} is no folder of a sweep: it has no records; give one such as runs/side_by_side")
    names = (run.get("sweep.name") for run in read_table(folder, "runs") if run.get("status") == "ok")
    return next((name for name in names if name), folder.resolve().name)


def with_measured(rows: Sequence[Compared], folders: Sequence[Path]) -> list[Compared]:
    """The rows of these sweeps, with the median over all their requests.

    Raises:
        ValueError: a folder without records, that the file does not speak of, or two of one sweep.
    """
    kept: list[Compared] = []
    names = [sweep_of(folder) for folder in folders]
    for folder, name in zip(folders, names, strict=True):
        if names.count(name) > 1:
            raise ValueError(
                f"{folder} is sweep {name}, as another of the folders is; give one, or merge their records"
            )
        own = [row for row in rows if row.source == name]
        if not own:
            known = ", ".join(sorted({row.source for row in rows}))
            raise ValueError(f"{folder} is sweep {name}, which the file does not predict, only {known}")
        requests = _requests(folder)
        for row in own:
            values = [request[row.metric] for request in requests.get(row.cell, []) if request.get(row.metric)]
            kept.append(replace(row, measured=median(values) if values else None))
    return kept


def unit_errors(rows: Iterable[Compared], folders: Sequence[Path]) -> list[float]:
    """Relative error of the whole time, of every finished unit by itself: each cell counts once a round."""
    predicted = {(row.source, row.cell): row.predicted for row in rows if row.metric == "e2e_s"}
    found: list[float] = []
    for folder in folders:
        name = sweep_of(folder)
        for cell, requests in _requests(folder).items():
            units: dict[str, list[float]] = {}
            for request in requests:
                units.setdefault(request["key"], []).append(request["e2e_s"])
            if (name, cell) in predicted:
                found += [predicted[name, cell] / median(values) - 1 for values in units.values()]
    return found


def summary(rows: Sequence[Compared], of_units: Sequence[float]) -> list[str]:
    """Lines for people: errors of all units, of each metric and sweep, and the worst cells of the whole."""
    lines = []
    if of_units:
        lines.append(_line("e2e_s", "all", len(of_units), "units", of_units))
    for metric in METRICS:
        for source in ["all", *dict.fromkeys(row.source for row in rows)]:
            errors = [
                row.error
                for row in rows
                if row.metric == metric and source in ("all", row.source) and row.error is not None
            ]
            if errors:
                lines.append(_line(metric, source, len(errors), "cells", errors))
    whole = [row for row in rows if row.metric == "e2e_s" and row.error is not None]
    for row in sorted(whole, key=lambda row: -abs(row.error or 0))[:NUM_WORST]:
        lines.append(
            f"worst  {row.source}: {row.cell}  predicted {row.predicted:.4g} s, measured {row.measured:.4g} s "
            f"({row.error:+.1%})"
        )
    missing = sum(row.measured is None for row in rows)
    if missing:
        lines.append(f"{missing} of {len(rows)} predictions have nothing measured beside them")
    return lines


def _line(metric: str, source: str, count: int, what: str, errors: Sequence[float]) -> str:
    missed = [abs(error) for error in errors]
    return (
        f"{metric}  {source:<16} {count:>4} {what}  median error {median(missed):6.1%} "
        f"(signed {median(errors):+.1%})  within {NEAR:.0%}: {_share(missed, NEAR):4.0%}  "
        f"within {FAR:.0%}: {_share(missed, FAR):4.0%}"
    )


def _share(missed: Sequence[float], limit: float) -> float:
    return sum(error <= limit for error in missed) / len(missed)
