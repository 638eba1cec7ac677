"""Every drawn token whose probability reaches a threshold, and always the most probable one (Fast-dLLM, 2505.22618).

The number of forwards depends on how sure the model is: from one to one a position. Which positions are decided depends
on the tokens drawn there, so probable tokens are favoured (see `low_confidence`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from paradigms.decoding.diffusion.contract import Sampler, Step
from paradigms.decoding.diffusion.guess import Guess
from paradigms.decoding.diffusion.samplers.ranking import one_highest


@dataclass(frozen=True, kw_only=True)
class Threshold(Sampler):
    """All tokens that are sure enough.

    Attributes:
        threshold: probability in (0, 1].
    """

    threshold: float = 0.9
    depends_on_values: ClassVar[bool] = True
    reads_confidence: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise ValueError(f"decoder.sampler.threshold={self.threshold} is no probability; it must lie in (0, 1]")

    def choose(self, step: Step, guess: Guess) -> Tensor:
        sure_BW = step.masked_BW & (guess.drawn_BW >= self.threshold)
        return sure_BW | one_highest(guess.drawn_BW, step.masked_BW)
