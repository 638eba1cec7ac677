"""Countdown (2410.14157): reach a target from a few numbers with + - * and /, each number used exactly once.

The answer is one step after another, "7 * 3 = 21 , 21 - 4 = 17 ,": each takes two numbers that are there and puts their
result back. Numbers are symbols, 0 to `max_number`, and so is every result; division leaves no rest. Which step must
come first is known only from the target. Many answers are right: `check` replays the steps.

Instances are drawn forwards: inputs uniform from 1 up; then, till one number is left, an operator uniform among those
that can be used, and two numbers uniform among those it can be used on, the larger first, for a result above 0.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from typing import Any, ClassVar

from paradigms.data.tasks.task import Instance, Task, Verdict

OPERATORS = ("+", "-", "*", "/")
EQUALS, END, GOAL, ANSWER = "=", ",", ">", ":"
STEP_LEN = 6  # symbols: number, operator, number, equals, number, end
MAX_INPUTS = 5


@dataclass(frozen=True, kw_only=True)
class Countdown(Task):
    """Attributes:
    num_inputs: numbers to use, 3 to 5.
    max_number: the largest number, of inputs, results and targets.
    """

    num_inputs: int = 3
    max_number: int = 30
    name: ClassVar[str] = "countdown"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 3 <= self.num_inputs <= MAX_INPUTS:
            raise ValueError(f"corpus.num_inputs={self.num_inputs} must be 3 to {MAX_INPUTS}")
        if self.max_number < 2:
            raise ValueError(
                f"corpus.max_number={self.max_number} must be at least 2, so that there is something to add"
            )

    @cached_property
    def _numbers(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.max_number + 1)))

    @property
    def symbols(self) -> tuple[str, ...]:
        return (*self.answer_symbols, GOAL, ANSWER)

    @property
    def answer_symbols(self) -> tuple[str, ...]:
        return (*self._numbers, *OPERATORS, EQUALS, END)

    @property
    def prompt_len(self) -> int:
        return self.num_inputs + 3

    @property
    def answer_len(self) -> int:
        return STEP_LEN * (self.num_inputs - 1)

    def draw(self, source: random.Random) -> Instance:
        inputs = [source.randint(1, self.max_number) for _ in range(self.num_inputs)]
        numbers, answer = list(inputs), []
        while len(numbers) > 1:
            steps: dict[str, list[tuple[int, int, int]]] = {}
            for left, right in permutations(range(len(numbers)), 2):
                for operator in OPERATORS if numbers[left] >= numbers[right] else ():
                    if found := self.result(numbers[left], operator, numbers[right]):
                        steps.setdefault(operator, []).append((left, right, found))
            operator = source.choice(list(steps))
            left, right, found = source.choice(steps[operator])
            answer += [str(numbers[left]), operator, str(numbers[right]), EQUALS, str(found), END]
            numbers = [number for place, number in enumerate(numbers) if place not in (left, right)] + [found]
        return self.instance(inputs, numbers[0], answer)

    def instance(self, inputs: Sequence[int], target: int, answer: Sequence[str]) -> Instance:
        """The question of a target, with one of its answers."""
        return Instance((*map(str, inputs), GOAL, str(target), ANSWER), tuple(answer))

    def result(self, left: int, operator: str, right: int) -> int | None:
        """What a step gives; None where it may not be taken: a rest, a division by 0, below 0 or above `max_number`."""
        if operator == "/":
            return None if right == 0 or left % right else left // right
        found = left + right if operator == "+" else left - right if operator == "-" else left * right
        return found if 0 <= found <= self.max_number else None

    def check(self, instance: Instance, answer: Sequence[str]) -> Verdict:
        """Right is what uses all numbers and ends at the target; `share` is of steps, up to the first wrong one."""
        if not len(answer):
            return Verdict(False, 0.0, "no answer")
        numbers = Counter(instance.prompt[: self.num_inputs])
        steps = [answer[start : start + STEP_LEN] for start in range(0, len(answer), STEP_LEN)]
        good, problem = 0, None
        for step in steps:
            if problem := self._take(step, numbers):
                break
            good += 1
        else:
            if numbers.total() > 1:
                problem = "numbers left"
            elif not numbers[instance.prompt[-2]]:
                problem = "misses the target"
                good -= 1
        return Verdict(problem is None, good / max(self.num_inputs - 1, len(steps)), problem)

    def _take(self, step: Sequence[str], numbers: Counter[str]) -> str | None:
        """Take a step among the numbers that are there, or say what is wrong with it."""
        if len(step) < STEP_LEN or any(symbol not in kind for symbol, kind in zip(step, self._kinds, strict=True)):
            return "not a step"
        left, operator, right, _, said, _ = step
        for operand in (left, right):
            if not numbers[operand]:
                return "number not there"
            numbers[operand] -= 1
        found = self.result(int(left), operator, int(right))
        if found is None:
            return "step not allowed"
        if said != str(found):
            return "wrong result"
        numbers[said] += 1
        return None

    @cached_property
    def _kinds(self) -> tuple[tuple[str, ...], ...]:
        """The symbols that may stand at each place of a step."""
        numbers = self._numbers
        return (numbers, OPERATORS, numbers, (EQUALS,), numbers, (END,))

    def planted(self, instance: Instance, count: int, source: random.Random) -> tuple[str, ...]:
        """As of every task, and right in no answer: numbers that are no inputs in the first step, elsewhere symbols of
        another kind.
        """
        found = []
        for place in range(min(count, len(instance.answer))):
            if place in (0, 2):
                wrong = [number for number in self._numbers if number not in instance.prompt[: self.num_inputs]]
            else:
                wrong = [symbol for symbol in self.answer_symbols if symbol not in self._kinds[place % STEP_LEN]]
            found.append(source.choice(wrong))
        return tuple(found)

    def identity(self, instance: Instance) -> Any:
        """The order of the numbers asks nothing."""
        return [sorted(instance.prompt[: self.num_inputs]), instance.prompt[-2]]
