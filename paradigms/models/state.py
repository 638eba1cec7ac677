"""What a model carries between steps, and how it is marked, rolled back, cut and handed over.

Each kind of layer has its own state (beside its mixer); all answer the same few calls, so that a decoder which verifies
drafts, walks a tree or lets rows come and go never asks what is inside:

    SlotState       one slot a position (keys and values, a latent): rolling back only shortens the length
    ReplayedState   overwritten as it goes (a recurrence, a ring buffer): marking copies it and logs what it is fed;
                    rolling back restores the copy and feeds it the accepted tokens again, without any matrix product
    PairState       a layer of two mixers

Slots are positions: row b holds exactly its own lengths[b] tokens and padding is never stored, so `used_bytes` counts
what is needed and nothing else. Lengths live on the host: no step waits for the device to learn them. A static state
has them on the device too, where compiled and graphed steps read them.

Dimension letters: B batch, T columns fed, S slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

GROWTH = 128  # slots that a growing cache adds at a time: copying costs 2 / GROWTH of what attention reads anyway

Form = Literal["growing", "static"]


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


@dataclass(frozen=True)
class Mark:
    """A place to come back to: the lengths of the rows then."""

    lengths: tuple[int, ...]


class State:
    """State of all layers for a batch of rows.

    Attributes:
        lengths: tokens each row has seen.
        layers: one state a layer, None where a layer carries none.
        max_len: positions a row may have.
        form: "growing" allocates as rows grow; "static" allocates once and never moves its tensors, as compiled and
            graphed steps need.
        lengths_B: the lengths on the device; static form only.
    """

    def __init__(
        self, layers: Sequence[LayerState | None], batch_size: int, max_len: int, *, form: Form, device: torch.device
    ) -> None:
        self.layers, self.max_len, self.form = list(layers), max_len, form
        self.lengths = [0] * batch_size
        self.lengths_B = torch.zeros(batch_size, dtype=torch.long, device=device) if form == "static" else None
        self._capacity = max_len if form == "static" else initial_capacity(max_len)
        self._device = device
        self._mark: Mark | None = None
        self.plan: Any = None  # of the model that decodes with this state one token at a time

    @property
    def capacity(self) -> int:
        """Positions that there is room for now."""
        return self._capacity

    @property
    def is_marked(self) -> bool:
        """Whether there is a place to come back to."""
        return self._mark is not None

    @property
    def uniform_length(self) -> int | None:
        """The length of every row when all are equal, else None."""
        first = self.lengths[0]
        return first if all(length == first for length in self.lengths) else None

    @property
    def used_bytes(self) -> int:
        """Bytes of the slots that hold tokens, of the recurrent states, and of what a mark keeps."""
        return sum(layer.used_bytes(self.lengths) for layer in self._carried())

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the tensors' storage."""
        return sum(layer.allocated_bytes() for layer in self._carried())

    def reserve(self, num_positions: int) -> None:
        """Make room for rows of this many positions."""
        if num_positions > self._capacity:
            self._capacity = min(-(-num_positions // GROWTH) * GROWTH, self.max_len)
            for layer in self._carried():
                layer.reserve(self._capacity)

    def advance(self, added: Sequence[int], *, told: bool = False) -> None:
        """Count tokens that a forward has written; `told` says that it has counted them on the device itself."""
        self.lengths = [length + new for length, new in zip(self.lengths, added, strict=True)]
        if not told:
            self._tell_device()

    # Going back

    def mark(self) -> Mark:
        """Remember this place; an earlier mark is forgotten."""
        for layer in self._carried():
            layer.mark()
        self._mark = Mark(tuple(self.lengths))
        return self._mark

    def release(self, mark: Mark) -> None:
        """Give up a mark: everything since is kept."""
        self._check(mark)
        self._mark = None
        for layer in self._carried():
            layer.unmark()

    def rollback(self, mark: Mark, accepted: Sequence[int]) -> None:
        """Keep the first accepted[b] of row b's tokens since the mark, and forget the others.

        Raises:
            ValueError: the mark is not the newest, or more tokens are accepted than have come; nothing has changed.
        """
        self._check(mark)
        come = [length - before for length, before in zip(self.lengths, mark.lengths, strict=True)]
        if any(not 0 <= kept <= new for kept, new in zip(accepted, come, strict=True)):
            raise ValueError(f"accepted={list(accepted)} does not lie between 0 and the tokens since the mark, {come}")
        self._mark = None
        for layer in self._carried():
            layer.rollback(accepted)
        self._set_lengths([before + kept for before, kept in zip(mark.lengths, accepted, strict=True)])

    def keep(self, mark: Mark, columns: Sequence[Sequence[int]]) -> None:
        """Keep the tokens columns[b] of those since the mark, in this order: a path through a tree of drafts.

        Raises:
            ValueError: the mark is not the newest, a column does not exist, or a layer cannot keep a branch; nothing
                has changed.
        """
        self._check(mark)
        for chosen, length, before in zip(columns, self.lengths, mark.lengths, strict=True):
            if any(not 0 <= column < length - before for column in chosen):
                raise ValueError(f"columns={list(chosen)} are not among the {length - before} tokens since the mark")
        for layer in self._carried():
            layer.check_columns(columns)
        self._mark = None
        for layer in self._carried():
            layer.keep(mark.lengths, columns)
        self._set_lengths([before + len(chosen) for before, chosen in zip(mark.lengths, columns, strict=True)])

    # Rows that come and go

    def select_rows(self, rows: Sequence[int]) -> None:
        """Keep these rows in this order; a row may be taken more than once. Marks are forgotten."""
        if self.form == "static":
            raise ValueError("a static state never moves its tensors; put new rows over old ones with insert(at=...)")
        self._forget()
        rows_N = torch.tensor(list(rows), dtype=torch.long, device=self._device)
        for layer in self._carried():
            layer.select_rows(rows_N)
        self.lengths = [self.lengths[row] for row in rows]

    def insert(self, other: State, at: Sequence[int] | None = None) -> None:
        """Let the other's rows enter, behind the last one or in the place of the rows `at`. Marks are forgotten.

        Raises:
            ValueError: rows longer than this state may hold, or rows appended to a static state.
        """
        if max(other.lengths) > self.max_len:
            raise ValueError(f"rows of {max(other.lengths)} positions do not fit a state of {self.max_len}")
        if at is None and self.form == "static":
            raise ValueError("a static state has a fixed number of rows; name the rows to replace: insert(at=...)")
        self._forget()
        if at is None:
            self._capacity = other._capacity = max(self._capacity, other._capacity)
            for layer, theirs in zip(self._carried(), other._carried(), strict=True):
                layer.append_rows(theirs)
            self.lengths = self.lengths + other.lengths
            return
        other_capacity = min(other._capacity, self.max_len)
        self.reserve(other_capacity)
        rows_N = torch.tensor(list(at), dtype=torch.long, device=self._device)
        for layer, theirs in zip(self._carried(), other._carried(), strict=True):
            layer.replace_rows(theirs, rows_N)
        lengths = list(self.lengths)
        for row, length in zip(at, other.lengths, strict=True):
            lengths[row] = length
        self._set_lengths(lengths)

    def _carried(self) -> list[LayerState]:
        return [layer for layer in self.layers if layer is not None]

    def _check(self, mark: Mark) -> None:
        if self._mark is not mark:
            raise ValueError("this mark is gone: another one was set, or rows have moved, since")

    def _forget(self) -> None:
        if self._mark is not None:
            self.release(self._mark)

    def _set_lengths(self, lengths: list[int]) -> None:
        self.lengths = lengths
        self._tell_device()

    def _tell_device(self) -> None:
        if self.lengths_B is not None:
            self.lengths_B.copy_(torch.tensor(self.lengths))


def initial_capacity(max_len: int) -> int:
    """Slots that a growing state begins with."""
    return min(GROWTH, max_len)


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
