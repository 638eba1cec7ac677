"""Mamba-2 layer (arXiv 2405.21060): projection, short causal convolution, state-space duality, gated norm, projection.

Dimension letters: B batch, T tokens, R = B T rows, E model width, I inner width, C convolution channels (x, B and C),
H heads, P head width, G groups, N state, K width of the convolution, W = K - 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paradigms.models import kernels, operations
from paradigms.models.layer_config import LayerConfig
from paradigms.models.layer_state import ReplayedState, StateSpec
from paradigms.models.layers import Derived, Span, matrix, positive, rms_norm
from paradigms.models.mamba2_row import negative_rates, one_token_step, row_constants
from paradigms.models.one_token import Step
from paradigms.models.recurrence import convolved, initial_dt_bias, without_padding

if TYPE_CHECKING:
    from paradigms.models.config import ModelConfig
    from paradigms.models.forward_pass import ForwardPass

NORMS = ("after_gate", "before_gate")


@dataclass(frozen=True, kw_only=True)
class Mamba2Config(LayerConfig):
    """Mamba-2 layer, in its paper's words.

    Attributes:
        expand: inner width over model width.
        d_inner: I itself, whatever `expand` says (Nemotron-H, Falcon-H1); None is expand x d_model.
        head_dim, d_state, num_groups: P, N and G.
        d_conv: K.
        conv_bias, proj_bias: add a bias to the convolution, to both projections.
        norm: where the inner RMS norm stands. after_gate: norm(y x silu(z)), the paper's and the released models';
            before_gate: norm(y) x silu(z); None: no norm (Falcon-H1). It is taken over each of the groups by itself.
        dt_min, dt_max: bounds of dt after its softplus; None where there is none.
        chunk_len: tokens that the chunked form computes by one matrix product.
    """

    expand: int = 2
    d_inner: int | None = None
    head_dim: int = 64
    d_state: int = 64
    num_groups: int = 1
    d_conv: int = 4
    conv_bias: bool = True
    proj_bias: bool = False
    norm: str | None = "after_gate"
    dt_min: float | None = None
    dt_max: float | None = None
    chunk_len: int = 32

    key: ClassVar[str] = "mamba2"
    recurrent: ClassVar[bool] = True
    not_weights: ClassVar[tuple[str, ...]] = ("chunk_len",)
    free: ClassVar[tuple[str, int]] = ("d_state", 4)

    def inner(self, d_model: int) -> int:
        """I."""
        return self.d_inner or self.expand * d_model

    def num_heads(self, d_model: int) -> int:
        return self.inner(d_model) // self.head_dim

    def conv_dim(self, d_model: int) -> int:
        """Channels that pass the short convolution: x, B and C."""
        return self.inner(d_model) + 2 * self.num_groups * self.d_state

    def check(self, model: ModelConfig) -> None:
        key = f"model.{self.key}"
        positive(key, expand=self.expand, d_inner=self.d_inner, head_dim=self.head_dim)
        positive(key, d_state=self.d_state, num_groups=self.num_groups, d_conv=self.d_conv, chunk_len=self.chunk_len)
        inner, heads = self.inner(model.d_model), self.num_heads(model.d_model)
        if inner % self.head_dim:
            raise ValueError(f"{key}.head_dim={self.head_dim} must divide the inner width of {inner}")
        if heads % self.num_groups:
            raise ValueError(f"{key}.num_groups={self.num_groups} must divide the {heads} heads")
        if self.norm is not None and self.norm not in NORMS:
            raise ValueError(f"{key}.norm={self.norm!r} is unknown; it is null or one of {', '.join(NORMS)}")
        low, high = self.dt_min or 0.0, math.inf if self.dt_max is None else self.dt_max
        if not 0 <= low < high:
            raise ValueError(f"{key}.dt_min={self.dt_min} must lie between 0 and dt_max={self.dt_max}")

    def num_parameters(self, d_model: int) -> int:
        inner, conv, heads = self.inner(d_model), self.conv_dim(d_model), self.num_heads(d_model)
        projected = inner + conv + heads  # z, xBC, dt
        projections = d_model * (projected + inner) + self.proj_bias * (projected + d_model)
        return projections + conv * (self.d_conv + self.conv_bias) + 3 * heads + (self.norm is not None) * inner

    def matmul_flops(self, run: ForwardPass) -> int:
        """Of the projections, and of the chunked form's four products, or of reading one token's state out."""
        inner, heads = self.inner(run.d_model), self.num_heads(run.d_model)
        projections = 2 * run.positions * run.d_model * (2 * inner + self.conv_dim(run.d_model) + heads)
        if run.is_step:
            return projections + 2 * run.rows * inner * self.d_state
        return projections + run.rows * operations.chunked_products(**self._products(run))

    def hidden_flops(self, run: ForwardPass) -> int:
        return 0 if run.is_step else run.rows * operations.chunked_hidden(**self._products(run))

    def _products(self, run: ForwardPass) -> dict[str, Any]:
        inner, shared = self.inner(run.d_model), self.num_groups * self.d_state
        sizes = {"shared": shared, "inner": inner, "states": self.d_state}
        return {"tokens": run.tokens, "chunk_len": self.chunk_len, "has_state": run.has_state, **sizes}

    def other_flops(self, run: ForwardPass) -> int:
        """dt, convolution, recurrence in chunks or one step of it, D x, gate and norm; biases."""
        inner, heads, states = self.inner(run.d_model), self.num_heads(run.d_model), self.d_state
        token = 2 * heads + self.conv_dim(run.d_model) * operations.convolution(self.d_conv, bias=self.conv_bias)
        token += heads + inner + 2 * inner  # dt A, dt x, D x
        token += (operations.SILU + 1) * inner
        if self.norm is not None:
            token += self.num_groups * operations.rms_norm(inner // self.num_groups)
        token += self.proj_bias * (inner + self.conv_dim(run.d_model) + heads + run.d_model)
        if run.is_step:
            scan = heads + 3 * inner * states
        else:
            sizes = {"heads": heads, "inner": inner, "states": states, "has_state": run.has_state}
            scan = operations.chunked_scan(tokens=run.tokens, chunk_len=self.chunk_len, **sizes)
        return run.positions * token + run.rows * scan

    def activation_bytes(self, run: ForwardPass) -> int:
        """While the chunks are computed, or the convolution; a step's is over d_conv tokens."""
        inner, conv, heads = self.inner(run.d_model), self.conv_dim(run.d_model), self.num_heads(run.d_model)
        projected, wide = inner + conv + heads, max(run.itemsize, 4)
        if run.is_step:
            return run.rows * run.itemsize * max(projected + (2 * self.d_conv + 2) * conv, projected + 4 * inner)
        scan = operations.chunked_numbers(**self._products(run), heads=heads)
        scanned = run.positions * (projected + conv) * run.itemsize + run.rows * scan * wide
        convolved = run.positions * (projected + 3 * conv) + run.rows * (self.d_conv - 1) * conv
        return max(scanned, convolved * run.itemsize)

    def state_bytes(self, d_model: int, *, length: int, itemsize: int) -> int:
        """The last d_conv - 1 inputs of the convolution and heads x head_dim x d_state numbers whatever the length, the
        latter in at least float32.
        """
        conv = self.conv_dim(d_model) * (self.d_conv - 1) * itemsize
        return conv + self.inner(d_model) * self.d_state * max(itemsize, 4)

    def build(self, model: ModelConfig, shared: nn.ModuleDict) -> Mamba2:
        return Mamba2(self, model)


class Mamba2State(ReplayedState):
    """Convolution window and recurrent state of one Mamba-2 layer, constant in length."""

    names = ("conv_BWC", "ssm_BHPN")

    def __init__(self, mixer: Mamba2, conv_BWC: Tensor, ssm_BHPN: Tensor) -> None:
        super().__init__()
        self.mixer, self.conv_BWC, self.ssm_BHPN = mixer, conv_BWC, ssm_BHPN

    def used_bytes(self, lengths: Sequence[int]) -> int:
        return self.conv_BWC.nbytes + self.ssm_BHPN.nbytes + self.marked_bytes()

    def feed(self, inputs: tuple[Tensor, ...], pads_B: Tensor | None) -> None:
        xBC_BTC, dt_BTH = inputs
        self.mixer.scan(xBC_BTC, dt_BTH, self, pads_B, write=True)


class Mamba2(nn.Module):
    """One Mamba-2 mixer; parameters as in the paper's reference implementation, and so the initial dt, A and D."""

    in_bias: Tensor | None
    out_bias: Tensor | None
    conv_bias: Tensor | None

    def __init__(self, config: Mamba2Config, model: ModelConfig) -> None:
        super().__init__()
        d_model = model.d_model
        self.config, self.norm_eps = config, model.norm_eps
        self.d_inner, self.conv_dim = config.inner(d_model), config.conv_dim(d_model)
        self.num_heads = heads = config.num_heads(d_model)
        projected = self.d_inner + self.conv_dim + heads
        self.in_proj = matrix(d_model, projected)
        selected = (self.conv_dim - self.d_inner) // 2
        self.fused = {"in_proj": (self.d_inner, self.d_inner, selected, selected, heads)}  # z, x, B, C, dt
        self.in_bias = nn.Parameter(torch.zeros(projected)) if config.proj_bias else None
        self.conv_weight = nn.Parameter(torch.empty(self.conv_dim, config.d_conv))
        self.conv_bias = nn.Parameter(torch.zeros(self.conv_dim)) if config.conv_bias else None
        bound = config.d_conv**-0.5
        nn.init.uniform_(self.conv_weight, -bound, bound)
        self.dt_bias = initial_dt_bias(heads)
        self.A_log = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())
        self.D = nn.Parameter(torch.ones(heads))
        if config.norm is not None:
            self.inner_norm = nn.Parameter(torch.ones(self.d_inner))
        self.out = matrix(self.d_inner, d_model)
        self.out_bias = nn.Parameter(torch.zeros(d_model)) if config.proj_bias else None
        self._A = Derived(negative_rates)
        self._conv = Derived(kernels.conv_constants)
        self.row_constants = Derived(partial(row_constants, self.d_inner))

    def new_state(self, batch_size: int, capacity: int, spec: StateSpec) -> Mamba2State:
        c = self.config
        wide = torch.promote_types(spec.dtype, torch.float32)
        conv = torch.zeros(batch_size, c.d_conv - 1, self.conv_dim, device=spec.device, dtype=spec.dtype)
        ssm = torch.zeros(batch_size, self.num_heads, c.head_dim, c.d_state, device=spec.device, dtype=wide)
        return Mamba2State(self, conv, ssm)

    def one_token(self, state: Mamba2State) -> Step:
        """See `one_token`."""
        return one_token_step(self, state)

    def forward(self, x_RE: Tensor, span: Span, state: Mamba2State | None) -> Tensor:
        B, c = span.batch_size, self.config
        state = None if span.needs_no_state else state
        projected = x_RE @ self.in_proj if self.in_bias is None else torch.addmm(self.in_bias, x_RE, self.in_proj)
        z_RI, xBC_RC, dt_RH = projected.split((self.d_inner, self.conv_dim, self.num_heads), -1)
        wide = torch.promote_types(x_RE.dtype, torch.float32)
        dt_RH = F.softplus(dt_RH.to(wide) + self.dt_bias.to(wide))
        if c.dt_min is not None or c.dt_max is not None:
            dt_RH = dt_RH.clamp(c.dt_min, c.dt_max)
        xBC_BTC, dt_BTH = xBC_RC.view(B, -1, self.conv_dim), dt_RH.view(B, -1, self.num_heads)
        if state is not None and span.write:
            state.log((xBC_BTC, dt_BTH), span.num_tokens)
        y_RI = self.scan(xBC_BTC, dt_BTH, state, span.pads_B, write=span.write)
        out_RE = kernels.product(self.gated(y_RI, z_RI), self.out)
        return out_RE if self.out_bias is None else out_RE + self.out_bias

    def gated(self, y_RI: Tensor, z_RI: Tensor) -> Tensor:
        """The gate and the norm, whichever stands first."""
        if self.config.norm == "before_gate":
            return self._normed(y_RI) * F.silu(z_RI)
        y_RI = F.silu(z_RI) * y_RI
        return y_RI if self.config.norm is None else self._normed(y_RI)

    def _normed(self, y_RI: Tensor) -> Tensor:
        G = self.config.num_groups
        if G == 1:
            return rms_norm(y_RI, self.inner_norm, self.norm_eps)
        width = self.d_inner // G
        return F.rms_norm(y_RI.view(-1, G, width), (width,), None, self.norm_eps).view_as(y_RI) * self.inner_norm

    def scan(
        self, xBC_BTC: Tensor, dt_BTH: Tensor, state: Mamba2State | None, pads_B: Tensor | None, *, write: bool
    ) -> Tensor:
        """Convolution and recurrence over any number of tokens, from any state, rows padded on the left or not."""
        if xBC_BTC.shape[1] == 1 and state is not None and write and pads_B is None:
            return self._step(xBC_BTC, dt_BTH, state)
        return self._chunked(xBC_BTC, dt_BTH, state, pads_B, write)

    def _step(self, xBC_B1C: Tensor, dt_B1H: Tensor, state: Mamba2State) -> Tensor:
        """One token through convolution window and recurrence, the state updated in place."""
        c = self.config
        xBC_B1C = kernels.conv_step(state.conv_BWC, xBC_B1C, *self._conv(self.conv_weight, self.conv_bias))
        x_BI, B_BN, C_BN = xBC_B1C[:, 0].split((self.d_inner, c.num_groups * c.d_state, c.num_groups * c.d_state), -1)
        x_BHP, groups = x_BI.view(-1, self.num_heads, c.head_dim), (-1, c.num_groups, c.d_state)
        A_H, B_BGN, C_BGN = self._A(self.A_log), B_BN.view(groups), C_BN.view(groups)
        y_BHP = kernels.ssd_step(x_BHP, dt_B1H[:, 0], A_H, B_BGN, C_BGN, state.ssm_BHPN)
        return torch.addcmul(y_BHP, self.D[:, None], x_BHP).view(-1, self.d_inner).to(xBC_B1C.dtype)

    def _chunked(
        self, xBC_BTC: Tensor, dt_BTH: Tensor, state: Mamba2State | None, pads_B: Tensor | None, write: bool
    ) -> Tensor:
        c = self.config
        B, T, _ = xBC_BTC.shape
        past_BWC, dt_BTH = None if state is None else state.conv_BWC, without_padding(dt_BTH, pads_B)
        xBC_BTC = convolved(xBC_BTC, past_BWC, self.conv_weight, self.conv_bias, pads_B, write=write)
        x_BTI, B_BTN, C_BTN = xBC_BTC.split((self.d_inner, c.num_groups * c.d_state, c.num_groups * c.d_state), -1)
        x_BTHP = x_BTI.reshape(B, T, self.num_heads, c.head_dim).to(dt_BTH.dtype)
        groups = (B, T, c.num_groups, c.d_state)
        y_BTHP, last_BHPN = kernels.ssd_chunked(
            x_BTHP,
            dt_BTH,
            self._A(self.A_log),
            B_BTN.reshape(groups).to(dt_BTH.dtype),
            C_BTN.reshape(groups).to(dt_BTH.dtype),
            None if state is None else state.ssm_BHPN,
            c.chunk_len,
        )
        if state is not None and write and last_BHPN is not None:
            state.ssm_BHPN.copy_(last_BHPN)
        return (y_BTHP + self.D[:, None] * x_BTHP).reshape(B * T, self.d_inner).to(xBC_BTC.dtype)
