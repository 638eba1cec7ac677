"""What the approximate caches share: keys and values of the whole canvas, of which a look computes some afresh.

In a model that sees the whole canvas every key and value changes when one token does. These caches use old ones in
places: exact when the whole row is read, which happens at the first look at each block and, with `refresh_every` = n,
at every n-th look at it; off by more or less between.

A look computes the positions that its cache says, writes their keys and values over the old ones, and sees the whole
row. Looks are counted row by row, so that a row is decoded the same in a batch as alone.

Dimension letters: B rows of the batch, R rows looked at.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from paradigms.decoding.diffusion.caches.row_states import RowStates
from paradigms.decoding.diffusion.caches.window import Window, window
from paradigms.decoding.diffusion.canvas import Canvas
from paradigms.decoding.diffusion.contract import Block, Look, Reads, Stretch
from paradigms.models.network import NetworkConfig
from paradigms.models.stack import Model
from paradigms.paradigm import StateBytes


@dataclass(frozen=True, kw_only=True)
class KeptCanvas:
    """A cache of the whole canvas.

    Attributes:
        refresh_every: looks at a block from one that reads the whole row to the next; None reads it at the first only.
    """

    refresh_every: int | None = None
    exact: ClassVar[bool] = False
    name: ClassVar[str]

    def __post_init__(self) -> None:
        if self.refresh_every is not None and self.refresh_every < 1:
            raise ValueError(
                f"decoder.cache.refresh_every={self.refresh_every} must be at least 1 (every look), or null (only the "
                "first look at a block)"
            )

    def check(self, model: NetworkConfig, *, block_len: int | None) -> None:
        """Raise ValueError for models that have an exact cache, or whose layers keep no slots."""
        canvas_block = getattr(model, "canvas_block", None)
        if canvas_block is not None:
            raise ValueError(
                f"decoder/cache={self.name} approximates models that see the whole canvas; with "
                f"model.canvas_block={canvas_block} use decoder/cache=block, which is exact"
            )
        if not getattr(model, "keeps_slots", False):
            raise ValueError(
                f"decoder/cache={self.name} writes over keys and values, a slot a position; the layers of this model "
                "keep more, or less, than that: use decoder/cache=none"
            )

    def is_due(self, looks: int) -> bool:
        """Whether a row is read as a whole, after so many looks at the block."""
        return looks == 0 or (self.refresh_every is not None and looks % self.refresh_every == 0)

    def reads(self, model: NetworkConfig, stretch: Stretch, look: Look, *, rows: int) -> Reads:
        shift = int(getattr(model, "shift_logits", False))
        columns = self.columns(stretch, look, shift, rows=rows)
        again = round(columns)  # of them nothing is kept: the next look reads them anew
        if self.is_due(look.index):
            return Reads(stretch.row_len, stretch.row_len, writes=True, forgotten=again)
        chance = self.chance(stretch, look, rows=rows)
        return Reads(columns / chance, stretch.row_len, writes=True, chance=chance, forgotten=again)

    def chance(self, stretch: Stretch, look: Look, *, rows: int) -> float:
        """Probability that such a look reads anything."""
        return 1.0

    def columns(self, stretch: Stretch, look: Look, shift: int, *, rows: int) -> float:
        """Columns that a look reads of a row which does not read the whole row, 0 included.

        Args:
            shift: 1 where predictions are read one column to the left.
        """
        raise NotImplementedError


class KeptReader(ABC):
    """See `contract.Reader`."""

    def __init__(self, model: Model, canvas: Canvas, cache: KeptCanvas) -> None:
        self.model, self.canvas, self.cache = model, canvas, cache
        self.shift = int(model.config.shift_logits)
        state = model.new_state(len(canvas.totals), canvas.num_columns)
        state.reserve(canvas.num_columns)
        state.advance(canvas.totals)  # every slot is there from the beginning, and written before it is seen
        self.states = RowStates(state)
        self.looks = [0] * len(canvas.totals)
        self.forwards = self.positions = 0

    def begin(self, block: Block) -> None:
        self.looks = [0] * len(self.looks)

    def logits(self, block: Block, rows: Sequence[int] | None, wanted_BW: Tensor, time_B: Tensor | None) -> Tensor:
        taken = range(len(self.looks)) if rows is None else rows
        whole = [self.cache.is_due(self.looks[row]) for row in taken]
        for row in taken:
            self.looks[row] += 1
        read = self.window(block, rows, whole, wanted_BW)
        if not read.positions:  # everything is kept, and nothing is wanted
            return self.model.embedding.new_empty(0, self.model.config.vocab_size)
        self.forwards += 1
        self.positions += read.positions
        return self.model.logits_where(
            read.tokens_RK,
            read.wanted_RK,
            self.states.of(rows),
            num_tokens=read.num_tokens,
            write="overwrite",
            over=read.slots,
            time_B=time_B,
        )

    @abstractmethod
    def window(self, block: Block, rows: Sequence[int] | None, whole: list[bool], wanted_RW: Tensor) -> Window:
        """What is read of these rows (None: all): everything where `whole`."""

    @abstractmethod
    def num_kept(self) -> Callable[[], int]:
        """Positions of all rows looked at whose keys and values the next look will use as they are."""

    def state(self) -> Callable[[], StateBytes]:
        kept, states = self.num_kept(), self.states
        config, itemsize = self.model.config, self.model.embedding.itemsize
        return lambda: StateBytes(
            used=config.state_bytes(batch_size=1, length=kept(), itemsize=itemsize), allocated=states.allocated_bytes
        )


class StretchReader(KeptReader):
    """Reads one stretch of each row: from the block on, up to where `reads_to` says."""

    kept = 0

    def reads_to(self, block: Block, row: int) -> int:
        raise NotImplementedError

    def window(self, block: Block, rows: Sequence[int] | None, whole: list[bool], wanted_RW: Tensor) -> Window:
        taken, totals = range(len(self.looks)) if rows is None else rows, self.canvas.totals
        firsts = [block.starts[row] - self.shift for row in taken]
        stops = [self.reads_to(block, row) for row in taken]
        self.kept = sum(totals[row] for row in taken) + sum(firsts) - sum(stops)
        if any(whole):
            firsts = [0 if all_of_it else first for all_of_it, first in zip(whole, firsts, strict=True)]
            stops = [
                totals[row] if all_of_it else stop for all_of_it, row, stop in zip(whole, taken, stops, strict=True)
            ]
        return window(self.canvas, block, rows, wanted_RW, firsts, stops)

    def num_kept(self) -> Callable[[], int]:
        kept = self.kept
        return lambda: kept
