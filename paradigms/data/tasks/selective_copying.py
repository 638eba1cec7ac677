"""Selective copying (2312.00752): a few data symbols among much noise; the data are to be written down in their order.

Where they stand changes from instance to instance, so that a filter which is the same at every step cannot keep the
data and forget the noise: what is kept must depend on what is read.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from paradigms.data.tasks.task import Instance, Task, Verdict, compare

ANSWER, NOISE = "=", "."


@dataclass(frozen=True, kw_only=True)
class SelectiveCopying(Task):
    """Attributes:
    num_tokens: data symbols of an instance.
    length: places that they are scattered over; the others hold noise.
    alphabet: data symbols to draw from.
    num_noise: noise symbols to draw from; the paper has one.
    """

    num_tokens: int = 8
    length: int = 32
    alphabet: int = 16
    num_noise: int = 1
    name: ClassVar[str] = "selective_copying"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.num_tokens < self.length:
            raise ValueError(
                f"corpus.num_tokens={self.num_tokens} of corpus.length={self.length} places: at least 1, and fewer "
                "than all (task=copying is without noise)"
            )
        if self.alphabet < 2 or self.num_noise < 1:
            raise ValueError(
                f"corpus.alphabet={self.alphabet} and num_noise={self.num_noise}: at least 2 data symbols, at least 1 "
                "of noise"
            )

    @property
    def symbols(self) -> tuple[str, ...]:
        return (*self.answer_symbols, *self._noise, ANSWER)

    @property
    def answer_symbols(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.alphabet)))

    @property
    def _noise(self) -> tuple[str, ...]:
        return tuple(f"{NOISE}{number}" for number in range(self.num_noise))

    @property
    def prompt_len(self) -> int:
        return self.length + 1

    @property
    def answer_len(self) -> int:
        return self.num_tokens

    def draw(self, source: random.Random) -> Instance:
        places = sorted(source.sample(range(self.length), self.num_tokens))
        data = source.choices(self.answer_symbols, k=self.num_tokens)
        prompt = source.choices(self._noise, k=self.length)
        for place, symbol in zip(places, data, strict=True):
            prompt[place] = symbol
        return Instance((*prompt, ANSWER), tuple(data))

    def check(self, instance: Instance, answer: Sequence[str]) -> Verdict:
        """Right are the data alone, in their order."""
        verdict = compare(answer, instance.answer)
        if verdict.problem == "wrong symbol":
            if any(said.startswith(NOISE) for said in answer):
                return Verdict(False, verdict.share, "noise copied")
            if sorted(answer) == sorted(instance.answer):
                return Verdict(False, verdict.share, "wrong order")
        return verdict

    def identity(self, instance: Instance) -> Any:
        """The noise asks nothing, nor does where it stands."""
        return [symbol for symbol in instance.prompt[:-1] if not symbol.startswith(NOISE)]
