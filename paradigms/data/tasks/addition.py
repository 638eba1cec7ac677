"""Addition of two numbers, digit by digit (2307.03381).

Written plainly, the first digit of the sum may depend on every digit of both numbers, through a chain of carries;
`reverse` writes the last digit first, and each digit then follows from one column and the carry before it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from paradigms.data.tasks.task import Instance, Task, Verdict, compare

DIGITS = tuple("0123456789")
PLUS, ANSWER = "+", "="


@dataclass(frozen=True, kw_only=True)
class Addition(Task):
    """Attributes:
    min_digits, max_digits: of each number, whose count of digits is uniform between them; no leading zeros.
    reverse: the sum begins with its last digit; the numbers are written plainly either way.
    """

    min_digits: int = 1
    max_digits: int = 3
    reverse: bool = False
    name: ClassVar[str] = "addition"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.min_digits <= self.max_digits:
            raise ValueError(
                f"corpus.min_digits={self.min_digits} and max_digits={self.max_digits}: at least 1 digit, and "
                "max_digits no less than min_digits"
            )

    @property
    def symbols(self) -> tuple[str, ...]:
        return (*DIGITS, PLUS, ANSWER)

    @property
    def answer_symbols(self) -> tuple[str, ...]:
        return DIGITS

    @property
    def prompt_len(self) -> int:
        return 2 * self.max_digits + 2

    @property
    def answer_len(self) -> int:
        return self.max_digits + 1

    def draw(self, source: random.Random) -> Instance:
        return self.instance(self._number(source), self._number(source))

    def _number(self, source: random.Random) -> int:
        num_digits = source.randint(self.min_digits, self.max_digits)
        return source.randrange(10 ** (num_digits - 1) if num_digits > 1 else 0, 10**num_digits)

    def instance(self, left: int, right: int) -> Instance:
        """The question of a sum, with its answer."""
        total = str(left + right)
        return Instance((*str(left), PLUS, *str(right), ANSWER), tuple(total[::-1] if self.reverse else total))

    def check(self, instance: Instance, answer: Sequence[str]) -> Verdict:
        """Right is the sum alone, without leading zeros; one digit that is off by one, modulo ten, is a carry."""
        verdict = compare(answer, instance.answer)
        if verdict.problem != "wrong symbol":
            return verdict
        if not set(answer) <= set(DIGITS):
            return Verdict(False, verdict.share, "no digit")
        off = [(int(said) - int(right)) % 10 for said, right in zip(answer, instance.answer, strict=True)]
        errors = [difference for difference in off if difference]
        return Verdict(False, verdict.share, "wrong carry" if errors in ([1], [9]) else "wrong digit")

    def identity(self, instance: Instance) -> Any:
        """The order of the numbers asks nothing."""
        return sorted("".join(instance.prompt[:-1]).split(PLUS))
