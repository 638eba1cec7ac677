"""What is timed has its device to itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import HERE, PACKAGE, overlap, spans
from standin import cell_config, lane_plan
from test_lane import run, runs

from paradigms import turns
from paradigms.turns import Place, place_for, take_turn, visible_gpus

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), str(PACKAGE)])}


def script(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", code], env=ENVIRONMENT | {"PARADIGMS_TURNS": os.environ["PARADIGMS_TURNS"]}
    )


def test_sweeps_beside_each_other_never_measure_at_the_same_time(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    processes = []
    for name in ("one", "other"):
        configs = [cell_config(f"{name}{index}", behaviour=f"takes:0.05:{trace}") for index in range(4)]
        lane_plan(tmp_path / name, configs).save(tmp_path / f"{name}.json")
        plan = f"Plan.load(Path({str(tmp_path / f'{name}.json')!r}))"
        code = (
            f"from pathlib import Path; from test_lane import Said, run; from paradigms.plan import Plan; run({plan})"
        )
        processes.append(script(code))
    assert [process.wait(60) for process in processes] == [0, 0]
    assert len(spans(trace)) == 16 and not overlap(trace)
    waits = [record["waited_s"] for name in ("one", "other") for record in runs(tmp_path / name)]
    assert min(waits) >= 0 and max(waits) > 0.02, "who came second waited"


def test_waiting_is_told_once_and_not_counted_as_time_of_the_unit(tmp_path: Path) -> None:
    from test_lane import Said

    class Timed(Said):
        def done(self, name: str, seconds: float, note: str = "") -> None:
            self.seconds = seconds

    holder = script(
        "import time; from paradigms.turns import take_turn\n"
        f"with take_turn('cpu', 'a neighbour', print): open({str(tmp_path / 'held')!r}, 'w'); time.sleep(1.5)"
    )
    while not (tmp_path / "held").exists():
        time.sleep(0.02)
    show = Timed()
    run(lane_plan(tmp_path, [cell_config("ar")], rounds=1), show)
    assert holder.wait() == 0
    assert [line for line in show.lines if "waiting" in line] == [
        "waiting for the device, which a neighbour measures on"
    ]
    assert show.seconds < 1, "the time to wait is none of the unit's"


def test_a_killed_holder_frees_the_device(tmp_path: Path) -> None:
    held = tmp_path / "held"
    holder = script(
        "import time; from paradigms.turns import take_turn\n"
        f"with take_turn('cpu', 'me', print): open({str(held)!r}, 'w'); time.sleep(60)"
    )
    while not held.exists():
        time.sleep(0.02)
    holders: list[str] = []

    def kill(name: str) -> None:
        holders.append(name)
        holder.send_signal(signal.SIGKILL)

    with take_turn("cpu", "test", kill) as turn:
        assert holders == ["me"] and turn.waited_s > 0
    holder.wait()


def test_the_child_of_a_killed_lane_holds_the_device_until_it_ends(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    holder = script(
        "import multiprocessing; from standin import hold_turn; from paradigms.turns import take_turn\n"
        "context = multiprocessing.get_context('forkserver')\n"
        "with take_turn('cpu', 'me', print) as turn:\n"
        f"    process = context.Process(target=hold_turn, args=(turn, {str(pid)!r}, 1.0))\n"
        "    process.start(); process.join()"
    )
    while not pid.exists() or not pid.read_text():
        time.sleep(0.02)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert state_of(pid.read_text()) == "S", "it lives on"
    with take_turn("cpu", "test", lambda _: None):
        assert state_of(pid.read_text()) != "S", "it sleeps until it ends"


def state_of(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except OSError:
        return ""


@pytest.mark.parametrize(
    ("chosen", "seen"),
    [
        (None, ("GPU-aa", "GPU-ab", "GPU-b")),
        ("2,0", ("GPU-b", "GPU-aa")),
        ("GPU-b", ("GPU-b",)),
        ("GPU-ab, 0", ("GPU-ab", "GPU-aa")),
        ("MIG-x", ("MIG-x",)),
        ("1,7,0", ("GPU-ab",)),
        ("", ()),
    ],
)
def test_gpus_are_those_that_cuda_would_see(
    monkeypatch: pytest.MonkeyPatch, chosen: str | None, seen: tuple[str, ...]
) -> None:
    monkeypatch.setattr(turns, "_gpu_uuids", lambda: ("GPU-aa", "GPU-ab", "GPU-b"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if chosen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    assert visible_gpus() == seen
    dealt = [place_for("auto", lane).name for lane in range(4)]
    assert dealt == [seen[lane % len(seen)] if seen else "cpu" for lane in range(4)]
    assert place_for("cpu", 1) == Place("cpu", {})


def test_lanes_see_one_gpu_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_gpu_uuids", lambda: ("GPU-a", "GPU-b"))
    trace = tmp_path / "trace"
    device = {"_target_": "paradigms.workload.Device", "name": "auto"}
    for lane in range(3):
        config = cell_config(f"p{lane}", behaviour=f"takes:0:{trace}", device=device)
        run(lane_plan(tmp_path, [config], rounds=1, lane=lane, num_lanes=3))
    assert [line.split()[-1] for line in trace.read_text().splitlines()] == ["GPU-a", "GPU-b", "GPU-a"]
    files = {path.name for path in Path(os.environ["PARADIGMS_TURNS"]).iterdir()}
    assert {"GPU-a.lock", "GPU-b.lock"} <= files
