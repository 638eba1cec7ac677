"""Clocks that a run is timed with: marks are cheap, reading them comes after the run.

A mark costs one call and never waits. On CUDA it is an event in the stream, stamped when the device gets there, so that
a whole run needs one synchronisation at its end, and the host is free to run ahead as it would in earnest.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """What the benchmark needs of a clock."""

    def mark(self) -> Any:
        """An opaque stamp of now."""
        ...

    def read(self, stamps: Sequence[Any]) -> list[float]:
        """Seconds of each stamp after the first one, after waiting once for work that is still under way."""
        ...

    def synchronize(self) -> None:
        """Wait for work that is still under way, so that it is not charged to what is timed next."""
        ...


class HostClock:
    """The host's monotonic clock: right for the CPU, and on CUDA only where the host waits for every result anyway.

    Args:
        device: what to wait for in `synchronize`.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)

    def mark(self) -> int:
        return time.perf_counter_ns()

    def read(self, stamps: Sequence[int]) -> list[float]:
        self.synchronize()
        return [(stamp - stamps[0]) * 1e-9 for stamp in stamps]

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class CudaClock:
    """Events in the device's current stream."""

    def __init__(self, device: torch.device | str = "cuda") -> None:
        self.device = torch.device(device)

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def read(self, stamps: Sequence[torch.cuda.Event]) -> list[float]:
        self.synchronize()
        # Gaps are summed because elapsed_time is a float32 of milliseconds: over a long run it loses the short steps.
        times_s = [0.0] if stamps else []
        for earlier, later in pairwise(stamps):
            times_s.append(times_s[-1] + earlier.elapsed_time(later) * 1e-3)
        return times_s

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)


class FakeClock:
    """A clock that stands still until somebody moves it: known costs in, known figures out."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.num_synchronized = 0

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"a clock cannot go back by {-seconds} s; advance by 0 or more")
        self.now_s += seconds

    def mark(self) -> float:
        return self.now_s

    def read(self, stamps: Sequence[float]) -> list[float]:
        self.synchronize()
        return [stamp - stamps[0] for stamp in stamps]

    def synchronize(self) -> None:
        self.num_synchronized += 1


def clock_for(device: torch.device | str, timeline: str) -> Clock:
    """The clock that suits a device and a timeline: `delivered` tokens have reached the host when they are stamped."""
    device = torch.device(device)
    return CudaClock(device) if device.type == "cuda" and timeline == "device" else HostClock(device)
