"""Bytes a second that weights can be read with, by how many of them are walked again and again.

A decode step reads all weights and the state, the next one the same again: how fast that goes depends on which memory
holds all of them at once. The operators are the fastest readers that torch has, not the products of a model, so this is
a roof, and what products lose against it shows in a cell's MBU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from paradigms.measure.calibration.stored import BandwidthPoint
from paradigms.measure.calibration.tries import device_tries

_BYTES_A_CALL = 2**25  # read by one operator on a CPU, so that what it costs to call it does not count
_COLUMNS = 1024  # of the matrix on CUDA
_ITEMSIZE = 4  # float32


def measure_bandwidth(
    device: torch.device, threads: int, working_sets_bytes: Sequence[int], *, budget_s: float
) -> tuple[BandwidthPoint, ...]:
    """Measure each working set.

    Args:
        threads: each walks a part of the working set of its own.
        working_sets_bytes: multiples of 4 KiB; largest first is allocated once.
        budget_s: seconds that the tries of one operator should take.
    """
    memory = torch.ones(max(working_sets_bytes) // _ITEMSIZE, device=device)
    points = []
    for working_set_bytes in sorted(working_sets_bytes):
        walked = memory[: working_set_bytes // _ITEMSIZE]
        readers = _on_cuda(walked) if device.type == "cuda" else _on_cpu(walked, threads)
        found = []
        for method, (read, read_bytes) in readers.items():
            each = device_tries(read, device, budget_s=budget_s)
            found.append((read_bytes / each.median_s, read_bytes / each.slowest_s, read_bytes / each.fastest_s, method))
        bytes_per_s, low, high, method = max(found)
        points.append(
            BandwidthPoint(
                working_set_bytes=working_set_bytes, bytes_per_s=bytes_per_s, low=low, high=high, method=method
            )
        )
    return tuple(points)


Readers = dict[str, tuple[Callable[[], object], int]]  # an operator, and the bytes that it reads


def _on_cpu(walked: Tensor, threads: int) -> Readers:
    """A sum that reads the same numbers many times over, each thread its part (the outermost dimension is what torch
    splits among threads, and a part shared by two would be fetched once for both).
    """
    each = walked.numel() // threads
    times = max(1, _BYTES_A_CALL // (walked.numel() * _ITEMSIZE))
    parts = walked[: each * threads].view(threads, 1, each).expand(threads, times, each)
    return {"sum": (lambda: parts.sum(-1), threads * times * each * _ITEMSIZE)}


def _on_cuda(walked: Tensor) -> Readers:
    """One kernel a walk: rows read by blocks side by side, as a repeated sum would have them, would share fetches."""
    matrix = walked.view(-1, _COLUMNS)
    row = torch.ones(_COLUMNS, device=walked.device)
    size = walked.numel() * _ITEMSIZE
    return {"sum": (lambda: walked.sum(), size), "mv": (lambda: torch.mv(matrix, row), size)}
