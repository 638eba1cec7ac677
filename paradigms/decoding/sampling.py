"""From logits to a token: greedy, or a draw under temperature, top-k and top-p.

Draws invert the cumulative distribution in float64: with float32, long runs of draws land measurably off their
distribution (2409.02908).

Dimension letters: R rows (any number of positions to fill), V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a token is taken from its distribution.

    Attributes:
        temperature: divides the logits; 0 takes the most probable token.
        top_k: keep the k most probable tokens.
        top_p: keep the most probable tokens that together reach probability p (after top_k).
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"decoder.temperature={self.temperature} is negative; 0 is greedy, 1 the model's own")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"decoder.top_k={self.top_k} must be at least 1, or null for all tokens")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"decoder.top_p={self.top_p} must lie in (0, 1], or be null for all tokens")
        if self.temperature == 0 and (self.top_k or self.top_p):
            raise ValueError("decoder.top_k and decoder.top_p mean nothing at temperature 0; leave them null")

    @property
    def is_plain(self) -> bool:
        """Whether tokens are drawn from the model's own distribution."""
        return self.temperature == 1 and self.top_k is None and self.top_p is None

    def probabilities(self, logits_RV: Tensor) -> Tensor:
        """The distribution that is drawn from, float64 [R, V]; one-hot when greedy."""
        logits_RV = logits_RV.double()
        if self.temperature == 0:
            return torch.zeros_like(logits_RV).scatter_(-1, logits_RV.argmax(-1, keepdim=True), 1.0)
        if self.temperature != 1:
            logits_RV = logits_RV / self.temperature
        if self.top_k is not None and self.top_k < logits_RV.shape[-1]:
            kth_R1 = logits_RV.topk(self.top_k, -1).values[..., -1:]
            logits_RV = logits_RV.masked_fill(logits_RV < kth_R1, float("-inf"))
        probabilities_RV = logits_RV.softmax(-1)
        if self.top_p is not None and self.top_p < 1:
            sorted_RV, order_RV = probabilities_RV.sort(-1, descending=True)
            enough_RV = sorted_RV.cumsum(-1) - sorted_RV >= self.top_p  # the mass before it suffices
            drop_RV = torch.zeros_like(enough_RV).scatter(-1, order_RV, enough_RV)
            probabilities_RV = probabilities_RV.masked_fill(drop_RV, 0)
            probabilities_RV = probabilities_RV / probabilities_RV.sum(-1, keepdim=True)
        return probabilities_RV

    def draw(self, logits_RV: Tensor, uniform_R: Tensor) -> Tensor:
        """Token ids int64 [R], by one uniform number a row."""
        if self.temperature == 0:
            return logits_RV.argmax(-1)
        return invert(self.probabilities(logits_RV), uniform_R)


def invert(probabilities_RV: Tensor, uniform_R: Tensor) -> Tensor:
    """The token at which the cumulative distribution passes `uniform_R`; never one of probability 0."""
    cumulative_RV = probabilities_RV.cumsum(-1)
    total_R1 = cumulative_RV[:, -1:]
    target_R1 = torch.minimum(uniform_R[:, None] * total_R1, torch.nextafter(total_R1, total_R1.new_zeros(())))
    return torch.searchsorted(cumulative_RV, target_R1, right=True)[:, 0]
