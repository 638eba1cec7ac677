"""How fast the device copies, reads and multiplies: measured, so that shares of it mean something.

Best of several tries and sizes, since only what the device can do is asked for here, not what it usually does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from paradigms.measure.clock import clock_for

TRIES = 10


def rates(device_name: str, tiny: bool) -> dict[str, Any]:
    """Bytes a second of copying (read and written both count) and of reading, multiply-adds of bfloat16 x 2 a second.

    Args:
        tiny: small operands, for a test on a CPU.
    """
    device = torch.device(device_name)
    copies = {f"{size} MiB": _copy(device, size * 2**20) for size in ((1, 4) if tiny else (256, 1024, 4096))}
    reads = {f"{size} MiB": _read(device, size * 2**20) for size in ((1, 4) if tiny else (1024, 4096))}
    widths = (64, 128) if tiny else (1024, 2048, 4096, 8192, 16384)
    products = {f"{width}": _matmul(device, width) for width in widths}
    return {
        "copy_bytes_per_s": max(copies.values()),
        "read_bytes_per_s": max(reads.values()),
        "matmul_flops_per_s": max(products.values()),
        "copy_bytes_per_s_by_size": copies,
        "read_bytes_per_s_by_size": reads,
        "matmul_flops_per_s_by_width": products,
    }


def _copy(device: torch.device, num_bytes: int) -> float:
    source = torch.ones(num_bytes // 2, dtype=torch.bfloat16, device=device)
    target = torch.empty_like(source)
    return 2 * num_bytes / _best_s(device, lambda: target.copy_(source))


def _read(device: torch.device, num_bytes: int) -> float:
    values = torch.ones(num_bytes // 4, dtype=torch.float32, device=device)
    return num_bytes / _best_s(device, values.sum)


def _matmul(device: torch.device, width: int) -> float:
    left, right = (torch.randn(width, width, dtype=torch.bfloat16, device=device) for _ in range(2))
    return 2 * width**3 / _best_s(device, lambda: left @ right)


def _best_s(device: torch.device, work: Callable[[], Any]) -> float:
    """Shortest time of the work, after it has run a few times."""
    clock = clock_for(device, "device")
    for _ in range(3):
        work()
    best_s = float("inf")
    for _ in range(TRIES):
        clock.synchronize()
        start = clock.mark()
        work()
        best_s = min(best_s, clock.read([start, clock.mark()])[1])
    return max(best_s, 1e-9)
