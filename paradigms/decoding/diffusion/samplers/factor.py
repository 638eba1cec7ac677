"""As many of the most probable drawn tokens as their confidence allows to be decided together (Fast-dLLM, 2505.22618).

With the drawn probabilities of a row sorted, c_1 ≥ c_2 ≥ …, the first n become tokens for the largest n with
(n + 1)(1 − c_n) < f, and at least one. Their Theorem 1 is behind it: n tokens, each of a probability above 1 − ε with
(n + 1) ε ≤ 1, are the most probable ones together where they are so one by one. It speaks of the most probable tokens,
not of drawn ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from paradigms.decoding.diffusion.contract import Sampler, Step
from paradigms.decoding.diffusion.guess import Guess
from paradigms.decoding.diffusion.samplers.ranking import rank


@dataclass(frozen=True, kw_only=True)
class Factor(Sampler):
    """The factor rule.

    Attributes:
        factor: f > 0; the larger, the more positions a step.
    """

    factor: float = 1.0
    depends_on_values: ClassVar[bool] = True
    reads_confidence: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.factor > 0:
            raise ValueError(f"decoder.sampler.factor={self.factor} must be more than 0")

    def choose(self, step: Step, guess: Guess) -> Tensor:
        rank_BW = rank(guess.drawn_BW, step.masked_BW)  # n - 1; both factors of the product grow with it
        enough_BW = (rank_BW + 2) * (1 - guess.drawn_BW) < self.factor
        return step.masked_BW & (enough_BW | (rank_BW == 0))
