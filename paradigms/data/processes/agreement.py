"""Nested clauses with agreement: a word that opens one has a number and a colour, and what closes it must have both.

    text -> word*        word -> distractor | clause        clause -> open(v) word* close(v)

Between the two stand distractors and whole clauses, down to a bounded depth, so that what must agree is far apart and
other words of the same kind lie in between. A letter says what it is, which leaves one parse: the stack of open clauses
gives the next letter's probabilities exactly. At each letter a clause opens with probability `open_share` (where one
more may) and the innermost closes with `close_share` (where one is open); the rest are distractors, all alike. A
document begins with no clause open and ends where its length is reached, with clauses open or not.

Of an impossible letter the stack makes the best: a word that closes wrongly closes all the same, one with nothing to
close and one that opens too deep a clause change nothing.

Letters: A, B, ... open; a, b, ... close; n, o, ... distract. Dimension letters: S stacks, A letters, V = numbers x
colours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from string import ascii_lowercase, ascii_uppercase
from typing import ClassVar

import numpy as np

from paradigms.data.processes.unifilar import Unifilar

MAX_KINDS = 13  # half of the small letters; the others distract
MAX_STACKS = 20_000


@dataclass(frozen=True, kw_only=True)
class Agreement(Unifilar):
    """Attributes:
    numbers, colours: values of the two features that must agree.
    distractors: letters that change nothing.
    max_depth: clauses that are open at once.
    open_share, close_share: probability that a clause opens, and that the innermost closes, at a letter.
    """

    numbers: int = 2
    colours: int = 2
    distractors: int = 4
    max_depth: int = 3
    open_share: float = 0.15
    close_share: float = 0.15
    name: ClassVar[str] = "agreement"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.numbers < 1 or self.colours < 1 or not 2 <= self.kinds <= MAX_KINDS:
            raise ValueError(
                f"corpus.numbers={self.numbers} x corpus.colours={self.colours} must be 2 to {MAX_KINDS} kinds of words"
            )
        if not 1 <= self.distractors <= MAX_KINDS:
            raise ValueError(f"corpus.distractors={self.distractors} must be from 1 to {MAX_KINDS}")
        if self.max_depth < 1 or sum(self.kinds**depth for depth in range(self.max_depth + 1)) > MAX_STACKS:
            raise ValueError(
                f"corpus.max_depth={self.max_depth} with {self.kinds} kinds of words: at least 1, and at most "
                f"{MAX_STACKS} different stacks"
            )
        if min(self.open_share, self.close_share) <= 0 or self.open_share + self.close_share >= 1:
            raise ValueError(
                f"corpus.open_share={self.open_share} and corpus.close_share={self.close_share} must be above 0 and "
                "together below 1, the rest being distractors"
            )

    @property
    def kinds(self) -> int:
        """Kinds of words that open, and of words that close."""
        return self.numbers * self.colours

    @property
    def letters(self) -> tuple[str, ...]:
        V = self.kinds
        return (*ascii_uppercase[:V], *ascii_lowercase[:V], *ascii_lowercase[MAX_KINDS : MAX_KINDS + self.distractors])

    @cached_property
    def _stacks(self) -> list[tuple[int, int]]:
        """(depth, kinds of the open words as one number, the innermost lowest) of each state."""
        return [(depth, number) for depth in range(self.max_depth + 1) for number in range(self.kinds**depth)]

    @cached_property
    def emission_SA(self) -> np.ndarray:
        V, emission_SA = self.kinds, np.zeros((len(self._stacks), len(self.letters)))
        for state, (depth, number) in enumerate(self._stacks):
            if depth < self.max_depth:
                emission_SA[state, :V] = self.open_share / V
            if depth:
                emission_SA[state, V + number % V] = self.close_share
            emission_SA[state, 2 * V :] = (1 - emission_SA[state].sum()) / self.distractors
        return emission_SA

    @cached_property
    def next_SA(self) -> np.ndarray:
        V, state_of = self.kinds, {stack: state for state, stack in enumerate(self._stacks)}
        next_SA = np.repeat(np.arange(len(self._stacks))[:, None], len(self.letters), 1)
        for state, (depth, number) in enumerate(self._stacks):
            if depth < self.max_depth:
                next_SA[state, :V] = [state_of[depth + 1, number * V + kind] for kind in range(V)]
            if depth:
                next_SA[state, V : 2 * V] = state_of[depth - 1, number // V]
        return next_SA

    def agreements(self, letters_T: Sequence[int]) -> Iterator[tuple[int, bool]]:
        """Of each word that closes a clause: how far it is from the word that opened it, and whether the two agree."""
        V, opened = self.kinds, []
        for t, letter in enumerate(letters_T):
            if letter < V:
                if len(opened) < self.max_depth:
                    opened.append((t, letter))
            elif letter < 2 * V and opened:
                start, kind = opened.pop()
                yield t - start, kind == letter - V
