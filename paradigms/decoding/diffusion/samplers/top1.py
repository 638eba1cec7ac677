"""Positions where some token is very probable first, whatever token is drawn there; in equal shares over K steps.

Unlike the probability of the drawn token, the largest probability says nothing about the draw: at one position a step
samples follow the model's one-position conditionals exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from paradigms.decoding.diffusion.guess import Guess
from paradigms.decoding.diffusion.samplers.equal_shares import Ranked


@dataclass(frozen=True, kw_only=True)
class Top1(Ranked):
    """Ranks positions by their largest probability."""

    exact: ClassVar[bool] = True

    def score(self, guess: Guess) -> Tensor:
        return guess.largest_BW
