"""Keys and values of one attention layer, a slot a position: as computed, or in 8 bits.

In 8 bits every token and head has one scale, its largest magnitude / 127. The scale has the model's own dtype: what is
read back is rounded to it anyway, so a wider one would cost bytes and buy nothing. Attention reads the keys and values
multiplied out again: the cache that is kept, and copied when rows move, is small; a step computes more, not less.

Dimension letters: B batch, T tokens in, S slots, K key-value heads, D head width.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from paradigms.models.layers import Span
from paradigms.models.state import SlotState, StateSpec

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
        """Keys and values of all slots up to span.stop; the new ones are stored, or only looked at on a copy."""
        return _through(self.keys_BKSD, k_BKTD, span), _through(self.values_BKSD, v_BKTD, span)


class QuantisedKVCache(KVCache):
    """The same in 8 bits, with a scale a token and head."""

    names = ("keys_BKSD", "values_BKSD", "key_scale_BKS1", "value_scale_BKS1")

    def __init__(
        self, keys_BKSD: Tensor, values_BKSD: Tensor, key_scale_BKS1: Tensor, value_scale_BKS1: Tensor
    ) -> None:
        super().__init__(keys_BKSD, values_BKSD)
        self.key_scale_BKS1, self.value_scale_BKS1 = key_scale_BKS1, value_scale_BKS1

    def through(self, k_BKTD: Tensor, v_BKTD: Tensor, span: Span) -> tuple[Tensor, Tensor]:
        new = quantise(k_BKTD, v_BKTD)
        return dequantise(*(_through(slots, value, span) for slots, value in zip(self.tensors(), new, strict=True)))


def new_kv_tensors(num_rows: int, num_heads: int, num_slots: int, head_dim: int, spec: StateSpec) -> list[Tensor]:
    """Zeros for the tensors of a cache: keys and values, and in 8 bits their scales."""
    shape = (num_rows, num_heads, num_slots)
    dtype = spec.dtype if spec.kv_dtype is None else getattr(torch, spec.kv_dtype)
    tensors = [torch.zeros(*shape, head_dim, device=spec.device, dtype=dtype) for _ in range(2)]
    if spec.kv_dtype is not None:
        tensors += [torch.zeros(*shape, 1, device=spec.device, dtype=spec.dtype) for _ in range(2)]
    return tensors


def quantise(*values: Tensor) -> tuple[Tensor, ...]:
    """Each [..., D] in 8 bits, then the scale [..., 1] of each: value = number x scale, to half a scale."""
    wide = torch.promote_types(values[0].dtype, torch.float32)
    tiny = torch.finfo(values[0].dtype).tiny  # of a row of zeros
    scales = [value.abs().amax(-1, keepdim=True).div(127).clamp(min=tiny) for value in values]
    numbers = [
        (value.to(wide) / scale.to(wide)).round_().clamp_(-127, 127).to(torch.int8)
        for value, scale in zip(values, scales, strict=True)
    ]
    return *numbers, *scales


def dequantise(keys: Tensor, values: Tensor, key_scale: Tensor, value_scale: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values as attention reads them."""
    return keys * key_scale, values * value_scale


def _through(slots_BKSX: Tensor, new_BKTX: Tensor, span: Span) -> Tensor:
    """All slots up to span.stop, the new ones among them."""
    if not span.write:
        slots_BKSX = slots_BKSX.clone()
    if span.scatter is None:
        slots_BKSX[:, :, span.start : span.stop] = new_BKTX
    else:
        row, column, slot = span.scatter
        slots_BKSX[row, :, slot] = new_BKTX[row, :, column]
    return slots_BKSX[:, :, : span.stop]
