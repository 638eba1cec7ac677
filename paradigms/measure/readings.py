"""What the system says of the machine and of this process, each None where it does not say.

Linux tells CPU time in two grains. /proc/stat counts hundredths of a second, of everything that runs, this and other
containers alike. The scheduler counts nanoseconds, of each thread that can be seen from here (`schedstat`), and so does
the clock of a thread; these also tell of stretches of some milliseconds. A thread that never slept was running, waiting
for a core, or lost: to the hypervisor and to interrupts, which the kernel takes out of its running time.
"""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_KERNEL = 0x00200000  # PF_KTHREAD among the flags of /proc/<pid>/stat (linux/sched.h)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTime:
    """Of this process and of the thread that reads.

    Attributes:
        at_s: when it was read, by the performance counter.
        process_cpu_s: all threads.
        thread_cpu_s: this thread.
        thread_queue_s, threads_queue_s: time ready to run but without a core, of this thread and of all.
        sleeps, preemptions: context switches, of this thread when it waited for something, and of all when they were
            made to leave their core.
    """

    at_s: float
    process_cpu_s: float
    thread_cpu_s: float
    thread_queue_s: float | None
    threads_queue_s: float | None
    sleeps: int | None
    preemptions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineTime:
    """All cores together, in seconds since boot, and what else the system counts.

    Attributes:
        at_s: when it was read.
        total_s, busy_s, steal_s: of /proc/stat; busy is neither idle nor stolen.
        own_s: CPU time of this process and of children that it has waited for.
        load: mean length of the run queue over a minute.
        mhz: clock, mean over cores.
        pressure_s: time in which some thread waited for a core (/proc/pressure/cpu), updated every 2 s.
        throttles: times that cores or their package slowed down for heat.
    """

    at_s: float
    total_s: float | None
    busy_s: float | None
    steal_s: float | None
    own_s: float
    load: float | None
    mhz: float | None
    pressure_s: float | None
    throttles: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherThreads:
    """CPU time of each thread of others since it began, in ns; None where no thread can be seen.

    Others are neither this process, nor those that it descends from (a sweep that waits for its unit and tells of it),
    nor the kernel.
    """

    at_s: float
    cpu_ns: dict[int, int] | None

    def since(self, before: OtherThreads) -> float | None:
        """CPU seconds that they used since an earlier look; one that ended meanwhile is lost sight of."""
        if self.cpu_ns is None or before.cpu_ns is None:
            return None
        grown = (ns - before.cpu_ns.get(thread, 0) for thread, ns in self.cpu_ns.items())
        return sum(ns for ns in grown if ns > 0) * 1e-9  # a number used anew may begin lower


def own_time(proc: Path) -> OwnTime:
    """Read this process; some microseconds a thread."""
    use = resource.getrusage(resource.RUSAGE_THREAD) if hasattr(resource, "RUSAGE_THREAD") else None
    own = [_schedstat(path) for path in _threads(proc / "self")]
    queues_ns = [times[1] for times in own if times is not None]
    mine = _schedstat(proc / "thread-self")
    return OwnTime(
        thread_queue_s=mine[1] * 1e-9 if mine else None,
        threads_queue_s=sum(queues_ns) * 1e-9 if queues_ns else None,
        sleeps=use.ru_nvcsw if use else None,
        preemptions=resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw,
        process_cpu_s=time.process_time(),
        thread_cpu_s=time.thread_time(),
        at_s=time.perf_counter(),
    )


def machine_time(proc: Path, sys: Path) -> MachineTime:
    """Read the machine."""
    total_s, busy_s, steal_s = _cpu_times(proc / "stat")
    times = os.times()
    return MachineTime(
        at_s=time.perf_counter(),
        total_s=total_s,
        busy_s=busy_s,
        steal_s=steal_s,
        own_s=time.process_time() + times.children_user + times.children_system,
        load=_load(),
        mhz=_mhz(proc, sys),
        pressure_s=_pressure_s(proc / "pressure" / "cpu"),
        throttles=_throttles(sys),
    )


def other_threads(proc: Path) -> OtherThreads:
    """Read the threads of others: a millisecond for a hundred of them."""
    at_s = time.perf_counter()
    if _schedstat(proc / "thread-self") is None:
        return OtherThreads(at_s=at_s, cpu_ns=None)
    kin = set(_ancestors(proc))
    found: dict[int, int] = {}
    for process in _processes(proc):
        status = _status(process)
        if process.name in kin or len(status) < 7 or int(status[6]) & _KERNEL:
            continue
        for thread in _threads(process):
            times = _schedstat(thread)
            if times is not None:
                found[int(thread.name)] = times[0]
    return OtherThreads(at_s=at_s, cpu_ns=found)


def num_cores(proc: Path) -> int | None:
    """Cores that /proc/stat counts."""
    lines = _text(proc / "stat").splitlines()
    return sum(line.startswith("cpu") and line[3:4].isdigit() for line in lines) or None


def ticks_per_second() -> int:
    """Of /proc/stat."""
    return os.sysconf("SC_CLK_TCK")


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except (OSError, ValueError):
        return ""


def _processes(proc: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from (entry for entry in proc.iterdir() if entry.name.isdigit())


def _threads(process: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from (process / "task").iterdir()


def _schedstat(thread: Path) -> tuple[int, int] | None:
    """Nanoseconds on a core and waiting for one."""
    fields = _text(thread / "schedstat").split()
    return (int(fields[0]), int(fields[1])) if len(fields) >= 2 else None


def _status(process: Path) -> list[str]:
    """Of /proc/<pid>/stat what follows the name, which may hold anything: state, parent, four more, flags, ...; empty
    when the process is gone.
    """
    return _text(process / "stat").rpartition(")")[2].split()


def _ancestors(proc: Path) -> Iterator[str]:
    """This process, its parent, and so on."""
    process = str(os.getpid())
    while process != "0":
        yield process
        status = _status(proc / process)
        process = status[1] if len(status) > 1 else "0"


def _cpu_times(path: Path) -> tuple[float | None, float | None, float | None]:
    """Total, busy and stolen seconds of all cores."""
    fields = _text(path).split("\n", 1)[0].split()
    if len(fields) < 9 or fields[0] != "cpu":
        return None, None, None
    # Guest time, the columns after steal, is contained in user and nice.
    user, nice, system, idle, iowait, irq, softirq, steal = (int(field) / ticks_per_second() for field in fields[1:9])
    busy_s = user + nice + system + irq + softirq
    return busy_s + idle + iowait + steal, busy_s, steal


def _load() -> float | None:
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def _mhz(proc: Path, sys: Path) -> float | None:
    """Of cpufreq, which reads in kHz what runs now; else of /proc/cpuinfo."""
    paths = sys.glob("devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq")
    clocks = [int(text) / 1000 for text in map(_text, paths) if text.strip().isdigit()]
    if not clocks:
        lines = _text(proc / "cpuinfo").splitlines()
        clocks = [float(line.split(":")[1]) for line in lines if line.startswith("cpu MHz")]
    return sum(clocks) / len(clocks) if clocks else None


def _pressure_s(path: Path) -> float | None:
    """`some avg10=0.00 avg60=0.00 avg300=0.00 total=123`, the total in microseconds."""
    for line in _text(path).splitlines():
        if line.startswith("some ") and " total=" in line:
            return int(line.rpartition("=")[2]) * 1e-6
    return None


def _throttles(sys: Path) -> int | None:
    paths = sys.glob("devices/system/cpu/cpu[0-9]*/thermal_throttle/*_throttle_count")
    counts = [int(text) for text in map(_text, paths) if text.strip().isdigit()]
    return sum(counts) if counts else None
