"""One forward as its layers meet it, in numbers: what the formulas of `LayerConfig` take, and the sums that they share.

Dimension letters: B rows, T tokens of each, S positions that are computed for each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self

from paradigms.work import ForwardShape

if TYPE_CHECKING:
    from paradigms.models.config import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardPass:
    """A shape, and what else of the work it decides.

    Attributes:
        model: whose forward it is.
        shape: its rows, tokens and slots.
        itemsize: bytes of a number.
        kv_dtype: of the state's keys and values; None is as computed.
    """

    model: ModelConfig
    shape: ForwardShape
    itemsize: int
    kv_dtype: str | None = None

    @classmethod
    def of_row(cls, model: ModelConfig, *, num_tokens: int, context: int, num_logits: int) -> Self:
        """One row whose state takes up `num_tokens` tokens and then holds `context`."""
        shape = ForwardShape(
            phase="decode",
            rows=1,
            tokens=num_tokens,
            seen=context,
            kept=context - num_tokens,
            written=num_tokens,
            logits=num_logits,
        )
        return cls(model=model, shape=shape, itemsize=4)

    @property
    def d_model(self) -> int:
        return self.model.d_model

    @property
    def rows(self) -> int:
        """B."""
        return self.shape.rows

    @property
    def tokens(self) -> int:
        """T."""
        return self.shape.tokens

    @property
    def seen(self) -> int:
        """S."""
        return self.shape.seen

    @property
    def positions(self) -> int:
        """B T."""
        return self.shape.positions

    @property
    def start(self) -> int:
        """Positions before the new tokens."""
        return self.seen - self.tokens

    @property
    def has_state(self) -> bool:
        return self.shape.kept > 0 or self.shape.written > 0

    @property
    def is_step(self) -> bool:
        """One token a row that a state takes up: recurrences then take a step and no scan."""
        return self.tokens == 1 and self.shape.written > 0

    @property
    def pairs(self) -> int:
        """Pairs of a new token and a position that plain attention computes, in all rows."""
        return self.positions * self.seen

    @property
    def visible_pairs(self) -> int:
        """Those of them that the mask lets through."""
        start, seen, block = self.start, self.seen, self.model.canvas_block
        if self.model.causal:
            return self.rows * below_diagonal(start, seen)
        if block is None or self.shape.kept + self.tokens > seen:  # what is written over sees all that there is
            return self.pairs
        ends = ((min((first // block + 1) * block, seen), first) for first in _block_starts(start, seen, block))
        return self.rows * sum((end - first) * end for end, first in ends)

    @property
    def mask_bytes(self) -> int:
        """Bytes of the mask of a forward that needs one, and of the numbers that torch's attention makes of it."""
        masked = self.visible_pairs < self.pairs and (self.start > 0 or not self.model.causal)
        return self.tokens * self.seen * (1 + self.itemsize) * masked


def below_diagonal(start: int, stop: int, window: int | None = None) -> int:
    """Pairs that a causal mask lets through, of tokens at positions `start` to `stop` - 1; each sees itself and all
    before it, of which no more than `window`.
    """
    whole = stop if window is None else min(max(window, start), stop)  # up to here nothing is out of the window
    growing = (whole * (whole + 1) - start * (start + 1)) // 2
    return growing + (0 if window is None else (stop - whole) * window)


def _block_starts(start: int, stop: int, block: int) -> range | list[int]:
    """First position in each block of those from `start` on."""
    return [start, *range((start // block + 1) * block, stop, block)]


class Looked(NamedTuple):
    """What attention computes in one forward, all rows together.

    Attributes:
        queries: rows of its scores, for each head.
        pairs: scores, for each head.
        visible: those that no mask, window or padding hides.
        slots: keys and values that it reads, for each of their heads.
    """

    queries: int
    pairs: int
    visible: int
    slots: int

    @classmethod
    def at_all(cls, run: ForwardPass) -> Self:
        """Every new token at every position that is computed for it."""
        return cls(run.positions, run.pairs, run.visible_pairs, run.rows * run.seen)
