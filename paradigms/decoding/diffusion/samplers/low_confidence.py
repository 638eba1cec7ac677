"""The most probable drawn tokens first, in equal shares over K steps.

With decoder.confidence=before this is LLaDA's low-confidence remasking (2502.09992): every masked position draws a
token, and all but the surest go back to masks. With decoder.confidence=after, where the probability is the one under
temperature, top-k and top-p, it is Dream's maskgit_plus (2508.15487). At temperature 1 without top-k and top-p the two
are the same.

Which tokens stay depends on which were drawn, so probable tokens are favoured: two independent bits that are 0 with
probability 0.9 come out as 00 with probability 0.891, not 0.81, even at one position a step.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from paradigms.decoding.diffusion.guess import Guess
from paradigms.decoding.diffusion.samplers.equal_shares import Ranked


@dataclass(frozen=True, kw_only=True)
class LowConfidence(Ranked):
    """Ranks positions by the probability of the token drawn there."""

    def score(self, guess: Guess) -> Tensor:
        return guess.drawn_BW
