"""Stand-ins for cells and for what measures them: cheap, without torch, and able to go wrong in every way."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paradigms.plan import Plan, PlannedCell, order_units
from paradigms.workload import Device, Measure, Workload


@dataclass(frozen=True, kw_only=True)
class StandInParadigm:
    name: str
    label: str = ""


@dataclass(frozen=True, kw_only=True)
class StandInModel:
    width: int = 8


@dataclass(frozen=True, kw_only=True)
class StandInCell:
    """Looks to a sweep like `paradigms.cell.Cell`."""

    paradigm: StandInParadigm
    workload: Workload
    measure: Measure
    device: Device
    model: StandInModel
    behaviour: str = "ok"
    trace: str = ""

    def check(self) -> None:
        if self.workload.output_len > 1000:
            raise ValueError(f"workload.output_len={self.workload.output_len} is beyond the limit of 1000")

    def checkpoint_id(self) -> str:
        return f"{self.paradigm.name}-{self.model.width}"


def run_unit(cell: StandInCell, round_index: int) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """What a unit would return, unless the cell's behaviour says otherwise."""
    if cell.trace:
        with open(cell.trace, "a") as file:
            file.write(f"{cell.paradigm.name} {cell.workload.output_len} {round_index}\n")
    misbehave(cell.behaviour)
    requests = [{"repeat": 0, "row": 0, "e2e_s": 0.5, "ttft_s": 0.1, "committed_tokens": cell.workload.output_len}]
    curve = [{"checkpoint": cell.checkpoint_id(), "step": step, "train_nats": 3.0} for step in (1, 2)]
    return {"bits_per_byte": 2.0, "state_used_bytes": 1024, "pid": os.getpid()}, {
        "requests": requests,
        "training": curve,
    }


def prepare(cell: StandInCell) -> None:
    print(f"preparing {cell.checkpoint_id()}")
    if cell.behaviour == "unpreparable":
        raise ValueError("the checkpoint is corrupt")


def misbehave(behaviour: str) -> None:
    if behaviour == "raises":
        raise ValueError("three is not a length\nsecond line")
    if behaviour == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if behaviour == "segfaults":
        os.kill(os.getpid(), signal.SIGSEGV)
    if behaviour == "exits":
        os._exit(3)
    if behaviour == "memory":
        allocate_without_end()
    if behaviour.startswith("takes"):  # takes:seconds:trace leaves when it began and ended, on the system's clock
        _, seconds, trace = behaviour.split(":")
        began = time.monotonic()
        time.sleep(float(seconds))
        with open(trace, "a") as file:
            file.write(f"{began} {time.monotonic()} {os.getpid()} {os.environ.get('CUDA_VISIBLE_DEVICES')}\n")
    if behaviour.startswith("sleeps"):
        Path(behaviour.partition(":")[2]).touch()
        time.sleep(60)


def allocate_without_end() -> None:
    import resource

    limit = 2**30
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    held = []
    while True:
        held.append(bytearray(2**26))


class OutOfMemoryError(RuntimeError):
    """Named as torch names its own."""


def raise_torch_like() -> None:
    raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def hold_then_die(num_bytes: int, seconds: float) -> None:
    held = bytearray(num_bytes)
    held[::4096] = b"x" * len(held[::4096])
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


def add(left: int, right: int) -> int:
    print("adding")
    return left + right


def return_nothing_to_say() -> None:
    raise SystemExit(4)


def sleep_after_touching(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    time.sleep(60)


def return_nan(cell: StandInCell, round_index: int) -> tuple[dict[str, Any], dict[str, Any]]:
    return {"bits_per_byte": float("nan")}, {}


def cell_config(name: str, output_len: int = 8, **more: Any) -> dict[str, Any]:
    """Resolved config of one stand-in cell."""
    return {
        "_target_": "standin.StandInCell",
        "paradigm": {"_target_": "standin.StandInParadigm", "name": name, "label": name.upper()},
        "workload": {"_target_": "paradigms.workload.Workload", "output_len": output_len},
        "measure": {"_target_": "paradigms.workload.Measure", "rounds": 2},
        "device": {"_target_": "paradigms.workload.Device", "name": "cpu"},
        "model": {"_target_": "standin.StandInModel", "width": 8},
        **more,
    }


def lane_plan(folder: Path, configs: Sequence[dict[str, Any]], *, rounds: int = 2, **more: Any) -> Plan:
    """Plan of one lane over these cells."""
    cells = tuple(PlannedCell(name=config["paradigm"]["name"], config=config) for config in configs)
    settings: dict[str, Any] = {
        "sweep": "test",
        "folder": str(folder),
        "runner": "standin.run_unit",
        "preparer": "standin.prepare",
        "unit_timeout_s": 30,
        "prepare_timeout_s": None,
        "cells": cells,
        "units": tuple(order_units([rounds] * len(cells), 0)),
    }
    return Plan(**settings | more)


def count_then_fail(number: int) -> Iterator[int]:
    yield from range(number)
    raise ValueError("no more")


def count_slowly(number: int, seconds: float) -> Iterator[int]:
    for index in range(number):
        time.sleep(seconds)
        yield index


def hold_turn(turn: Any, path: str, seconds: float) -> None:
    Path(path).write_text(str(os.getpid()))
    time.sleep(seconds)
