"""What a model carries between steps, and how it is marked, rolled back, cut and handed over.

Each layer has its own state (`layer_state`); a decoder which verifies drafts, walks a tree or lets rows come and go
asks this one, and never what is inside.

Slots are positions: row b holds exactly its own lengths[b] tokens and padding is never stored, so `used_bytes` counts
what is needed and nothing else. Lengths live on the host: no step waits for the device to learn them. A static state
has them on the device too, where compiled and graphed steps read them.

Dimension letters: B batch.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from paradigms.models.layer_state import LayerState

GROWTH = 128  # slots that a growing cache adds at a time: copying costs 2 / GROWTH of what attention reads anyway

Form = Literal["growing", "static"]


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

    def rows(self, rows: Sequence[int]) -> State:
        """A growing copy of these rows; a row may be taken more than once. This state stays as it is."""
        other = copy.copy(self)
        other.layers = [None if layer is None else copy.copy(layer) for layer in self.layers]
        other.form, other.lengths_B, other.plan, other._mark = "growing", None, None, None
        other.select_rows(rows)
        return other

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
