"""How fast the machine is right now: a fixed piece of work, timed.

A virtual machine is slowed by its neighbours (shared caches, memory and clock) without any of it showing as stolen time
or as another process. The same work before and after each attempt at a unit shows it (`noise`); the analysis compares
the units of a sweep.
"""

from __future__ import annotations

import time
from functools import cache
from statistics import median

import torch
from torch import Tensor

NUM_TRIES = 21  # of half a millisecond: what slows most of them lasts as long as a short unit


def probe_s() -> float:
    """Seconds of the work, the median of its tries: half a millisecond of what a decode step does, reads of weights
    beyond the second cache and small operators."""
    x_R, weights_RC = _operands()
    tries_s = []
    with torch.inference_mode():
        for _ in range(NUM_TRIES):
            started = time.perf_counter()
            for row in range(4):
                torch.mv(weights_RC, x_R)
                y = x_R
                for _ in range(25):
                    y = y * x_R[row]
            tries_s.append(time.perf_counter() - started)
    return median(tries_s)


@cache
def _operands() -> tuple[Tensor, Tensor]:
    """A vector, and 4 MB of weights."""
    with torch.inference_mode(False):
        return torch.full((1024,), 1.0), torch.full((1024, 1024), 0.5)
