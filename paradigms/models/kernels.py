"""Which implementation runs what: readable torch everywhere, faster kernels where they exist.

One place decides, so that `in_use` can tell the records what ran. The plain torch form is the reference of each, and
tests hold the faster one against it: mamba-ssm's and causal-conv1d's kernels on CUDA when installed, and one product on
the CPU. The kernels know no float64, and those of a single token no gradient: torch computes these.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from paradigms.models import selective_scan as scans
from paradigms.models import ssd


class MambaKernels(NamedTuple):
    """What mamba-ssm has for us."""

    ssd_chunked: Callable
    step: Callable  # of Mamba and Mamba-2
    selective_scan: Callable


@cache
def mamba_ssm_kernels() -> MambaKernels | None:
    """mamba-ssm's kernels, or None when it is not installed or cannot load."""
    try:
        from mamba_ssm.ops.selective_scan_interface import selective_scan_fn  # pyright: ignore
        from mamba_ssm.ops.triton.selective_state_update import selective_state_update  # pyright: ignore
        from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined  # pyright: ignore
    except (ImportError, RuntimeError, OSError):
        return None
    return MambaKernels(mamba_chunk_scan_combined, selective_state_update, selective_scan_fn)


class ConvKernels(NamedTuple):
    """What causal-conv1d has for us."""

    conv: Callable
    step: Callable


@cache
def causal_conv1d_kernels() -> ConvKernels | None:
    """causal-conv1d's kernels, or None when it is not installed or cannot load."""
    try:
        from causal_conv1d import causal_conv1d_fn, causal_conv1d_update  # pyright: ignore
    except (ImportError, RuntimeError, OSError):
        return None
    return ConvKernels(causal_conv1d_fn, causal_conv1d_update)


def in_use(device: torch.device, layers: str) -> str:
    """Names of what runs the layers, joined by +, for the records."""
    kinds = set(layers)
    found = [name for letters, name in (("M", "torch_ssd"), ("SPZ", "torch_scan")) if kinds & set(letters)]
    if found and device.type == "cuda":
        found = ["mamba_ssm"] if mamba_ssm_kernels() else found
        found += ["causal_conv1d"] if causal_conv1d_kernels() else []
    if "T" in kinds and "torch_ssd" not in found:
        found.append("torch_ssd")
    return "+".join(found) or "torch_sdpa"


def _mamba_ssm(x: Tensor) -> MambaKernels | None:
    """mamba-ssm's kernels where they can take x."""
    return mamba_ssm_kernels() if x.device.type == "cuda" and x.dtype != torch.float64 else None


def _causal_conv1d(x_BTC: Tensor, K: int) -> ConvKernels | None:
    """causal-conv1d's kernels where they can take x and a convolution of width K."""
    fits = x_BTC.device.type == "cuda" and x_BTC.dtype != torch.float64 and x_BTC.shape[2] % 8 == 0 and 2 <= K <= 4
    return causal_conv1d_kernels() if fits else None


def _has_gradient(x: Tensor) -> bool:
    return x.requires_grad and torch.is_grad_enabled()


_NARROW = 640  # outputs
_BEYOND_CACHE = 2**15  # numbers of a matrix, below which there is nothing to gain


def product(x_RE: Tensor, weights_EO: Tensor) -> Tensor:
    """x @ weights, [R, O].

    One row times a narrow matrix is bound by reading the matrix. On a CPU, torch's weighted sum of embedding rows reads
    it two to three times faster than its matrix product (float32, matrices beyond the second cache); wide matrices gain
    nothing. torch.compile is shown the plain product.
    """
    if x_RE.shape[0] > 1 or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return x_RE @ weights_EO
    if not _is_cpu_float32(x_RE) or not _as_bag(weights_EO):
        return x_RE @ weights_EO
    rows_E, first_row = _all_rows(weights_EO.shape[0])
    return torch.embedding_bag(weights_EO, rows_E, first_row, False, 0, False, x_RE[0])[0]


def row_product(weights_EO: Tensor) -> Callable[[Tensor], Tensor]:
    """`product` of one row with these weights, the choice made once; without gradients, on a CPU."""
    multiply, bag = torch.mm, torch.embedding_bag
    if not _is_cpu_float32(weights_EO) or not _as_bag(weights_EO):
        return lambda x_1E: multiply(x_1E, weights_EO)
    rows_E, first_row = _all_rows(weights_EO.shape[0])
    return lambda x_1E: bag(weights_EO, rows_E, first_row, False, 0, False, x_1E[0])[0]


def _as_bag(weights_EO: Tensor) -> bool:
    num_inputs, num_outputs = weights_EO.shape
    return weights_EO.numel() >= _BEYOND_CACHE and num_outputs <= min(num_inputs, _NARROW)


def _is_cpu_float32(x: Tensor) -> bool:
    return x.dtype == torch.float32 and x.device.type == "cpu"


@cache
def _all_rows(num_rows: int) -> tuple[Tensor, Tensor]:
    """Indices of one bag that holds every row once."""
    with torch.inference_mode(False):
        return torch.arange(num_rows), torch.zeros(1, dtype=torch.long)


def causal_conv(seen_BTC: Tensor, weight_CK: Tensor, bias_C: Tensor | None) -> Tensor:
    """Depthwise causal convolution over T + K - 1 places, the first K - 1 of them the past; returns T places.

    K shifted multiply-adds: on a CPU several times faster than a grouped convolution of so short a kernel.
    """
    K = weight_CK.shape[1]
    if fused := _causal_conv1d(seen_BTC, K):
        return fused.conv(seen_BTC.transpose(1, 2), weight_CK, bias_C).transpose(1, 2)[:, K - 1 :]
    if seen_BTC.device.type == "cuda":
        y_BCT = F.conv1d(seen_BTC.transpose(1, 2), weight_CK[:, None], bias_C, groups=weight_CK.shape[0])
        return y_BCT.transpose(1, 2)
    if _has_gradient(seen_BTC) and not torch.compiler.is_compiling():
        return _ShiftedSums.apply(seen_BTC, weight_CK, bias_C)
    return _shifted_sums(seen_BTC, weight_CK, bias_C)


def _shifted_sums(seen_BTC: Tensor, weight_CK: Tensor, bias_C: Tensor | None) -> Tensor:
    K = weight_CK.shape[1]
    T = seen_BTC.shape[1] - K + 1
    if bias_C is None:
        y_BTC = seen_BTC[:, :T] * weight_CK[:, 0]
    else:
        y_BTC = torch.addcmul(bias_C, seen_BTC[:, :T], weight_CK[:, 0])
    for k in range(1, K):
        y_BTC = torch.addcmul(y_BTC, seen_BTC[:, k : k + T], weight_CK[:, k])
    return y_BTC


class _ShiftedSums(torch.autograd.Function):
    """`_shifted_sums`, its gradient summed in place: autograd's would pad a copy for each of the K shifts."""

    @staticmethod
    def forward(ctx: Any, seen_BTC: Tensor, weight_CK: Tensor, bias_C: Tensor | None) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(seen_BTC, weight_CK, bias_C)
        return _shifted_sums(seen_BTC, weight_CK, bias_C)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_BTC: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:  # type: ignore[override]
        seen_BTC, weight_CK, bias_C = ctx.saved_tensors
        K, T = weight_CK.shape[1], grad_BTC.shape[1]
        grad_seen_BTC, grad_weight_CK = torch.zeros_like(seen_BTC, dtype=grad_BTC.dtype), torch.empty_like(weight_CK)
        for k in range(K):
            grad_seen_BTC[:, k : k + T].addcmul_(grad_BTC, weight_CK[:, k])
            grad_weight_CK[:, k] = (grad_BTC * seen_BTC[:, k : k + T]).sum((0, 1))
        grad_bias_C = None if bias_C is None else grad_BTC.sum((0, 1)).to(bias_C.dtype)
        return grad_seen_BTC.to(seen_BTC.dtype), grad_weight_CK, grad_bias_C


def conv_constants(weight_CK: Tensor, bias_C: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """A convolution's weights as `conv_step` takes them: along contiguous channels; the bias in the first of K rows
    that are summed anyway.
    """
    conv_KC = weight_CK.t().contiguous()
    return conv_KC, None if bias_C is None else F.pad(bias_C[None], (0, 0, 0, conv_KC.shape[0] - 1))


def conv_step(past_BWC: Tensor, x_B1C: Tensor, conv_KC: Tensor, bias_KC: Tensor | None) -> Tensor:
    """silu of the convolution at one more token, [B, 1, C]; the past moves on by it, in place."""
    if not _has_gradient(x_B1C) and (fused := _causal_conv1d(x_B1C, conv_KC.shape[0])):
        bias_C = None if bias_KC is None else bias_KC[0]
        return fused.step(
            x_B1C.transpose(1, 2), past_BWC.transpose(1, 2), conv_KC.t(), bias_C, activation="silu"
        ).transpose(1, 2)
    window_BKC = torch.cat((past_BWC, x_B1C), 1)
    past_BWC.copy_(window_BKC.narrow(1, 1, past_BWC.shape[1]))
    weighted_BKC = window_BKC * conv_KC if bias_KC is None else torch.addcmul(bias_KC, window_BKC, conv_KC)
    return F.silu(weighted_BKC.sum(1, keepdim=True))


def close_gap(seen_BSC: Tensor, pads_B: Tensor, W: int) -> Tensor:
    """Move each row's W past places over its padding, next to its first token, so that a convolution sees no gap."""
    place_S = torch.arange(seen_BSC.shape[1], device=seen_BSC.device)
    source_BS = torch.where(place_S >= pads_B[:, None] + W, place_S, (place_S - pads_B[:, None]).clamp(min=0))
    return seen_BSC.gather(1, source_BS[..., None].expand_as(seen_BSC))


def ssd_chunked(
    x_BTHP: Tensor,
    dt_BTH: Tensor,
    A_H: Tensor,
    B_BTGN: Tensor,
    C_BTGN: Tensor,
    state_BHPN: Tensor | None,
    chunk_len: int,
) -> tuple[Tensor, Tensor | None]:
    """See `ssd.ssd_chunked`."""
    if fused := _mamba_ssm(x_BTHP):
        y_BTHP, last_BHPN = fused.ssd_chunked(
            x_BTHP, dt_BTH, A_H, B_BTGN, C_BTGN, chunk_len, initial_states=state_BHPN, return_final_states=True
        )
        return y_BTHP, None if state_BHPN is None else last_BHPN
    return ssd.ssd_chunked(x_BTHP, dt_BTH, A_H, B_BTGN, C_BTGN, state_BHPN, chunk_len)


def ssd_step(x_BHP: Tensor, dt_BH: Tensor, A_H: Tensor, B_BGN: Tensor, C_BGN: Tensor, state_BHPN: Tensor) -> Tensor:
    """See `ssd.ssd_step`."""
    if not _has_gradient(x_BHP) and (fused := _mamba_ssm(x_BHP)):
        H, P, N = state_BHPN.shape[1:]
        dt_BHP = dt_BH[..., None].expand(-1, -1, P)
        A_HPN = A_H[:, None, None].expand(-1, P, N)
        zero_HP = _zero(x_BHP.device).expand(H, P)  # the kernel wants D and a bias of dt
        return fused.step(state_BHPN, x_BHP, dt_BHP, A_HPN, B_BGN, C_BGN, zero_HP, dt_bias=zero_HP)
    return ssd.ssd_step(x_BHP, dt_BH, A_H, B_BGN, C_BGN, state_BHPN)


@cache
def _zero(device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.zeros((), device=device)


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
    """See `selective_scan.selective_scan`. mamba-ssm's kernel starts from zero, and the last state that it gives has
    no gradient; what a state adds comes on top.
    """
    fused = _mamba_ssm(x_BTI)
    if fused is None or (state_BNI is not None and _has_gradient(x_BTI)):
        return scans.selective_scan(x_BTI, dt_BTI, A_NI, B_BTN, C_BTN, D_I, state_BNI, chunk_len)
    x_BIT, dt_BIT, B_BNT, C_BNT = (value.transpose(1, 2) for value in (x_BTI, dt_BTI, B_BTN, C_BTN))
    y_BIT, last_BIN = fused.selective_scan(
        x_BIT, dt_BIT, A_NI.t().contiguous(), B_BNT, C_BNT, D_I, return_last_state=True
    )
    y_BTI, last_BNI = y_BIT.transpose(1, 2), last_BIN.transpose(1, 2)
    if state_BNI is None:
        return y_BTI, last_BNI
    more_BTI, more_BNI = scans.carried(dt_BTI, A_NI, C_BTN, state_BNI, chunk_len)
    return y_BTI + more_BTI, last_BNI + more_BNI


def selective_step(
    x_BI: Tensor, dt_BI: Tensor, A_NI: Tensor, B_BN: Tensor, C_BN: Tensor, D_I: Tensor, state_BNI: Tensor
) -> Tensor:
    """See `selective_scan.selective_step`."""
    if not _has_gradient(x_BI) and (fused := _mamba_ssm(x_BI)):
        zero_I = _zero(x_BI.device).expand(x_BI.shape[1])
        return fused.step(state_BNI.transpose(1, 2), x_BI, dt_BI, A_NI.t(), B_BN, C_BN, D_I, dt_bias=zero_I)
    return scans.selective_step(x_BI, dt_BI, A_NI, B_BN, C_BN, D_I, state_BNI)
