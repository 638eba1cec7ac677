"""How quiet the machine was while something was measured: read before and after, and seen in the work itself.

A stretch counts as contended when a reading is above its limit:

| reason          | what is read                                                            | limit                   |
|-----------------|-------------------------------------------------------------------------|-------------------------|
| other processes | CPU time of other processes that can be seen, in cores                  | 0.05, or 2 % of all     |
| machine         | share of all cores' time that was busy, this process left out           | 0.10, from 4 ticks on   |
| run queue       | time that threads of this process waited for a core, against wall time  | 0.02                    |
| stolen          | share of all cores' time that the hypervisor took                       | 0.02, from 2 ticks on   |
| lost            | wall time in which a thread that never slept neither ran nor waited     | 0.02                    |
| slower          | fixed work (`speed`) beside it, against the fastest that was seen so far | 1.2 times              |
| uneven          | time beyond that of the work's own quieter stretches (`unevenness`)     | 0.04                    |
| throttled       | times that cores or the GPU slowed down for heat or power failure       | 0                       |
| GPU processes   | others that compute on the same GPU, at either reading                  | 0                       |

Others count wherever they run: on another core they share caches and memory, on a sibling its execution units. What
this process descends from does not count, nor does the kernel; where these take a core away, the run queue shows it. A
tick is 10 ms, too coarse for a short stretch; the limits in ticks keep one of them from marking it.

`contention` is the largest reading against its limit, above 1 when contended. The rule says that figures may have
suffered, not by how much.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from paradigms.measure.nvml import ask
from paradigms.measure.readings import (
    MachineTime,
    OtherThreads,
    OwnTime,
    machine_time,
    num_cores,
    other_threads,
    own_time,
    ticks_per_second,
)
from paradigms.measure.speed import probe_s

OTHER_CORES_LIMIT, OTHER_CORES_SHARE = 0.05, 0.02
OTHER_CPU_LIMIT, OTHER_CPU_TICKS = 0.10, 4
QUEUE_LIMIT = 0.02
STEAL_LIMIT, STEAL_TICKS = 0.02, 2
LOST_LIMIT = 0.02
SLOWER_LIMIT = 1.2
UNEVEN_LIMIT = 0.04
COUNT_LIMIT = 0.5  # of what must not happen once
_MIN_TICKS = 10  # below this a share of /proc/stat is rounding
_PRESSURE_S = 4.0  # below this /proc/pressure has hardly moved on
_SLOWED = 0x08 | 0x20 | 0x40 | 0x80  # NVML's event reasons: hardware, its heat and power brake, and heat by software


@dataclass(frozen=True, slots=True)
class _Reading:
    own: OwnTime
    machine: MachineTime
    others: OtherThreads
    gpu_processes: int | None
    gpu_throttled: bool | None


class NoiseReader:
    """Compares the machine before and after a stretch of work; both are called by the thread that does the work.

    Args:
        device: a CUDA device has its other processes counted too, if nvidia-ml-py is installed.
        proc, sys: where these file systems are mounted.
        probe: seconds of a fixed piece of work; run outside all other readings.
    """

    def __init__(
        self,
        device: torch.device | str = "cpu",
        *,
        proc: Path = Path("/proc"),
        sys: Path = Path("/sys"),
        probe: Callable[[], float] = probe_s,
    ) -> None:
        self.device = torch.device(device)
        self.proc, self.sys, self.probe = proc, sys, probe
        self._before: _Reading | None = None
        self._probe_s = self._fastest_s = math.inf

    def before(self) -> None:
        """Read the machine ahead of the work: the slow readings first, this thread's own last."""
        self._probe_s = self.probe()
        gpu = _gpu(self.device)
        machine, others = machine_time(self.proc, self.sys), other_threads(self.proc)
        self._before = _Reading(own_time(self.proc), machine, others, *gpu)

    def after(self, uneven: Callable[[], float | None] = lambda: None) -> dict[str, Any]:
        """Read it again, in the other order, and compare.

        Args:
            uneven: says by what share of its time the work's own steps were uneven; asked after all other readings.

        Returns:
            The columns below, each None where it cannot be told.
            probe_before_s, probe_after_s: of the fixed work.
            uneven: what the argument says.
            load_before, load_after: mean length of the run queue over a minute.
            cpu_mhz_before, cpu_mhz_after: mean over cores.
            cpu_fraction: CPU time of this process against wall time; 1 is one busy thread.
            run_queue_fraction, lost_fraction, preemptions, other_cores, other_cpu_fraction, steal_fraction,
            gpu_other_processes: the readings of the rule; other_cpu_fraction is `machine`, preemptions are context
                switches that this process was made to do.
            cpu_pressure: share of the time in which some thread of the machine waited for a core.
            cpu_throttles, gpu_throttled: times, and whether at either reading.
            contended, contention, contended_by: by the rule of this module; the last names reasons and readings.

        Raises:
            RuntimeError: `before` was not called.
        """
        if self._before is None:
            raise RuntimeError("NoiseReader.after() has nothing to compare with; call before() ahead of the work")
        own, others = own_time(self.proc), other_threads(self.proc)
        after = _Reading(own, machine_time(self.proc, self.sys), others, *_gpu(self.device))
        columns = _columns(self._before, after)
        probes_s = self._probe_s, self.probe()
        self._fastest_s = min(self._fastest_s, *probes_s)
        slower = max(probes_s) / self._fastest_s
        columns |= {"probe_before_s": probes_s[0], "probe_after_s": probes_s[1], "uneven": uneven()}
        return {**columns, **_judge(columns, slower, num_cores(self.proc))}


def _columns(before: _Reading, after: _Reading) -> dict[str, Any]:
    wall_s = after.own.at_s - before.own.at_s
    machine, earlier = after.machine, before.machine
    steal, other = _cpu_fractions(earlier, machine)
    pressure_s = _difference(earlier.pressure_s, machine.pressure_s)
    pressure_window_s = machine.at_s - earlier.at_s
    others_s = after.others.since(before.others)
    queue_s = _difference(before.own.threads_queue_s, after.own.threads_queue_s)
    counts = [count for count in (before.gpu_processes, after.gpu_processes) if count is not None]
    slowed = [slow for slow in (before.gpu_throttled, after.gpu_throttled) if slow is not None]
    return {
        "load_before": earlier.load,
        "load_after": machine.load,
        "cpu_mhz_before": earlier.mhz,
        "cpu_mhz_after": machine.mhz,
        "cpu_fraction": (after.own.process_cpu_s - before.own.process_cpu_s) / wall_s,
        "run_queue_fraction": None if queue_s is None else queue_s / wall_s,
        "lost_fraction": _lost(before.own, after.own, wall_s),
        "preemptions": after.own.preemptions - before.own.preemptions,
        "other_cores": None if others_s is None else others_s / (after.others.at_s - before.others.at_s),
        "other_cpu_fraction": other,
        "steal_fraction": steal,
        "cpu_pressure": pressure_s / pressure_window_s
        if pressure_s is not None and pressure_window_s >= _PRESSURE_S
        else None,
        "cpu_throttles": _difference(earlier.throttles, machine.throttles),
        "gpu_throttled": any(slowed) if slowed else None,
        "gpu_other_processes": max(counts, default=None),
    }


def _judge(columns: dict[str, Any], slower: float, cores: int | None) -> dict[str, Any]:
    """The rule."""
    throttles = [count for count in (columns["cpu_throttles"], columns["gpu_throttled"]) if count is not None]
    signs = (
        ("other processes", columns["other_cores"], max(OTHER_CORES_LIMIT, OTHER_CORES_SHARE * (cores or 1))),
        ("machine", columns["other_cpu_fraction"], OTHER_CPU_LIMIT),
        ("run queue", columns["run_queue_fraction"], QUEUE_LIMIT),
        ("stolen", columns["steal_fraction"], STEAL_LIMIT),
        ("lost", columns["lost_fraction"], LOST_LIMIT),
        ("slower", slower, SLOWER_LIMIT),
        ("uneven", columns["uneven"], UNEVEN_LIMIT),
        ("throttled", sum(throttles) if throttles else None, COUNT_LIMIT),
        ("GPU processes", columns["gpu_other_processes"], COUNT_LIMIT),
    )
    told = [(name, float(value), value / limit) for name, value, limit in signs if value is not None]
    reasons = [f"{name} {value:.2f}".removesuffix(".00") for name, value, over in told if over > 1]
    return {
        "contended": bool(reasons),
        "contention": max(over for *_, over in told),
        "contended_by": ", ".join(reasons) or None,
    }


def _difference(before: float | None, after: float | None) -> Any:
    return None if before is None or after is None else after - before


def _lost(before: OwnTime, after: OwnTime, wall_s: float) -> float | None:
    """Share of the time in which a thread that never slept neither ran nor waited; None of one that slept."""
    queue_s = _difference(before.thread_queue_s, after.thread_queue_s)
    if queue_s is None or after.sleeps is None or before.sleeps is None or after.sleeps > before.sleeps:
        return None
    return _clip((wall_s - (after.thread_cpu_s - before.thread_cpu_s) - queue_s) / wall_s)


def _cpu_fractions(before: MachineTime, after: MachineTime) -> tuple[float | None, float | None]:
    """Shares of all cores' time that went to the hypervisor and to others; None where they are rounding."""
    if before.total_s is None or after.total_s is None:
        return None, None
    total_s, tick_s = after.total_s - before.total_s, 1 / ticks_per_second()
    if total_s < (_MIN_TICKS - 0.5) * tick_s:
        return None, None
    steal_s = (after.steal_s or 0.0) - (before.steal_s or 0.0)
    other_s = (after.busy_s or 0.0) - (before.busy_s or 0.0) - (after.own_s - before.own_s)
    return (
        _share(steal_s, total_s, STEAL_LIMIT, STEAL_TICKS * tick_s),
        _share(other_s, total_s, OTHER_CPU_LIMIT, OTHER_CPU_TICKS * tick_s),
    )


def _share(part_s: float, total_s: float, limit: float, least_s: float) -> float | None:
    """A share, unless it is above its limit by so few ticks that rounding may have put it there."""
    share = _clip(part_s / total_s)
    return None if share > limit and part_s < least_s - 1e-9 else share


def _clip(fraction: float) -> float:
    return min(1.0, max(0.0, fraction))


# ---------------------------------------------------------------- the GPU


def _gpu(device: torch.device) -> tuple[int | None, bool | None]:
    """Other processes that compute on it, and whether it is slowed down."""
    return ask(device, lambda nvml, handle: _other_processes(nvml, handle, device)), ask(device, _throttled)


def _other_processes(nvml: Any, handle: Any, device: torch.device) -> int:
    """The driver may number processes as the host does, outside this container; then one of them is taken to be this
    one.
    """
    pids = [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    own = os.getpid() in pids or (bool(pids) and torch.cuda.memory_reserved(device) > 0)
    return len(pids) - own


def _throttled(nvml: Any, handle: Any) -> bool:
    """Slowed down for heat, or by the board or its power supply; to keep to its power limit is what a GPU does."""
    return bool(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle) & _SLOWED)
