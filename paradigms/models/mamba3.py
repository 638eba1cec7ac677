"""Mamba-3 layer (arXiv 2603.15569): Mamba-2 without its convolution, with a better discretisation and a complex state.

    h_t = exp(dt_t (A_t - i theta_t)) h_{t-1}
          + (1 - lambda_t) dt_t exp(dt_t (A_t - i theta_t)) B_{t-1} x_{t-1} + lambda_t dt_t B_t x_t
    y_t = Re(conj(C_t) h_t) + D x_t                       (exponential-trapezoidal rule, complex state)

A, dt, lambda and theta all depend on the token. Turned by the sum of its angles so far, a complex state is a real one
whose B and C are turned instead: rotary positions that the tokens choose. And as the decay from x_{t-1} on is the same
in both terms, x_s has one weight in all that comes after it, lambda_s dt_s + (1 - lambda_{s+1}) dt_{s+1}, and only
lambda_s dt_s in y_s itself: one pass of state-space duality and a correction on the diagonal.

Included, as in the authors' mamba-ssm 2.3.2: the norms of B and C with a bias a head after them, the single-input
single-output form, angles of tanh(.) pi dt, A of -softplus, the gate. Not included: the multi-input multi-output form
and the optional norm before the last projection. The two numbers of a turned pair lie half a width apart, not side by
side.

Dimension letters: B batch, T tokens, R = B T rows, E model width, I inner width, H heads, P head width, G groups, N
state, S angles, X projected columns without the gate.
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

from paradigms.models import kernels, operations, ssd
from paradigms.models.layer_config import LayerConfig
from paradigms.models.layer_state import ReplayedState, StateSpec
from paradigms.models.layers import Derived, Span, matrix, positive, rms_norm
from paradigms.models.mamba3_row import SLOWEST, one_token_step, row_constants
from paradigms.models.one_token import Step
from paradigms.models.recurrence import initial_dt_bias, without_padding

if TYPE_CHECKING:
    from paradigms.models.config import ModelConfig
    from paradigms.models.forward_pass import ForwardPass


@dataclass(frozen=True, kw_only=True)
class Mamba3Config(LayerConfig):
    """Mamba-3 layer.

    Attributes:
        expand: inner width over model width.
        head_dim, d_state, num_groups: P, N and G.
        rope_fraction: part of the state that is complex: 0.5 or 1.
        chunk_len: tokens that the chunked form computes by one matrix product.
    """

    expand: int = 2
    head_dim: int = 64
    d_state: int = 64
    num_groups: int = 1
    rope_fraction: float = 0.5
    chunk_len: int = 32

    key: ClassVar[str] = "mamba3"
    recurrent: ClassVar[bool] = True
    not_weights: ClassVar[tuple[str, ...]] = ("chunk_len",)
    free: ClassVar[tuple[str, int]] = ("d_state", 4)

    def inner(self, d_model: int) -> int:
        """I."""
        return self.expand * d_model

    def num_heads(self, d_model: int) -> int:
        return self.inner(d_model) // self.head_dim

    @property
    def num_angles(self) -> int:
        """S: pairs of the state that are turned."""
        return int(self.d_state * self.rope_fraction) // 2

    def check(self, model: ModelConfig) -> None:
        key = f"model.{self.key}"
        positive(key, expand=self.expand, head_dim=self.head_dim, num_groups=self.num_groups, chunk_len=self.chunk_len)
        inner, heads = self.inner(model.d_model), self.num_heads(model.d_model)
        if inner % self.head_dim:
            raise ValueError(f"{key}.head_dim={self.head_dim} must divide expand x model.d_model = {inner}")
        if heads % self.num_groups:
            raise ValueError(f"{key}.num_groups={self.num_groups} must divide the {heads} heads")
        if self.rope_fraction not in (0.5, 1.0):
            raise ValueError(f"{key}.rope_fraction={self.rope_fraction} is neither 0.5 nor 1")
        if self.num_angles < 1:
            raise ValueError(
                f"{key}.d_state={self.d_state} x rope_fraction={self.rope_fraction} holds no pair to turn; it must be "
                f"at least {2 / self.rope_fraction:.0f}"
            )

    def columns(self, d_model: int) -> tuple[int, ...]:
        """Widths of what the first projection gives behind the gate: x, B, C, dt, A, lambda, theta."""
        heads, shared = self.num_heads(d_model), self.num_groups * self.d_state
        return self.inner(d_model), shared, shared, heads, heads, heads, self.num_angles

    def num_parameters(self, d_model: int) -> int:
        inner, heads = self.inner(d_model), self.num_heads(d_model)
        projections = d_model * (2 * inner + sum(self.columns(d_model)))
        return projections + 2 * self.d_state * (1 + heads) + 2 * heads  # norms and biases of B and C; dt's bias and D

    def matmul_flops(self, run: ForwardPass) -> int:
        """Of the projections, and of the chunked form's four products, or of reading one token's state out."""
        inner = self.inner(run.d_model)
        projections = 2 * run.positions * run.d_model * (2 * inner + sum(self.columns(run.d_model)))
        if run.is_step:
            return projections + 2 * run.rows * inner * self.d_state
        return projections + run.rows * operations.chunked_products(**self._products(run))

    def hidden_flops(self, run: ForwardPass) -> int:
        return 0 if run.is_step else run.rows * operations.chunked_hidden(**self._products(run))

    def _products(self, run: ForwardPass) -> dict[str, Any]:
        inner, shared = self.inner(run.d_model), self.num_heads(run.d_model) * self.d_state
        sizes = {"shared": shared, "inner": inner, "states": self.d_state}
        return {"tokens": run.tokens, "chunk_len": self.chunk_len, "has_state": run.has_state, **sizes}

    def other_flops(self, run: ForwardPass) -> int:
        """dt, decay and the weights of two tokens; angles; norms, biases and turns of B and C; the recurrence in chunks
        or one step of it, D x and the gate.
        """
        inner, heads, states, angles = (
            self.inner(run.d_model),
            self.num_heads(run.d_model),
            self.d_state,
            self.num_angles,
        )
        token = heads * (2 + 2 + 2 + 1) + 2 * angles + heads * angles * (2 + 2)
        token += 2 * (self.num_groups * operations.rms_norm(states) + heads * states) + 2 * heads * angles * 6
        token += inner * (2 + operations.SILU + 1)
        whole = heads * angles if run.shape.written else 0  # angles kept below a turn
        first = inner + 2 * inner * states if run.has_state else 0  # the rest of the last token
        if run.is_step:
            return run.rows * (token + whole + first + heads + inner + 3 * inner * states)
        token += heads + inner + heads * 2 * states + 2 * inner  # weight of x; what a token does not see of itself
        sizes = {"heads": heads, "inner": inner, "states": states, "has_state": run.has_state}
        scan = operations.chunked_scan(tokens=run.tokens, chunk_len=self.chunk_len, **sizes)
        return run.positions * token + run.rows * (whole + first + scan)

    def activation_bytes(self, run: ForwardPass) -> int:
        """While the chunks are computed, beside B and C of every head; in a step, while these are turned."""
        inner, heads = self.inner(run.d_model), self.num_heads(run.d_model)
        projected, wide = inner + sum(self.columns(run.d_model)), max(run.itemsize, 4)
        turned = heads * (2 * self.d_state + 3 * self.num_angles + 3)
        if run.is_step:
            return run.rows * (projected * run.itemsize + (turned + 3 * inner + heads * self.d_state) * wide)
        scan = operations.chunked_numbers(**self._products(run), heads=heads)
        scan += run.has_state * inner * self.d_state  # with the rest of the last token in it
        return run.positions * (projected * run.itemsize + turned * wide) + run.rows * scan * wide

    def state_bytes(self, d_model: int, *, length: int, itemsize: int) -> int:
        """heads x head_dim x d_state numbers and heads x angles, in at least float32; x and the turned B of the last
        token.
        """
        inner, heads = self.inner(d_model), self.num_heads(d_model)
        last = (inner + heads * self.d_state) * itemsize
        return last + (inner * self.d_state + heads * self.num_angles) * max(itemsize, 4)

    def build(self, model: ModelConfig, shared: nn.ModuleDict) -> Mamba3:
        return Mamba3(self, model)


class Mamba3State(ReplayedState):
    """Recurrent state, angles so far, and the last token's x and B: constant in length."""

    names = ("ssm_BHPN", "angle_BHS", "x_BHP", "key_BHN")

    def __init__(self, mixer: Mamba3, ssm_BHPN: Tensor, angle_BHS: Tensor, x_BHP: Tensor, key_BHN: Tensor) -> None:
        super().__init__()
        self.mixer = mixer
        self.ssm_BHPN, self.angle_BHS, self.x_BHP, self.key_BHN = ssm_BHPN, angle_BHS, x_BHP, key_BHN

    def used_bytes(self, lengths: Sequence[int]) -> int:
        return sum(tensor.nbytes for tensor in self.tensors()) + self.marked_bytes()

    def feed(self, inputs: tuple[Tensor, ...], pads_B: Tensor | None) -> None:
        self.mixer.scan(inputs[0], self, pads_B, write=True)


class Mamba3(nn.Module):
    """One Mamba-3 mixer; parameters as in the authors' implementation, and so their initial values."""

    def __init__(self, config: Mamba3Config, model: ModelConfig) -> None:
        super().__init__()
        d_model = model.d_model
        self.config, self.norm_eps = config, model.norm_eps
        self.d_inner, self.num_heads = config.inner(d_model), config.num_heads(d_model)
        self.columns = config.columns(d_model)
        self.in_proj = matrix(d_model, self.d_inner + sum(self.columns))
        self.fused = {"in_proj": (self.d_inner, *self.columns)}
        self.dt_bias = initial_dt_bias(self.num_heads)
        self.B_norm, self.C_norm = (nn.Parameter(torch.ones(config.d_state)) for _ in range(2))
        self.B_bias, self.C_bias = (nn.Parameter(torch.ones(self.num_heads * config.d_state)) for _ in range(2))
        self.D = nn.Parameter(torch.ones(self.num_heads))
        self.out = matrix(self.d_inner, d_model)
        self.row_constants = Derived(partial(row_constants, config.num_groups))

    def new_state(self, batch_size: int, capacity: int, spec: StateSpec) -> Mamba3State:
        c, H = self.config, self.num_heads
        wide = torch.promote_types(spec.dtype, torch.float32)

        def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(batch_size, H, *shape, device=spec.device, dtype=dtype)

        ssm, angle = zeros(c.head_dim, c.d_state, dtype=wide), zeros(c.num_angles, dtype=wide)
        return Mamba3State(self, ssm, angle, zeros(c.head_dim, dtype=spec.dtype), zeros(c.d_state, dtype=spec.dtype))

    def one_token(self, state: Mamba3State) -> Step:
        """See `one_token`."""
        return one_token_step(self, state)

    def forward(self, x_RE: Tensor, span: Span, state: Mamba3State | None) -> Tensor:
        state = None if span.needs_no_state else state
        z_RI, rest_RX = (x_RE @ self.in_proj).split((self.d_inner, sum(self.columns)), -1)
        rest_BTX = rest_RX.view(span.batch_size, -1, rest_RX.shape[-1])
        if state is not None and span.write:
            state.log((rest_BTX,), span.num_tokens)
        y_RI = self.scan(rest_BTX, state, span.pads_B, write=span.write)
        return kernels.product(F.silu(z_RI) * y_RI, self.out)

    def scan(self, rest_BTX: Tensor, state: Mamba3State | None, pads_B: Tensor | None, *, write: bool) -> Tensor:
        """The recurrence over any number of tokens, from any state, rows padded on the left or not."""
        c, H, (B, T, _) = self.config, self.num_heads, rest_BTX.shape
        wide = torch.promote_types(rest_BTX.dtype, torch.float32)
        x_BTI, *selected = rest_BTX.split(self.columns, -1)
        B_BTX, C_BTX, dt_BTH, A_BTH, mix_BTH, theta_BTS = (value.to(wide) for value in selected)
        dt_BTH = without_padding(F.softplus(dt_BTH + self.dt_bias.to(wide)), pads_B)  # dt = 0 turns no angle either
        decay_BTH = dt_BTH * -F.softplus(A_BTH).clamp(min=SLOWEST)  # of its logarithm
        now_BTH = dt_BTH * mix_BTH.sigmoid()  # weight of this token's x, and of the one before it
        before_BTH = dt_BTH - now_BTH
        angle_BTHS = (dt_BTH[..., None] * (theta_BTS.tanh() * math.pi)[:, :, None]).cumsum(1)
        if state is not None:
            angle_BTHS = angle_BTHS + state.angle_BHS[:, None]
        turn = angle_BTHS.cos(), angle_BTHS.sin()
        key_BTHN = _turned(self._of_heads(B_BTX, self.B_norm, self.B_bias), *turn)
        query_BTHN = _turned(self._of_heads(C_BTX, self.C_norm, self.C_bias), *turn)
        x_BTHP = x_BTI.reshape(B, T, H, c.head_dim).to(wide)
        if T == 1 and state is not None and write and pads_B is None:
            one = (x_BTHP, key_BTHN, query_BTHN, decay_BTH, now_BTH, before_BTH)
            y_BTHP = _step(*(value[:, 0] for value in one), state)[:, None]  # pyright: ignore[reportCallIssue]
        else:
            y_BTHP = self._chunked(x_BTHP, key_BTHN, query_BTHN, decay_BTH, now_BTH, before_BTH, state, pads_B, write)
        if state is not None and write:
            self._keep(state, angle_BTHS[:, -1], x_BTHP[:, -1], key_BTHN[:, -1], pads_B, T)
        return torch.addcmul(y_BTHP, self.D.to(wide)[:, None], x_BTHP).reshape(B * T, self.d_inner).to(rest_BTX.dtype)

    def _of_heads(self, shared_BTX: Tensor, norm_N: Tensor, bias_X: Tensor) -> Tensor:
        """B or C, normalised by group; a bias for each head, [B, T, H, N]."""
        B, T, _ = shared_BTX.shape
        G, N, wide = self.config.num_groups, self.config.d_state, shared_BTX.dtype
        normed_RN = rms_norm(shared_BTX.reshape(-1, N), norm_N.to(wide), self.norm_eps)
        return (normed_RN.view(B, T, G, 1, N) + bias_X.to(wide).view(G, -1, N)).view(B, T, -1, N)

    def _chunked(
        self,
        x_BTHP: Tensor,
        key_BTHN: Tensor,
        query_BTHN: Tensor,
        decay_BTH: Tensor,
        now_BTH: Tensor,
        before_BTH: Tensor,
        state: Mamba3State | None,
        pads_B: Tensor | None,
        write: bool,
    ) -> Tensor:
        B, T = x_BTHP.shape[:2]
        rest_BTH = F.pad(before_BTH[:, 1:], (0, 0, 0, 1))  # what the next token will still take of this one
        start_BHPN = None
        if state is not None:  # the first token takes the rest of what was last seen
            wide = state.ssm_BHPN.dtype
            first_B = torch.zeros(B, dtype=torch.long, device=x_BTHP.device) if pads_B is None else pads_B
            before_BH = before_BTH[torch.arange(B, device=x_BTHP.device), first_B.clamp(max=T - 1)]
            last_BHP = before_BH[..., None] * state.x_BHP.to(wide)
            start_BHPN = torch.addcmul(state.ssm_BHPN, last_BHP[..., None], state.key_BHN[:, :, None].to(wide))
        rest_BTH = without_padding(rest_BTH, pads_B)  # and takes nothing of the padding before it
        y_BTHP, last_BHPN = ssd.ssd_scan(
            x_BTHP * (now_BTH + rest_BTH)[..., None], decay_BTH, key_BTHN, query_BTHN, start_BHPN, self.config.chunk_len
        )
        own_BTH = (query_BTHN * key_BTHN).sum(-1) * rest_BTH  # which y of the token itself does not see
        if state is not None and write and last_BHPN is not None:
            state.ssm_BHPN.copy_(last_BHPN)
        return torch.addcmul(y_BTHP, own_BTH[..., None], x_BTHP, value=-1)

    def _keep(
        self, state: Mamba3State, angle_BHS: Tensor, x_BHP: Tensor, key_BHN: Tensor, pads_B: Tensor | None, T: int
    ) -> None:
        """What the next token needs of this one; a row of nothing but padding keeps what it has."""
        state.angle_BHS.copy_(angle_BHS.remainder(2 * math.pi))
        if pads_B is not None:
            empty_B11 = (pads_B == T)[:, None, None]
            x_BHP, key_BHN = torch.where(empty_B11, state.x_BHP, x_BHP), torch.where(empty_B11, state.key_BHN, key_BHN)
        state.x_BHP.copy_(x_BHP)
        state.key_BHN.copy_(key_BHN)


def _step(
    x_BHP: Tensor,
    key_BHN: Tensor,
    query_BHN: Tensor,
    decay_BH: Tensor,
    now_BH: Tensor,
    before_BH: Tensor,
    state: Mamba3State,
) -> Tensor:
    """One token; the state takes in the rest of the last one's x, decays, and takes in this one's, in place."""
    (B, H, P, N), wide = state.ssm_BHPN.shape, state.ssm_BHPN.dtype
    last_BHP = before_BH[..., None] * state.x_BHP
    state.ssm_BHPN.addcmul_(last_BHP[..., None], state.key_BHN[:, :, None].to(wide))
    state.ssm_BHPN.mul_(decay_BH.exp()[..., None, None])
    state.ssm_BHPN.addcmul_((now_BH[..., None] * x_BHP)[..., None], key_BHN[:, :, None])
    return torch.bmm(state.ssm_BHPN.view(B * H, P, N), query_BHN.reshape(B * H, N, 1)).view(B, H, P)


def _turned(value_BTHN: Tensor, cos_BTHS: Tensor, sin_BTHS: Tensor) -> Tensor:
    """The first 2 S of N numbers, taken as S pairs, turned by their angles."""
    S = cos_BTHS.shape[-1]
    first, second, rest = value_BTHN.split((S, S, value_BTHN.shape[-1] - 2 * S), -1)
    turned = (first * cos_BTHS - second * sin_BTHS, first * sin_BTHS + second * cos_BTHS)
    return torch.cat((*turned, rest), -1)
