"""No cache: every forward reads the row again, which is exact for every model.

What a block-causal model (`model.canvas_block`) never looks at is not read: the blocks that come after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from paradigms.decoding.diffusion.caches.window import window
from paradigms.decoding.diffusion.canvas import Canvas
from paradigms.decoding.diffusion.contract import Block, Look, Reads, Stretch
from paradigms.models.network import NetworkConfig
from paradigms.models.stack import Model


@dataclass(frozen=True, kw_only=True)
class NoCache:
    """Reads everything that can be seen, at every step."""

    exact: ClassVar[bool] = True

    def check(self, model: NetworkConfig, *, block_len: int | None) -> None:
        """Serves every model."""

    def open(self, model: Model, canvas: Canvas) -> NoCacheReader:
        return NoCacheReader(model, canvas)

    def reads(self, model: NetworkConfig, stretch: Stretch, look: Look, *, rows: int) -> Reads:
        seen = stretch.row_len if getattr(model, "canvas_block", None) is None else stretch.stop
        return Reads(seen, seen, writes=False)


class NoCacheReader:
    """See `contract.Reader`."""

    def __init__(self, model: Model, canvas: Canvas) -> None:
        self.model, self.canvas = model, canvas
        self.block_causal = getattr(model.config, "canvas_block", None) is not None
        self.forwards = self.positions = 0

    def begin(self, block: Block) -> None:
        """Nothing is kept."""

    def logits(self, block: Block, rows: Sequence[int] | None, wanted_BW: Tensor, time_B: Tensor | None) -> Tensor:
        ends = block.stops if self.block_causal else self.canvas.totals
        stops = ends if rows is None else [ends[row] for row in rows]
        read = window(self.canvas, block, rows, wanted_BW, [0] * len(stops), stops)
        self.forwards += 1
        self.positions += read.positions
        told: dict[str, Any] = {} if time_B is None else {"time_B": time_B}
        return self.model.logits_where(read.tokens_RK, read.wanted_RK, num_tokens=read.num_tokens, **told)

    def state(self) -> None:
        """Nothing is kept."""
