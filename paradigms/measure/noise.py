"""How quiet the machine was while something was measured: read before and after, never during.

A unit counts as contended when one of these holds between the two readings:

- the hypervisor took more than 2 % of the CPU time away (steal);
- other processes used more than 10 % of the machine's CPU time;
- another process computed on the same GPU, at either reading.

The rule says that figures may have suffered, not by how much. Where nothing can be told the mark is None.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

STEAL_LIMIT = 0.02
OTHER_CPU_LIMIT = 0.10
_MIN_TICKS = 10  # /proc/stat counts hundredths of a second: below this a share is rounding


@dataclass(frozen=True, slots=True)
class _Reading:
    """One look at the machine. CPU times in seconds, summed over all cores since boot or since the process' start."""

    load: float | None
    total_s: float | None
    busy_s: float | None
    steal_s: float | None
    own_s: float
    cpu_mhz: float | None
    gpu_processes: int | None


class NoiseReader:
    """Compares the machine before and after a stretch of work.

    `own` time is that of this process and of children that it has waited for: a child that still runs counts as another
    process.

    Args:
        device: a CUDA device has its other processes counted too, if nvidia-ml-py is installed.
        proc: where the process file system is mounted.
    """

    def __init__(self, device: torch.device | str = "cpu", *, proc: Path = Path("/proc")) -> None:
        self.device = torch.device(device)
        self.proc = proc
        self._before: _Reading | None = None

    def before(self) -> None:
        """Read the machine before the work."""
        self._before = self._read()

    def after(self) -> dict[str, Any]:
        """Read it again, and compare.

        Returns:
            The columns below, each None where it cannot be told.
            load_before, load_after: mean length of the run queue over a minute.
            steal_fraction, other_cpu_fraction: shares of all cores' time between the readings.
            cpu_mhz_before, cpu_mhz_after: mean over cores.
            gpu_other_processes: the larger of the two counts.
            contended: by the rule of this module.

        Raises:
            RuntimeError: `before` was not called.
        """
        if self._before is None:
            raise RuntimeError("NoiseReader.after() has nothing to compare with; call before() ahead of the work")
        before, after = self._before, self._read()
        steal, other = _cpu_fractions(before, after)
        gpu = max((count for count in (before.gpu_processes, after.gpu_processes) if count is not None), default=None)
        signs = [
            value > limit
            for value, limit in ((steal, STEAL_LIMIT), (other, OTHER_CPU_LIMIT), (gpu, 0))
            if value is not None
        ]
        return {
            "load_before": before.load,
            "load_after": after.load,
            "steal_fraction": steal,
            "other_cpu_fraction": other,
            "cpu_mhz_before": before.cpu_mhz,
            "cpu_mhz_after": after.cpu_mhz,
            "gpu_other_processes": gpu,
            "contended": any(signs) if signs else None,
        }

    def _read(self) -> _Reading:
        total_s, busy_s, steal_s = _cpu_times(self.proc / "stat")
        times = os.times()
        return _Reading(
            load=_load(),
            total_s=total_s,
            busy_s=busy_s,
            steal_s=steal_s,
            own_s=times.user + times.system + times.children_user + times.children_system,
            cpu_mhz=_cpu_mhz(self.proc / "cpuinfo"),
            gpu_processes=_gpu_other_processes(self.device) if self.device.type == "cuda" else None,
        )


def _cpu_fractions(before: _Reading, after: _Reading) -> tuple[float | None, float | None]:
    """Shares of all cores' time that went to the hypervisor and to other processes."""
    if before.total_s is None or after.total_s is None:
        return None, None
    total_s = after.total_s - before.total_s
    if total_s < _MIN_TICKS / _ticks_per_second():
        return None, None
    steal_s = (after.steal_s or 0.0) - (before.steal_s or 0.0)
    other_s = (after.busy_s or 0.0) - (before.busy_s or 0.0) - (after.own_s - before.own_s)
    return _clip(steal_s / total_s), _clip(other_s / total_s)


def _clip(fraction: float) -> float:
    return min(1.0, max(0.0, fraction))


def _ticks_per_second() -> int:
    return os.sysconf("SC_CLK_TCK")


def _cpu_times(path: Path) -> tuple[float | None, float | None, float | None]:
    """Total, busy and stolen seconds of all cores; None where the system does not say."""
    try:
        fields = path.read_text().split("\n", 1)[0].split()
    except OSError:
        return None, None, None
    if not fields or fields[0] != "cpu" or len(fields) < 9:
        return None, None, None
    # Guest time, the columns after steal, is contained in user and nice.
    user, nice, system, idle, iowait, irq, softirq, steal = (int(field) / _ticks_per_second() for field in fields[1:9])
    busy_s = user + nice + system + irq + softirq
    return busy_s + idle + iowait + steal, busy_s, steal


def _load() -> float | None:
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def _cpu_mhz(path: Path) -> float | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    clocks_mhz = [float(line.split(":")[1]) for line in lines if line.startswith("cpu MHz")]
    return sum(clocks_mhz) / len(clocks_mhz) if clocks_mhz else None


def _gpu_other_processes(device: torch.device) -> int | None:
    """Processes besides this one that compute on the GPU; None without nvidia-ml-py or when the driver does not answer.

    The driver may number processes as the host does, outside this container; then one of them is taken to be this one.
    """
    try:
        import pynvml  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        uuid = torch.cuda.get_device_properties(device).uuid
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
        pids = [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    except pynvml.NVMLError:
        return None
    own = os.getpid() in pids or (bool(pids) and torch.cuda.memory_reserved(device) > 0)
    return len(pids) - own
