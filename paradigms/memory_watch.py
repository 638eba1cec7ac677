"""Whether a killed process had run the machine out of memory.

SIGKILL does not say who sent it. The kernel's own counters of out-of-memory kills do, where they can be read;
elsewhere, memory in use just before the end has to serve as evidence.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_COUNTERS = ("/proc/vmstat", "/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


class MemoryWatch:
    """Follows the resident memory of one process; `str()` of it says how much was seen last."""

    def __init__(self, pid: int, limit_bytes: int | None = None) -> None:
        self._statm = Path(f"/proc/{pid}/statm")
        self._limit_bytes = limit_bytes or memory_bytes()
        self._kills_before = out_of_memory_kills()
        self.rss_bytes = 0

    def sample(self) -> None:
        """Read the process's resident memory, where the system tells it."""
        with contextlib.suppress(OSError, IndexError, ValueError):
            pages = int(self._statm.read_text().split()[1])
            if pages:  # none are left once it has died
                self.rss_bytes = pages * os.sysconf("SC_PAGE_SIZE")

    def ran_out(self) -> bool:
        """Whether memory is why the process was killed."""
        return out_of_memory_kills() > self._kills_before or 2 * self.rss_bytes > self._limit_bytes

    def __str__(self) -> str:
        return f"{self.rss_bytes / 2**20:.0f} MiB of {self._limit_bytes / 2**20:.0f} MiB"


def out_of_memory_kills() -> int:
    """Kills that the kernel has counted so far, over all counters that can be read."""
    total = 0
    for path in _COUNTERS:
        with contextlib.suppress(OSError, ValueError):
            for line in Path(path).read_text().splitlines():
                if line.startswith("oom_kill "):
                    total += int(line.split()[1])
    return total


def memory_bytes() -> int:
    """Memory that this process may use: the machine's, or its container's where that is less."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in _LIMITS:
        with contextlib.suppress(OSError, ValueError):
            limits.append(int(Path(path).read_text()))
    return min(limits)
