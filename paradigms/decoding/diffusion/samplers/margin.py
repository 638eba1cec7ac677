"""Positions where the most probable token is far ahead of the second first (2502.06768; Dream's topk_margin)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from paradigms.decoding.diffusion.guess import Guess
from paradigms.decoding.diffusion.samplers.equal_shares import Ranked


@dataclass(frozen=True, kw_only=True)
class Margin(Ranked):
    """Ranks positions by the difference of their two largest probabilities."""

    exact: ClassVar[bool] = True

    def score(self, guess: Guess) -> Tensor:
        two_M2 = guess.probabilities_MV.topk(2, -1).values
        return guess.placed(two_M2[:, 0] - two_M2[:, 1], 0.0)
