"""Addition against `+`, and the numbers it draws."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
from scipy.stats import chisquare

from paradigms.data.tasks.addition import Addition
from paradigms.data.tasks.task import Instance

SURE = 1e-4  # what a chi-square test of a right generator passes, with fixed seeds


@pytest.mark.parametrize("reverse", [False, True], ids=["plain", "reversed"])
def test_every_sum_of_two_digit_numbers_is_right_and_its_neighbours_are_not(reverse: bool) -> None:
    task = Addition(max_digits=2, reverse=reverse)
    for left, right in itertools.product(range(100), repeat=2):
        instance = task.instance(left, right)
        for said in (left + right - 1, left + right, left + right + 1, left + right + 10, left * 2, 100):
            symbols = str(said)[::-1] if reverse else str(said)
            verdict = task.check(instance, tuple(symbols))
            assert verdict.correct is (said == left + right) is (verdict.share == 1)
        assert "".join(instance.prompt) == f"{left}+{right}="
        assert not task.check(instance, instance.answer[:-1]).correct
        assert not task.check(instance, ("0", *instance.answer)).correct
        assert not task.check(instance, (*instance.answer, "0")).correct


def test_of_all_answers_to_a_sum_of_digits_one_is_right() -> None:
    task = Addition(max_digits=1)
    possible = [said for length in range(4) for said in itertools.product(task.symbols, repeat=length)]
    for left, right in itertools.product(range(0, 10, 3), repeat=2):
        instance = task.instance(left, right)
        assert [said for said in possible if task.check(instance, said).correct] == [tuple(str(left + right))]


def by_hand(left: int, right: int, num_places: int, forgotten: int | None) -> list[int]:
    """The digits of a sum, last first; at one place the carry that comes in is taken for its opposite."""
    carry, digits = 0, []
    for place in range(num_places):
        column = left // 10**place % 10 + right // 10**place % 10
        digits.append((column + (carry if place != forgotten else 1 - carry)) % 10)
        carry = int(column + carry >= 10)
    return digits


@pytest.mark.parametrize("reverse", [False, True], ids=["plain", "reversed"])
def test_a_wrong_carry_is_told_from_a_wrong_digit(reverse: bool) -> None:
    task, source = Addition(min_digits=3, reverse=reverse), random.Random(0)
    for _ in range(500):
        instance = task.draw(source)
        left, right = map(int, "".join(instance.prompt[:-1]).split("+"))
        places = len(instance.answer)
        written = (
            (lambda digits: tuple(map(str, digits))) if reverse else (lambda digits: tuple(map(str, digits[::-1])))
        )
        assert written(by_hand(left, right, places, None)) == instance.answer
        for forgotten in range(places):
            verdict = task.check(instance, written(by_hand(left, right, places, forgotten)))
            assert (verdict.problem, verdict.share) == ("wrong carry", pytest.approx(1 - 1 / places))
        for change in range(2, 9):
            wrong = list(instance.answer)
            place = source.randrange(places)
            wrong[place] = str((int(wrong[place]) + change) % 10)
            assert task.check(instance, wrong).problem == "wrong digit"
        two = [str((int(digit) + 1) % 10) for digit in instance.answer]
        assert task.check(instance, two).problem == "wrong digit"


@pytest.mark.parametrize(
    ("answer", "problem"),
    [("", "no answer"), ("12", "too short"), ("0123", "too long"), ("1+3", "no digit"), ("124", "wrong carry")],
    ids=str,
)
def test_addition_says_what_is_wrong(answer: str, problem: str) -> None:
    task = Addition()
    assert task.check(task.instance(23, 100), tuple(answer)).problem == problem


def test_counts_of_digits_are_uniform_and_numbers_have_no_leading_zeros() -> None:
    task, source = Addition(max_digits=3), random.Random(0)
    lengths = Counter()
    for _ in range(4500):
        numbers = "".join(task.draw(source).prompt[:-1]).split("+")
        assert all(number == str(int(number)) for number in numbers)
        lengths[tuple(map(len, numbers))] += 1
    assert len(lengths) == 9 and chisquare(list(lengths.values())).pvalue > SURE
    plain = Counter(tuple(len(str(source.randrange(1000))) for _ in range(2)) for _ in range(4500))
    assert chisquare([plain[pair] for pair in lengths]).pvalue < SURE


def test_instances_that_ask_the_same_are_one() -> None:
    one, same, other = (
        Addition().identity(Instance(tuple(prompt.split()), ())) for prompt in ("1 2 + 9 =", "9 + 1 2 =", "1 + 2 9 =")
    )
    assert one == same != other


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"min_digits": 0}, r"corpus\.min_digits=0 and max_digits=3: at least 1 digit"),
        ({"min_digits": 4}, r"corpus\.min_digits=4 and max_digits=3: .*no less than min_digits"),
        ({"num_heldout": 0}, r"corpus\.num_heldout=0 must be at least 1"),
    ],
    ids=str,
)
def test_bad_parameters_are_named(changes: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Addition(**changes)


def test_too_small_a_task_says_so() -> None:
    with pytest.raises(ValueError, match=r"addition, min_digits 1, max_digits 1, .* has too few different instances"):
        _ = Addition(max_digits=1).heldout
