"""The feed-forward of rows that each have their own few experts, in four ways.

    by_loop       the definition: an expert at a time, its rows gathered; also used for training
    by_row        one row, on a CPU: the chosen experts' matrices are read where they lie, in two operators
    by_group      rows sorted by expert, two grouped products (torch's, for rows that suit it)
    by_gather     a copy of the chosen matrices for every row: no number leaves the device, so that it can be captured

All give the sum over a row's experts of weight x down(silu(gate(x)) x up(x)). Tests hold each against the loop.

Dimension letters: R rows, K experts of a row, X experts, E model width, I inner width.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

Products = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def by_loop(x_RE: Tensor, chosen_RK: Tensor, weight_RK: Tensor, gate_up_XEI: Tensor, down_XIE: Tensor) -> Tensor:
    """Expert by expert, those that some row chose."""
    y_RE = torch.zeros_like(x_RE)
    gate_ups, downs = gate_up_XEI.unbind(), down_XIE.unbind()  # gradients are then stacked once
    for expert in chosen_RK.unique().tolist():
        row, place = (chosen_RK == expert).nonzero(as_tuple=True)
        gate, up = (x_RE[row] @ gate_ups[expert]).chunk(2, -1)
        part = (F.silu(gate) * up) @ downs[expert]
        y_RE = y_RE.index_add(0, row, weight_RK[row, place, None] * part)
    return y_RE


def by_row(x_1E: Tensor, chosen_1K: Tensor, weight_1K: Tensor, gate_up_XEI: Tensor, down_XIE: Tensor) -> Tensor:
    """One row. Weighted sums of embedding rows read the matrices of several experts in one operator and copy none."""
    K = chosen_1K.shape[1]
    X, E, twice = gate_up_XEI.shape
    chosen_K1 = chosen_1K.view(K, 1)
    places_KE = chosen_K1 * E + _count(E, x_1E.device)
    sums_KI = _weighted_sums(gate_up_XEI.view(X * E, twice), places_KE, x_1E.expand(K, E))
    gate_KI, up_KI = sums_KI.chunk(2, -1)
    inner_KI = F.silu(gate_KI) * up_KI * weight_1K.view(K, 1)
    width = twice // 2
    places_KI = chosen_K1 * width + _count(width, x_1E.device)
    return _weighted_sums(down_XIE.view(X * width, E), places_KI.view(1, -1), inner_KI.view(1, -1))


def by_group(x_RE: Tensor, chosen_RK: Tensor, weight_RK: Tensor, gate_up_XEI: Tensor, down_XIE: Tensor) -> Tensor:
    """Sorted by expert, one product over all of them; `ends_X` says where each one's rows end."""
    R, K = chosen_RK.shape
    expert_N, order_N = chosen_RK.flatten().sort(stable=True)
    ends_X = torch.searchsorted(expert_N, _count(len(gate_up_XEI), x_RE.device), right=True).int()
    gate, up = F.grouped_mm(x_RE[order_N // K], gate_up_XEI, offs=ends_X).chunk(2, -1)
    inner_NI = F.silu(gate) * up * weight_RK.flatten()[order_N, None]
    sorted_NE = F.grouped_mm(inner_NI, down_XIE, offs=ends_X)
    return torch.empty_like(sorted_NE).index_copy_(0, order_N, sorted_NE).view(R, K, -1).sum(1)


def by_gather(x_RE: Tensor, chosen_RK: Tensor, weight_RK: Tensor, gate_up_XEI: Tensor, down_XIE: Tensor) -> Tensor:
    """Every row's own copy of its experts' matrices."""
    gate, up = (x_RE[:, None, None] @ gate_up_XEI[chosen_RK])[:, :, 0].chunk(2, -1)
    inner_RKI = F.silu(gate) * up * weight_RK[..., None]
    return (inner_RKI[:, :, None] @ down_XIE[chosen_RK])[:, :, 0].sum(1)


def choose(x_RE: Tensor, gate_up_XEI: Tensor, *, on_device: bool) -> Products:
    """The way that suits these rows here; with `on_device`, the host may read no number that a GPU computes."""
    if torch.is_grad_enabled() and (x_RE.requires_grad or gate_up_XEI.requires_grad):
        return by_loop
    if on_device and x_RE.is_cuda:
        return by_group if _groups_natively(x_RE, gate_up_XEI) else by_gather
    if len(x_RE) == 1 and x_RE.is_cpu and x_RE.dtype == torch.float32:
        return by_row
    if torch.compiler.is_compiling():
        return by_group if _groups_natively(x_RE, gate_up_XEI) else _eagerly
    return by_group if _can_group(x_RE, gate_up_XEI) else by_loop


def _can_group(x_RE: Tensor, gate_up_XEI: Tensor) -> bool:
    """Whether torch's grouped product takes these: 32 bits or less, every row a multiple of 16 bytes."""
    aligned = all(size * x_RE.element_size() % 16 == 0 for size in (x_RE.shape[1], gate_up_XEI.shape[2] // 2))
    return x_RE.dtype in (torch.float32, torch.bfloat16) and aligned


def _groups_natively(x_RE: Tensor, gate_up_XEI: Tensor) -> bool:
    """Whether it is one kernel, and not a loop on the host."""
    fits = x_RE.is_cuda and x_RE.dtype == torch.bfloat16 and _can_group(x_RE, gate_up_XEI)
    return fits and torch.cuda.get_device_capability(x_RE.device) >= (9, 0)


@torch.library.custom_op("paradigms::experts", mutates_args=())
def _eagerly(x_RE: Tensor, chosen_RK: Tensor, weight_RK: Tensor, gate_up_XEI: Tensor, down_XIE: Tensor) -> Tensor:
    """One operator to torch.compile, which can follow neither the loop nor a grouped product of 32 bits."""
    products = by_group if _can_group(x_RE, gate_up_XEI) else by_loop
    return products(x_RE, chosen_RK, weight_RK, gate_up_XEI, down_XIE)


@_eagerly.register_fake
def _(x_RE: Tensor, chosen_RK: Tensor, weight_RK: Tensor, gate_up_XEI: Tensor, down_XIE: Tensor) -> Tensor:
    return torch.empty_like(x_RE)


def _weighted_sums(table: Tensor, places: Tensor, weights: Tensor) -> Tensor:
    """Row n: the sum of table[places[n, j]] x weights[n, j] over j."""
    return F.embedding_bag(places, table, mode="sum", per_sample_weights=weights)


def _count(size: int, device: torch.device) -> Tensor:
    return torch.arange(size, device=device) if torch.compiler.is_compiling() else _kept_count(size, device)


@cache
def _kept_count(size: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.arange(size, device=device)
