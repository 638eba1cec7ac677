"""Dual cache (Fast-dLLM, 2505.22618): what stands before and after the block is kept, only the block is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paradigms.decoding.diffusion.caches.kept_canvas import KeptCanvas, StretchReader
from paradigms.decoding.diffusion.canvas import Canvas
from paradigms.decoding.diffusion.contract import Block, Look, Stretch
from paradigms.models.stack import Model


@dataclass(frozen=True, kw_only=True)
class DualCache(KeptCanvas):
    """Keys and values before and after the block, as they were at the last whole look.

    Attributes:
        refresh_every: looks at a block from one that reads the whole row to the next; None reads it at the first only,
            as the paper does.
    """

    name: ClassVar[str] = "dual"

    def open(self, model: Model, canvas: Canvas) -> DualReader:
        return DualReader(model, canvas, self)

    def columns(self, stretch: Stretch, look: Look, shift: int, *, rows: int) -> float:
        return stretch.stop - stretch.start + shift


class DualReader(StretchReader):
    def reads_to(self, block: Block, row: int) -> int:
        return block.stops[row]
