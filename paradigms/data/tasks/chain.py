"""Chains of logic: functions are given by their rules, and one after another is applied to a value.

The prompt lists every rule "f a > b" in random order, then a start value and the names of `depth` functions, in the
order of their use. The answer is the value after each of them (`show_steps`), or only the last one, which asks for all
steps at once. Both variants ask the same questions, of the same splits.

Functions are drawn for each instance, so that nothing but looking up is learnt, and are one to one: no value is lost on
the way, and without following the chain the last value is a guess, right once in `num_values`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from paradigms.data.tasks.task import Instance, Task, Verdict, compare

LEADS_TO, ASK, ANSWER = ">", "/", "="


@dataclass(frozen=True, kw_only=True)
class Chain(Task):
    """Attributes:
    depth: functions that are applied.
    num_values: values, "0", "1", ...
    num_functions: functions of an instance, "f0", "f1", ...; some may not be asked for, others several times.
    show_steps: whether the answer has all values on the way, or the last one alone.
    """

    depth: int = 3
    num_values: int = 5
    num_functions: int = 2
    show_steps: bool = True
    name: ClassVar[str] = "chain"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("depth", 1), ("num_values", 2), ("num_functions", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"corpus.{name}={getattr(self, name)} must be at least {least}")

    @property
    def symbols(self) -> tuple[str, ...]:
        return (*self.answer_symbols, *self._functions, LEADS_TO, ASK, ANSWER)

    @property
    def answer_symbols(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.num_values)))

    @property
    def _functions(self) -> tuple[str, ...]:
        return tuple(f"f{number}" for number in range(self.num_functions))

    @property
    def prompt_len(self) -> int:
        return self._rules_len + self.depth + 3

    @property
    def _rules_len(self) -> int:
        return 4 * self.num_functions * self.num_values

    @property
    def answer_len(self) -> int:
        return self.depth if self.show_steps else 1

    def draw(self, source: random.Random) -> Instance:
        values = self.answer_symbols
        rules = {
            name: dict(zip(values, source.sample(values, self.num_values), strict=True)) for name in self._functions
        }
        written = [(name, value, LEADS_TO, rules[name][value]) for name in rules for value in values]
        source.shuffle(written)
        names = source.choices(self._functions, k=self.depth)
        path = [source.choice(values)]
        for name in names:
            path.append(rules[name][path[-1]])
        prompt = [symbol for rule in written for symbol in rule]
        return Instance((*prompt, ASK, path[0], *names, ANSWER), tuple(path[1:] if self.show_steps else path[-1:]))

    def check(self, instance: Instance, answer: Sequence[str]) -> Verdict:
        """Right is the one answer; the first error is in the first step, or later."""
        verdict = compare(answer, instance.answer)
        if verdict.problem != "wrong symbol":
            return verdict
        if not set(answer) <= set(self.answer_symbols):
            return Verdict(False, verdict.share, "no value")
        if not self.show_steps:
            return Verdict(False, verdict.share, "wrong value")
        return Verdict(False, verdict.share, "wrong step" if answer[0] == instance.answer[0] else "wrong first step")

    def identity(self, instance: Instance) -> Any:
        """The order of rules asks nothing."""
        rules = instance.prompt[: self._rules_len]
        return [sorted(zip(*(rules[i::4] for i in range(4)), strict=True)), instance.prompt[self._rules_len :]]
