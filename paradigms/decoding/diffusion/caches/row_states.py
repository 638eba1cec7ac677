"""A state of all rows of a batch, of which some are looked at: finished rows cost no forward, and keep what they have.

Dimension letters: B rows of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from paradigms.models.state import State


class RowStates:
    """A state, and a copy of the rows that are looked at when these are not all.

    The copy lasts as long as the same rows are looked at, and is then put back.
    """

    def __init__(self, state: State) -> None:
        self.whole = state
        self._part: State | None = None
        self._rows: list[int] = []

    def of(self, rows: Sequence[int] | None) -> State:
        """The state of these rows (None: all), to be read and written."""
        if self._part is not None:
            if rows is not None and self._rows == list(rows):
                return self._part
            self.whole.insert(self._part, at=self._rows)
            self._part = None
        if rows is None or len(rows) == len(self.whole.lengths):
            return self.whole
        self._rows, self._part = list(rows), self.whole.rows(rows)
        return self._part

    def lengths(self) -> list[int]:
        """Positions that each row of the batch holds."""
        lengths = list(self.whole.lengths)
        if self._part is not None:
            for row, length in zip(self._rows, self._part.lengths, strict=True):
                lengths[row] = length
        return lengths

    @property
    def allocated_bytes(self) -> int:
        """Of both."""
        return self.whole.allocated_bytes + (0 if self._part is None else self._part.allocated_bytes)
