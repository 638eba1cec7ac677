"""The selective scan: a recurrence whose step depends on the token (Mamba, arXiv 2312.00752, equations 2a and 2b).

    h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t          y_t = C_t h_t + D x_t

Each of I channels has N states that decay at rates of their own, so that, unlike state-space duality (`ssd`), it is no
matrix product: it stays a loop over tokens of elementwise work. What makes such a loop slow is not the arithmetic:
autograd through it remembers every state, and intermediates of B T N I numbers do not fit a cache. Hence the scan goes
through the tokens in chunks that do, keeps the state where each chunk starts, and its gradient, written by hand, goes
back through the chunks and computes their states again.

Dimension letters: B batch, T tokens, I channels, N states of a channel, L tokens of a chunk. States are [N, I], so that
all work runs along contiguous channels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def selective_update(x_BI: Tensor, dt_BI: Tensor, A_NI: Tensor, B_BN: Tensor, state_BNI: Tensor) -> None:
    """Let one token into `state_BNI`, in place."""
    state_BNI.mul_(torch.mul(dt_BI[:, None], A_NI).exp_())
    state_BNI.addcmul_((dt_BI * x_BI)[:, None], B_BN[..., None])


def selective_step(
    x_BI: Tensor, dt_BI: Tensor, A_NI: Tensor, B_BN: Tensor, C_BN: Tensor, D_I: Tensor, state_BNI: Tensor
) -> Tensor:
    """One token; updates `state_BNI` in place and returns y_BI."""
    selective_update(x_BI, dt_BI, A_NI, B_BN, state_BNI)
    return torch.addcmul(torch.bmm(C_BN[:, None], state_BNI)[:, 0], D_I, x_BI)


def selective_row(
    x_1I: Tensor, dt_1I: Tensor, A_NI: Tensor, B_1N: Tensor, C_1N: Tensor, D_I: Tensor, state_NI: Tensor
) -> Tensor:
    """`selective_step` of a single row, y_1I, in the fewest operators."""
    state_NI.mul_(torch.mul(dt_1I, A_NI).exp_()).addcmul_(dt_1I * x_1I, B_1N.t())
    return torch.addcmul(torch.mm(C_1N, state_NI), D_I, x_1I)


def selective_recurrence(
    x_BTI: Tensor, dt_BTI: Tensor, A_NI: Tensor, B_BTN: Tensor, C_BTN: Tensor, D_I: Tensor, state_BNI: Tensor
) -> tuple[Tensor, Tensor]:
    """The definition, token by token: the reference of the others. Returns y_BTI and the state after the last token."""
    outputs = []
    for t in range(x_BTI.shape[1]):
        x_BI, dt_BI, B_BN, C_BN = (value[:, t] for value in (x_BTI, dt_BTI, B_BTN, C_BTN))
        decay_BNI = torch.exp(dt_BI[:, None] * A_NI)
        state_BNI = decay_BNI * state_BNI + (dt_BI * x_BI)[:, None] * B_BN[..., None]
        outputs.append((C_BN[..., None] * state_BNI).sum(1) + D_I * x_BI)
    return torch.stack(outputs, 1), state_BNI


def selective_scan(
    x_BTI: Tensor,
    dt_BTI: Tensor,
    A_NI: Tensor,
    B_BTN: Tensor,
    C_BTN: Tensor,
    D_I: Tensor,
    state_BNI: Tensor | None,
    chunk_len: int,
) -> tuple[Tensor, Tensor]:
    """Any number of tokens from any state (None is zero), `chunk_len` of them at a time.

    Returns y_BTI and the state after the last token; both have gradients.
    """
    start_BNI = x_BTI.new_zeros(x_BTI.shape[0], *A_NI.shape) if state_BNI is None else state_BNI
    inputs = (x_BTI, dt_BTI, A_NI.contiguous(), B_BTN, C_BTN, start_BNI)
    if torch.is_grad_enabled() and any(value.requires_grad for value in inputs):
        y_BTI, last_BNI = _Scan.apply(*inputs, chunk_len)  # type: ignore[misc]
    else:
        y_BTI, last_BNI, _ = _forward(*inputs, chunk_len, keep_starts=False)
    return torch.addcmul(y_BTI, D_I, x_BTI), last_BNI


def carried(dt_BTI: Tensor, A_NI: Tensor, C_BTN: Tensor, state_BNI: Tensor, chunk_len: int) -> tuple[Tensor, Tensor]:
    """What a scan from this state adds to one from zero: [B, T, I] to its outputs, [B, N, I] to its last state.

    The scan is linear in its state, which token t sees decayed by exp(A (dt_1 + … + dt_t)): never above 1.
    """
    since_BTI = dt_BTI.cumsum(1)
    added = []
    for since_BLI, C_BLN in zip(since_BTI.split(chunk_len, 1), C_BTN.split(chunk_len, 1), strict=True):
        seen_BLNI = torch.exp(since_BLI[:, :, None] * A_NI) * state_BNI[:, None]
        added.append((C_BLN[:, :, None] @ seen_BLNI)[:, :, 0])
    return torch.cat(added, 1), torch.exp(since_BTI[:, -1, None] * A_NI) * state_BNI


def _states(
    decay_LBNI: Tensor,
    states_LBNI: Tensor,
    u_LBI: Tensor,
    dt_LBI: Tensor,
    A_NI: Tensor,
    B_LBN: Tensor,
    start_BNI: Tensor,
) -> None:
    """Fill in decay and state of each token of a chunk, u is dt x."""
    torch.mul(dt_LBI[:, :, None], A_NI, out=decay_LBNI).exp_()
    torch.mul(u_LBI[:, :, None], B_LBN[..., None], out=states_LBNI)
    before_BNI = start_BNI
    for decay_BNI, state_BNI in zip(decay_LBNI.unbind(0), states_LBNI.unbind(0), strict=True):
        before_BNI = state_BNI.addcmul_(decay_BNI, before_BNI)


def _time_major(*values_BT: Tensor) -> list[Tensor]:
    """[T, B, ...]: what happens at one time lies together, and so does a chunk."""
    return [value.transpose(0, 1).contiguous() for value in values_BT]


def _products(a_LBKN: Tensor, b_LBNI: Tensor, out_LBKI: Tensor) -> None:
    """A matrix product for each token of a chunk. A vector stands on the left of it: torch is many times slower with
    one on the right.
    """
    torch.bmm(a_LBKN.flatten(0, 1), b_LBNI.flatten(0, 1), out=out_LBKI.flatten(0, 1))


def _forward(
    x_BTI: Tensor,
    dt_BTI: Tensor,
    A_NI: Tensor,
    B_BTN: Tensor,
    C_BTN: Tensor,
    start_BNI: Tensor,
    chunk_len: int,
    *,
    keep_starts: bool,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """y_BTI without D x, the last state, and the states that the chunks started from."""
    u_TBI, dt_TBI, B_TBN, C_TBN = _time_major(dt_BTI * x_BTI, dt_BTI, B_BTN, C_BTN)
    y_TBI = torch.empty_like(u_TBI)
    # Chunks share their buffers, which so stay in the cache.
    buffers = [u_TBI.new_empty(min(chunk_len, len(u_TBI)), *start_BNI.shape) for _ in range(2)]
    state_BNI, starts = start_BNI, []
    chunks = (value.split(chunk_len) for value in (u_TBI, dt_TBI, B_TBN, C_TBN, y_TBI))
    for u_LBI, dt_LBI, B_LBN, C_LBN, y_LBI in zip(*chunks, strict=True):
        if keep_starts:
            starts.append(state_BNI)
        decay_LBNI, states_LBNI = (buffer[: len(u_LBI)] for buffer in buffers)
        _states(decay_LBNI, states_LBNI, u_LBI, dt_LBI, A_NI, B_LBN, state_BNI)
        _products(C_LBN[:, :, None], states_LBNI, y_LBI[:, :, None])
        state_BNI = states_LBNI[-1].clone()
    return y_TBI.transpose(0, 1), state_BNI, starts


class _Scan(torch.autograd.Function):
    """The scan without D x, and its gradient.

    With g_t the gradient at h_t: g_t = C_t dy_t + exp(dt_{t+1} A) g_{t+1}, from the last token to the first. The
    exponent of the decay gets k_t = exp(dt_t A) g_t h_{t-1}, of which dt_t takes the sum of k_t A over states, and A
    that of k_t dt_t over tokens; x, B and C get theirs from the products that they stand in.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_BTI: Tensor,
        dt_BTI: Tensor,
        A_NI: Tensor,
        B_BTN: Tensor,
        C_BTN: Tensor,
        start_BNI: Tensor,
        chunk_len: int,
    ) -> tuple[Tensor, Tensor]:
        y_BTI, last_BNI, starts = _forward(x_BTI, dt_BTI, A_NI, B_BTN, C_BTN, start_BNI, chunk_len, keep_starts=True)
        ctx.save_for_backward(x_BTI, dt_BTI, A_NI, B_BTN, C_BTN, *starts)
        ctx.chunk_len = chunk_len
        return y_BTI, last_BNI

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy_BTI: Tensor, dlast_BNI: Tensor) -> tuple[Tensor | None, ...]:
        x_BTI, dt_BTI, A_NI, B_BTN, C_BTN, *starts = ctx.saved_tensors
        given = _time_major(dt_BTI * x_BTI, dt_BTI, B_BTN, C_BTN, dy_BTI)
        found = [torch.empty_like(value) for value in given[:4]]  # of u = dt x, dt, B, C
        dA_NI = torch.zeros_like(A_NI)
        after_BNI = dlast_BNI  # exp(dt A) g of the token behind the chunk
        buffers = [dlast_BNI.new_empty(min(ctx.chunk_len, len(given[0])), *dlast_BNI.shape) for _ in range(3)]
        chunks = list(zip(*(value.split(ctx.chunk_len) for value in (*given, *found)), strict=True))
        for start_BNI, chunk in zip(reversed(starts), reversed(chunks), strict=True):
            u_LBI, dt_LBI, B_LBN, C_LBN, dy_LBI, du_LBI, ddt_LBI, dB_LBN, dC_LBN = chunk
            decay_LBNI, states_LBNI, g_LBNI = (buffer[: len(u_LBI)] for buffer in buffers)
            _states(decay_LBNI, states_LBNI, u_LBI, dt_LBI, A_NI, B_LBN, start_BNI)
            _products(dy_LBI[:, :, None], states_LBNI.mT, dC_LBN[:, :, None])
            torch.mul(dy_LBI[:, :, None], C_LBN[..., None], out=g_LBNI)
            g, decay = g_LBNI.unbind(0), decay_LBNI.unbind(0)
            g[-1].add_(after_BNI)
            for t in range(len(g) - 2, -1, -1):
                g[t].addcmul_(decay[t + 1], g[t + 1])
            _products(B_LBN[:, :, None], g_LBNI, du_LBI[:, :, None])
            _products(u_LBI[:, :, None], g_LBNI.mT, dB_LBN[:, :, None])
            k_LBNI = decay_LBNI.mul_(g_LBNI)
            after_BNI = k_LBNI[0].clone()
            k_LBNI[0].mul_(start_BNI)
            k_LBNI[1:].mul_(states_LBNI[:-1])
            dA_NI += torch.mul(k_LBNI, dt_LBI[:, :, None], out=g_LBNI).sum((0, 1))
            torch.sum(k_LBNI.mul_(A_NI), 2, out=ddt_LBI)
        du_BTI, ddt_BTI, dB_BTN, dC_BTN = (value.transpose(0, 1) for value in found)
        ddt_BTI = torch.addcmul(ddt_BTI, du_BTI, x_BTI)
        return du_BTI * dt_BTI, ddt_BTI, dA_NI, dB_BTN, dC_BTN, after_BNI, None
