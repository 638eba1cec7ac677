"""What a model is trained to do: predict the next token, or undo the masks.

Both are bounds on, or equal to, the negative log-likelihood in nats a token, averaged over the scored tokens (all after
begin-of-text, or an answer's alone), so that their values can be read side by side. Column 0 of a batch is
begin-of-text: always given, never scored.

Masked diffusion: a time t is drawn, each scored token is masked with probability about t, and each masked token's
cross-entropy weighs 1/t. The mask itself is never predicted (its logit is -inf, SUBS), and visible tokens cost nothing.
A whole canvas has one t a row; block diffusion (a model with `canvas_block`) one a block, all blocks denoised at once
behind the clean text before them (`block_diffusion`). Times are stratified over the batch, and told to models that are
conditioned on them.

Dimension letters: B rows, T columns, N blocks of a row, U rows or blocks with a time of their own, W their columns, M
masked tokens, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from paradigms.models.block_diffusion import block_logits_where
from paradigms.models.config import ModelConfig
from paradigms.models.experts import Experts
from paradigms.models.stack import Model

MIN_TIME = 1e-3
KINDS = ("mdlm", "llada", "any_order")


@dataclass(frozen=True, kw_only=True)
class MaskedObjective:
    """How text is noised for a denoiser. Causal models do not look at it.

    Attributes:
        kind: "mdlm" (2406.07524, log-linear schedule) masks with probability (1 - 0.001) t, "llada" (2502.09992; BD3-LM
            does the same) with probability t; the weight is 1/t in both. With times from 0.001 to 1 they miss the bound
            by some -0.1 % and by less than 0.01 %. "any_order" (2110.02037) masks a number l of the L scored tokens,
            where l / L is a time rounded up: with times from 0 the bound itself, no row without a mask, and no weight
            above L. Of few tokens, such as answers, the others now and then draw a huge weight, and steps are as noisy
            as that.
        low, high: times are uniform between them. Short blocks learn with less variance where both ends are cut off
            (clipped schedules, 2503.09573, section 5.2: 0.45 to 0.95 for blocks of 4, 0.3 to 0.8 for 16); the loss is
            then no estimate of the bound any more. A block of one token needs low = high = 1: it is an autoregressive
            model.
    """

    kind: str = "mdlm"
    low: float = MIN_TIME
    high: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"train.objective.kind={self.kind!r} is unknown; it is one of {', '.join(KINDS)}")
        if not 0 <= self.low <= self.high <= 1 or not self.high or (not self.low and self.kind != "any_order"):
            raise ValueError(
                f"train.objective.low={self.low} and high={self.high} must be times, 0 < low <= high <= 1 (the weight "
                "is 1/t; only kind=any_order, which rounds up, takes low=0)"
            )

    def times(self, num_units: int, generator: torch.Generator) -> Tensor:
        """One time a row or block, float32 on the CPU."""
        return stratified_times(num_units, generator, low=self.low, high=self.high)

    def rate(self, time: Tensor) -> Tensor:
        """Probability that a token is masked, where each is masked by itself."""
        return (1 - MIN_TIME) * time if self.kind == "mdlm" else time

    def draw(self, allowed_UW: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Masks [U, W] among the allowed tokens of each row or block, and its time [U, 1]: of `any_order` the share of
        them that is masked.
        """
        U, W = allowed_UW.shape
        time_U1 = self.times(U, generator)[:, None]
        drawn_UW = torch.rand(U, W, generator=generator)
        if self.kind != "any_order":
            return (drawn_UW < self.rate(time_U1)) & allowed_UW, time_U1
        num_U1 = allowed_UW.sum(1, keepdim=True)
        masked_U1 = (time_U1 * num_U1).ceil().clamp(min=1).minimum(num_U1)
        rank_UW = drawn_UW.masked_fill(~allowed_UW, 2.0).argsort(1).argsort(1)
        return rank_UW < masked_U1, masked_U1 / num_U1.clamp(min=1)


def balance_loss(model: Model) -> Tensor | float:
    """What the expert layers of the last forward add to the loss, each by the coefficient of its config; see
    `experts.balance_loss`. No part of the likelihood, so curves are recorded without it.
    """
    if model.config.experts is None:
        return 0.0
    layers = [module for module in model.modules() if isinstance(module, Experts)]
    return sum((layer.config.balance_loss * layer.take_balance() for layer in layers), 0.0)


def next_token_loss(
    model: Model, tokens_BT: Tensor, *, scored_BT: Tensor | None = None, num_scored: int | None = None
) -> Tensor:
    """Mean nats a scored token of a causal model: exact.

    Args:
        scored_BT: None scores all after column 0.
        num_scored: what the sum is divided by, where these rows are a part of a batch; None is their own number.
    """
    if scored_BT is None:
        logits_MV, target_M = model(tokens_BT[:, :-1]).flatten(0, 1), tokens_BT[:, 1:].flatten()
    else:
        logits_MV = model.logits_where(tokens_BT[:, :-1], scored_BT[:, 1:])
        target_M = tokens_BT[:, 1:][scored_BT[:, 1:]]
    mean = F.cross_entropy(logits_MV, target_M)
    return mean if num_scored is None else mean * (len(target_M) / num_scored)


@dataclass(frozen=True, kw_only=True)
class Noised:
    """A batch with its masks drawn.

    Attributes:
        tokens_BT, noisy_BT: clean, and with masks.
        masked_BT: where these are.
        time_BT: of each token; the same along a row of a whole canvas.
        num_scored: tokens that might have been masked.
    """

    tokens_BT: Tensor
    noisy_BT: Tensor
    masked_BT: Tensor
    time_BT: Tensor
    num_scored: int

    def rows(self, part: slice) -> Noised:
        """Some rows; `num_scored` stays that of the batch, so that losses of parts add up to that of the whole."""
        parts = {name: getattr(self, name)[part] for name in ("tokens_BT", "noisy_BT", "masked_BT", "time_BT")}
        return Noised(**parts, num_scored=self.num_scored)


def noised(
    config: ModelConfig,
    tokens_BT: Tensor,
    *,
    mask_id: int,
    generator: torch.Generator,
    objective: MaskedObjective | None = None,
    scored_BT: Tensor | None = None,
) -> Noised:
    """Draw the masks of a batch, on the CPU and so alike everywhere.

    Args:
        objective: None is MDLM's.
        scored_BT: the tokens that may be masked, and are scored; None is all after column 0. The others are given.
    """
    objective = objective or MaskedObjective()
    B, T = tokens_BT.shape
    if scored_BT is None:
        scored_BT = torch.ones(B, T, dtype=torch.bool)
        scored_BT[:, 0] = False
    allowed_BT, width = scored_BT.cpu(), config.canvas_block or T
    N = -(-T // width)
    allowed_UW = F.pad(allowed_BT, (0, N * width - T)).view(B * N, width)
    masked_UW, time_U1 = objective.draw(allowed_UW, generator)
    masked_BT, time_BT = (x.reshape(B, N * width)[:, :T] for x in (masked_UW, time_U1.expand(-1, width)))
    masked_BT, time_BT = masked_BT.to(tokens_BT.device), time_BT.to(tokens_BT.device)
    return Noised(
        tokens_BT=tokens_BT,
        noisy_BT=tokens_BT.masked_fill(masked_BT, mask_id),
        masked_BT=masked_BT,
        time_BT=time_BT,
        num_scored=int(allowed_BT.sum()),
    )


def masked_loss(
    model: Model,
    tokens_BT: Tensor,
    *,
    mask_id: int,
    generator: torch.Generator,
    objective: MaskedObjective | None = None,
    scored_BT: Tensor | None = None,
    among_TT: Tensor | None = None,
) -> Tensor:
    """`denoising_loss` of a whole batch; arguments as of `noised` and of it."""
    batch = noised(
        model.config, tokens_BT, mask_id=mask_id, generator=generator, objective=objective, scored_BT=scored_BT
    )
    return denoising_loss(model, batch, mask_id=mask_id, among_TT=among_TT)


def denoising_loss(model: Model, noised: Noised, *, mask_id: int, among_TT: Tensor | None = None) -> Tensor:
    """One draw of the mean NELBO in nats a scored token: an upper bound in expectation.

    Args:
        among_TT: who sees whom, where it is not the model's own way (`anneal`); for a whole canvas only.
    """
    masked_BT, time_BT = noised.masked_BT, noised.time_BT
    reads_time = model.config.reads_time
    if model.config.canvas_block is None:
        time_B = time_BT[:, 0] if reads_time else None
        logits_MV = model.logits_where(noised.noisy_BT, masked_BT, among_BTT=among_TT, time_B=time_B)
    else:
        assert among_TT is None
        logits_MV = block_logits_where(
            model, noised.noisy_BT, noised.tokens_BT, masked_BT, time_BT=time_BT if reads_time else None
        )
    logits_MV[:, mask_id] = float("-inf")
    nats_M = F.cross_entropy(logits_MV, noised.tokens_BT[masked_BT], reduction="none")
    return (nats_M / time_BT[masked_BT]).sum() / noised.num_scored


def stratified_times(num_units: int, generator: torch.Generator, *, low: float = MIN_TIME, high: float = 1.0) -> Tensor:
    """One time a row or block in [low, high), each in its own stratum of the interval, in random order."""
    strata = (torch.rand(num_units, generator=generator) + torch.randperm(num_units, generator=generator)) / num_units
    return low + (high - low) * strata


def anneal(num_columns: int, opened: float, generator: torch.Generator) -> Tensor | None:
    """Who sees whom, bool [T, T], on the way from an autoregressive model to a denoiser (2410.17891, section 3.3): all
    before, and each later column with probability `opened`. None when all is open.
    """
    if opened >= 1:
        return None
    open_TT = torch.rand(num_columns, num_columns, generator=generator) < opened
    return open_TT | torch.ones_like(open_TT).tril()
