"""State-space duality: one function, computed as a recurrence or in chunks (Mamba-2, arXiv 2405.21060).

    h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t^T          y_t = h_t C_t

The recurrence costs one step a token and serves decoding. The chunked form does the same sum by matrix products: within
a chunk as masked attention, across chunks by passing the state on; it serves training and prefill, and starts from any
state.

Dimension letters: B batch, T tokens, H heads, P head width, G groups, N state, Z chunks, L tokens of a chunk (L' the
earlier one).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from paradigms.models.operations import chunks_of


def ssd_step(x_BHP: Tensor, dt_BH: Tensor, A_H: Tensor, B_BGN: Tensor, C_BGN: Tensor, state_BHPN: Tensor) -> Tensor:
    """One token; updates `state_BHPN` in place and returns y_BHP.

    The heads of a group share B and C, so that the group's states, one below the other, are one matrix: reading them
    out is one product.
    """
    B, H, P, N = state_BHPN.shape
    groups = B * B_BGN.shape[1]
    if B_BGN.dtype != state_BHPN.dtype:
        B_BGN, C_BGN = B_BGN.to(state_BHPN.dtype), C_BGN.to(state_BHPN.dtype)
    state_BHPN.mul_(torch.exp(dt_BH * A_H).view(B, H, 1, 1))
    state_MRN = state_BHPN.view(groups, -1, N)  # M groups of all rows, R heads and their widths
    state_MRN.addcmul_((dt_BH.view(B, H, 1) * x_BHP).view(groups, -1, 1), B_BGN.reshape(groups, 1, N))
    return torch.bmm(state_MRN, C_BGN.reshape(groups, N, 1)).view(B, H, P)


def ssd_row(
    x_HP: Tensor, dt_H1: Tensor, A_H1: Tensor, B_G1N: Tensor, C_GN1: Tensor, D_H1: Tensor, state_HPN: Tensor
) -> Tensor:
    """`ssd_step` of a single row and the skip D x, y_HP, in the fewest operators."""
    groups, (H, P, N) = B_G1N.shape[0], state_HPN.shape
    state_HPN.mul_(torch.mul(dt_H1, A_H1).exp_().view(H, 1, 1))
    state_GRN = state_HPN.view(groups, -1, N).addcmul_((dt_H1 * x_HP).view(groups, -1, 1), B_G1N)
    return torch.addcmul(torch.bmm(state_GRN, C_GN1).view(H, P), D_H1, x_HP)


def ssd_recurrence(
    x_BTHP: Tensor, dt_BTH: Tensor, A_H: Tensor, B_BTGN: Tensor, C_BTGN: Tensor, state_BHPN: Tensor
) -> tuple[Tensor, Tensor]:
    """The definition, token by token: the reference that the chunked form is tested against. Returns y_BTHP and the
    state.
    """
    state_BHPN = state_BHPN.clone()
    steps = zip(x_BTHP.unbind(1), dt_BTH.unbind(1), B_BTGN.unbind(1), C_BTGN.unbind(1), strict=True)
    y = [ssd_step(x, dt, A_H, B, C, state_BHPN) for x, dt, B, C in steps]
    return torch.stack(y, 1), state_BHPN


def ssd_chunked(
    x_BTHP: Tensor,
    dt_BTH: Tensor,
    A_H: Tensor,
    B_BTGN: Tensor,
    C_BTGN: Tensor,
    state_BHPN: Tensor | None,
    chunk_len: int,
) -> tuple[Tensor, Tensor | None]:
    """The same by chunks of at most `chunk_len` tokens. Returns y_BTHP and the state after the last token; None starts
    from zeros, and is all the state that comes back.
    """
    return ssd_scan(x_BTHP * dt_BTH[..., None], dt_BTH * A_H, B_BTGN, C_BTGN, state_BHPN, chunk_len)


def ssd_scan(
    u_BTHP: Tensor, decay_BTH: Tensor, B_BTGN: Tensor, C_BTGN: Tensor, state_BHPN: Tensor | None, chunk_len: int
) -> tuple[Tensor, Tensor | None]:
    """h_t = exp(decay_t) h_{t-1} + u_t B_t^T, y_t = h_t C_t, by equal chunks of at most `chunk_len` tokens. Returns
    y_BTHP and the state after the last token; None starts from zeros, and is all the state that comes back.
    """
    B, T, H, P = u_BTHP.shape
    G, N = B_BTGN.shape[2:]
    L, Z = chunks_of(T, chunk_len)
    pad = Z * L - T
    if pad:  # no input and no decay leave the state as it is
        u_BTHP = F.pad(u_BTHP, (0, 0, 0, 0, 0, pad))
        decay_BTH = F.pad(decay_BTH, (0, 0, 0, pad))
        B_BTGN, C_BTGN = (F.pad(value, (0, 0, 0, 0, 0, pad)) for value in (B_BTGN, C_BTGN))
    R = H // G

    # Layouts in which every contraction is a plain batched matrix product; R heads share a group's B and C.
    u_BZGRLP = u_BTHP.view(B, Z, L, G, R, P).permute(0, 1, 3, 4, 2, 5)
    B_BZGLN, C_BZGLN = (value.view(B, Z, L, G, N).transpose(2, 3) for value in (B_BTGN, C_BTGN))
    a_BZGRL = decay_BTH.view(B, Z, L, G, R).permute(0, 1, 3, 4, 2).cumsum(-1)  # log decay since the chunk began

    # Within a chunk: attention with decay as its mask.
    gap = a_BZGRL[..., :, None] - a_BZGRL[..., None, :]
    later = torch.ones(L, L, dtype=torch.bool, device=u_BTHP.device).triu(1)
    weights = (C_BZGLN @ B_BZGLN.transpose(-1, -2))[:, :, :, None] * gap.masked_fill(later, float("-inf")).exp()
    y = (weights @ u_BZGRLP).to(u_BTHP.dtype)  # autocast's products are narrow

    # Across chunks: what each adds to the state, the state that each starts from, and what that start contributes.
    # Fresh rows start from nothing, and nobody asks where they end.
    passed = Z if state_BHPN is not None else Z - 1
    if passed:
        state = None if state_BHPN is None else state_BHPN.view(B, G, R, P, N).to(y.dtype)
        starts = [] if state is None else [state]
        to_end = (a_BZGRL[:, :passed, ..., -1:] - a_BZGRL[:, :passed]).exp()[..., None]
        added = (u_BZGRLP[:, :passed] * to_end).transpose(-1, -2) @ B_BZGLN[:, :passed, :, None]  # B Z G R P N
        whole = a_BZGRL[:, :passed, ..., -1].exp()[..., None, None]
        for chunk_added, chunk_decay in zip(added.unbind(1), whole.unbind(1), strict=True):
            state = chunk_added if state is None else chunk_decay * state + chunk_added
            starts.append(state)
        carried = C_BZGLN[:, -passed:, :, None] @ torch.stack(starts[:passed], 1).transpose(-1, -2)
        y[:, -passed:] += carried * a_BZGRL[:, -passed:].exp()[..., None]
        state_BHPN = None if state_BHPN is None else starts[-1].view(B, H, P, N)
    return y.permute(0, 1, 4, 2, 3, 5).reshape(B, T + pad, H, P)[:, :T], state_BHPN
