"""Calibrates: runs every measurement on this machine, between two looks at how quiet it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import torch

from paradigms.measure.calibration.bandwidth import measure_bandwidth
from paradigms.measure.calibration.overhead import measure_overhead
from paradigms.measure.calibration.products import measure_products
from paradigms.measure.calibration.stored import Calibration, MatmulPoint
from paradigms.measure.calibration.threads import counts_to_try, measure_threads
from paradigms.measure.environment import keep_freed_memory, machine, machine_id, machine_line, set_threads
from paradigms.measure.noise import NoiseReader

Report = Callable[[str, int, int], None]
_KIB, _GIB = 2**10, 2**30


@dataclass(frozen=True, kw_only=True)
class Extent:
    """What is measured.

    Attributes:
        working_sets_bytes: of reads; multiples of 4 KiB.
        dtypes, sizes, rows: of products [rows, k] @ [k, n], each size a (k, n).
        thread_counts: numbers of threads to try.
        budget_s: seconds that the tries of one figure should take.
    """

    working_sets_bytes: tuple[int, ...]
    dtypes: tuple[str, ...]
    sizes: tuple[tuple[int, int], ...]
    rows: tuple[int, ...]
    thread_counts: tuple[int, ...]
    budget_s: float


def extent_of(device: torch.device) -> Extent:
    """What a kind of device is calibrated with: sizes from far below to far above its caches."""
    if device.type == "cuda":
        free_bytes = torch.cuda.mem_get_info(device)[0]
        return Extent(
            working_sets_bytes=tuple(2**power for power in range(20, 33) if 2**power <= free_bytes // 4),
            dtypes=("float32", "bfloat16", "float16"),
            sizes=((128, 344), (512, 2048), (1024, 4096), (4096, 4096), (4096, 14336)),
            rows=(1, 2, 4, 8, 32, 128, 512, 2048, 8192),
            thread_counts=(),
            budget_s=0.04,
        )
    memory_bytes = machine()["memory_bytes"] or _GIB
    return Extent(
        working_sets_bytes=tuple(2**power for power in range(14, 29) if 2**power <= memory_bytes // 4),
        dtypes=("float32", "bfloat16", "float16"),
        sizes=((128, 344), (512, 2048), (1024, 4096)),
        rows=(1, 2, 4, 8, 32, 128, 512, 2048),
        thread_counts=counts_to_try(),
        budget_s=0.06,
    )


def calibrate(
    device: torch.device | str,
    threads: int,
    report: Report = lambda what, done, total: None,
    *,
    extent: Extent | None = None,
) -> Calibration:
    """Measure what this device of this machine achieves; nothing is saved.

    Args:
        threads: CPU threads of one operator.
        report: told what comes next, the number of parts done and of all parts.
        extent: None is `extent_of(device)`: under 20 s on one thread of a CPU.

    Raises:
        ValueError: fewer than one thread.
    """
    device = torch.device(device)
    set_threads(threads)
    keep_freed_memory()  # as in every process that measures a cell
    extent = extent or extent_of(device)
    date, started = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", time.perf_counter()
    noise = NoiseReader(device)
    noise.before()
    total = 3 + len(extent.dtypes) * len(extent.sizes)
    num_done = 0

    def done(what: str) -> None:
        nonlocal num_done
        num_done += 1
        report(what, num_done, total)

    with torch.inference_mode():
        bandwidth = measure_bandwidth(device, threads, extent.working_sets_bytes, budget_s=extent.budget_s)
        done("bandwidth")
        matmul: list[MatmulPoint] = []
        for dtype in extent.dtypes:
            matmul += measure_products(
                device,
                dtype,
                extent.sizes,
                extent.rows,
                budget_s=extent.budget_s,
                done=lambda dtype=dtype: done(f"products of {dtype}"),
            )
        overhead = measure_overhead(device, budget_s=extent.budget_s)
        done("overhead of an operator")
        tried = measure_threads(extent.thread_counts, budget_s=2 * extent.budget_s)
        done("numbers of threads")
    readings = noise.after()
    return Calibration(
        machine=machine_id(),
        machine_line=machine_line(),
        device=device.type,
        device_name=torch.cuda.get_device_name(device) if device.type == "cuda" else machine()["cpu"],
        threads=threads,
        torch_version=torch.__version__,
        date=date,
        took_s=time.perf_counter() - started,
        noise=readings,
        bandwidth=bandwidth,
        matmul=tuple(matmul),
        threads_tried=tried,
        **overhead._asdict(),
    )
