"""The rule for contention, on machines that the tests make up: what is spent between two readings is known."""

from __future__ import annotations

import itertools
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from paradigms.measure import noise
from paradigms.measure.noise import NoiseReader
from paradigms.measure.readings import MachineTime, OtherThreads, OwnTime

COLUMNS = {
    *("load_before", "load_after", "cpu_mhz_before", "cpu_mhz_after", "probe_before_s", "probe_after_s"),
    "uneven",
    *("cpu_fraction", "run_queue_fraction", "lost_fraction", "preemptions", "other_cores", "other_cpu_fraction"),
    *("steal_fraction", "cpu_pressure", "cpu_throttles", "gpu_throttled", "gpu_other_processes"),
    *("contended", "contention", "contended_by"),
}
CPU_S = 2.0  # this process' own in every stretch


class MadeUpMachine:
    """Two cores, on which time passes when it is spent."""

    def __init__(self, patch: pytest.MonkeyPatch, proc: Path) -> None:
        (proc / "stat").write_text("cpu  1 2\ncpu0 1\ncpu1 2\nintr 3\n")
        self.proc = proc
        self.now: dict[str, Any] = {
            **{"at_s": 50.0, "cpu_s": 9.0, "queue_s": 1.0, "sleeps": 5, "preemptions": 7, "other_s": 100.0},
            **{"total_s": 6000.0, "busy_s": 1000.0, "steal_s": 10.0, "pressure_s": 30.0, "throttles": 4},
            **{"load": 1.5, "mhz": 2500.0},
        }
        self.probes_s = itertools.repeat(0.002)
        patch.setattr(noise, "own_time", lambda proc: self.own())
        patch.setattr(noise, "machine_time", lambda proc, sys: self.machine())
        patch.setattr(noise, "other_threads", lambda proc: self.others())

    def own(self) -> OwnTime:
        now = self.now
        return OwnTime(
            at_s=now["at_s"],
            process_cpu_s=now["cpu_s"],
            thread_cpu_s=now["cpu_s"],
            thread_queue_s=now["queue_s"],
            threads_queue_s=now["queue_s"],
            sleeps=now["sleeps"],
            preemptions=now["preemptions"],
        )

    def machine(self) -> MachineTime:
        names = ("at_s", "total_s", "busy_s", "steal_s", "load", "mhz", "pressure_s", "throttles")
        return MachineTime(own_s=self.now["cpu_s"], **{name: self.now[name] for name in names})

    def others(self) -> OtherThreads:
        other_s = self.now["other_s"]
        return OtherThreads(at_s=self.now["at_s"], cpu_ns=None if other_s is None else {77: round(other_s * 1e9)})

    def spend(self, *, own_s: float = CPU_S, machine_s: float = 0.0, **spent: float) -> None:
        """`own_s` on a core; `machine_s` of others that only /proc/stat sees; else by the names of `now`."""
        wall_s = own_s + spent.get("queue_s", 0.0) + spent.pop("lost_s", 0.0)
        moved = {
            **{"at_s": wall_s, "cpu_s": own_s, "total_s": 2 * wall_s},
            "busy_s": own_s + machine_s + spent.get("other_s", 0.0),
        }
        for name, change in (moved | spent).items():
            if self.now[name] is not None:
                self.now[name] += change

    def reader(self, device: str = "cpu") -> NoiseReader:
        return NoiseReader(device, proc=self.proc, probe=lambda: next(self.probes_s))

    def read_around(self, device: str = "cpu", **spent: float) -> dict[str, Any]:
        reader = self.reader(device)
        reader.before()
        self.spend(**spent)
        return reader.after()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MadeUpMachine:
    return MadeUpMachine(monkeypatch, tmp_path)


def test_every_reading_is_what_was_spent(machine: MadeUpMachine) -> None:
    """10 s of wall time, 20 s of two cores."""
    reading = machine.read_around(
        own_s=8.0, queue_s=1.5, lost_s=0.5, other_s=4.0, steal_s=1.0, pressure_s=2.0, preemptions=30, throttles=3
    )
    assert set(reading) == COLUMNS
    expected = {"cpu_fraction": 0.8, "run_queue_fraction": 0.15, "lost_fraction": 0.05, "other_cores": 0.4}
    expected |= {"other_cpu_fraction": 0.2, "steal_fraction": 0.05, "cpu_pressure": 0.2}
    assert {name: reading[name] for name in expected} == pytest.approx(expected)
    assert (reading["preemptions"], reading["cpu_throttles"]) == (30, 3)
    assert (reading["load_before"], reading["cpu_mhz_after"], reading["probe_after_s"]) == (1.5, 2500.0, 0.002)
    assert reading["contended"] is True and reading["contention"] == pytest.approx(0.4 / 0.05)
    assert reading["contended_by"] == (
        "other processes 0.40, machine 0.20, run queue 0.15, stolen 0.05, lost 0.05, throttled 3"
    )


@pytest.mark.parametrize(
    ("spent", "reason"),
    [
        ({}, None),
        ({"other_s": 0.09}, None),
        ({"other_s": 0.11}, "other processes 0.06"),
        ({"machine_s": 0.39}, None),
        ({"machine_s": 0.41}, "machine 0.10"),
        ({"queue_s": 0.03}, None),
        ({"queue_s": 0.05}, "run queue 0.02"),
        ({"steal_s": 0.07}, None),
        ({"steal_s": 0.09}, "stolen 0.02"),
        ({"lost_s": 0.03}, None),
        ({"lost_s": 0.05}, "lost 0.02"),
        ({"throttles": 1}, "throttled 1"),
        ({"preemptions": 500}, None),  # they are many where each is short: what they cost shows in the queue
    ],
    ids=lambda value: "_".join(f"{name}_{spent}" for name, spent in value.items()) if isinstance(value, dict) else "",
)
def test_the_limits_of_the_rule(machine: MadeUpMachine, spent: dict[str, float], reason: str | None) -> None:
    """Over 2 s; each reason alone."""
    reading = machine.read_around(**spent)
    assert (reading["contended"], reading["contended_by"]) == (reason is not None, reason)
    assert (reading["contention"] > 1) == (reason is not None)


@pytest.mark.parametrize(("cores", "contended"), [(2, True), (16, True), (64, False)])
def test_a_neighbour_weighs_less_among_many_cores(machine: MadeUpMachine, cores: int, contended: bool) -> None:
    """One core of others: more than 2 % of 2 or 16 cores, less than that of 64."""
    (machine.proc / "stat").write_text("\n".join(["cpu  1 2", *(f"cpu{core} 1" for core in range(cores))]))
    assert machine.read_around(other_s=CPU_S, busy_s=CPU_S)["contended"] is contended


@pytest.mark.parametrize(
    ("spent", "steal", "contended"),
    [
        ({"own_s": 0.03, "steal_s": 0.01}, None, False),  # 6 ticks: a share would be rounding
        ({"own_s": 0.10, "steal_s": 0.01}, None, False),  # 5 %, but one tick, which may have begun before
        ({"own_s": 0.10, "steal_s": 0.02}, 0.10, True),
        ({"own_s": 0.10, "machine_s": 0.03}, 0.0, False),  # 15 %, but 3 ticks
        ({"own_s": 0.10, "machine_s": 0.04}, 0.0, True),
        ({"own_s": 0.03, "other_s": 0.005}, None, True),  # which the scheduler's nanoseconds tell all the same
        ({"own_s": 0.03, "queue_s": 0.002}, None, True),
    ],
    ids=lambda value: "_".join(f"{name}_{spent}" for name, spent in value.items()) if isinstance(value, dict) else "",
)
def test_ticks_are_not_trusted_in_short_stretches(
    machine: MadeUpMachine, spent: dict[str, float], steal: float | None, contended: bool
) -> None:
    reading = machine.read_around(**spent)
    assert reading["steal_fraction"] == pytest.approx(steal)
    assert reading["contended"] is contended


def test_a_thread_that_slept_was_not_robbed(machine: MadeUpMachine) -> None:
    reading = machine.read_around(lost_s=1.0, sleeps=1)
    assert reading["lost_fraction"] is None and not reading["contended"]


def test_pressure_is_not_read_off_before_the_kernel_has_updated_it(machine: MadeUpMachine) -> None:
    assert machine.read_around(own_s=3.9, pressure_s=1.0)["cpu_pressure"] is None


def test_own_time_may_be_counted_finer_than_the_machines(machine: MadeUpMachine) -> None:
    reader = machine.reader()
    reader.before()
    machine.spend(own_s=1.0)
    machine.now["cpu_s"] += 0.02
    assert reader.after()["other_cpu_fraction"] == 0.0


def test_a_platform_that_tells_only_what_the_probe_sees(machine: MadeUpMachine) -> None:
    never = ("total_s", "busy_s", "steal_s", "pressure_s", "throttles", "load", "mhz", "queue_s", "sleeps", "other_s")
    machine.now |= dict.fromkeys(never)
    reading = machine.read_around()
    told = {"probe_before_s", "probe_after_s", "cpu_fraction", "preemptions", "contended", "contention"}
    assert {name for name, value in reading.items() if value is not None} == told
    assert not reading["contended"]


def test_one_reader_serves_many_stretches_and_remembers_the_fastest_probe(machine: MadeUpMachine) -> None:
    """A machine that was slow all through one attempt shows when the next is faster, and then in the other order."""
    reader, marked = machine.reader(), []
    for probes_s in ((0.003, 0.003), (0.003, 0.002), (0.0025, 0.0025), (0.002, 0.0023)):
        machine.probes_s = iter(probes_s)
        reader.before()
        machine.spend()
        marked.append(reader.after()["contended_by"])
    assert marked == [None, "slower 1.50", "slower 1.25", None]


@pytest.mark.parametrize(("uneven", "reason"), [(None, None), (0.04, None), (0.06, "uneven 0.06")])
def test_the_works_own_steps_are_judged(machine: MadeUpMachine, uneven: float | None, reason: str | None) -> None:
    reader = machine.reader()
    reader.before()
    machine.spend()
    reading = reader.after(lambda: uneven)
    assert (reading["uneven"], reading["contended_by"]) == (uneven, reason)


def test_after_needs_before() -> None:
    with pytest.raises(RuntimeError, match="call before"):
        NoiseReader().after()


def test_the_real_machine_gives_readings_that_can_be_written_down() -> None:
    reader = NoiseReader()
    reader.before()
    sum(index * index for index in range(300_000))
    reading = reader.after()
    assert set(reading) == COLUMNS
    for name in ("steal_fraction", "other_cpu_fraction", "lost_fraction"):
        assert reading[name] is None or 0.0 <= reading[name] <= 1.0
    json.dumps(reading, allow_nan=False)


# ---------------------------------------------------------------- the GPU, as a driver would tell it


def fake_driver(
    patch: pytest.MonkeyPatch, pids: list[int], *, reserved_bytes: int = 0, fails: str = "", reasons: int = 0
) -> None:
    class NVMLError(Exception):
        pass

    def answer(name: str, value: Any) -> Any:
        def function(handle: str) -> Any:
            if name == fails:
                raise NVMLError("not supported")
            assert handle == "handle of GPU-1234"
            return value

        return function

    driver = types.SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: f"handle of {uuid}",
        nvmlDeviceGetComputeRunningProcesses=answer("pids", [types.SimpleNamespace(pid=pid) for pid in pids]),
        nvmlDeviceGetCurrentClocksEventReasons=answer("reasons", reasons),
    )
    patch.setitem(sys.modules, "pynvml", driver)
    patch.setattr(torch.cuda, "get_device_properties", lambda device: types.SimpleNamespace(uuid="1234"))
    patch.setattr(torch.cuda, "memory_reserved", lambda device: reserved_bytes)


def read_gpu(machine: MadeUpMachine) -> tuple[int | None, bool | None, str | None]:
    reading = machine.read_around("cuda")
    return reading["gpu_other_processes"], reading["gpu_throttled"], reading["contended_by"]


def test_a_gpu_that_only_we_use(machine: MadeUpMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_driver(monkeypatch, [os.getpid()])
    assert read_gpu(machine) == (0, False, None)


def test_a_gpu_that_others_use_as_well(machine: MadeUpMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_driver(monkeypatch, [os.getpid(), -7, -8])
    assert read_gpu(machine) == (2, False, "GPU processes 2")


def test_a_container_numbers_our_process_differently(machine: MadeUpMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_driver(monkeypatch, [-7], reserved_bytes=1)
    assert read_gpu(machine) == (0, False, None)


def test_a_gpu_used_by_others_before_we_touch_it(machine: MadeUpMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_driver(monkeypatch, [-7])
    assert read_gpu(machine) == (1, False, "GPU processes 1")


@pytest.mark.parametrize(
    ("reasons", "slowed"),
    [(0x1, False), (0x4, False), (0x8, True), (0x20, True), (0x40, True), (0x80, True), (0x104, False), (0x41, True)],
)
def test_what_slows_a_gpu_down(
    machine: MadeUpMachine, monkeypatch: pytest.MonkeyPatch, reasons: int, slowed: bool
) -> None:
    """Idling, its power limit and a display are in order; heat, the board and the power supply are not."""
    fake_driver(monkeypatch, [], reasons=reasons)
    assert read_gpu(machine) == (0, slowed, "throttled 1" if slowed else None)


@pytest.mark.parametrize(("fails", "told"), [("pids", (None, False, None)), ("reasons", (0, None, None))])
def test_a_driver_that_does_not_answer(
    machine: MadeUpMachine, monkeypatch: pytest.MonkeyPatch, fails: str, told: tuple[Any, ...]
) -> None:
    fake_driver(monkeypatch, [], fails=fails)
    assert read_gpu(machine) == told


def test_a_gpu_without_the_drivers_package(machine: MadeUpMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert read_gpu(machine) == (None, None, None)
