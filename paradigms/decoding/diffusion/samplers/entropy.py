"""Positions whose distribution has the least entropy first (Dream, 2508.15487), in equal shares over K steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from paradigms.decoding.diffusion.guess import Guess
from paradigms.decoding.diffusion.samplers.equal_shares import Ranked


@dataclass(frozen=True, kw_only=True)
class Entropy(Ranked):
    """Ranks positions by their negative entropy in nats."""

    exact: ClassVar[bool] = True

    def score(self, guess: Guess) -> Tensor:
        return guess.placed(torch.special.xlogy(guess.probabilities_MV, guess.probabilities_MV).sum(-1), 0.0)
