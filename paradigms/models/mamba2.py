"""Mamba-2 layer (arXiv 2405.21060): projection, short causal convolution, state-space duality, gated norm, projection.

Dimension letters: B batch, T tokens, R = B T rows, E model width, I inner width, C convolution channels (x, B and C),
H heads, P head width, G groups, N state, W d_conv - 1.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paradigms.models import kernels
from paradigms.models.config import ModelConfig
from paradigms.models.layers import Span, matrix, rms_norm
from paradigms.models.state import SSMState


class Mamba2(nn.Module):
    """One Mamba-2 mixer; parameters as in the paper's reference implementation, and so the initial dt, A and D."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        heads = config.num_ssm_heads
        self.in_proj = matrix(config.d_model, config.d_inner + config.conv_dim + heads)
        self.conv_weight = nn.Parameter(torch.empty(config.conv_dim, config.d_conv))
        self.conv_bias = nn.Parameter(torch.zeros(config.conv_dim))
        bound = config.d_conv**-0.5
        nn.init.uniform_(self.conv_weight, -bound, bound)
        # dt starts log-uniform in [0.001, 0.1]; the bias is the inverse of softplus there.
        dt_H = torch.exp(torch.rand(heads) * (math.log(0.1) - math.log(0.001)) + math.log(0.001))
        self.dt_bias = nn.Parameter(dt_H + torch.log(-torch.expm1(-dt_H)))
        self.A_log = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())
        self.D = nn.Parameter(torch.ones(heads))
        self.inner_norm = nn.Parameter(torch.ones(config.d_inner))
        self.out = matrix(config.d_inner, config.d_model)

    def forward(self, x_RE: Tensor, span: Span, state: SSMState | None, write: bool) -> Tensor:
        c = self.config
        B = span.batch_size
        z_RI, xBC_RC, dt_RH = (x_RE @ self.in_proj).split((c.d_inner, c.conv_dim, c.num_ssm_heads), -1)
        wide = torch.promote_types(x_RE.dtype, torch.float32)
        dt_RH = F.softplus(dt_RH.to(wide) + self.dt_bias.to(wide))
        A_H = -self.A_log.to(wide).exp()
        if x_RE.shape[0] == B and state is not None and write and span.pads_B is None:
            y_RI = self._step(xBC_RC, dt_RH, A_H, state)
        else:
            y_BTI = self._chunked(
                xBC_RC.view(B, -1, c.conv_dim), dt_RH.view(B, -1, c.num_ssm_heads), A_H, span, state, write
            )
            y_RI = y_BTI.reshape(-1, c.d_inner)
        return kernels.product(rms_norm(y_RI * F.silu(z_RI), self.inner_norm), self.out)

    def _step(self, xBC_BC: Tensor, dt_BH: Tensor, A_H: Tensor, state: SSMState) -> Tensor:
        """One token through convolution window and recurrence, the state updated in place."""
        c = self.config
        window_BCW = torch.cat((state.conv_BCW, xBC_BC[..., None]), -1)
        state.conv_BCW.copy_(window_BCW[..., 1:])
        xBC_BC = F.silu((window_BCW * self.conv_weight).sum(-1) + self.conv_bias)
        x_BI, B_BN, C_BN = xBC_BC.split((c.d_inner, c.num_groups * c.d_state, c.num_groups * c.d_state), -1)
        x_BHP = x_BI.view(-1, c.num_ssm_heads, c.ssm_head_dim)
        groups = (-1, c.num_groups, c.d_state)
        y_BHP = kernels.ssd_step(x_BHP, dt_BH, A_H, B_BN.view(groups), C_BN.view(groups), state.ssm_BHPN)
        return (y_BHP + self.D[:, None] * x_BHP).reshape(-1, c.d_inner).to(xBC_BC.dtype)

    def _chunked(
        self, xBC_BTC: Tensor, dt_BTH: Tensor, A_H: Tensor, span: Span, state: SSMState | None, write: bool
    ) -> Tensor:
        """Any number of tokens, from any state, rows padded on the left or not."""
        c = self.config
        B, T, _ = xBC_BTC.shape
        W = c.d_conv - 1
        past_BWC = xBC_BTC.new_zeros(B, W, c.conv_dim) if state is None else state.conv_BCW.transpose(1, 2)
        seen_BSC = torch.cat((past_BWC, xBC_BTC), 1)  # S = W + T places
        if span.pads_B is not None:
            seen_BSC = _close_gap(seen_BSC, span.pads_B, W)
            token_BT1 = (torch.arange(T, device=dt_BTH.device) >= span.pads_B[:, None])[..., None]
            dt_BTH = dt_BTH * token_BT1  # dt = 0 leaves the state as it is
        xBC_BTC = F.silu(kernels.causal_conv(seen_BSC, self.conv_weight, self.conv_bias))
        x_BTI, B_BTN, C_BTN = xBC_BTC.split((c.d_inner, c.num_groups * c.d_state, c.num_groups * c.d_state), -1)
        x_BTHP = x_BTI.reshape(B, T, c.num_ssm_heads, c.ssm_head_dim).to(dt_BTH.dtype)
        groups = (B, T, c.num_groups, c.d_state)
        y_BTHP, last_BHPN = kernels.ssd_chunked(
            x_BTHP,
            dt_BTH,
            A_H,
            B_BTN.reshape(groups).to(dt_BTH.dtype),
            C_BTN.reshape(groups).to(dt_BTH.dtype),
            None if state is None else state.ssm_BHPN,
            c.chunk_len,
        )
        if state is not None and write:
            state.conv_BCW.copy_(seen_BSC[:, T:].transpose(1, 2))
            state.ssm_BHPN.copy_(last_BHPN)
        return (y_BTHP + self.D[:, None] * x_BTHP).reshape(B, T, c.d_inner).to(xBC_BTC.dtype)


def _close_gap(seen_BSC: Tensor, pads_B: Tensor, W: int) -> Tensor:
    """Move each row's W past places over its padding, next to its first token, so that the convolution sees no gap."""
    place_S = torch.arange(seen_BSC.shape[1], device=seen_BSC.device)
    source_BS = torch.where(place_S >= pads_B[:, None] + W, place_S, (place_S - pads_B[:, None]).clamp(min=0))
    return seen_BSC.gather(1, source_BS[..., None].expand_as(seen_BSC))
