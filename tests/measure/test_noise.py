"""Readings of a machine that the tests make up, and one of the real one."""

import json
import os
import sys
import types

import pytest
import torch

from paradigms.measure import noise
from paradigms.measure.noise import NoiseReader

COLUMNS = {
    *("load_before", "load_after", "steal_fraction", "other_cpu_fraction", "cpu_mhz_before", "cpu_mhz_after"),
    *("gpu_other_processes", "contended"),
}
TICKS = os.sysconf("SC_CLK_TCK")


class MadeUpMachine:
    """Two cores whose every second is told: a process file system, and this process' own CPU time."""

    def __init__(self, proc, monkeypatch):
        self.proc, self.own_s = proc, 0.0
        self.user_s, self.idle_s, self.steal_s = 1000.0, 5000.0, 10.0
        monkeypatch.setattr(noise.os, "times", lambda: os.times_result((self.own_s, 0.0, 0.0, 0.0, 0.0)))
        monkeypatch.setattr(noise.os, "getloadavg", lambda: (1.5, 1.0, 0.5))
        self.write(mhz=(2000.0, 3000.0))

    def write(self, mhz):
        fields = [self.user_s, 0, 0, self.idle_s, 0, 0, 0, self.steal_s, self.user_s, 0]  # guest time is part of user
        ticks = " ".join(str(round(field * TICKS)) for field in fields)
        (self.proc / "stat").write_text(f"cpu  {ticks}\ncpu0 {ticks}\n")
        (self.proc / "cpuinfo").write_text("".join(f"processor\t: 0\ncpu MHz\t\t: {clock}\n" for clock in mhz))

    def spend(self, *, own_s=0.0, other_s=0.0, idle_s=0.0, steal_s=0.0, mhz=(2000.0, 2000.0)):
        self.own_s += own_s
        self.user_s += own_s + other_s
        self.idle_s += idle_s
        self.steal_s += steal_s
        self.write(mhz)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return MadeUpMachine(tmp_path, monkeypatch)


def read_around(machine, **spent):
    reader = NoiseReader(proc=machine.proc)
    reader.before()
    machine.spend(**spent)
    return reader.after()


def test_shares_are_of_all_cores(machine):
    reading = read_around(machine, own_s=10.0, other_s=4.0, idle_s=5.0, steal_s=1.0)
    assert set(reading) == COLUMNS
    assert reading["other_cpu_fraction"] == pytest.approx(0.2)
    assert reading["steal_fraction"] == pytest.approx(0.05)
    assert (reading["cpu_mhz_before"], reading["cpu_mhz_after"]) == (2500.0, 2000.0)
    assert (reading["load_before"], reading["load_after"]) == (1.5, 1.5)
    assert reading["contended"] is True


@pytest.mark.parametrize(
    ("spent", "contended"),
    [
        ({"own_s": 20.0}, False),
        ({"own_s": 10.0, "idle_s": 10.0}, False),
        ({"own_s": 10.0, "other_s": 1.9, "idle_s": 8.1}, False),
        ({"own_s": 10.0, "other_s": 2.1, "idle_s": 7.9}, True),
        ({"own_s": 10.0, "steal_s": 0.3, "idle_s": 9.7}, False),
        ({"own_s": 10.0, "steal_s": 0.5, "idle_s": 9.5}, True),
    ],
)
def test_the_rule_for_contention(machine, spent, contended):
    assert read_around(machine, **spent)["contended"] is contended


def test_own_time_may_be_counted_finer_than_the_machines(machine):
    reader = NoiseReader(proc=machine.proc)
    reader.before()
    machine.spend(own_s=1.0, idle_s=1.0)
    machine.own_s += 0.02
    assert reader.after()["other_cpu_fraction"] == 0.0


def test_too_short_to_tell(machine):
    reading = read_around(machine, own_s=0.02, other_s=0.02)
    assert reading["steal_fraction"] is reading["other_cpu_fraction"] is reading["contended"] is None


def test_a_platform_that_tells_nothing(tmp_path, monkeypatch):
    def no_load():
        raise OSError("unobtainable")

    monkeypatch.setattr(noise.os, "getloadavg", no_load)
    reader = NoiseReader(proc=tmp_path / "nowhere")
    reader.before()
    assert reader.after() == dict.fromkeys(COLUMNS)


@pytest.mark.parametrize("content", ["", "intr 1 2 3\n", "cpu  1 2 3 4\n"])
def test_a_stat_file_of_another_kind(tmp_path, content):
    (tmp_path / "stat").write_text(content)
    (tmp_path / "cpuinfo").write_text("processor : 0\n")
    reader = NoiseReader(proc=tmp_path)
    reader.before()
    reading = reader.after()
    assert reading["steal_fraction"] is reading["cpu_mhz_after"] is None


def test_after_needs_before():
    with pytest.raises(RuntimeError, match="call before"):
        NoiseReader().after()


def test_one_reader_serves_many_stretches(machine):
    reader = NoiseReader(proc=machine.proc)
    for other_s, expected in ((5.0, 0.5), (0.0, 0.0)):
        reader.before()
        machine.spend(other_s=other_s, idle_s=10.0 - other_s)
        assert reader.after()["other_cpu_fraction"] == pytest.approx(expected)


def test_the_real_machine_gives_shares_that_can_be_written_down():
    reader = NoiseReader()
    reader.before()
    sum(index * index for index in range(300_000))
    reading = reader.after()
    assert set(reading) == COLUMNS
    for name in ("steal_fraction", "other_cpu_fraction"):
        assert reading[name] is None or 0.0 <= reading[name] <= 1.0
    json.dumps(reading, allow_nan=False)


# The GPU, as a driver would tell it


def fake_driver(monkeypatch, pids, *, reserved_bytes=0, fails=False):
    class NVMLError(Exception):
        pass

    def processes(handle):
        if fails:
            raise NVMLError("no permission")
        assert handle == "handle of GPU-1234"
        return [types.SimpleNamespace(pid=pid) for pid in pids]

    driver = types.SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: f"handle of {uuid}",
        nvmlDeviceGetComputeRunningProcesses=processes,
    )
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: types.SimpleNamespace(uuid="1234"))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: reserved_bytes)


def read_gpu(machine):
    reader = NoiseReader("cuda", proc=machine.proc)
    reader.before()
    machine.spend(own_s=10.0, idle_s=10.0)
    reading = reader.after()
    return reading["gpu_other_processes"], reading["contended"]


def test_a_gpu_that_only_we_use(machine, monkeypatch):
    fake_driver(monkeypatch, [os.getpid()])
    assert read_gpu(machine) == (0, False)


def test_a_gpu_that_others_use_as_well(machine, monkeypatch):
    fake_driver(monkeypatch, [os.getpid(), -7, -8])
    assert read_gpu(machine) == (2, True)


def test_a_container_numbers_our_process_differently(machine, monkeypatch):
    fake_driver(monkeypatch, [-7], reserved_bytes=1)
    assert read_gpu(machine) == (0, False)


def test_a_gpu_used_by_others_before_we_touch_it(machine, monkeypatch):
    fake_driver(monkeypatch, [-7])
    assert read_gpu(machine) == (1, True)


def test_a_driver_that_does_not_answer(machine, monkeypatch):
    fake_driver(monkeypatch, [], fails=True)
    assert read_gpu(machine) == (None, False)


def test_a_gpu_without_the_drivers_package(machine, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert read_gpu(machine) == (None, False)
