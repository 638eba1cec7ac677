"""Which implementation runs what: readable torch everywhere, faster kernels where they exist.

One place decides, so that `in_use` can tell the records what ran. The plain torch form is the reference of each, and
tests hold the faster one against it: mamba-ssm's kernels on CUDA when installed, and one product on the CPU.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from paradigms.models import ssd


@cache
def mamba_ssm_kernels() -> tuple | None:
    """(chunked scan, one-step update) of mamba-ssm, or None when it is not installed or cannot load."""
    try:
        from mamba_ssm.ops.triton.selective_state_update import selective_state_update  # pyright: ignore
        from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined  # pyright: ignore
    except (ImportError, RuntimeError, OSError):
        return None
    return mamba_chunk_scan_combined, selective_state_update


def in_use(device: torch.device, layers: str) -> str:
    """Name of what runs the layers, for the records."""
    if "M" not in layers:
        return "torch_sdpa"
    return "mamba_ssm" if device.type == "cuda" and mamba_ssm_kernels() else "torch_ssd"


_NARROW = 640  # outputs
_BEYOND_CACHE = 2**15  # numbers of a matrix, below which there is nothing to gain


def product(x_RE: Tensor, weights_EO: Tensor) -> Tensor:
    """x @ weights, [R, O].

    One row times a narrow matrix is bound by reading the matrix. On a CPU, torch's weighted sum of embedding rows reads
    it two to three times faster than its matrix product (float32, matrices beyond the second cache); wide matrices gain
    nothing.
    """
    if x_RE.shape[0] > 1 or weights_EO.numel() < _BEYOND_CACHE:
        return x_RE @ weights_EO
    num_inputs, num_outputs = weights_EO.shape
    if num_outputs > min(num_inputs, _NARROW) or torch.is_grad_enabled() or not _is_cpu_float32(x_RE):
        return x_RE @ weights_EO
    rows_E, first_row = _all_rows(num_inputs)
    return torch.embedding_bag(weights_EO, rows_E, first_row, False, 0, False, x_RE[0])[0]


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
    T = seen_BTC.shape[1] - K + 1
    if seen_BTC.device.type == "cuda":
        y_BCT = F.conv1d(seen_BTC.transpose(1, 2), weight_CK[:, None], bias_C, groups=weight_CK.shape[0])
        return y_BCT.transpose(1, 2)
    if bias_C is None:
        y_BTC = seen_BTC[:, :T] * weight_CK[:, 0]
    else:
        y_BTC = torch.addcmul(bias_C, seen_BTC[:, :T], weight_CK[:, 0])
    for k in range(1, K):
        y_BTC = torch.addcmul(y_BTC, seen_BTC[:, k : k + T], weight_CK[:, k])
    return y_BTC


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
) -> tuple[Tensor, Tensor]:
    """See `ssd.ssd_chunked`."""
    if x_BTHP.device.type == "cuda" and (fused := mamba_ssm_kernels()):
        return fused[0](
            x_BTHP, dt_BTH, A_H, B_BTGN, C_BTGN, chunk_len, initial_states=state_BHPN, return_final_states=True
        )
    return ssd.ssd_chunked(x_BTHP, dt_BTH, A_H, B_BTGN, C_BTGN, state_BHPN, chunk_len)


def ssd_step(x_BHP: Tensor, dt_BH: Tensor, A_H: Tensor, B_BGN: Tensor, C_BGN: Tensor, state_BHPN: Tensor) -> Tensor:
    """See `ssd.ssd_step`."""
    if x_BHP.device.type == "cuda" and (fused := mamba_ssm_kernels()):
        P, N = state_BHPN.shape[2:]
        dt_BHP = dt_BH[..., None].expand(-1, -1, P)
        A_HPN = A_H[:, None, None].expand(-1, P, N)
        return fused[1](state_BHPN, x_BHP, dt_BHP, A_HPN, B_BGN, C_BGN)
    return ssd.ssd_step(x_BHP, dt_BH, A_H, B_BGN, C_BGN, state_BHPN)
