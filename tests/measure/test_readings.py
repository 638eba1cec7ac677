"""What is read off process and system file trees that the tests write."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from paradigms.measure import readings
from paradigms.measure.readings import machine_time, num_cores, other_threads, own_time

TICKS = os.sysconf("SC_CLK_TCK")
KERNEL = 0x00200000 | 0x40


class Tree:
    """A /proc in which this process has the number that it really has."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.me = os.getpid()
        self.thread_self(0, 0)

    def process(self, pid: int, parent: int, *, name: str = "worker", flags: int = 0x400000) -> None:
        folder = self.root / str(pid)
        (folder / "task").mkdir(parents=True)
        (folder / "stat").write_text(f"{pid} ({name}) S {parent} 1 1 0 -1 {flags} 0 0 0 0\n")

    def thread(self, pid: int, tid: int, cpu_ns: int, queue_ns: int = 0) -> None:
        folder = self.root / str(pid) / "task" / str(tid)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "schedstat").write_text(f"{cpu_ns} {queue_ns} 5\n")

    def thread_self(self, cpu_ns: int, queue_ns: int) -> None:
        folder = self.root / "thread-self"
        folder.mkdir(exist_ok=True)
        (folder / "schedstat").write_text(f"{cpu_ns} {queue_ns} 5\n")

    def text(self, path: str, content: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(content)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


# ---------------------------------------------------------------- other threads


def test_others_are_neither_this_process_nor_its_ancestors_nor_the_kernel(tree: Tree) -> None:
    server, sweep, shell, kthreadd = 100_000_001, 100_000_002, 100_000_003, 2
    tree.process(1, 0, name="init")
    tree.process(kthreadd, 0, name="kthreadd", flags=KERNEL)
    tree.process(3, kthreadd, name="kworker/0:1", flags=KERNEL)
    tree.process(shell, 1)
    tree.process(sweep, shell, name="python) S 3 (")
    tree.process(server, sweep)
    tree.process(tree.me, server)
    own_child, sibling, stranger = 100_000_004, 100_000_005, 100_000_006
    tree.process(own_child, tree.me)
    tree.process(sibling, server)
    tree.process(stranger, 1)
    for tid, pid in enumerate((1, kthreadd, 3, shell, sweep, server, tree.me)):
        tree.thread(pid, 900_000_000 + tid, 10**12)
    tree.thread(own_child, own_child, 10)
    tree.thread(sibling, sibling, 20)
    tree.thread(stranger, stranger, 30)
    tree.thread(stranger, stranger + 1, 40)
    expected = {own_child: 10, sibling: 20, stranger: 30, stranger + 1: 40}
    assert other_threads(tree.root).cpu_ns == expected


def test_seconds_between_two_looks(tree: Tree) -> None:
    """One goes on, one begins, one ends, and one number is used again by another thread, which has run for less."""
    tree.process(7, 1)
    for tid, cpu_ns in ((70, 1_000_000_000), (71, 5_000_000_000), (72, 8_000_000_000)):
        tree.thread(7, tid, cpu_ns)
    before = other_threads(tree.root)
    tree.thread(7, 70, 1_250_000_000)
    tree.thread(7, 72, 1_000_000)
    tree.thread(7, 73, 30_000_000)
    (tree.root / "7/task/71/schedstat").unlink()
    assert other_threads(tree.root).since(before) == pytest.approx(0.28)


def test_a_kernel_that_keeps_no_such_counters(tree: Tree) -> None:
    (tree.root / "thread-self" / "schedstat").unlink()
    tree.process(7, 1)
    look = other_threads(tree.root)
    assert look.cpu_ns is None and look.since(look) is None


def test_the_real_process_tree_has_no_kin_among_the_others() -> None:
    found = other_threads(Path("/proc")).cpu_ns
    assert found is None or {os.getpid(), os.getppid()}.isdisjoint(found)


# ---------------------------------------------------------------- this process


def test_own_queues_are_of_the_thread_and_of_all(tree: Tree) -> None:
    (tree.root / "self").mkdir()
    tree.text("self/task/1/schedstat", "5000000000 2000000000 9\n")
    tree.text("self/task/2/schedstat", "1 500000000 9\n")
    tree.thread_self(5_000_000_000, 2_000_000_000)
    own = own_time(tree.root)
    assert (own.thread_queue_s, own.threads_queue_s) == (2.0, 2.5)


def test_own_times_pass_no_faster_than_the_clock() -> None:
    before = own_time(Path("/proc"))
    deadline = time.thread_time() + 0.02
    while time.thread_time() < deadline:
        pass
    after = own_time(Path("/proc"))
    assert 0.02 <= after.thread_cpu_s - before.thread_cpu_s <= after.at_s - before.at_s + 1e-3
    assert after.process_cpu_s > before.process_cpu_s and after.preemptions >= before.preemptions


# ---------------------------------------------------------------- the machine


def test_cpu_times_of_all_cores(tree: Tree) -> None:
    seconds = [40, 2, 8, 100, 5, 1, 3, 6, 40, 2]  # the last two, of guests, are part of the first two
    tree.text("stat", "cpu  " + " ".join(str(value * TICKS) for value in seconds) + "\ncpu0 1 2\ncpu1 3 4\nintr 5 6\n")
    machine = machine_time(tree.root, tree.root)
    assert (machine.total_s, machine.busy_s, machine.steal_s) == (165.0, 54.0, 6.0)
    assert num_cores(tree.root) == 2


@pytest.mark.parametrize("content", ["", "intr 1 2 3\n", "cpu  1 2 3 4\n"])
def test_a_stat_file_of_another_kind(tree: Tree, content: str) -> None:
    tree.text("stat", content)
    machine = machine_time(tree.root, tree.root)
    assert (machine.total_s, machine.busy_s, machine.steal_s) == (None, None, None)


def test_clocks_of_cpufreq_come_before_those_of_cpuinfo(tree: Tree) -> None:
    tree.text("cpuinfo", "processor\t: 0\ncpu MHz\t\t: 2000.0\nprocessor\t: 1\ncpu MHz\t\t: 3000.5\n")
    assert machine_time(tree.root, tree.root).mhz == 2500.25
    for core, khz in enumerate((3_200_000, 3_400_000)):
        tree.text(f"devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq", f"{khz}\n")
    assert machine_time(tree.root, tree.root).mhz == 3300.0


def test_throttling_is_counted_over_cores_and_packages(tree: Tree) -> None:
    for core in range(2):
        folder = f"devices/system/cpu/cpu{core}/thermal_throttle"
        tree.text(f"{folder}/core_throttle_count", f"{core + 1}\n")
        tree.text(f"{folder}/package_throttle_count", "10\n")
        tree.text(f"{folder}/core_throttle_total_time_ms", "999\n")
    assert machine_time(tree.root, tree.root).throttles == 1 + 2 + 10 + 10


def test_pressure_is_in_microseconds(tree: Tree) -> None:
    line = "avg10=2.38 avg60=1.41 avg300=0.67 total="
    tree.text("pressure/cpu", f"some {line}13629223896\nfull {line}0\n")
    assert machine_time(tree.root, tree.root).pressure_s == pytest.approx(13629.223896)


def test_a_system_that_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_load() -> tuple[float, ...]:
        raise OSError("unobtainable")

    monkeypatch.setattr(readings.os, "getloadavg", no_load)
    machine = machine_time(tmp_path, tmp_path)
    told = {name for name in machine.__slots__ if getattr(machine, name) is not None}
    assert told == {"at_s", "own_s"}
    own = own_time(tmp_path)
    assert own.thread_queue_s is None and own.threads_queue_s is None
    assert num_cores(tmp_path) is None
