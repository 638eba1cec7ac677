"""The last `window` keys and values of one attention layer, in a ring: position p lies in slot p mod window.

What a slot holds follows from the length of its row alone, so nothing but the tensors needs to be kept. In 8 bits, as
in `kv_cache`.

Dimension letters: B batch, T tokens in, S slots of the ring, U slots and new columns side by side, K key-value heads, X
= 2 K, D head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from paradigms.models.kv_cache import dequantise, quantise
from paradigms.models.layer_state import ReplayedState, SlotState
from paradigms.models.layers import Span


class RingState(ReplayedState, SlotState):
    """Keys and values of the last `window` positions."""

    names = ("keys_BKSD", "values_BKSD")
    slot_dim: ClassVar[int] = 2

    def __init__(self, window: int, *tensors: Tensor) -> None:
        super().__init__()
        self.window = window
        for name, tensor in zip(self.names, tensors, strict=True):
            setattr(self, name, tensor)

    def encode(self, k_BKTD: Tensor, v_BKTD: Tensor) -> tuple[Tensor, Tensor]:
        """New keys and values as they are stored."""
        return k_BKTD, v_BKTD

    def decode(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values as attention reads them, of what is stored."""
        return first, second

    def used_bytes(self, lengths: Sequence[int]) -> int:
        filled = [min(length, self.window) for length in lengths]
        return super().used_bytes(filled) + self.marked_bytes()

    def reserve(self, capacity: int) -> None:
        super().reserve(min(capacity, self.window))
        if self._snapshot is not None:
            more = self.capacity - self._snapshot[0].shape[self.slot_dim]
            self._snapshot = [F.pad(tensor, (0, 0, 0, more)) for tensor in self._snapshot]

    # New tokens

    def begin(self, new: tuple[Tensor, Tensor]) -> None:
        """Take up the first tokens of rows that are all empty and equally long."""
        num_kept = min(new[0].shape[2], self.window)
        shift = new[0].shape[2] % num_kept
        for slots, value in zip(self.tensors(), new, strict=True):
            slots[:, :, :num_kept] = value[:, :, -num_kept:].roll(shift, 2)

    def step(self, new: tuple[Tensor, Tensor], span: Span) -> list[Tensor]:
        """Take up one token a row, in place; all slots in use."""
        for slots, value in zip(self.tensors(), new, strict=True):
            if span.start is not None:
                slots[:, :, span.start % self.window] = value[:, :, 0]
            else:
                assert span.scatter is not None
                row, _, position = span.scatter
                slots[row, :, position % self.window] = value[row, :, 0]
        return [slots[:, :, : min(span.stop, self.capacity)] for slots in self.tensors()]

    def take_one(self, k_1K1D: Tensor, v_1K1D: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Take up one token of one row; the keys and values of all slots in use."""
        new = self.encode(k_1K1D, v_1K1D)
        if self._snapshot is not None:
            self.remember(new, torch.full((1, 1), start), [1])
        first, second = self.tensors()
        slot, stop = start % self.window, min(start + 1, self.window)
        first.narrow(2, slot, 1).copy_(new[0])
        second.narrow(2, slot, 1).copy_(new[1])
        return self.decode(first.narrow(2, 0, stop), second.narrow(2, 0, stop))

    def beside(self, new: tuple[Tensor, Tensor]) -> list[Tensor]:
        """The slots as they are, and the new columns behind them."""
        return [torch.cat((slots, value), 2) for slots, value in zip(self.tensors(), new, strict=True)]

    def take(self, beside: Sequence[Tensor], source_BS: Tensor) -> None:
        """Fill every slot from the column of `beside` that `Places.source_BS` names."""
        for slots, seen in zip(self.tensors(), beside, strict=True):
            slots.copy_(torch.take_along_dim(seen, source_BS[:, None, :, None], 2))

    def remember(self, new: tuple[Tensor, Tensor], position_BT: Tensor, num_tokens: list[int]) -> None:
        """Log new tokens for a rollback."""
        columns = [value.transpose(1, 2).contiguous() for value in new]
        self.log((*columns, position_BT), num_tokens)

    def feed(self, inputs: tuple[Tensor, ...], pads_B: Tensor | None) -> None:
        first, second, position_BT = inputs
        beside = self.beside((first.transpose(1, 2), second.transpose(1, 2)))
        self.take(beside, Places.of(position_BT, pads_B, self.window, self.capacity).source_BS)


class QuantisedRingState(RingState):
    """The same in 8 bits, with a scale a token and head."""

    names = ("numbers_BXSD", "scale_BXS1")

    def encode(self, k_BKTD: Tensor, v_BKTD: Tensor) -> tuple[Tensor, Tensor]:
        return quantise(k_BKTD, v_BKTD)

    def decode(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        return dequantise(first, second)


@dataclass(frozen=True)
class Places:
    """Who sees whom when several tokens come to a ring, and where they go.

    Attributes:
        mask_B1TU: which slots and new columns each new token sees.
        source_BS: for each slot, the place among slots and new columns of what it holds afterwards.
    """

    mask_B1TU: Tensor
    source_BS: Tensor

    @staticmethod
    def of(position_BT: Tensor, pads_B: Tensor | None, window: int, num_slots: int) -> Places:
        """For new tokens at these positions, right-aligned behind pads_B columns of padding."""
        T = position_BT.shape[1]
        column_T = torch.arange(T, device=position_BT.device)
        slot_S = torch.arange(num_slots, device=position_BT.device)
        pads_B1 = torch.zeros_like(position_BT[:, :1]) if pads_B is None else pads_B[:, None]
        after_B1 = position_BT[:, -1:] + 1
        before_B1 = after_B1 - (T - pads_B1)

        def held(length_B1: Tensor) -> Tensor:
            """Position in each slot of a row of this length; negative where there is none yet."""
            return length_B1 - 1 - (length_B1 - 1 - slot_S) % window

        held_BS = held(before_B1)
        old_BTS = (held_BS >= 0)[:, None] & (position_BT[..., None] - held_BS[:, None] < window)
        token_BT = column_T >= pads_B1
        new_BTT = band(T, window, position_BT.device) & token_BT[:, None]
        mask_BTU = torch.cat((old_BTS, new_BTT), 2) | ~token_BT[..., None]  # padding sees anything: no row is empty
        is_new_BS = held(after_B1) >= before_B1
        column_BS = pads_B1 + held(after_B1) - before_B1
        return Places(mask_BTU[:, None], torch.where(is_new_BS, num_slots + column_BS, slot_S))


def positions(span: Span, num_columns: int, device: torch.device) -> Tensor:
    """Positions [B or 1, T] of the new columns."""
    if span.position_BT is not None:
        return span.position_BT
    assert span.start is not None
    return torch.arange(span.start, span.start + num_columns, device=device)[None]


def band(num_columns: int, window: int, device: torch.device) -> Tensor:
    """Each column sees itself and the window - 1 before it: boolean [T, T]."""
    seen = torch.ones(num_columns, num_columns, dtype=torch.bool, device=device)
    return seen.tril().triu(1 - window)
