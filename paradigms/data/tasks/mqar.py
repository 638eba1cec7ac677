"""Multi-query associative recall (zoology, 2312.04927): pairs of key and value, then keys whose values are wanted.

What must be kept grows with the number of pairs: attention has it all, a state of fixed size must hold every pair
before it knows which is asked.

As in the paper each value is written where its key is asked. There the keys lie scattered over what follows the pairs;
here they stand together, behind filler, and are what is given of the answer: key, open place, key, open place, ...
A causal model reaches one after another and reads none ahead (`given_in_order`); a canvas shows all of them at once.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from paradigms.data.tasks.task import Instance, Task, Verdict, compare

FILLER, ANSWER = ".", "="


@dataclass(frozen=True, kw_only=True)
class Mqar(Task):
    """Attributes:
    num_pairs: pairs of an instance; no key and no value occurs twice in them.
    num_keys, num_values: keys and values to draw from, of which none is both.
    num_queries: keys that are asked, each once; None asks all.
    length: symbols of a prompt: pairs, filler, and the sign that ends them; None leaves the filler out.
    """

    num_pairs: int = 4
    num_keys: int = 16
    num_values: int = 16
    num_queries: int | None = None
    length: int | None = None
    name: ClassVar[str] = "mqar"
    given_in_order: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_pairs < 1:
            raise ValueError(f"corpus.num_pairs={self.num_pairs} must be at least 1")
        for name in ("num_keys", "num_values"):
            if getattr(self, name) < max(self.num_pairs, 2):
                raise ValueError(
                    f"corpus.{name}={getattr(self, name)} must be at least {max(self.num_pairs, 2)}: those of "
                    f"corpus.num_pairs={self.num_pairs} are all different, and of one nothing could be asked"
                )
        if not 1 <= self._num_asked <= self.num_pairs:
            raise ValueError(
                f"corpus.num_queries={self.num_queries} must be from 1 to corpus.num_pairs={self.num_pairs}, or null "
                "for all of them: each key is asked once at most"
            )
        if self._num_filler < 0:
            raise ValueError(
                f"corpus.length={self.length} must be at least {2 * self.num_pairs + 1}: "
                f"{self.num_pairs} pairs and the sign that ends them"
            )

    @property
    def _num_filler(self) -> int:
        return self.prompt_len - 2 * self.num_pairs - 1

    @property
    def _num_asked(self) -> int:
        return self.num_pairs if self.num_queries is None else self.num_queries

    @property
    def symbols(self) -> tuple[str, ...]:
        keys = (f"k{number}" for number in range(self.num_keys))
        return (*keys, *self.answer_symbols, FILLER, ANSWER)

    @property
    def answer_symbols(self) -> tuple[str, ...]:
        return tuple(f"v{number}" for number in range(self.num_values))

    @property
    def prompt_len(self) -> int:
        return 2 * self.num_pairs + 1 if self.length is None else self.length

    @property
    def answer_len(self) -> int:
        return 2 * self._num_asked

    def draw(self, source: random.Random) -> Instance:
        keys = [f"k{number}" for number in source.sample(range(self.num_keys), self.num_pairs)]
        values = [f"v{number}" for number in source.sample(range(self.num_values), self.num_pairs)]
        asked = source.sample(range(self.num_pairs), self._num_asked)
        pairs = _one_after_another(keys, values)
        answer = _one_after_another([keys[number] for number in asked], [values[number] for number in asked])
        given = tuple((place, answer[place]) for place in range(0, len(answer), 2))
        return Instance((*pairs, *(FILLER,) * self._num_filler, ANSWER), answer, given)

    def check(self, instance: Instance, answer: Sequence[str]) -> Verdict:
        """Right are the values of the keys, each behind its own; the share is that of values."""
        values, right = answer[1::2], instance.answer[1::2]
        share = compare(values, right).share
        if len(answer) != len(instance.answer) or not len(answer):
            return Verdict(False, share, compare(answer, instance.answer).problem)
        if tuple(answer[::2]) != instance.answer[::2]:
            return Verdict(False, share, "changed what is given")
        wrong = next((said for said, wanted in zip(values, right, strict=True) if said != wanted), None)
        if wrong is None:
            return Verdict(True, 1.0)
        if wrong in instance.prompt[1 : 2 * self.num_pairs : 2]:
            return Verdict(False, share, "value of another key")
        return Verdict(False, share, "value of no key" if wrong in self.answer_symbols else "no value")

    def identity(self, instance: Instance) -> Any:
        """The order of pairs asks nothing."""
        pairs = instance.prompt[: 2 * self.num_pairs]
        return [sorted(zip(pairs[::2], pairs[1::2], strict=True)), [symbol for _, symbol in instance.given]]


def _one_after_another(keys: Sequence[str], values: Sequence[str]) -> tuple[str, ...]:
    return tuple(symbol for pair in zip(keys, values, strict=True) for symbol in pair)
