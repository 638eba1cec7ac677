"""Keys and values of one attention layer, a slot a position: as computed, or in 8 bits.

In 8 bits every token and head has one scale, its largest magnitude / 127. The scale has the model's own dtype: what is
read back is rounded to it anyway, so a wider one would cost bytes and buy nothing. Attention reads the keys and values
multiplied out again: the cache that is kept, and copied when rows move, is small; a step computes more, not less.

Dimension letters: B batch, T tokens in, S slots, K key-value heads, X = 2 K, D head width.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from paradigms.models.layer_state import SlotState, StateSpec
from paradigms.models.layers import Span

KV_DTYPES = ("int8",)


def kv_bytes(num_heads: int, head_dim: int, *, itemsize: int, kv_dtype: str | None) -> int:
    """Bytes of the keys and values of one position; `itemsize` is that of the model's dtype."""
    return 2 * num_heads * (head_dim * itemsize if kv_dtype is None else head_dim + itemsize)


class KVCache(SlotState):
    """Keys and values of one attention layer."""

    names = ("keys_BKSD", "values_BKSD")
    slot_dim: ClassVar[int] = 2

    def __init__(self, keys_BKSD: Tensor, values_BKSD: Tensor) -> None:
        self.keys_BKSD, self.values_BKSD = keys_BKSD, values_BKSD

    def through(self, k_BKTD: Tensor, v_BKTD: Tensor, span: Span) -> tuple[Tensor, Tensor]:
        """Keys and values of all slots up to span.stop; the new ones are in their places."""
        return _through(self.keys_BKSD, k_BKTD, span), _through(self.values_BKSD, v_BKTD, span)

    def take_one(self, k_1K1D: Tensor, v_1K1D: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """The same for one token of one row."""
        keys, values = self.keys_BKSD, self.values_BKSD
        keys.narrow(2, start, 1).copy_(k_1K1D)
        values.narrow(2, start, 1).copy_(v_1K1D)
        return keys.narrow(2, 0, start + 1), values.narrow(2, 0, start + 1)


class QuantisedKVCache(SlotState):
    """The same in 8 bits: keys and values side by side, X = 2 K, with a scale a token and head."""

    names = ("numbers_BXSD", "scale_BXS1")
    slot_dim: ClassVar[int] = 2

    def __init__(self, numbers_BXSD: Tensor, scale_BXS1: Tensor) -> None:
        self.numbers_BXSD, self.scale_BXS1 = numbers_BXSD, scale_BXS1

    def through(self, k_BKTD: Tensor, v_BKTD: Tensor, span: Span) -> tuple[Tensor, Tensor]:
        numbers_BXTD, scale_BXT1 = quantise(k_BKTD, v_BKTD)
        return dequantise(_through(self.numbers_BXSD, numbers_BXTD, span), _through(self.scale_BXS1, scale_BXT1, span))

    def take_one(self, k_1K1D: Tensor, v_1K1D: Tensor, start: int) -> tuple[Tensor, Tensor]:
        numbers, scale, new = self.numbers_BXSD, self.scale_BXS1, quantise(k_1K1D, v_1K1D)
        numbers.narrow(2, start, 1).copy_(new[0])
        scale.narrow(2, start, 1).copy_(new[1])
        return dequantise(numbers.narrow(2, 0, start + 1), scale.narrow(2, 0, start + 1))


def new_kv_cache(
    num_rows: int, num_heads: int, num_slots: int, head_dim: int, spec: StateSpec
) -> KVCache | QuantisedKVCache:
    """An empty cache, in the form that the spec asks for."""
    kind = KVCache if spec.kv_dtype is None else QuantisedKVCache
    return kind(*new_kv_tensors(num_rows, num_heads, num_slots, head_dim, spec))


def new_kv_tensors(num_rows: int, num_heads: int, num_slots: int, head_dim: int, spec: StateSpec) -> tuple[Tensor, ...]:
    """Zeros for the tensors of a cache: keys and values, or both in 8 bits and their scales."""
    shapes = [((num_rows, num_heads, num_slots, head_dim), spec.dtype)] * 2
    if spec.kv_dtype is not None:
        both = (num_rows, 2 * num_heads, num_slots)
        shapes = [((*both, head_dim), getattr(torch, spec.kv_dtype)), ((*both, 1), spec.dtype)]
    return tuple(torch.zeros(shape, device=spec.device, dtype=dtype) for shape, dtype in shapes)


def quantise(k_BKTD: Tensor, v_BKTD: Tensor) -> tuple[Tensor, Tensor]:
    """Both in 8 bits [B, 2 K, T, D], and scales [B, 2 K, T, 1]: value = number x scale, to half a scale."""
    both_BXTD = torch.cat((k_BKTD, v_BKTD), 1)
    wide = torch.promote_types(both_BXTD.dtype, torch.float32)
    largest_BXT1 = torch.linalg.vector_norm(both_BXTD, math.inf, -1, keepdim=True)
    scale_BXT1 = largest_BXT1.div_(127).clamp_(min=torch.finfo(both_BXTD.dtype).tiny)  # of zeros: any
    numbers_BXTD = both_BXTD.to(wide).div(scale_BXT1.to(wide)).round_().clamp_(-127, 127)
    return numbers_BXTD.to(torch.int8), scale_BXT1


def dequantise(numbers_BXSD: Tensor, scale_BXS1: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values as attention reads them."""
    keys_BKSD, values_BKSD = (numbers_BXSD * scale_BXS1).chunk(2, 1)
    return keys_BKSD, values_BKSD


def _through(slots_BKSX: Tensor, new_BKTX: Tensor, span: Span) -> Tensor:
    """All slots up to span.stop, the new ones among them.

    What is only looked at is written too: behind the tokens of its row, where nobody sees it and the next ones come.
    """
    if span.scatter is None:
        assert span.start is not None
        slots_BKSX[:, :, span.start : span.start + new_BKTX.shape[2]] = new_BKTX
    else:
        row, column, slot = span.scatter
        slots_BKSX[row, :, slot] = new_BKTX[row, :, column]
    return slots_BKSX[:, :, : span.stop]
