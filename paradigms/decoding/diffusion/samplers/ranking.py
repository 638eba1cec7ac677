"""The first positions of each row by a score, and random orders: on the device, without a loop over rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paradigms.decoding import draws
from paradigms.decoding.diffusion.contract import Step


def position_times(step: Step) -> Tensor:
    """The time of each position, float64 [B, W], uniform in (0, 1) and the same at every step.

    Time falls from 1 to 0 while a block is decided; a position becomes a token when time has fallen to its own.
    """
    return draws.uniform(step.seeds, step.position_BW, 0, "order")


def rank(score_BW: Tensor, masked_BW: Tensor) -> Tensor:
    """Rank of each masked position within its row, int64 [B, W] from 0 for the highest score; equal ones from the left.

    What is not masked comes after all that is.
    """
    score_BW = score_BW.masked_fill(~masked_BW, float("-inf"))
    order_BW = score_BW.argsort(dim=-1, descending=True, stable=True)
    place_BW = torch.arange(order_BW.shape[1], device=order_BW.device).expand_as(order_BW)
    return torch.empty_like(order_BW).scatter_(-1, order_BW, place_BW)


def highest(score_BW: Tensor, masked_BW: Tensor, count_B: Sequence[int]) -> Tensor:
    """The `count` masked positions of each row that have the highest scores, bool [B, W]."""
    if all(count == 1 for count in count_B):
        return one_highest(score_BW, masked_BW)
    return masked_BW & (rank(score_BW, masked_BW) < torch.tensor(count_B, device=masked_BW.device)[:, None])


def one_highest(score_BW: Tensor, masked_BW: Tensor) -> Tensor:
    """The masked position of each row that has the highest score, bool [B, W]; none in a row without masks."""
    best_B1 = score_BW.masked_fill(~masked_BW, float("-inf")).argmax(-1, keepdim=True)
    return torch.zeros_like(masked_BW).scatter_(-1, best_B1, True) & masked_BW
