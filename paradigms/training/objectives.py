"""What a model is trained to do: predict the next token, or undo the masks.

Both are bounds on, or equal to, the negative log-likelihood in nats a token, averaged over all tokens after
begin-of-text, so that their values can be read side by side. Column 0 of a batch is begin-of-text: always given, never
scored.

Masked diffusion, as MDLM does it (2406.07524): a time t per row, stratified over the batch; every token is masked with
probability (1 - e) t under the log-linear schedule; the loss weighs each masked token's cross-entropy by 1/t. The mask
itself is never predicted (its logit is -inf, SUBS), and visible tokens cost nothing.

Dimension letters: B rows, T columns, M masked tokens, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from paradigms.models.experts import Experts
from paradigms.models.stack import Model

MIN_TIME = 1e-3


def balance_loss(model: Model) -> Tensor | float:
    """What the expert layers of the last forward add to the loss, each by the coefficient of its config; see
    `experts.balance_loss`. No part of the likelihood, so curves are recorded without it.
    """
    if model.config.experts is None:
        return 0.0
    layers = [module for module in model.modules() if isinstance(module, Experts)]
    return sum((layer.config.balance_loss * layer.take_balance() for layer in layers), 0.0)


def next_token_loss(model: Model, tokens_BT: Tensor) -> Tensor:
    """Mean nats a token of a causal model: exact."""
    logits_BTV = model(tokens_BT[:, :-1])
    return F.cross_entropy(logits_BTV.flatten(0, 1), tokens_BT[:, 1:].flatten())


def masked_loss(model: Model, tokens_BT: Tensor, *, mask_id: int, generator: torch.Generator) -> Tensor:
    """One draw of the mean NELBO in nats a token: an upper bound in expectation."""
    B, T = tokens_BT.shape
    t_B = stratified_times(B, generator).to(tokens_BT.device)
    drawn_BT = torch.rand(B, T, generator=generator).to(tokens_BT.device)
    masked_BT = drawn_BT < ((1 - MIN_TIME) * t_B)[:, None]
    masked_BT[:, 0] = False
    logits_MV = model.logits_where(tokens_BT.masked_fill(masked_BT, mask_id), masked_BT)
    logits_MV[:, mask_id] = float("-inf")
    nats_M = F.cross_entropy(logits_MV, tokens_BT[masked_BT], reduction="none")
    weight_M = (1 / t_B)[:, None].expand(B, T)[masked_BT]
    return (nats_M * weight_M).sum() / (B * (T - 1))


def stratified_times(num_rows: int, generator: torch.Generator) -> Tensor:
    """One time a row in [MIN_TIME, 1), each in its own stratum of the unit interval, in random order."""
    strata = (torch.rand(num_rows, generator=generator) + torch.randperm(num_rows, generator=generator)) / num_rows
    return MIN_TIME + (1 - MIN_TIME) * strata
