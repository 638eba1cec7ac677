"""The part of each row that a forward reads: one stretch of positions a row, right-aligned.

Dimension letters: R rows looked at, T columns of the canvas, K columns of the forward, W positions of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paradigms.decoding.diffusion.canvas import Canvas
from paradigms.decoding.diffusion.contract import Block


@dataclass(frozen=True, slots=True)
class Window:
    """What a forward takes.

    Attributes:
        tokens_RK: rows right-aligned.
        wanted_RK: where logits are wanted.
        num_tokens: tokens of each row; None when all have K.
        positions: tokens of all rows.
        slots: where they stand: the first of each row, or all of them, [R, K].
    """

    tokens_RK: Tensor
    wanted_RK: Tensor
    num_tokens: list[int] | None
    positions: int
    slots: list[int] | Tensor


def window(
    canvas: Canvas,
    block: Block,
    rows: Sequence[int] | None,
    wanted_RW: Tensor,
    firsts: Sequence[int],
    stops: Sequence[int],
) -> Window:
    """Positions firsts[r] to stops[r], counted from the beginning of the row, of these rows (None: all); each holds
    the row's wanted positions.
    """
    taken = range(len(canvas.totals)) if rows is None else rows
    totals = [canvas.totals[row] for row in taken]
    counts = [stop - first for first, stop in zip(firsts, stops, strict=True)]
    R, K, T = len(counts), max(counts), canvas.num_columns
    first, stop, total, start = firsts[0], stops[0], totals[0], block.starts[taken[0]]
    alike = R == 1 or (
        _all_are(firsts, first)
        and _all_are(stops, stop)
        and _all_are(totals, total)
        and all(block.starts[row] == start for row in taken)
    )
    if alike:
        before = T - total
        tokens_RK = canvas.tokens_BT[:, before + first : before + stop]
        tokens_RK = tokens_RK if rows is None else tokens_RK[list(rows)]
        width = min(wanted_RW.shape[1], stop - start)  # the block may be wider in rows that are not looked at
        wanted_RK = wanted_RW.new_zeros(R, K)
        wanted_RK[:, start - first : start - first + width] = wanted_RW[:, :width]
        return Window(tokens_RK, wanted_RK, None, R * K, list(firsts))
    edge_R1 = torch.tensor([T - total + stop - K for total, stop in zip(totals, stops, strict=True)])[:, None]
    column_RK = (edge_R1.to(canvas.device) + torch.arange(K, device=canvas.device)).clamp(min=0)
    tokens_BT, wanted_BT = canvas.tokens_BT, canvas.spread(block, rows, wanted_RW)
    if rows is not None:
        tokens_BT, wanted_BT = tokens_BT[list(rows)], wanted_BT[list(rows)]
    wanted_RK = wanted_BT.gather(1, column_RK)  # never in padding: what is wanted lies in the window
    num_tokens = None if min(counts) == K else counts
    return Window(tokens_BT.gather(1, column_RK), wanted_RK, num_tokens, sum(counts), list(firsts))


def _all_are(values: Sequence[int], value: int) -> bool:
    return all(other == value for other in values)
