"""`python -m paradigms.costs calibrate`: peaks, layers and decoders of this machine, timed, stored, and shown."""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from paradigms.costs import decoder_cells, layer_cells
from paradigms.costs.calibrated import COVERED, CalibratedDevice, Residual
from paradigms.costs.this_machine import device_of
from paradigms.measure.calibration import Calibration
from paradigms.measure.calibration.measured import calibrate
from paradigms.measure.environment import set_threads

DTYPE, EXECUTION = "float32", "eager"
NUM_WORST = 25


def add_parser(subparsers: Any) -> None:
    """The command `calibrate`."""
    parser = subparsers.add_parser("calibrate", help="time what this machine's predictions are made of (a minute)")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of one operator")
    parser.add_argument("--residuals", action="store_true", help="show how far cells are from their laws, worst first")
    parser.add_argument("--stored", action="store_true", help="measure nothing: show what is stored")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """See `add_parser`; the exit code."""
    name = arguments.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda, but this machine shows no NVIDIA GPU; leave it out to calibrate the CPU")
    cores = os.cpu_count() or 1
    if not 1 <= arguments.threads <= cores:
        raise ValueError(f"--threads {arguments.threads}: this machine has {cores} cores; give 1 to {cores}")
    if not arguments.stored:
        calibration = measure(torch.device(name), arguments.threads, report=_report)
        print(f"{calibration.took_s:.0f} s, stored in {calibration.save()}")
    for line in described(device_of(name, arguments.threads), residuals=arguments.residuals):
        print(line)
    return 0


def measure(device: torch.device, threads: int, *, report: Any = lambda what, done, total: None) -> Calibration:
    """Everything; nothing is saved. Under a minute on one thread of a quiet CPU."""
    started = time.perf_counter()
    peaks = calibrate(device, threads, report)
    set_threads(threads)
    report("layers", 0, 1)
    clock = layer_cells.clock_of(device, threads)
    layers = layer_cells.time_cells(layer_cells.layer_cells(), clock=clock, device=device, dtype=DTYPE)
    report("decoders", 0, 1)
    decoders = decoder_cells.time_decoders(decoder_cells.decoder_cells(), clock=clock, device=device)
    return replace(
        peaks,
        layers=layer_cells.to_json(layers, dtype=DTYPE, execution=EXECUTION),
        decoders=decoder_cells.to_json(decoders),
        took_s=time.perf_counter() - started,
    )


def described(device: CalibratedDevice, *, residuals: bool) -> list[str]:
    """Lines for people: what was calibrated and how well laws fit, with `residuals` by kind and cell."""
    calibration, found = device.calibration, device.residuals()
    missed = np.abs([each.error for each in found])
    lines = [
        f"{device.name}, {calibration.date}, {device.dtype}, {device.execution}: "
        f"{calibration.peak_flops_per_s(device.dtype) / 1e9:.0f} GFLOP/s, "
        f"{calibration.peak_bytes_per_s() / 1e9:.0f} GB/s from the nearest cache, "
        f"{calibration.bandwidth[-1].bytes_per_s / 1e9:.0f} GB/s from memory",
        f"{len(found)} cells of layers and decoders; laws miss the median one by {np.median(missed):.1%}, "
        f"{COVERED:.0%} within {np.quantile(missed, COVERED):.1%}; layers left out of the fit: within "
        f"{device.spread:.1%}",
    ]
    if residuals:
        laws: dict[str, list[Residual]] = {}
        for each in found:
            laws.setdefault(each.law, []).append(each)
        lines.append("law, cells: error of the fit, median and worst; error of cells left out, median and worst")
        for law, own in sorted(laws.items()):
            fitted, left_out = np.abs([each.error for each in own]), np.abs([each.left_out for each in own])
            lines.append(
                f"  {law:<40} {len(own):>3}: {np.median(fitted):6.1%} {fitted.max():6.1%}   "
                f"{np.median(left_out):6.1%} {left_out.max():6.1%}"
            )
        lines.append(f"worst fitted cells, of {len(found)}: error of the fit, of the cell left out, measured")
        for each in found[:NUM_WORST]:
            lines.append(f"  {each.error:+7.1%} {each.left_out:+7.1%} {each.seconds * 1e6:>10.1f} us  {each.cell}")
    return lines


def _report(what: str, done: int, total: int) -> None:
    print(f"\r{what:<40}", end="" if done < total else "\n", file=sys.stderr, flush=True)
