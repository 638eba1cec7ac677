"""Lookup of n-grams (2402.01032, 2401.12973): say what followed the last n symbols when they stood there before.

The context of n symbols occurs once before the prompt's end. Its last n - 1 symbols occur twice more, behind another
symbol and before another one, and wherever else chance puts them: whoever looks fewer symbols back finds three places
at least (4.6 on the average of the default size), of which one is right.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from paradigms.data.tasks.task import Instance, Task, Verdict, compare

DECOYS = 2


@dataclass(frozen=True, kw_only=True)
class NgramLookup(Task):
    """Attributes:
    n: symbols of the context.
    length: symbols of a prompt, which ends with the context.
    alphabet: symbols to draw from.
    """

    n: int = 2
    length: int = 32
    alphabet: int = 16
    name: ClassVar[str] = "ngram_lookup"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n < 1 or self.alphabet < 2:
            raise ValueError(
                f"corpus.n={self.n} and alphabet={self.alphabet}: contexts of at least 1 symbol, of at least 2 symbols"
            )
        if self._num_free < 0:
            raise ValueError(
                f"corpus.length={self.length} must be at least {self.length - self._num_free}: a context of "
                f"corpus.n={self.n} symbols twice, what followed it, and what resembles it"
            )
        if self.length > self.alphabet**self.n:
            raise ValueError(
                f"corpus.length={self.length} is more than the {self.alphabet**self.n} contexts of corpus.n={self.n} "
                f"out of corpus.alphabet={self.alphabet} symbols, so that they come again by chance: make it shorter, "
                "or one of these larger"
            )

    @property
    def _num_decoys(self) -> int:
        return DECOYS if self.n > 1 else 0

    @property
    def _num_free(self) -> int:
        return self.length - self.n - (1 + self._num_decoys) * (self.n + 1)

    @property
    def symbols(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.alphabet)))

    @property
    def prompt_len(self) -> int:
        return self.length

    @property
    def answer_len(self) -> int:
        return 1

    def draw(self, source: random.Random) -> Instance:
        """Drawn again until the context stands nowhere by chance, as of about one draw in three or more."""
        symbols, n = self.symbols, self.n
        while True:
            context, answer = source.choices(symbols, k=n), source.choice(symbols)
            parts = [[symbol] for symbol in source.choices(symbols, k=self._num_free)]
            parts.append([*context, answer])
            for _ in range(self._num_decoys):
                parts.append([_other(source, symbols, context[0]), *context[1:], _other(source, symbols, answer)])
            source.shuffle(parts)
            prompt = [*(symbol for part in parts for symbol in part), *context]
            if sum(prompt[place : place + n] == context for place in range(self.length - n)) == 1:
                return Instance(tuple(prompt), (answer,))

    def check(self, instance: Instance, answer: Sequence[str]) -> Verdict:
        """Right is the one symbol; another one may follow a shorter context."""
        verdict = compare(answer, instance.answer)
        if verdict.problem == "wrong symbol" and answer[0] in self._behind_shorter(instance.prompt):
            return Verdict(False, verdict.share, "context too short")
        return verdict

    def _behind_shorter(self, prompt: Sequence[str]) -> set[str]:
        """What stands behind the last n - 1 symbols wherever they occurred before."""
        shorter = self.n - 1
        if not shorter:
            return set()
        places = range(len(prompt) - shorter)
        return {prompt[i + shorter] for i in places if prompt[i : i + shorter] == prompt[-shorter:]}


def _other(source: random.Random, symbols: Sequence[str], symbol: str) -> str:
    return source.choice([each for each in symbols if each != symbol])
