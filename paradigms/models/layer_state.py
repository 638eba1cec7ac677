"""What one layer carries between steps. All kinds answer the same few calls, so that `State` never asks what is inside:

    SlotState       one slot a position (keys and values, a latent): rolling back only shortens the length
    ReplayedState   overwritten as it goes (a recurrence, a ring buffer): marking copies it and logs what it is fed;
                    rolling back restores the copy and feeds it the accepted tokens again, without any matrix product
    PairState       a layer of two mixers

Each kind of layer has a class of its own, beside its mixer.

Dimension letters: B batch, T columns fed, S slots, W columns taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class StateSpec:
    """What tensors of a state are made of.

    Attributes:
        kv_dtype: None stores keys and values as computed; "int8" in 8 bits with a scale a token and head.
    """

    device: torch.device
    dtype: torch.dtype
    kv_dtype: str | None = None


class LayerState:
    """State of one layer. `names` are its tensors, all batch first."""

    names: ClassVar[tuple[str, ...]] = ()

    def tensors(self) -> list[Tensor]:
        return [getattr(self, name) for name in self.names]

    def used_bytes(self, lengths: Sequence[int]) -> int:
        """Bytes that hold something still needed, for rows of these lengths; what a mark keeps included."""
        raise NotImplementedError

    def allocated_bytes(self) -> int:
        return sum(tensor.untyped_storage().nbytes() for tensor in self.tensors())

    def reserve(self, capacity: int) -> None:
        """Make room for this many positions."""

    def mark(self) -> None:
        """Begin to remember what `rollback` needs."""

    def unmark(self) -> None:
        """Forget it."""

    def rollback(self, accepted: Sequence[int]) -> None:
        """Be as if only the first accepted[b] tokens had come since the mark, which is then gone."""

    def keep(self, lengths: Sequence[int], columns: Sequence[Sequence[int]]) -> None:
        """Be as if only these tokens, counted from lengths[b], had come since the mark, in this order."""
        raise NotImplementedError

    def check_columns(self, columns: Sequence[Sequence[int]]) -> None:
        """Raise ValueError when `keep` cannot keep these."""

    def select_rows(self, rows_N: Tensor) -> None:
        """Keep these rows, in this order; a row may be taken twice."""
        for name in self.names:
            setattr(self, name, getattr(self, name).index_select(0, rows_N))

    def append_rows(self, other: LayerState) -> None:
        for name in self.names:
            setattr(self, name, torch.cat((getattr(self, name), getattr(other, name))))

    def replace_rows(self, other: LayerState, rows_N: Tensor) -> None:
        """Put the other's rows in the place of these, in the tensors that there are."""
        for name in self.names:
            getattr(self, name).index_copy_(0, rows_N, getattr(other, name))


class SlotState(LayerState):
    """One slot a position; slots are dimension `slot_dim` of every tensor."""

    slot_dim: ClassVar[int]

    @property
    def capacity(self) -> int:
        return self.tensors()[0].shape[self.slot_dim]

    def used_bytes(self, lengths: Sequence[int]) -> int:
        return sum(tensor.select(self.slot_dim, 0)[0].nbytes for tensor in self.tensors()) * sum(lengths)

    def reserve(self, capacity: int) -> None:
        for name in self.names:
            old = getattr(self, name)
            shape = list(old.shape)
            if shape[self.slot_dim] >= capacity:
                continue
            filled, shape[self.slot_dim] = shape[self.slot_dim], capacity
            new = old.new_zeros(shape)
            new.narrow(self.slot_dim, 0, filled).copy_(old)
            setattr(self, name, new)

    def rollback(self, accepted: Sequence[int]) -> None:
        """Nothing to do: what lies beyond a row's length is never seen."""

    def keep(self, lengths: Sequence[int], columns: Sequence[Sequence[int]]) -> None:
        for tensor in self.tensors():
            for row, (length, chosen) in enumerate(zip(lengths, columns, strict=True)):
                slots = torch.tensor([length + column for column in chosen], dtype=torch.long, device=tensor.device)
                part = tensor[row].index_select(self.slot_dim - 1, slots)
                tensor[row].narrow(self.slot_dim - 1, length, len(chosen)).copy_(part)

    def append_rows(self, other: LayerState) -> None:
        assert isinstance(other, SlotState)
        self.reserve(other.capacity)
        other.reserve(self.capacity)
        super().append_rows(other)

    def replace_rows(self, other: LayerState, rows_N: Tensor) -> None:
        for name in self.names:
            ours, theirs = getattr(self, name), getattr(other, name)
            filled = min(ours.shape[self.slot_dim], theirs.shape[self.slot_dim])
            ours.narrow(self.slot_dim, 0, filled).index_copy_(0, rows_N, theirs.narrow(self.slot_dim, 0, filled))


class ReplayedState(LayerState):
    """Overwritten by every token, so that going back needs a copy and what came after it."""

    def __init__(self) -> None:
        self._snapshot: list[Tensor] | None = None
        self._log: list[tuple[tuple[Tensor, ...], list[int]]] = []

    def feed(self, inputs: tuple[Tensor, ...], pads_B: Tensor | None) -> None:
        """Take up tokens; inputs are [B, T, ...], rows right-aligned behind pads_B columns of padding."""
        raise NotImplementedError

    def log(self, inputs: tuple[Tensor, ...], num_tokens: list[int]) -> None:
        """Called by the mixer with what each forward feeds: [B, T, ...], the last num_tokens[b] columns of row b."""
        if self._snapshot is not None:
            self._log.append((inputs, num_tokens))

    @property
    def is_marked(self) -> bool:
        return self._snapshot is not None

    def mark(self) -> None:
        self._snapshot, self._log = [tensor.clone() for tensor in self.tensors()], []

    def unmark(self) -> None:
        self._snapshot, self._log = None, []

    def marked_bytes(self) -> int:
        """Bytes of the copy and the log."""
        logged = [tensor for inputs, _ in self._log for tensor in inputs]
        return sum(tensor.nbytes for tensor in (self._snapshot or []) + logged)

    def allocated_bytes(self) -> int:
        return super().allocated_bytes() + self.marked_bytes()

    def rollback(self, accepted: Sequence[int]) -> None:
        assert self._snapshot is not None
        for tensor, before in zip(self.tensors(), self._snapshot, strict=True):
            tensor.copy_(before)
        log = self._log
        self.unmark()
        left = list(accepted)
        for inputs, num_tokens in log:
            taken = [min(wanted, count) for wanted, count in zip(left, num_tokens, strict=True)]
            left = [wanted - count for wanted, count in zip(left, taken, strict=True)]
            if any(taken):
                self.feed(*_first(inputs, num_tokens, taken))

    def keep(self, lengths: Sequence[int], columns: Sequence[Sequence[int]]) -> None:
        self.rollback([len(chosen) for chosen in columns])

    def check_columns(self, columns: Sequence[Sequence[int]]) -> None:
        if any(list(chosen) != list(range(len(chosen))) for chosen in columns):
            raise ValueError(
                "a recurrent state or a ring buffer runs along one path; it cannot keep a branch of a tree"
            )


class PairState(LayerState):
    """States of the two mixers of one layer."""

    def __init__(self, first: LayerState, second: LayerState) -> None:
        self.first, self.second = first, second
        self.both = (first, second)

    def tensors(self) -> list[Tensor]:
        return self.first.tensors() + self.second.tensors()

    def used_bytes(self, lengths: Sequence[int]) -> int:
        return sum(one.used_bytes(lengths) for one in self.both)

    def allocated_bytes(self) -> int:
        return sum(one.allocated_bytes() for one in self.both)

    def reserve(self, capacity: int) -> None:
        for one in self.both:
            one.reserve(capacity)

    def mark(self) -> None:
        for one in self.both:
            one.mark()

    def unmark(self) -> None:
        for one in self.both:
            one.unmark()

    def rollback(self, accepted: Sequence[int]) -> None:
        for one in self.both:
            one.rollback(accepted)

    def keep(self, lengths: Sequence[int], columns: Sequence[Sequence[int]]) -> None:
        for one in self.both:
            one.keep(lengths, columns)

    def check_columns(self, columns: Sequence[Sequence[int]]) -> None:
        for one in self.both:
            one.check_columns(columns)

    def select_rows(self, rows_N: Tensor) -> None:
        for one in self.both:
            one.select_rows(rows_N)

    def append_rows(self, other: LayerState) -> None:
        assert isinstance(other, PairState)
        for one, theirs in zip(self.both, other.both, strict=True):
            one.append_rows(theirs)

    def replace_rows(self, other: LayerState, rows_N: Tensor) -> None:
        assert isinstance(other, PairState)
        for one, theirs in zip(self.both, other.both, strict=True):
            one.replace_rows(theirs, rows_N)


def _first(
    inputs: tuple[Tensor, ...], num_tokens: Sequence[int], taken: Sequence[int]
) -> tuple[tuple[Tensor, ...], Tensor | None]:
    """The first taken[b] of each row's tokens, right-aligned, and the padding before them."""
    T, width = inputs[0].shape[1], max(taken)
    if min(taken) == width and min(num_tokens) == max(num_tokens):
        first = T - num_tokens[0]
        return tuple(value[:, first : first + width] for value in inputs), None
    device = inputs[0].device
    count_B1 = torch.tensor(list(num_tokens), device=device)[:, None]
    pads_B = width - torch.tensor(list(taken), device=device)
    column_BW = (T - count_B1) + torch.arange(width, device=device) - pads_B[:, None]
    column_BW = column_BW.clamp(min=0)
    chosen = tuple(
        value.gather(1, column_BW.view(*column_BW.shape, *[1] * (value.dim() - 2)).expand(-1, -1, *value.shape[2:]))
        for value in inputs
    )
    return chosen, pads_B if min(taken) < width else None
