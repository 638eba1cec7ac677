"""What a unit costs beside its measuring, in a sweep of ten thousand; run as a script, this prints it.

The units are stand-ins that take no time, forked from a server that has imported what real ones need. Wall times count
on a quiet machine only; processor time, printed beside them, on any.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from multiprocessing import forkserver
from pathlib import Path

import pytest
from commands import HERE, PACKAGE
from standin import cell_config, lane_plan

from paradigms.lane import run_lane
from paradigms.plan import Plan, order_units
from paradigms.progress import PlainProgress
from paradigms.records import drop_unfinished, finished_keys

NUM_CELLS, NUM_ROUNDS = 2_000, 5


@pytest.mark.slow
def test_ten_thousand_units(tmp_path: Path) -> None:
    path = os.pathsep.join([str(HERE), str(PACKAGE)])
    subprocess.run([sys.executable, __file__, str(tmp_path)], env=os.environ | {"PYTHONPATH": path}, check=True)
    assert len(finished_keys(tmp_path)) == NUM_CELLS * NUM_ROUNDS


def main(folder: Path) -> None:
    num_units = NUM_CELLS * NUM_ROUNDS
    configs = [cell_config(f"p{index // 1000}", 1 + index % 1000) for index in range(NUM_CELLS)]
    plan = lane_plan(folder, configs, rounds=NUM_ROUNDS, preload=("paradigms.bench", "torch._dynamo"))
    began = time.perf_counter()
    plan.save(folder / "plan.json")
    tell("plan of the cells, written", began, NUM_CELLS)
    began = time.perf_counter()
    plan = Plan.load(folder / "plan.json")
    tell("plan of the cells, read", began, NUM_CELLS)

    show = PlainProgress(console=None)
    show.say = lambda line: None  # a terminal's speed is not what is asked
    start(plan, folder)
    began, processor_s = time.perf_counter(), used_s()
    summary = run_lane(plan, show, code="c0de", machine="m1")
    assert summary.measured == num_units and not summary.failures
    tell("start and write", began, num_units, used_s() - processor_s)

    began, processor_s = time.perf_counter(), used_s()
    summary = run_lane(plan, show, code="c0de", machine="m1")
    assert summary.reused == num_units
    tell("skip", began, num_units, used_s() - processor_s)
    began = time.perf_counter()
    assert drop_unfinished(folder) == 0
    tell("look for cut-off units", began, num_units)
    began = time.perf_counter()
    order_units([NUM_ROUNDS] * NUM_CELLS, 0)
    tell("order", began, num_units)
    print(f"peak memory of the lane: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


def start(plan: Plan, folder: Path) -> None:
    """Import everything in the server, which is paid once a sweep."""
    from paradigms.isolate import call, start_server

    start_server(["standin", *plan.preload, "paradigms.lane"])
    call("paradigms.lane.nothing", log=folder / "log")


def used_s() -> float:
    """Processor time of this process, of the server and of the children that it has waited for."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    stat = Path(f"/proc/{forkserver._forkserver._forkserver_pid}/stat").read_text()  # type: ignore[attr-defined]
    ticks = map(int, stat.rpartition(") ")[2].split()[11:15])
    return usage.ru_utime + usage.ru_stime + sum(ticks) / os.sysconf("SC_CLK_TCK")


def tell(what: str, began: float, number: int, processor_s: float | None = None) -> None:
    wall_ms = (time.perf_counter() - began) / number * 1e3
    processor = "" if processor_s is None else f", {processor_s / number * 1e3:.2f} ms of processor time"
    print(f"{what}: {wall_ms:.2f} ms each{processor} ({number} of them)", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as scratch:
            main(Path(scratch))
