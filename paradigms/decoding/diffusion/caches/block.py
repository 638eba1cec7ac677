"""Exact: keys and values of finished blocks of a block-causal model (BD3-LM, 2503.09573).

Such a model's blocks do not see what comes after them, so that what a finished block keeps never changes. Whole blocks
of `model.canvas_block` are kept only; a prompt that ends inside a block is read again with it, at every look.

A finished block needs no forward of its own to be kept. It is read together with the next block's first look, of which
the finished part stays and the rest is forgotten; the prompt enters in the same way, with the first block. So there
are as many forwards as looks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from paradigms.decoding.diffusion.caches.row_states import RowStates
from paradigms.decoding.diffusion.caches.window import window
from paradigms.decoding.diffusion.canvas import Canvas
from paradigms.decoding.diffusion.contract import Block, Look, Reads, Stretch
from paradigms.models.config import ModelConfig
from paradigms.models.network import NetworkConfig
from paradigms.models.stack import Model
from paradigms.paradigm import StateBytes


@dataclass(frozen=True, kw_only=True)
class BlockCache:
    """Keeps finished blocks of a block-causal model."""

    exact: ClassVar[bool] = True

    def check(self, model: NetworkConfig, *, block_len: int | None) -> None:
        """Raise ValueError unless the model is block-causal, keeps slots, and the blocks are its own."""
        canvas_block = getattr(model, "canvas_block", None)
        if canvas_block is None:
            raise ValueError(
                "decoder/cache=block is exact only where a block does not see what comes after it, and "
                "model.canvas_block=null sees everything; use decoder/cache=prefix, dual or delayed, or train a model "
                "with model.canvas_block"
            )
        if block_len != canvas_block:
            raise ValueError(
                f"decoder.block_len={block_len} must be model.canvas_block={canvas_block} for decoder/cache=block: "
                "other blocks end where the model still sees further"
            )
        if not getattr(model, "keeps_slots", False):
            raise ValueError(
                "decoder/cache=block keeps a slot a position, and the layers of this model keep more, or less, than "
                "that: use decoder/cache=none"
            )
        if getattr(model, "reads_time", False):
            raise ValueError(
                "decoder/cache=block would keep what was computed at an earlier time, and this model is told the time "
                "(model.conditioning.reads_time): use decoder/cache=none"
            )

    def open(self, model: Model, canvas: Canvas) -> BlockReader:
        return BlockReader(model, canvas)

    def reads(self, model: NetworkConfig, stretch: Stretch, look: Look, *, rows: int) -> Reads:
        assert isinstance(model, ModelConfig) and model.canvas_block is not None
        width, shift = model.canvas_block, int(model.shift_logits)

        def final(start: int) -> int:
            """Positions that are kept while the block that holds this one is decided."""
            return max(0, start // width * width - shift)

        kept = final(stretch.start)
        if look.index:
            return Reads(stretch.stop - kept, stretch.stop, writes=False)
        held = final(stretch.start - 1) if stretch.before else 0
        if kept == held:
            return Reads(stretch.stop - held, stretch.stop, writes=False)
        return Reads(stretch.stop - held, stretch.stop, writes=True, forgotten=stretch.stop - kept)


class BlockReader:
    """See `contract.Reader`."""

    def __init__(self, model: Model, canvas: Canvas) -> None:
        assert model.config.canvas_block is not None
        self.model, self.canvas = model, canvas
        self.width, self.shift = model.config.canvas_block, int(model.config.shift_logits)
        self.states = RowStates(model.new_state(len(canvas.totals), max(canvas.totals)))
        self.forwards = self.positions = 0

    def begin(self, block: Block) -> None:
        """What came before is read with the block's first look."""

    def logits(self, block: Block, rows: Sequence[int] | None, wanted_BW: Tensor, time_B: Tensor | None) -> Tensor:
        state = self.states.of(rows)
        taken = range(len(block.starts)) if rows is None else rows
        # A prediction read one column to the left needs the last column of the block before, at every look.
        final = [max(0, block.starts[row] // self.width * self.width - self.shift) for row in taken]
        new = [stop - length for stop, length in zip(final, state.lengths, strict=True)]
        read = window(self.canvas, block, rows, wanted_BW, state.lengths, [block.stops[row] for row in taken])
        self.forwards += 1
        self.positions += read.positions
        keeps = any(new)
        mark = state.mark() if keeps else None
        logits_MV = self.model.logits_where(
            read.tokens_RK,
            read.wanted_RK,
            state,
            num_tokens=read.num_tokens,
            write="append" if keeps else "none",
            time_B=time_B,
        )
        if mark is not None:
            state.rollback(mark, new)
        return logits_MV

    def state(self) -> Callable[[], StateBytes]:
        states, lengths = self.states, self.states.lengths()
        per_row = self.model.config.state_bytes
        itemsize = self.model.embedding.itemsize
        return lambda: StateBytes(
            used=sum(per_row(batch_size=1, length=length, itemsize=itemsize) for length in lengths),
            allocated=states.allocated_bytes,
        )
