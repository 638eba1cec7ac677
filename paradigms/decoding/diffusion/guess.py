"""What the model says about masked positions, and the tokens drawn from it: computed when asked for.

Confidences are of the model's own distribution, as LLaDA takes them, or of the one that is drawn from, after
temperature, top-k and top-p, as Dream does. Greedy draws leave it as it is, in Dream too: all of them would be sure.

Dimension letters: B rows, W positions of a block, M positions looked at, V vocabulary.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from paradigms.decoding import draws
from paradigms.decoding.diffusion.contract import Step
from paradigms.decoding.sampling import Sampling, invert

CONFIDENCES = ("before", "after")  # temperature, top-k and top-p


class Guess:
    """The model's word on the positions `wanted_BW` of one step.

    Attributes:
        logits_MV: at the wanted positions, row-major; never for the mask itself.
    """

    def __init__(
        self, logits_MV: Tensor, wanted_BW: Tensor, step: Step, sampling: Sampling, *, confidence: str
    ) -> None:
        self.logits_MV, self.wanted_BW, self.step = logits_MV, wanted_BW, step
        self._sampling, self._confidence = sampling, confidence

    @cached_property
    def tokens_BW(self) -> Tensor:
        """A token drawn for every wanted position; 0 elsewhere."""
        return self.tokens_at(self.wanted_BW)

    def tokens_at(self, chosen_BW: Tensor) -> Tensor:
        """Tokens drawn for the chosen positions, all of them wanted; 0 elsewhere. The same draws as `tokens_BW`."""
        if "tokens_BW" in self.__dict__:
            return self.tokens_BW
        step = self.step
        uniform = draws.uniform(step.seeds, step.position_BW, step.draw, "token")[chosen_BW]
        tokens_BW = torch.zeros_like(chosen_BW, dtype=torch.long)
        if chosen_BW is not self.wanted_BW:
            tokens_BW[chosen_BW] = self._sampling.draw(self.logits_MV[chosen_BW[self.wanted_BW]], uniform)
        elif self._sampling.temperature == 0:
            tokens_BW[chosen_BW] = self.logits_MV.argmax(-1)
        else:  # the distribution may be needed again
            tokens_BW[chosen_BW] = invert(self.drawn_from_MV, uniform)
        return tokens_BW

    @cached_property
    def probabilities_MV(self) -> Tensor:
        """The distribution that confidences are of, float64 [M, V]."""
        drawn_from = self._confidence == "after" and self._sampling.temperature > 0
        if drawn_from or self._sampling.is_plain:
            return self.drawn_from_MV
        return self.logits_MV.double().softmax(-1)

    @cached_property
    def drawn_from_MV(self) -> Tensor:
        """The distribution that tokens are drawn from, float64 [M, V]."""
        return self._sampling.probabilities(self.logits_MV)

    @cached_property
    def drawn_BW(self) -> Tensor:
        """Probability of the drawn token, float64; -1 where nothing was wanted."""
        token_M = self.tokens_BW[self.wanted_BW]
        return self.placed(self.probabilities_MV.gather(-1, token_M[:, None])[:, 0], -1.0)

    @cached_property
    def largest_BW(self) -> Tensor:
        """Largest probability of any token; -1 where nothing was wanted."""
        return self.placed(self.probabilities_MV.amax(-1), -1.0)

    def placed(self, values_M: Tensor, elsewhere: float) -> Tensor:
        """A number for each wanted position as [B, W]."""
        placed_BW = torch.full(self.wanted_BW.shape, elsewhere, dtype=values_M.dtype, device=values_M.device)
        placed_BW[self.wanted_BW] = values_M
        return placed_BW
