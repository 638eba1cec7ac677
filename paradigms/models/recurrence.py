"""What the Mamba layers share: how dt starts, what padding does to it, and the short convolution before a scan.

Dimension letters: B batch, T tokens, C channels, K width of the convolution, W = K - 1, S = W + T places.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paradigms.models import kernels


def initial_dt_bias(size: int) -> nn.Parameter:
    """Bias from which dt starts log-uniform in [0.001, 0.1]: the inverse of softplus there."""
    dt = torch.exp(torch.rand(size) * (math.log(0.1) - math.log(0.001)) + math.log(0.001))
    return nn.Parameter(dt + torch.log(-torch.expm1(-dt)))


def without_padding(dt_BTC: Tensor, pads_B: Tensor | None) -> Tensor:
    """0 in the pads_B columns of padding: dt = 0 leaves a state as it is."""
    if pads_B is None:
        return dt_BTC
    token_BT = torch.arange(dt_BTC.shape[1], device=dt_BTC.device) >= pads_B[:, None]
    return dt_BTC * token_BT[..., None]


def convolved(
    x_BTC: Tensor,
    past_BWC: Tensor | None,
    weight_CK: Tensor,
    bias_C: Tensor | None,
    pads_B: Tensor | None,
    *,
    write: bool,
) -> Tensor:
    """silu of the convolution over new tokens behind the past (None is zeros); `write` moves the past on in place."""
    T = x_BTC.shape[1]
    W = weight_CK.shape[1] - 1
    seen_BSC = F.pad(x_BTC, (0, 0, W, 0)) if past_BWC is None else torch.cat((past_BWC, x_BTC), 1)
    if pads_B is not None:
        seen_BSC = kernels.close_gap(seen_BSC, pads_B, W)
    if past_BWC is not None and write:
        past_BWC.copy_(seen_BSC[:, T:])
    return F.silu(kernels.causal_conv(seen_BSC, weight_CK, bias_C))
