"""Induction (2312.00752, 2209.11895): what followed a special symbol the first time is to be said when it comes again.

The shortest form of recall: one key, which is always the same, at a place that is not known beforehand.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from paradigms.data.tasks.task import Instance, Task, Verdict, compare

SPECIAL = "#"


@dataclass(frozen=True, kw_only=True)
class Induction(Task):
    """Attributes:
    length: symbols of a prompt, which ends with the special one.
    alphabet: ordinary symbols to draw from.
    num_followers: symbols to be said, those behind the special one; the paper asks for one.
    """

    length: int = 32
    alphabet: int = 16
    num_followers: int = 1
    name: ClassVar[str] = "induction"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alphabet < 2:
            raise ValueError(f"corpus.alphabet={self.alphabet} must be at least 2: one symbol would always be right")
        if self.num_followers < 1:
            raise ValueError(f"corpus.num_followers={self.num_followers} must be at least 1: nothing would be asked")
        if self.length < self.num_followers + 2:
            raise ValueError(
                f"corpus.length={self.length} must be at least {self.num_followers + 2}: the special symbol twice, and "
                f"corpus.num_followers={self.num_followers} between"
            )

    @property
    def symbols(self) -> tuple[str, ...]:
        return (*self.answer_symbols, SPECIAL)

    @property
    def answer_symbols(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.alphabet)))

    @property
    def prompt_len(self) -> int:
        return self.length

    @property
    def answer_len(self) -> int:
        return self.num_followers

    def draw(self, source: random.Random) -> Instance:
        prompt = [*source.choices(self.answer_symbols, k=self.length - 1), SPECIAL]
        place = source.randrange(self.length - 1 - self.num_followers)
        prompt[place] = SPECIAL
        return Instance(tuple(prompt), tuple(prompt[place + 1 : place + 1 + self.num_followers]))

    def check(self, instance: Instance, answer: Sequence[str]) -> Verdict:
        """Right is what followed; the first error is the lookup, or later."""
        verdict = compare(answer, instance.answer)
        if verdict.problem == "wrong symbol":
            problem = "lost on the way" if answer[0] == instance.answer[0] else "wrong place"
            return Verdict(False, verdict.share, problem)
        return verdict
