"""Mamba-2 layer (arXiv 2405.21060): projection, short causal convolution, state-space duality, gated norm, projection.

Dimension letters: B batch, T tokens, R = B T rows, E model width, I inner width, C convolution channels (x, B and C),
H heads, P head width, G groups, N state, W d_conv - 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paradigms.models import kernels
from paradigms.models.layers import Span, matrix, positive, rms_norm
from paradigms.models.state import ReplayedState, StateSpec

if TYPE_CHECKING:
    from paradigms.models.config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class Mamba2Config:
    """Mamba-2 layer, in its paper's words.

    Attributes:
        expand: inner width over model width.
        head_dim, d_state, num_groups: P, N and G.
        d_conv: width of the convolution.
        chunk_len: tokens that the chunked form computes by one matrix product.
    """

    expand: int = 2
    head_dim: int = 64
    d_state: int = 64
    num_groups: int = 1
    d_conv: int = 4
    chunk_len: int = 32

    key: ClassVar[str] = "mamba2"
    recurrent: ClassVar[bool] = True
    free: ClassVar[tuple[str, int]] = ("d_state", 4)

    def d_inner(self, d_model: int) -> int:
        return self.expand * d_model

    def num_heads(self, d_model: int) -> int:
        return self.d_inner(d_model) // self.head_dim

    def conv_dim(self, d_model: int) -> int:
        """Channels that pass the short convolution: x, B and C."""
        return self.d_inner(d_model) + 2 * self.num_groups * self.d_state

    def check(self, model: ModelConfig) -> None:
        key = f"model.{self.key}"
        positive(key, expand=self.expand, head_dim=self.head_dim, d_state=self.d_state, num_groups=self.num_groups)
        positive(key, d_conv=self.d_conv, chunk_len=self.chunk_len)
        inner = self.d_inner(model.d_model)
        if inner % self.head_dim:
            raise ValueError(f"{key}.head_dim={self.head_dim} must divide expand x model.d_model = {inner}")
        if self.num_heads(model.d_model) % self.num_groups:
            raise ValueError(
                f"{key}.num_groups={self.num_groups} must divide the {self.num_heads(model.d_model)} heads"
            )

    def num_parameters(self, d_model: int) -> int:
        inner, conv, heads = self.d_inner(d_model), self.conv_dim(d_model), self.num_heads(d_model)
        in_proj = d_model * (inner + conv + heads)  # z, xBC, dt
        return in_proj + conv * (self.d_conv + 1) + 3 * heads + inner + inner * d_model

    def state_bytes(self, d_model: int, *, length: int, itemsize: int) -> int:
        """The last d_conv - 1 inputs of the convolution and heads x head_dim x d_state numbers whatever the length, the
        latter in at least float32.
        """
        conv = self.conv_dim(d_model) * (self.d_conv - 1) * itemsize
        return conv + self.d_inner(d_model) * self.d_state * max(itemsize, 4)

    def build(self, model: ModelConfig, shared: nn.ModuleDict) -> Mamba2:
        return Mamba2(self, model)


class Mamba2State(ReplayedState):
    """Convolution window and recurrent state of one Mamba-2 layer, constant in length."""

    names = ("conv_BCW", "ssm_BHPN")

    def __init__(self, mixer: Mamba2, conv_BCW: Tensor, ssm_BHPN: Tensor) -> None:
        super().__init__()
        self.mixer, self.conv_BCW, self.ssm_BHPN = mixer, conv_BCW, ssm_BHPN

    def used_bytes(self, lengths: Sequence[int]) -> int:
        return self.conv_BCW.nbytes + self.ssm_BHPN.nbytes + self.marked_bytes()

    def feed(self, inputs: tuple[Tensor, ...], pads_B: Tensor | None) -> None:
        xBC_BTC, dt_BTH = inputs
        self.mixer.scan(xBC_BTC, dt_BTH, self, pads_B, write=True)


class Mamba2(nn.Module):
    """One Mamba-2 mixer; parameters as in the paper's reference implementation, and so the initial dt, A and D."""

    def __init__(self, config: Mamba2Config, model: ModelConfig) -> None:
        super().__init__()
        d_model = model.d_model
        self.config, self.norm_eps = config, model.norm_eps
        self.d_inner, self.conv_dim = config.d_inner(d_model), config.conv_dim(d_model)
        self.num_heads = heads = config.num_heads(d_model)
        self.in_proj = matrix(d_model, self.d_inner + self.conv_dim + heads)
        self.conv_weight = nn.Parameter(torch.empty(self.conv_dim, config.d_conv))
        self.conv_bias = nn.Parameter(torch.zeros(self.conv_dim))
        bound = config.d_conv**-0.5
        nn.init.uniform_(self.conv_weight, -bound, bound)
        # dt starts log-uniform in [0.001, 0.1]; the bias is the inverse of softplus there.
        dt_H = torch.exp(torch.rand(heads) * (math.log(0.1) - math.log(0.001)) + math.log(0.001))
        self.dt_bias = nn.Parameter(dt_H + torch.log(-torch.expm1(-dt_H)))
        self.A_log = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())
        self.D = nn.Parameter(torch.ones(heads))
        self.inner_norm = nn.Parameter(torch.ones(self.d_inner))
        self.out = matrix(self.d_inner, d_model)

    def new_state(self, batch_size: int, capacity: int, spec: StateSpec) -> Mamba2State:
        c = self.config
        wide = torch.promote_types(spec.dtype, torch.float32)
        conv = torch.zeros(batch_size, self.conv_dim, c.d_conv - 1, device=spec.device, dtype=spec.dtype)
        ssm = torch.zeros(batch_size, self.num_heads, c.head_dim, c.d_state, device=spec.device, dtype=wide)
        return Mamba2State(self, conv, ssm)

    def forward(self, x_RE: Tensor, span: Span, state: Mamba2State | None) -> Tensor:
        B = span.batch_size
        z_RI, xBC_RC, dt_RH = (x_RE @ self.in_proj).split((self.d_inner, self.conv_dim, self.num_heads), -1)
        wide = torch.promote_types(x_RE.dtype, torch.float32)
        dt_RH = F.softplus(dt_RH.to(wide) + self.dt_bias.to(wide))
        xBC_BTC, dt_BTH = xBC_RC.view(B, -1, self.conv_dim), dt_RH.view(B, -1, self.num_heads)
        if state is not None and span.write:
            state.log((xBC_BTC, dt_BTH), span.num_tokens)
        y_BTI = self.scan(xBC_BTC, dt_BTH, state, span.pads_B, write=span.write)
        y_RI = y_BTI.reshape(-1, self.d_inner)
        return kernels.product(rms_norm(y_RI * F.silu(z_RI), self.inner_norm, self.norm_eps), self.out)

    def scan(
        self, xBC_BTC: Tensor, dt_BTH: Tensor, state: Mamba2State | None, pads_B: Tensor | None, *, write: bool
    ) -> Tensor:
        """Convolution and recurrence over any number of tokens, from any state, rows padded on the left or not."""
        A_H = -self.A_log.to(dt_BTH.dtype).exp()
        if xBC_BTC.shape[1] == 1 and state is not None and write and pads_B is None:
            return self._step(xBC_BTC[:, 0], dt_BTH[:, 0], A_H, state)[:, None]
        return self._chunked(xBC_BTC, dt_BTH, A_H, state, pads_B, write)

    def _step(self, xBC_BC: Tensor, dt_BH: Tensor, A_H: Tensor, state: Mamba2State) -> Tensor:
        """One token through convolution window and recurrence, the state updated in place."""
        c = self.config
        window_BCW = torch.cat((state.conv_BCW, xBC_BC[..., None]), -1)
        state.conv_BCW.copy_(window_BCW[..., 1:])
        xBC_BC = F.silu((window_BCW * self.conv_weight).sum(-1) + self.conv_bias)
        x_BI, B_BN, C_BN = xBC_BC.split((self.d_inner, c.num_groups * c.d_state, c.num_groups * c.d_state), -1)
        x_BHP = x_BI.view(-1, self.num_heads, c.head_dim)
        groups = (-1, c.num_groups, c.d_state)
        y_BHP = kernels.ssd_step(x_BHP, dt_BH, A_H, B_BN.view(groups), C_BN.view(groups), state.ssm_BHPN)
        return (y_BHP + self.D[:, None] * x_BHP).reshape(-1, self.d_inner).to(xBC_BC.dtype)

    def _chunked(
        self,
        xBC_BTC: Tensor,
        dt_BTH: Tensor,
        A_H: Tensor,
        state: Mamba2State | None,
        pads_B: Tensor | None,
        write: bool,
    ) -> Tensor:
        c = self.config
        B, T, _ = xBC_BTC.shape
        W = c.d_conv - 1
        past_BWC = xBC_BTC.new_zeros(B, W, self.conv_dim) if state is None else state.conv_BCW.transpose(1, 2)
        seen_BSC = torch.cat((past_BWC, xBC_BTC), 1)  # S = W + T places
        if pads_B is not None:
            seen_BSC = kernels.close_gap(seen_BSC, pads_B, W)
            token_BT1 = (torch.arange(T, device=dt_BTH.device) >= pads_B[:, None])[..., None]
            dt_BTH = dt_BTH * token_BT1  # dt = 0 leaves the state as it is
        xBC_BTC = F.silu(kernels.causal_conv(seen_BSC, self.conv_weight, self.conv_bias))
        x_BTI, B_BTN, C_BTN = xBC_BTC.split((self.d_inner, c.num_groups * c.d_state, c.num_groups * c.d_state), -1)
        x_BTHP = x_BTI.reshape(B, T, self.num_heads, c.head_dim).to(dt_BTH.dtype)
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
        return (y_BTHP + self.D[:, None] * x_BTHP).reshape(B, T, self.d_inner).to(xBC_BTC.dtype)
