"""Mamba layer (arXiv 2312.00752): projection, short causal convolution, selective scan, gate, projection.

Dimension letters: B batch, T tokens, R = B T rows, E model width, I inner width (channels), N states of a channel, Q
rank of dt, K width of the convolution, W = K - 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paradigms.models import kernels, operations
from paradigms.models.layer_config import LayerConfig
from paradigms.models.layer_state import ReplayedState, StateSpec
from paradigms.models.layers import Derived, Span, matrix, positive, rms_norm
from paradigms.models.one_token import Place, Step
from paradigms.models.recurrence import convolved, initial_dt_bias, without_padding
from paradigms.models.selective_scan import selective_row, selective_update

if TYPE_CHECKING:
    from paradigms.models.config import ModelConfig
    from paradigms.models.forward_pass import ForwardPass

INNER_NORMS = ("plain", "weighted")


@dataclass(frozen=True, kw_only=True)
class MambaConfig(LayerConfig):
    """Mamba layer, in its paper's words.

    Attributes:
        expand: inner width over model width.
        d_inner: I itself, whatever `expand` says; None is expand x d_model.
        d_state: N.
        d_conv: K.
        dt_rank: Q, the width from which dt is projected; None is d_model / 16, rounded up.
        num_groups: equal parts of the channels, each of which selects dt, B and C from its own (Zamba's heads; see
            `mamba_groups`); 1 is the paper.
        conv_bias, proj_bias: add a bias to the convolution, to the projections in and out.
        inner_norms: RMS norms of what dt is projected from, of B and of C: "plain" without weights (FalconMamba),
            "weighted" with (Jamba), None without norms (the paper).
        inner_norm_eps: added to the mean square in them; None is the model's.
        chunk_len: tokens whose states are computed at a time; changes speed and memory, not the result.
    """

    expand: int = 2
    d_inner: int | None = None
    d_state: int = 16
    d_conv: int = 4
    dt_rank: int | None = None
    num_groups: int = 1
    conv_bias: bool = True
    proj_bias: bool = False
    inner_norms: str | None = None
    inner_norm_eps: float | None = None
    chunk_len: int = 8

    key: ClassVar[str] = "mamba"
    recurrent: ClassVar[bool] = True
    not_weights: ClassVar[tuple[str, ...]] = ("chunk_len",)
    free: ClassVar[tuple[str, int]] = ("d_inner", 8)

    def inner(self, d_model: int) -> int:
        """I."""
        return self.d_inner or self.expand * d_model

    def rank(self, d_model: int) -> int:
        """Q."""
        return self.dt_rank or -(-d_model // 16)

    def check(self, model: ModelConfig) -> None:
        key = f"model.{self.key}"
        positive(key, expand=self.expand, d_state=self.d_state, d_conv=self.d_conv, chunk_len=self.chunk_len)
        positive(key, d_inner=self.d_inner, dt_rank=self.dt_rank, num_groups=self.num_groups)
        inner = self.inner(model.d_model)
        if inner % self.num_groups or (self.num_groups > 1 and self.inner_norms is not None):
            raise ValueError(
                f"{key}.num_groups={self.num_groups} must divide the inner width {inner}; above 1, no inner_norms"
            )
        if self.inner_norms is not None and self.inner_norms not in INNER_NORMS:
            allowed = ", ".join(INNER_NORMS)
            raise ValueError(f"{key}.inner_norms={self.inner_norms!r} is unknown; it is null or one of {allowed}")
        if self.inner_norm_eps is not None and self.inner_norms is None:
            raise ValueError(f"{key}.inner_norm_eps={self.inner_norm_eps} needs inner_norms; leave it out (null)")

    def num_parameters(self, d_model: int) -> int:
        inner, rank, states = self.inner(d_model), self.rank(d_model), self.d_state
        projections = 3 * d_model * inner + self.proj_bias * (2 * inner + d_model)
        conv = inner * (self.d_conv + self.conv_bias)
        selection = inner * (rank + 2 * states) + (rank + 1) * inner  # x_proj; dt_proj and its bias
        norms = (self.inner_norms == "weighted") * (rank + 2 * states)
        return projections + conv + selection + norms + inner * states + inner  # A, D

    def matmul_flops(self, run: ForwardPass) -> int:
        """Of the projections, and of reading each token's state out."""
        inner, rank = self.inner(run.d_model), self.rank(run.d_model)
        return 2 * run.positions * inner * (3 * run.d_model + 2 * rank + 3 * self.d_state)

    def other_flops(self, run: ForwardPass) -> int:
        """Convolution, dt, the scan (of every state its decay, exponential, and what it is decayed by and takes in; of
        every channel dt x and D x) and the gate; inner norms and biases.
        """
        inner, rank, states = self.inner(run.d_model), self.rank(run.d_model), self.d_state
        channel = operations.convolution(self.d_conv, bias=self.conv_bias) + 2 + 5 * states + 3 + operations.SILU + 1
        norms = 0
        if self.inner_norms is not None:
            weighted = self.inner_norms == "weighted"
            norms = sum(operations.rms_norm(width, weighted=weighted) for width in (rank, states, states))
        biases = self.proj_bias * (2 * inner + run.d_model)
        return run.positions * (inner * channel + norms + biases)

    def activation_bytes(self, run: ForwardPass) -> int:
        """While the scan goes through a chunk, or the convolution over all tokens; a step has a chunk of one token."""
        inner, states, wide = self.inner(run.d_model), self.d_state, max(run.itemsize, 4)
        conv = 5 * inner * run.itemsize
        selected = 3 * inner + self.rank(run.d_model) + 2 * states  # x and z; behind the convolution; what dt is of
        kept = selected * run.itemsize + inner * wide
        if run.is_step:
            step = kept + (states + 1) * inner * wide
            return run.rows * max(step, (2 + 2 * self.d_conv + 1) * inner * run.itemsize)
        length, chunks = min(run.tokens, self.chunk_len), -(-run.tokens // self.chunk_len)
        along = 2 * inner if run.rows == 1 else 3 * inner + 2 * states * self.num_groups  # dt x, y; turned around
        said = inner * (self.num_groups - 1)  # of the groups before
        chunk = (2 * length + min(chunks, 2) + (not run.has_state)) * states * inner
        scan = (run.positions * (along + said) + run.rows * chunk) * wide // self.num_groups
        return max(run.positions * kept + scan, run.positions * conv)

    def state_bytes(self, d_model: int, *, length: int, itemsize: int) -> int:
        """The last d_conv - 1 inputs of the convolution and d_state numbers a channel whatever the length, the latter
        in at least float32.
        """
        return self.inner(d_model) * ((self.d_conv - 1) * itemsize + self.d_state * max(itemsize, 4))

    def build(self, model: ModelConfig, shared: nn.ModuleDict) -> Mamba:
        from paradigms.models.mamba_groups import GroupedMamba

        return (Mamba if self.num_groups == 1 else GroupedMamba)(self, model)


class MambaState(ReplayedState):
    """Convolution window and recurrent state of one Mamba layer, constant in length."""

    names = ("conv_BWI", "ssm_BNI")

    def __init__(self, mixer: Mamba, conv_BWI: Tensor, ssm_BNI: Tensor) -> None:
        super().__init__()
        self.mixer, self.conv_BWI, self.ssm_BNI = mixer, conv_BWI, ssm_BNI

    def used_bytes(self, lengths: Sequence[int]) -> int:
        return self.conv_BWI.nbytes + self.ssm_BNI.nbytes + self.marked_bytes()

    def feed(self, inputs: tuple[Tensor, ...], pads_B: Tensor | None) -> None:
        x_BTI, dt_BTI, B_BTN = inputs
        self.mixer.take_up(x_BTI, dt_BTI, B_BTN, self, pads_B)


class Mamba(nn.Module):
    """One Mamba mixer; parameters as in the paper's reference implementation, and so the initial dt, A and D."""

    in_bias: Tensor | None
    conv_bias: Tensor | None
    out_bias: Tensor | None

    def __init__(self, config: MambaConfig, model: ModelConfig) -> None:
        super().__init__()
        d_model = model.d_model
        self.config = config
        self.norm_eps = model.norm_eps if config.inner_norm_eps is None else config.inner_norm_eps
        self.d_inner, self.rank = inner, rank = config.inner(d_model), config.rank(d_model)
        self.in_proj = matrix(d_model, 2 * inner)  # x, z
        self.fused = {"in_proj": (inner, inner)}
        self.in_bias = nn.Parameter(torch.zeros(2 * inner)) if config.proj_bias else None
        self.conv_weight = nn.Parameter(torch.empty(inner, config.d_conv))
        self.conv_bias = nn.Parameter(torch.zeros(inner)) if config.conv_bias else None
        nn.init.uniform_(self.conv_weight, -(config.d_conv**-0.5), config.d_conv**-0.5)
        self.x_proj = matrix(inner, rank + 2 * config.d_state)  # dt, B, C
        if config.inner_norms == "weighted":
            self.dt_norm = nn.Parameter(torch.ones(rank))
            self.B_norm = nn.Parameter(torch.ones(config.d_state))
            self.C_norm = nn.Parameter(torch.ones(config.d_state))
        self.dt_proj = matrix(rank, inner)
        nn.init.uniform_(self.dt_proj, -(rank**-0.5), rank**-0.5)
        self.dt_bias = initial_dt_bias(inner)
        self.A_log = nn.Parameter(torch.arange(1.0, config.d_state + 1).log().repeat(inner, 1))  # A = -1, -2, …, -N
        self.D = nn.Parameter(torch.ones(inner))
        self.out = matrix(inner, d_model)
        self.out_bias = nn.Parameter(torch.zeros(d_model)) if config.proj_bias else None
        self._rates = Derived(decay_rates)
        self._conv = Derived(kernels.conv_constants)

    def new_state(self, batch_size: int, capacity: int, spec: StateSpec) -> MambaState:
        c = self.config
        wide = torch.promote_types(spec.dtype, torch.float32)
        conv = torch.zeros(batch_size, c.d_conv - 1, self.d_inner, device=spec.device, dtype=spec.dtype)
        ssm = torch.zeros(batch_size, c.d_state, self.d_inner, device=spec.device, dtype=wide)
        return MambaState(self, conv, ssm)

    def one_token(self, state: MambaState) -> Step | None:
        """See `one_token`."""
        I, N = self.d_inner, self.config.d_state  # noqa: E741
        in_proj, in_bias, out_bias, x_proj = self.in_proj, self.in_bias, self.out_bias, self.x_proj
        dt_proj, dt_bias, A_log, D_I = self.dt_proj, self.dt_bias, self.A_log, self.D
        weight, bias, conv, rates, normed = self.conv_weight, self.conv_bias, self._conv, self._rates, self._normed
        halves, parts, has_norms = (I, I), (self.rank, N, N), self.config.inner_norms is not None
        mm, addmm, silu, softplus, conv_step = torch.mm, torch.addmm, F.silu, F.softplus, kernels.conv_step
        out = self.row_out()

        def step(x_1E: Tensor, place: Place) -> Tensor:
            xz_1J = mm(x_1E, in_proj) if in_bias is None else addmm(in_bias, x_1E, in_proj)
            x_1I, z_1I = xz_1J.split_with_sizes(halves, -1)
            x_11I = x_1I.view(1, 1, I)
            u_1I = conv_step(state.conv_BWI, x_11I, *conv(weight, bias)).view(1, I)
            low_1Q, B_1N, C_1N = mm(u_1I, x_proj).split_with_sizes(parts, -1)
            if has_norms:
                low_1Q, B_1N, C_1N = normed(low_1Q, B_1N, C_1N)
            dt_1I = softplus(addmm(dt_bias, low_1Q, dt_proj))
            if state.is_marked:
                state.log((x_11I, dt_1I[:, None], B_1N[:, None]), [1])
            y_1I = selective_row(u_1I, dt_1I, rates(A_log), B_1N, C_1N, D_I, state.ssm_BNI.view(N, I))
            out_1E = out(silu(z_1I).mul_(y_1I))
            return out_1E if out_bias is None else out_1E + out_bias

        return step

    def row_out(self) -> Callable[[Tensor], Tensor]:
        """The projection out, of one row."""
        return kernels.row_product(self.out)

    def forward(self, x_RE: Tensor, span: Span, state: MambaState | None) -> Tensor:
        out_RE = kernels.product(self.scanned(x_RE, span, state), self.out)
        return out_RE if self.out_bias is None else out_RE + self.out_bias

    def scanned(self, x_RE: Tensor, span: Span, state: MambaState | None) -> Tensor:
        """All but the projection out: what the scan says, gated, [R, I]."""
        B, pads_B, I = span.batch_size, span.pads_B, self.d_inner  # noqa: E741
        wide = torch.promote_types(x_RE.dtype, torch.float32)
        xz_RJ = x_RE @ self.in_proj if self.in_bias is None else torch.addmm(self.in_bias, x_RE, self.in_proj)
        x_RI, z_RI = xz_RJ.split(I, -1)
        x_BTI = x_RI.view(B, -1, I)
        u_BTI = self._convolved(x_BTI, state, pads_B, write=span.write)
        dt_BTI, B_BTN, C_BTN = self._selected(u_BTI.reshape(-1, I), B, wide)
        if state is not None and span.write:
            state.log((x_BTI, dt_BTI, B_BTN), span.num_tokens)
        A_NI, D_I, ssm_BNI = self._rates(self.A_log), self.D.to(wide), None if state is None else state.ssm_BNI
        is_step = state is not None and _is_step(x_BTI, pads_B, write=span.write)
        dt_BTI = without_padding(dt_BTI, pads_B)
        y_BTI = self._read(u_BTI.to(wide), dt_BTI, A_NI, B_BTN, C_BTN, D_I, ssm_BNI, is_step=is_step, write=span.write)
        return y_BTI.reshape(-1, I).to(x_RE.dtype) * F.silu(z_RI)

    def _read(
        self,
        u_BTI: Tensor,
        dt_BTI: Tensor,
        A_NI: Tensor,
        B_BTN: Tensor,
        C_BTN: Tensor,
        D_I: Tensor,
        ssm_BNI: Tensor | None,
        *,
        is_step: bool,
        write: bool,
    ) -> Tensor:
        """What the tokens read from the recurrence, [B, T, I]; a state takes them up in place, if it is to."""
        if is_step:
            assert ssm_BNI is not None
            u_BI, dt_BI, B_BN, C_BN = (value[:, 0] for value in (u_BTI, dt_BTI, B_BTN, C_BTN))
            return kernels.selective_step(u_BI, dt_BI, A_NI, B_BN, C_BN, D_I, ssm_BNI)[:, None]
        y_BTI, last_BNI = kernels.selective_scan(u_BTI, dt_BTI, A_NI, B_BTN, C_BTN, D_I, ssm_BNI, self.config.chunk_len)
        if ssm_BNI is not None and write:
            ssm_BNI.copy_(last_BNI)
        return y_BTI

    def take_up(self, x_BTI: Tensor, dt_BTI: Tensor, B_BTN: Tensor, state: MambaState, pads_B: Tensor | None) -> None:
        """Let tokens into the state, without what they would say: no matrix product."""
        u_BTI = self._convolved(x_BTI, state, pads_B, write=True).to(dt_BTI.dtype)
        dt_BTI, A_NI = without_padding(dt_BTI, pads_B), self._rates(self.A_log)
        for u_BI, dt_BI, B_BN in zip(u_BTI.unbind(1), dt_BTI.unbind(1), B_BTN.unbind(1), strict=True):
            self._update(u_BI, dt_BI, A_NI, B_BN, state.ssm_BNI)

    def _update(self, u_BI: Tensor, dt_BI: Tensor, A_NI: Tensor, B_BN: Tensor, ssm_BNI: Tensor) -> None:
        selective_update(u_BI, dt_BI, A_NI, B_BN, ssm_BNI)

    def _convolved(self, x_BTI: Tensor, state: MambaState | None, pads_B: Tensor | None, *, write: bool) -> Tensor:
        """silu of the short convolution over the new tokens and those that the state has kept."""
        if state is not None and _is_step(x_BTI, pads_B, write=write):
            return kernels.conv_step(state.conv_BWI, x_BTI, *self._conv(self.conv_weight, self.conv_bias))
        past_BWI = None if state is None else state.conv_BWI
        return convolved(x_BTI, past_BWI, self.conv_weight, self.conv_bias, pads_B, write=write)

    def _selected(self, u_RI: Tensor, batch_size: int, wide: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """dt [B, T, I], B and C [B, T, N] of each token, from what the convolution says."""
        N = self.config.d_state
        low_RQ, B_RN, C_RN = (u_RI @ self.x_proj).split((self.rank, N, N), -1)
        if self.config.inner_norms is not None:
            low_RQ, B_RN, C_RN = self._normed(low_RQ, B_RN, C_RN)
        dt_RI = F.softplus(torch.addmm(self.dt_bias.to(wide), low_RQ.to(wide), self.dt_proj.to(wide)))
        dt_BTI, B_BTN, C_BTN = (value.view(batch_size, -1, value.shape[1]) for value in (dt_RI, B_RN, C_RN))
        return dt_BTI, B_BTN.to(wide), C_BTN.to(wide)

    def _normed(self, low_RQ: Tensor, B_RN: Tensor, C_RN: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The inner norms."""
        eps = self.norm_eps
        if self.config.inner_norms == "weighted":
            norms = self.dt_norm, self.B_norm, self.C_norm
            return rms_norm(low_RQ, norms[0], eps), rms_norm(B_RN, norms[1], eps), rms_norm(C_RN, norms[2], eps)
        Q, N = self.rank, self.config.d_state
        norm = F.rms_norm
        return norm(low_RQ, (Q,), None, eps), norm(B_RN, (N,), None, eps), norm(C_RN, (N,), None, eps)


def _is_step(x_BTI: Tensor, pads_B: Tensor | None, *, write: bool) -> bool:
    """Whether each row brings one token that is to stay: then states are updated in place."""
    return write and pads_B is None and x_BTI.shape[1] == 1


def decay_rates(A_log_IN: Tensor) -> Tensor:
    """A [N, I], in at least float32."""
    return -A_log_IN.t().to(torch.promote_types(A_log_IN.dtype, torch.float32)).exp().contiguous()
