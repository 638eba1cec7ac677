"""Seconds of a small piece of work, tried a few times: by the host's clock on a CPU, by events on CUDA.

On CUDA the work is recorded into a graph many times over, so that the host, which may be slower than the device, does
not appear in what the device is said to need.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import torch

from paradigms.measure.clock import Clock, clock_for

NUM_TRIES = 7
FEWEST_TRIES = 3
_CALLS_A_GRAPH = 20


class Tries(NamedTuple):
    """Seconds of one call: the median of the tries, the fastest and the slowest."""

    median_s: float
    fastest_s: float
    slowest_s: float


def tries(work: Callable[[], object], clock: Clock, *, budget_s: float) -> Tries:
    """Time some work.

    Args:
        work: called without arguments; once more to warm up.
        clock: what to time it with.
        budget_s: seconds that all tries together should take. A try calls the work as often as that allows, and when
            one call takes long there are fewer tries, but no fewer than three.
    """
    work()
    stamps = [clock.mark()]
    work()
    stamps.append(clock.mark())
    once_s = max(clock.read(stamps)[1], 1e-9)
    num_tries = min(NUM_TRIES, max(FEWEST_TRIES, int(budget_s / once_s)))
    calls = max(1, int(budget_s / (num_tries * once_s)))
    stamps = [clock.mark()]
    for _ in range(num_tries):
        for _ in range(calls):
            work()
        stamps.append(clock.mark())
    each_s = [(later - earlier) / calls for earlier, later in pairwise(clock.read(stamps))]
    return Tries(median(each_s), min(each_s), max(each_s))


def device_tries(work: Callable[[], object], device: torch.device, *, budget_s: float) -> Tries:
    """Time work as the device sees it; on CUDA it must be such as a graph can hold."""
    clock = clock_for(device, "device")
    if device.type != "cuda":
        return tries(work, clock, budget_s=budget_s)
    graph = recorded(work, device, calls=_CALLS_A_GRAPH)
    return Tries(*(seconds / _CALLS_A_GRAPH for seconds in tries(graph.replay, clock, budget_s=budget_s)))


def recorded(work: Callable[[], object], device: torch.device, *, calls: int) -> torch.cuda.CUDAGraph:
    """A CUDA graph of so many calls, after a few outside of it that let libraries choose and allocate."""
    beside = torch.cuda.Stream(device)
    beside.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(beside):
        for _ in range(3):
            work()
    torch.cuda.current_stream(device).wait_stream(beside)
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            work()
    return graph
