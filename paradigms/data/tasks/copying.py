"""Copying (2402.01032): a string of symbols, then the same again.

Attention looks up where the last symbols stood and goes on from there, at any length; a state of fixed size holds so
many symbols and no more. All symbols are equally likely, so that nothing can be guessed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from paradigms.data.tasks.task import Instance, Task, Verdict, compare

ANSWER = "="


@dataclass(frozen=True, kw_only=True)
class Copying(Task):
    """Attributes:
    alphabet: symbols to draw from.
    min_len, max_len: symbols of a string; every length between them is equally likely.
    """

    alphabet: int = 26
    min_len: int = 5
    max_len: int = 20
    name: ClassVar[str] = "copying"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alphabet < 2:
            raise ValueError(f"corpus.alphabet={self.alphabet} must be at least 2: strings of one symbol say nothing")
        if not 1 <= self.min_len <= self.max_len:
            raise ValueError(
                f"corpus.min_len={self.min_len} and max_len={self.max_len}: lengths go from min_len, at least 1, to "
                "max_len, at least min_len"
            )

    @property
    def symbols(self) -> tuple[str, ...]:
        return (*map(str, range(self.alphabet)), ANSWER)

    @property
    def answer_symbols(self) -> tuple[str, ...]:
        return self.symbols[: self.alphabet]

    @property
    def prompt_len(self) -> int:
        return self.max_len + 1

    @property
    def answer_len(self) -> int:
        return self.max_len

    def wanted(self, string: Sequence[str]) -> tuple[str, ...]:
        """What is to be written after a string."""
        return tuple(string)

    def draw(self, source: random.Random) -> Instance:
        string = source.choices(self.answer_symbols, k=source.randint(self.min_len, self.max_len))
        return Instance((*string, ANSWER), self.wanted(string))

    def check(self, instance: Instance, answer: Sequence[str]) -> Verdict:
        """Right is the one string; the first error is at its first symbol, or later."""
        verdict = compare(answer, instance.answer)
        if verdict.problem == "wrong symbol":
            problem = "lost on the way" if answer[0] == instance.answer[0] else "wrong start"
            return Verdict(False, verdict.share, problem)
        return verdict
