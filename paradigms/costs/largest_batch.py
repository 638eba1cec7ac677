"""The largest batch whose weights, state and activations fit into a device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from paradigms.costs.prediction import DeviceModel, peak_bytes
from paradigms.models.config import ModelConfig
from paradigms.work import BatchShape, ForwardShape

MOST = 1 << 16  # rows; nobody asks for more
_SIZES = ("rows", "tokens", "seen", "kept", "written", "logits")


def largest_batch(
    model: ModelConfig,
    decoder: Any,
    batch: BatchShape,
    device: DeviceModel,
    *,
    dtype: str,
    tokens_per_forward: float | None = None,
) -> int:
    """Rows that fit, 0 when not even one does; `MOST` means that or more. Of several devices the memory is added up.

    Args:
        batch: the work; its `rows` are not looked at.
    """

    def fits(rows: int) -> bool:
        shapes = decoder.forwards(model, replace(batch, rows=rows), tokens_per_forward=tokens_per_forward)
        return peak_bytes(model, largest(shapes), dtype=dtype) <= device.memory_bytes

    if not fits(1):
        return 0
    low, high = 1, 2
    while high < MOST and fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low if high < MOST else MOST


def largest(shapes: Iterable[ForwardShape]) -> list[ForwardShape]:
    """Those that no other one exceeds in every size: one of them is the widest."""
    kept: list[tuple[tuple[float, ...], ForwardShape]] = []
    for shape in reversed(list(shapes)):
        sizes = tuple(getattr(shape, name) for name in _SIZES)
        if not any(all(a >= b for a, b in zip(other, sizes, strict=True)) for other, _ in kept):
            kept = [(other, each) for other, each in kept if not all(a <= b for a, b in zip(other, sizes, strict=True))]
            kept.append((sizes, shape))
    return [shape for _, shape in kept]
