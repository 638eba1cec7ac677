"""`predict`: a line for each cell, before anything is run."""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paradigms.costs.asked import Asked, asked
from paradigms.costs.largest_batch import MOST, largest_batch
from paradigms.costs.prediction import Prediction, predict
from paradigms.costs.printed import number_of_bytes, printed, seconds
from paradigms.records import write_whole

EXAMPLES = """examples:
  python -m paradigms.costs predict paradigm=ar,ssm workload.output_len=64,256             this machine, calibrated
  python -m paradigms.costs predict device=h200 execution=cuda_graph size=1b paradigm=ar workload.batch_size=1,32
  python -m paradigms.costs predict device=h100 num_devices=2 model=path/to/config.json workload.prompt_len=1024
  python -m paradigms.costs predict device=a6000 paradigm=diffusion decoder.sampler.steps=16,64 --out predicted.csv

device= takes auto, cpu or cuda (this machine, after `calibrate`) or a datasheet: h200, h100, a100, a6000, rtx4090,
tpu_v4, cpu-sheet, with num_devices= (tensor parallel). dtype= is float32 here and the sheet's bfloat16 there;
execution= is eager, compile or cuda_graph. tokens_per_forward= is for decoders whose forwards the text decides.
Everything else is as in `python -m paradigms`; several values, separated by commas, make a grid."""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """A cell and what is expected of it; `largest_batch` rows fit into the device's memory."""

    cell: Asked
    prediction: Prediction
    largest_batch: int


def forecast(cell: Asked) -> Forecast:
    """Predict one cell.

    Raises:
        ValueError: what its decoder or device cannot tell.
    """
    how: dict[str, Any] = {"dtype": cell.dtype, "tokens_per_forward": cell.pace}
    return Forecast(
        cell=cell,
        prediction=predict(cell.model, cell.decoder, cell.batch, cell.device, execution=cell.execution, **how),
        largest_batch=largest_batch(cell.model, cell.decoder, cell.batch, cell.device, **how),
    )


def add_parsers(subparsers: Any) -> None:
    """The command `predict`."""
    parser = subparsers.add_parser(
        "predict",
        help="latency, memory and largest batch of cells, from their configs alone",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("overrides", nargs="*", help="key=value, as of python -m paradigms, and those below")
    parser.add_argument("--out", type=Path, default=None, help="write the rows to a CSV file")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """The exit code."""
    forecasts = [forecast(cell) for cell in asked(arguments.overrides)]
    print(text(forecasts), end="")
    if arguments.out is not None:
        write_csv(arguments.out, forecasts)
        print(f"written: {arguments.out}")
    return 0


def text(forecasts: Sequence[Forecast]) -> str:
    """A table for people."""
    heads = [
        "cell",
        "first token",
        "a token after",
        "end to end",
        "±",
        "NFE",
        "state",
        "peak",
        "largest batch",
        "bound by",
    ]
    lines = []
    for each in forecasts:
        found = each.prediction
        too_much = " !" if found.peak_bytes > each.cell.device.memory_bytes else ""
        lines.append([
            each.cell.name, seconds(found.ttft_s), seconds(found.tpot_s), seconds(found.e2e_s),
            "?" if found.spread is None else f"{found.spread:.0%}", f"{found.nfe:,.6g}",
            number_of_bytes(found.state_bytes), number_of_bytes(found.peak_bytes) + too_much,
            f"{each.largest_batch:,}" + " or more" * (each.largest_batch == MOST),
            ", ".join(f"{phase}: {bound}" for phase, bound in found.bound_by.items()),
        ])  # fmt: skip
    places = {
        f"{each.cell.device.name}, {number_of_bytes(each.cell.device.memory_bytes)}, {each.cell.dtype}, "
        f"{each.cell.execution}": None
        for each in forecasts
    }
    notes = list(places)
    if any(each.prediction.spread is None for each in forecasts):
        notes.append("±?: nobody has held this device's predictions against a measurement")
    if any(each.prediction.peak_bytes > each.cell.device.memory_bytes for each in forecasts):
        notes.append("!: more than the device has")
    return printed(heads, lines, notes)


COLUMNS: tuple[str, ...] = (
    "cell", "device", "dtype", "execution", "batch_size", "prompt_len", "output_len", "ttft_s", "tpot_s", "e2e_s",
    "e2e_low_s", "e2e_high_s", "spread", "nfe", "state_bytes", "peak_bytes", "memory_bytes", "largest_batch",
    "bound_by",
)  # fmt: skip


def write_csv(path: Path, forecasts: Sequence[Forecast]) -> None:
    """One row a cell; what is not known is empty."""
    file = io.StringIO()
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_row(each) for each in forecasts)
    write_whole(path, file.getvalue())


def _row(each: Forecast) -> dict[str, Any]:
    cell, found = each.cell, each.prediction
    spread = found.spread
    return {
        "cell": cell.name,
        "device": cell.device.name,
        "dtype": cell.dtype,
        "execution": cell.execution,
        "batch_size": cell.batch.rows,
        "prompt_len": cell.batch.prompt_len,
        "output_len": cell.batch.output_len,
        "ttft_s": found.ttft_s,
        "tpot_s": found.tpot_s,
        "e2e_s": found.e2e_s,
        "e2e_low_s": None if spread is None else found.e2e_s / (1 + spread),
        "e2e_high_s": None if spread is None else found.e2e_s * (1 + spread),
        "spread": spread,
        "nfe": found.nfe,
        "state_bytes": found.state_bytes,
        "peak_bytes": found.peak_bytes,
        "memory_bytes": cell.device.memory_bytes,
        "largest_batch": each.largest_batch,
        "bound_by": "; ".join(f"{phase}: {bound}" for phase, bound in found.bound_by.items()),
    }
