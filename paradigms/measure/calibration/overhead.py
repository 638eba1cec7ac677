"""What an operator costs besides its work: to the host, which issues it, and to a GPU, which starts a kernel."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

import torch

from paradigms.measure.calibration.tries import NUM_TRIES, recorded, tries
from paradigms.measure.clock import clock_for

_WIDTH = 128  # numbers of the small operator
_CALLS = 500  # of a try; a GPU's queue takes a thousand before the host has to wait
_KERNELS = 201  # of the longer graph


class Overhead(NamedTuple):
    """Seconds, see `Calibration`; the last three are of CUDA."""

    dispatch_s: float
    launch_s: float | None = None
    graph_replay_s: float | None = None
    graph_kernel_s: float | None = None


def measure_overhead(device: torch.device, *, budget_s: float) -> Overhead:
    """Multiply a few numbers, again and again."""
    x = torch.ones(1, _WIDTH, device=device)
    multiply = torch.mul
    dispatch_s = _host_s(lambda: multiply(x, x), device)
    if device.type != "cuda":
        return Overhead(dispatch_s)
    clock = clock_for(device, "device")
    single, long = (recorded(lambda: multiply(x, x), device, calls=calls) for calls in (1, _KERNELS))
    replay_s = tries(single.replay, clock, budget_s=budget_s).median_s
    long_s = tries(long.replay, clock, budget_s=budget_s).median_s
    return Overhead(
        dispatch_s=dispatch_s,
        launch_s=tries(lambda: multiply(x, x), clock, budget_s=budget_s).median_s,
        graph_replay_s=replay_s,
        graph_kernel_s=(long_s - replay_s) / (_KERNELS - 1),
    )


def _host_s(work: Callable[[], object], device: torch.device) -> float:
    """Host seconds of a call that is issued and not waited for."""
    each_s = []
    for _ in range(NUM_TRIES + 1):
        started = time.perf_counter()
        for _ in range(_CALLS):
            work()
        each_s.append((time.perf_counter() - started) / _CALLS)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return median(each_s[1:])
