"""Delayed cache (dKV-Cache, 2505.15781): a decided token is read once more, one step after it was decided, and kept.

A token's keys and values change most when it ceases to be a mask, so what is kept of a position is what it had when it
was first read as the token that it is. Masks are read at every look, those of later blocks too; given and prompt
tokens are kept from the first look. The authors' code reads the whole canvas at a block's second look as well, before
it keeps anything.

Where predictions are read one column to the left (`model.shift_logits`), the columns before the wanted positions are
read again, kept or not.

Dimension letters: B rows of the batch, R rows looked at, T columns of the canvas, K columns of the forward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb, exp, lgamma, log, log1p
from typing import ClassVar

import torch
from torch import Tensor

from paradigms.decoding.diffusion.caches.kept_canvas import KeptCanvas, KeptReader
from paradigms.decoding.diffusion.caches.window import Window
from paradigms.decoding.diffusion.canvas import Canvas
from paradigms.decoding.diffusion.contract import Block, Look, Stretch
from paradigms.models.stack import Model


@dataclass(frozen=True, kw_only=True)
class DelayedCache(KeptCanvas):
    """Keys and values of tokens that have been read as they are.

    Attributes:
        refresh_every: looks at a block from one that reads the whole row to the next; None reads it at the first only.
    """

    name: ClassVar[str] = "delayed"

    def open(self, model: Model, canvas: Canvas) -> DelayedReader:
        return DelayedReader(model, canvas, self)

    def chance(self, stretch: Stretch, look: Look, *, rows: int) -> float:
        return 1.0 if stretch.stop < stretch.row_len else 1 - look.idle**rows

    def columns(self, stretch: Stretch, look: Look, shift: int, *, rows: int) -> float:
        """Masks, later blocks' too, what has ceased to be one, and what stands before wanted positions and is kept.

        Decided positions are taken to lie anywhere in the block, as in random order. Rows that read less are padded.
        """
        opened, read = stretch.opened, look.masked + look.changed
        later = stretch.row_len - stretch.stop
        kept = opened - read + 1  # and the column before the block
        if varying := round(look.varying):
            share = min(1.0, (read + shift * look.wanted * kept / opened) / opened)
            return later + (opened - varying) * share + largest_of(rows, binomial(varying, share))
        behind = hypergeometric(opened, round(kept), round(look.wanted)) if shift else [1.0]
        return later + read + largest_of(rows, behind)


class DelayedReader(KeptReader):
    """Attributes: read_BT: the token that stood in each column when it was last read; -1 before."""

    def __init__(self, model: Model, canvas: Canvas, cache: DelayedCache) -> None:
        super().__init__(model, canvas, cache)
        self.read_BT = torch.full_like(canvas.tokens_BT, -1)
        total_B1 = torch.tensor(canvas.totals, device=canvas.device)[:, None]
        self.padding_B1 = canvas.num_columns - total_B1
        self.inside_BT = torch.arange(canvas.num_columns, device=canvas.device) >= self.padding_B1

    def window(self, block: Block, rows: Sequence[int] | None, whole: list[bool], wanted_RW: Tensor) -> Window:
        canvas, read_BT = self.canvas, self.read_BT
        at = slice(None) if rows is None else torch.tensor(list(rows), device=canvas.device)
        tokens_RT, wanted_RT = canvas.tokens_BT[at], canvas.spread(block, rows, wanted_RW)[at]
        reads_RT = canvas.masked_BT[at] | (read_BT[at] != tokens_RT)
        if self.shift:
            reads_RT[:, :-1] |= wanted_RT[:, 1:]
        if any(whole):
            reads_RT |= torch.tensor(whole, device=canvas.device)[:, None]
        reads_RT &= self.inside_BT[at]
        self.read_BT = read_BT.clone()  # `num_kept` may still have to count in the old one
        self.read_BT[at] = torch.where(reads_RT, tokens_RT, read_BT[at])
        counts = reads_RT.sum(1).tolist()
        K = max(counts)
        column_RK = reads_RT.byte().argsort(dim=1, stable=True)[:, canvas.num_columns - K :]  # those read, to the right
        return Window(
            tokens_RT.gather(1, column_RK),
            wanted_RT.gather(1, column_RK),
            None if min(counts) == K else counts,
            sum(counts),
            column_RK - self.padding_B1[at],
        )

    def num_kept(self) -> Callable[[], int]:
        read_BT, tokens_BT, masked_BT = self.read_BT, self.canvas.tokens_BT, self.canvas.masked_BT
        return lambda: int((self.inside_BT & (read_BT == tokens_BT) & ~masked_BT).sum())


def hypergeometric(opened: int, kept: int, wanted: int) -> list[float]:
    """Probabilities of 0, 1, ... wanted positions that stand right behind a kept one.

    The block and the kept column before it, in random order, are `kept` - 1 of `opened` positions that are kept,
    `wanted` ones and others. Sorting the wanted ones into the gaps behind all the rest shows that the number of gaps
    behind a kept one that get some is hypergeometric: C(kept, k) C(opened - kept, wanted - k) / C(opened, wanted).
    """
    ways = comb(opened, wanted)
    return [comb(kept, k) * comb(opened - kept, wanted - k) / ways for k in range(min(kept, wanted) + 1)]


@lru_cache(maxsize=1024)
def binomial(number: int, p: float) -> list[float]:
    """Probabilities of 0, 1, ... successes; logarithms, or long canvases would give 0 everywhere."""
    if p in (0.0, 1.0):
        return [1.0] if p == 0 else [0.0] * number + [1.0]
    ways = [lgamma(number + 1) - lgamma(k + 1) - lgamma(number - k + 1) for k in range(number + 1)]
    return [exp(way + k * log(p) + (number - k) * log1p(-p)) for k, way in enumerate(ways)]


def largest_of(rows: int, chances: Sequence[float]) -> float:
    """Expected largest of so many independent numbers, each k with probability chances[k]."""
    below = mean = 0.0
    for number, chance in enumerate(chances):
        upto = below + chance
        mean += number * (upto**rows - below**rows)
        below = upto
    return mean
