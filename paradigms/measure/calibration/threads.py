"""How many CPU threads are really best: for one row through many small operators, and for a product of many rows.

More threads make large products faster and cost small operators their meeting at the end; virtual cores that share a
physical one may add nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from paradigms.measure.calibration.stored import ThreadTimes
from paradigms.measure.calibration.tries import tries
from paradigms.measure.clock import HostClock
from paradigms.measure.environment import set_threads, usable_cores
from paradigms.models.kernels import product

_LAYERS, _WIDTH, _HIDDEN = 6, 256, 1024  # 4.7 MB of weights
_ROWS = 512


def counts_to_try() -> tuple[int, ...]:
    """1, 2, 4, … and all cores that this process may use."""
    cores = usable_cores()
    return tuple(sorted({*(2**power for power in range(cores.bit_length()) if 2**power <= cores), cores}))


def measure_threads(counts: Sequence[int], *, budget_s: float) -> tuple[ThreadTimes, ...]:
    """Time both kinds of work with each number of threads; afterwards the number is what it was."""
    clock = HostClock()
    layers = [(torch.randn(_WIDTH, _HIDDEN) / 16, torch.randn(_HIDDEN, _WIDTH) / 32) for _ in range(_LAYERS)]
    row, rows, wide = torch.randn(1, _WIDTH), torch.randn(_ROWS, 512), torch.randn(512, 2048) / 32
    found = []
    with _threads_kept():
        for count in counts:
            set_threads(count)
            found.append(
                ThreadTimes(
                    threads=count,
                    decode_s=tries(lambda: _step(row, layers), clock, budget_s=budget_s).median_s,
                    prefill_s=tries(lambda: product(rows, wide), clock, budget_s=budget_s).median_s,
                )
            )
    return tuple(found)


def _step(x_1E: Tensor, layers: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """A row through normed feed-forward layers: two products and a handful of small operators each."""
    for up_EF, down_FE in layers:
        normed_1E = torch.nn.functional.rms_norm(x_1E, (x_1E.shape[1],))
        x_1E = x_1E + product(torch.nn.functional.silu(product(normed_1E, up_EF)), down_FE)
    return x_1E


@contextmanager
def _threads_kept() -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        yield
    finally:
        set_threads(before)
