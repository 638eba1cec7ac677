"""Countdown against brute force: all sequences of steps."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from functools import cache

import pytest

from paradigms.data.tasks.countdown import Countdown
from paradigms.data.tasks.task import Instance

SURE = 1e-4  # what a chi-square test of a right generator passes, with fixed seeds


@cache
def steps_of(numbers: tuple[int, ...], max_number: int) -> tuple[tuple[tuple[str, ...], int], ...]:
    """Every sequence of steps that uses all numbers, with what it ends at."""
    if len(numbers) == 1:
        return (((), numbers[0]),)
    found = {}
    for i, j in itertools.permutations(range(len(numbers)), 2):
        rest = [number for place, number in enumerate(numbers) if place not in (i, j)]
        for operator in "+-*/":
            a, b = Fraction(numbers[i]), Fraction(numbers[j])
            if operator == "/" and not b:
                continue
            value = {"+": a.__add__, "-": a.__sub__, "*": a.__mul__, "/": a.__truediv__}[operator](b)
            if value.denominator != 1 or not 0 <= value <= max_number:
                continue
            step = (str(numbers[i]), operator, str(numbers[j]), "=", str(value), ",")
            for more, end in steps_of(tuple(sorted([*rest, int(value)])), max_number):
                found[step + more] = end
    return tuple(found.items())


def answers(inputs: Sequence[int], target: int, max_number: int) -> set[tuple[str, ...]]:
    return {steps for steps, end in steps_of(tuple(sorted(inputs)), max_number) if end == target}


@pytest.mark.parametrize(("inputs", "target"), [((1, 2, 3), 3), ((2, 2, 3), 2), ((1, 1, 3), 0)], ids=str)
def test_of_all_pairs_of_steps_exactly_the_solutions_are_right(inputs: tuple[int, ...], target: int) -> None:
    task = Countdown(max_number=3)
    right = answers(inputs, target, 3)
    instance = task.instance(inputs, target, next(iter(right)))
    steps = [(a, op, b, "=", c, ",") for a, op, b, c in itertools.product("0123", "+-*/", "0123", "0123")]
    found = {first + second for first in steps for second in steps if task.check(instance, first + second).correct}
    assert found == right and found


def test_every_small_countdown_agrees_with_brute_force() -> None:
    """All inputs up to 4, all targets: every sequence of legal steps, and each of them damaged."""
    task, source, counts = Countdown(max_number=9), random.Random(0), Counter()
    for inputs in itertools.combinations_with_replacement(range(1, 5), 3):
        legal = dict(steps_of(inputs, 9))
        for target in sorted(set(legal.values())):
            instance = task.instance(inputs, target, ())
            for steps, end in legal.items():
                verdict = task.check(instance, steps)
                assert verdict.correct is (end == target)
                assert verdict.problem == (None if verdict.correct else "misses the target")
                assert verdict.share == (1 if verdict.correct else 0.5)
            for steps in source.choices(list(legal), k=20):
                wrong = list(steps)
                place = source.randrange(len(wrong))
                match source.randrange(4):
                    case 0:
                        wrong[place] = source.choice(task.symbols)
                    case 1:
                        del wrong[place]
                    case 2:
                        wrong.insert(place, source.choice(task.symbols))
                    case _:
                        wrong = wrong[6:] + wrong[:6]
                verdict = task.check(instance, wrong)
                assert verdict.correct is (legal.get(tuple(wrong)) == target)
                assert verdict.correct is (verdict.share == 1) is (verdict.problem is None)
                counts[verdict.correct] += 1
    assert counts[True] > 10 and counts[False] > 2000, counts


@pytest.mark.parametrize(("num_inputs", "max_number", "count"), [(3, 30, 300), (4, 20, 15), (5, 100, 0)], ids=str)
def test_drawn_countdowns_are_solved(num_inputs: int, max_number: int, count: int) -> None:
    task, source = Countdown(num_inputs=num_inputs, max_number=max_number), random.Random(3)
    used = Counter()
    for number in range(300):
        instance = task.draw(source)
        inputs, target = list(map(int, instance.prompt[:num_inputs])), int(instance.prompt[-2])
        assert task.check(instance, instance.answer).correct
        assert (len(instance.prompt), len(instance.answer)) == (task.prompt_len, task.answer_len)
        if number < count:
            assert instance.answer in answers(inputs, target, max_number)
        used.update(symbol for symbol in instance.answer if symbol in "+-*/")
        assert all(0 < int(symbol) <= max_number for symbol in instance.answer if symbol.isdecimal())
    assert min(used[operator] for operator in "+-*/") > 20, used


@pytest.mark.parametrize(
    ("answer", "problem", "share"),
    [
        ("7 * 3 = 21 , 21 - 4 = 17 ,", None, 1),
        ("3 * 7 = 21 , 21 - 4 = 17 ,", None, 1),
        ("7 * 3 = 21 , 21 - 4 = 16 ,", "wrong result", 0.5),
        ("7 * 3 = 21 , 21 + 4 = 25 ,", "misses the target", 0.5),
        ("7 * 4 = 28 , 28 - 4 = 24 ,", "number not there", 0.5),
        ("7 + 7 = 14 , 14 + 3 = 17 ,", "number not there", 0),
        ("7 * 3 = 21 ,", "numbers left", 0.5),
        ("3 - 7 = 4 , 4 + 4 = 8 ,", "step not allowed", 0),
        ("7 / 3 = 2 , 2 + 4 = 6 ,", "step not allowed", 0),
        ("7 * 3 = 21 , 21 * 4 = 17 ,", "step not allowed", 0.5),
        ("7 * 3 = 21 , 21 - 4 = 17", "not a step", 0.5),
        ("7 * 3 = 21 , 21 - 4 = 17 , 17 + 0 = 17 ,", "number not there", 2 / 3),
        ("7 3 * = 21 , 21 - 4 = 17 ,", "not a step", 0),
        ("07 * 3 = 21 , 21 - 4 = 17 ,", "not a step", 0),
        ("", "no answer", 0),
    ],
    ids=str,
)
def test_countdown_says_what_is_wrong_first(answer: str, problem: str | None, share: float) -> None:
    task = Countdown()
    verdict = task.check(task.instance((3, 7, 4), 17, ()), tuple(answer.split()))
    assert (verdict.correct, verdict.problem) == (problem is None, problem)
    assert verdict.share == pytest.approx(share)


def test_nothing_comes_from_a_division_by_zero() -> None:
    task = Countdown(max_number=9)
    instance = task.instance((2, 2, 5), 0, ())
    assert task.check(instance, list("2-2=0,0/5=0,")).correct
    assert task.check(instance, list("2-2=0,5/0=0,")).problem == "step not allowed"


def test_planted_symbols_are_right_in_no_solution() -> None:
    task, source = Countdown(max_number=12), random.Random(4)
    control = 0
    for _ in range(100):
        instance = task.draw(source)
        right = answers(list(map(int, instance.prompt[:3])), int(instance.prompt[-2]), 12)
        for count in (1, 6, 12, 20):
            planted = task.planted(instance, count, source)
            assert len(planted) == min(count, 12) and set(planted) <= set(task.answer_symbols)
            assert all(symbol.isdecimal() for symbol in planted[:3:2]), "a mistake that somebody might make"
            for place, symbol in enumerate(planted):
                assert all(symbol != solution[place] for solution in right)
        plain = super(Countdown, task).planted(instance, 1, source)  # any symbol but the reference's
        control += any(plain[0] == solution[0] for solution in right)
    assert control > 0, "what differs from the reference may be right: hence a rule of its own"


def test_instances_that_ask_the_same_are_one() -> None:
    one, same, other = (
        Countdown().identity(Instance(tuple(prompt.split()), ()))
        for prompt in ("3 7 4 > 17 :", "7 4 3 > 17 :", "3 7 17 > 4 :")
    )
    assert one == same != other


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_inputs": 2}, r"corpus\.num_inputs=2 must be 3 to 5"),
        ({"num_inputs": 6}, r"corpus\.num_inputs=6 must be 3 to 5"),
        ({"max_number": 1}, r"corpus\.max_number=1 must be at least 2"),
    ],
    ids=str,
)
def test_bad_parameters_are_named(changes: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Countdown(**changes)
