"""Operations a second of matrix products, by dtype and shape, through the product that the models call.

Operands are the same in every call, so they come from the nearest memory that holds them: what it costs to fetch them
from farther away is told by the bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from paradigms.measure.calibration.stored import MatmulPoint
from paradigms.measure.calibration.tries import device_tries
from paradigms.models.kernels import product

LONGEST_S = 0.25  # a product that would take longer is left out, and so are those of more rows


def measure_products(
    device: torch.device,
    dtype: str,
    sizes: Sequence[tuple[int, int]],
    rows: Sequence[int],
    *,
    budget_s: float,
    longest_s: float = LONGEST_S,
    done: Callable[[], None] = lambda: None,
) -> tuple[MatmulPoint, ...]:
    """Measure [rows, k] @ [k, n] for each size (k, n) and number of rows.

    Rates grow with the rows or stay: the last one bounds the time of the next product. One that would take more than
    `longest_s` is not made (float16 on most CPUs), and interpolation takes the last rate measured.
    """
    points = []
    for k, n in sizes:
        slowest_rate = None
        weights_EO = _drawn(k, n, dtype, device)
        for num_rows in sorted(rows):
            flops = 2 * num_rows * k * n
            if slowest_rate is not None and flops / slowest_rate > longest_s:
                break
            x_RE = _drawn(num_rows, k, dtype, device)
            each = device_tries(lambda x=x_RE, w=weights_EO: product(x, w), device, budget_s=budget_s)
            slowest_rate = flops / each.slowest_s
            points.append(
                MatmulPoint(
                    dtype=dtype,
                    rows=num_rows,
                    k=k,
                    n=n,
                    flops_per_s=flops / each.median_s,
                    low=slowest_rate,
                    high=flops / each.fastest_s,
                )
            )
        done()
    return tuple(points)


def _drawn(rows: int, columns: int, dtype: str, device: torch.device) -> torch.Tensor:
    """Numbers like those of weights: constants would let a GPU draw less power and run faster than it can."""
    generator = torch.Generator(device).manual_seed(rows * 1_000_003 + columns)
    drawn = torch.randn(rows, columns, generator=generator, device=device) * columns**-0.5
    return drawn.to(getattr(torch, dtype))
