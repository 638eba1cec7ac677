"""Sudoku, countdown and addition: their checkers against brute force, and what they draw.

Oracles: all 4x4 grids by filtering rows that are permutations; all step sequences of a countdown; sums by `+`.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache

import pytest
from scipy.stats import chisquare

from paradigms.data.tasks.addition import Addition
from paradigms.data.tasks.countdown import Countdown
from paradigms.data.tasks.sudoku import Sudoku, grids_4x4, random_grid, solutions, thinned
from paradigms.data.tasks.task import Instance

SURE = 1e-4  # what a chi-square test of a right generator passes, with fixed seeds


# Sudoku


def is_grid(cells: Sequence[int], side: int) -> bool:
    """Rows, columns and boxes are permutations, by sets."""
    size = side * side
    rows = [set(cells[start : start + size]) for start in range(0, size * size, size)]
    columns = [set(cells[start::size]) for start in range(size)]
    boxes = [
        {cells[(top + down) * size + left + right] for down in range(side) for right in range(side)}
        for top in range(0, size, side)
        for left in range(0, size, side)
    ]
    return all(group == set(range(1, size + 1)) for group in rows + columns + boxes)


@cache
def all_grids() -> tuple[tuple[int, ...], ...]:
    rows = list(itertools.permutations(range(1, 5)))
    bands = [a + b for a, b in itertools.product(rows, repeat=2) if len({*a[:2], *b[:2]}) == 4]
    return tuple(a + b for a, b in itertools.product(bands, repeat=2) if is_grid(a + b, 2))


def counted(cells: Sequence[int], side: int, most: int) -> int:
    """Solutions of a puzzle, up to `most`, by sets of candidates alone."""
    size = side * side
    best: tuple[int, set[int]] | None = None
    for place, value in enumerate(cells):
        if value:
            continue
        row, column = divmod(place, size)
        top, left = row // side * side, column // side * side
        seen = {*cells[row * size : row * size + size], *cells[column::size]}
        for down in range(side):
            seen |= set(cells[(top + down) * size + left : (top + down) * size + left + side])
        free = set(range(1, size + 1)) - seen
        if best is None or len(free) < len(best[1]):
            best = place, free
    if best is None:
        return 1
    found = 0
    for value in best[1]:
        found += counted([*cells[: best[0]], value, *cells[best[0] + 1 :]], side, most - found)
        if found >= most:
            break
    return found


def values(symbols: Sequence[str]) -> list[int]:
    return [int(symbol) if symbol.isdecimal() else 0 for symbol in symbols]


def strings(cells: Sequence[int]) -> tuple[str, ...]:
    return tuple(map(str, cells))


def test_the_solver_finds_all_288_grids() -> None:
    assert len(all_grids()) == 288
    assert sorted(grids_4x4()) == sorted(all_grids())


def test_the_solver_agrees_with_brute_force_on_every_puzzle_of_4_or_5_givens_of_two_grids() -> None:
    """One grid of each of the two kinds, those whose first two bands say the same pairs and those that do not."""
    agreements = Counter()
    for grid in (all_grids()[0], all_grids()[7]):
        masks = [sum(1 << place for place in range(16) if other[place] == grid[place]) for other in all_grids()]
        for places in itertools.chain(itertools.combinations(range(16), 4), itertools.combinations(range(16), 5)):
            wanted = sum(1 << place for place in places)
            expected = sum(mask & wanted == wanted for mask in masks)
            cells = [grid[place] if place in places else 0 for place in range(16)]
            found = list(itertools.islice(solutions(cells, 4), 3))
            assert len(found) == min(expected, 3) and len(set(found)) == len(found)
            agreements[min(expected, 3)] += 1
    assert min(agreements[count] for count in (1, 2, 3)) > 50, agreements


@pytest.mark.parametrize("num_givens", [4, 5, 8, 10], ids=str)
def test_4x4_puzzles_have_one_solution_and_only_it_is_right(num_givens: int) -> None:
    task, source = Sudoku(num_givens=num_givens), random.Random(num_givens)
    for _ in range(40):
        instance = task.draw(source)
        asked = values(instance.prompt[:-1])
        assert sum(map(bool, asked)) == num_givens and instance.prompt[-1] == "="
        for grid in all_grids():
            fits = all(given in (0, value) for given, value in zip(asked, grid, strict=True))
            verdict = task.check(instance, strings(grid))
            assert verdict.correct is fits is (strings(grid) == instance.answer)
            assert fits or verdict.problem == "changed a given"
        for _ in range(20):  # no grids: the rules alone must refuse them
            cells = values(instance.answer)
            for place in source.sample(range(16), source.randint(1, 6)):
                cells[place] = source.randint(1, 4)
            assert task.check(instance, strings(cells)).correct is (
                is_grid(cells, 2) and strings(cells) == instance.answer
            )


def test_every_wrong_cell_of_a_4x4_answer_is_seen_and_counted_among_the_empty_ones() -> None:
    task, source = Sudoku(num_givens=6), random.Random(1)
    for _ in range(50):
        instance = task.draw(source)
        assert task.check(instance, list(instance.answer)).share == 1
        for place in range(16):
            wrong = [*instance.answer]
            wrong[place] = source.choice([digit for digit in "1234" if digit != wrong[place]])
            verdict = task.check(instance, wrong)
            if instance.prompt[place] == ".":
                assert (verdict.problem, verdict.share) == ("repeats in a row", pytest.approx(9 / 10))
            else:
                assert (verdict.problem, verdict.share) == ("changed a given", 1)


@pytest.mark.parametrize(
    ("answer", "problem", "share"),
    [
        ("1234 3412 2143 4321", None, 1),
        ("1234 3412 2143 4322", "repeats in a row", Fraction(11, 12)),
        ("1234 3412 1234 3412", "repeats in a column", Fraction(4, 12)),
        ("1234 2341 3412 4123", "repeats in a box", Fraction(2, 12)),
        ("1243 3412 2134 4321", "changed a given", Fraction(10, 12)),
        ("1234 3412 2143 432.", "no digit", Fraction(11, 12)),
        ("1234 3412 2143 432", "too short", Fraction(11, 12)),
        ("1234 3412 2143 4321 1", "too long", Fraction(12, 13)),
        ("", "no answer", Fraction(0)),
    ],
    ids=str,
)
def test_sudoku_says_what_is_broken_first(answer: str, problem: str | None, share: Fraction | int) -> None:
    instance = Instance(tuple("1234" + "." * 12 + "="), tuple("1234341221434321"))
    verdict = Sudoku(num_givens=4).check(instance, tuple(answer.replace(" ", "")))
    assert (verdict.correct, verdict.problem) == (problem is None, problem)
    assert verdict.share == pytest.approx(float(share))


@pytest.mark.parametrize("num_givens", [4, 8], ids=str)
def test_all_4x4_grids_are_drawn_equally_often(num_givens: int) -> None:
    task, source = Sudoku(num_givens=num_givens), random.Random(0)
    counts = Counter(task.draw(source).answer for _ in range(288 * 10))
    assert chisquare([counts[strings(grid)] for grid in all_grids()]).pvalue > SURE
    control = Counter(source.choices(all_grids()[:216], k=288 * 10))
    assert chisquare([control[grid] for grid in all_grids()]).pvalue < SURE


@pytest.mark.parametrize(("num_givens", "count"), [(28, 3), (40, 12), (60, 4)], ids=str)
def test_9x9_puzzles_have_one_solution_and_only_it_is_right(num_givens: int, count: int) -> None:
    task, source = Sudoku(size=9, num_givens=num_givens), random.Random(num_givens)
    for _ in range(count):
        instance = task.draw(source)
        asked, grid = values(instance.prompt[:-1]), values(instance.answer)
        assert is_grid(grid, 3) and sum(map(bool, asked)) == num_givens
        assert all(given in (0, value) for given, value in zip(asked, grid, strict=True))
        assert counted(asked, 3, 2) == 1
        assert task.check(instance, instance.answer).correct
        other = [value % 9 + 1 for value in grid]  # a right grid of another puzzle
        assert is_grid(other, 3) and task.check(instance, strings(other)).problem == "changed a given"


def swaps(grid: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """Cells of two rows of a band, or of two bands, whose pairs of digits can be exchanged for another right grid."""
    for first, second in itertools.combinations(range(9), 2):
        for left, right in itertools.combinations(range(9), 2):
            a, b, c, d = places = (9 * first + left, 9 * first + right, 9 * second + left, 9 * second + right)
            if grid[a] == grid[d] and grid[b] == grid[c] and (first // 3 == second // 3) != (left // 3 == right // 3):
                yield places


def test_a_9x9_grid_without_an_exchangeable_pair_has_two_solutions_and_is_never_thinned_to_it() -> None:
    source, seen = random.Random(5), 0
    for _ in range(10):
        grid = random_grid(9, source)
        for places in swaps(grid):
            cells = [0 if place in places else value for place, value in enumerate(grid)]
            assert len(list(solutions(cells, 9))) == 2
            for _ in range(3):
                thin = thinned(grid, 9, 40, source)
                assert thin is not None and any(thin[place] for place in places)
            seen += 1
    assert seen > 5


def test_the_solver_knows_contradictions() -> None:
    assert not list(solutions([1, 1, *[0] * 14], 4)), "two of a row"
    assert not list(solutions([1, 2, 0, 0, 0, 0, 3, 0, 0, 0, 0, 3, *[0] * 4], 4)), "no cell for 3 in the first row"
    assert list(solutions(grids_4x4()[5], 4)) == [grids_4x4()[5]]


def test_thinning_ends_where_every_given_is_needed() -> None:
    """What cannot be thinned to the number wanted has lost its last spare given: brute force finds none."""
    source, stuck = random.Random(2), 0
    for _ in range(300):
        grid = source.choice(all_grids())
        state = source.getstate()
        if thinned(grid, 4, 4, source) is not None:
            continue
        for left in range(5, 8):  # the same order, up to where it stops
            source.setstate(state)
            if (cells := thinned(grid, 4, left, source)) is not None:
                break
        assert cells is not None
        for place in (place for place in range(16) if cells[place]):
            fewer = [value if other != place else 0 for other, value in enumerate(cells)]
            assert counted(fewer, 2, 2) == 2
        stuck += 1
    assert stuck > 30


# Countdown


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


# Addition


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


# All three


@pytest.mark.parametrize(
    ("task", "one", "same", "other"),
    [
        (Addition(), "1 2 + 9 =", "9 + 1 2 =", "1 + 2 9 ="),
        (Countdown(), "3 7 4 > 17 :", "7 4 3 > 17 :", "3 7 17 > 4 :"),
        (Sudoku(), "1 . =", "1 . =", ". 1 ="),
    ],
    ids=["addition", "countdown", "sudoku"],
)
def test_instances_that_ask_the_same_are_one(task: Addition, one: str, same: str, other: str) -> None:
    asked = [task.identity(Instance(tuple(prompt.split()), ())) for prompt in (one, same, other)]
    assert asked[0] == asked[1] != asked[2]


@pytest.mark.parametrize(
    ("task", "changes", "words"),
    [
        (Sudoku, {"size": 6}, r"corpus\.size=6 must be 4 or 9"),
        (Sudoku, {"num_givens": 3}, r"corpus\.num_givens=3 must be 4 to 15 with corpus\.size=4.*; 8 is usual"),
        (Sudoku, {"num_givens": 16}, r"corpus\.num_givens=16 must be 4 to 15"),
        (Sudoku, {"size": 9}, r"corpus\.num_givens=8 must be 26 to 80 with corpus\.size=9.*; 40 is usual"),
        (Countdown, {"num_inputs": 2}, r"corpus\.num_inputs=2 must be 3 to 5"),
        (Countdown, {"num_inputs": 6}, r"corpus\.num_inputs=6 must be 3 to 5"),
        (Countdown, {"max_number": 1}, r"corpus\.max_number=1 must be at least 2"),
        (Addition, {"min_digits": 0}, r"corpus\.min_digits=0 and max_digits=3: at least 1 digit"),
        (Addition, {"min_digits": 4}, r"corpus\.min_digits=4 and max_digits=3: .*no less than min_digits"),
        (Addition, {"num_heldout": 0}, r"corpus\.num_heldout=0 must be at least 1"),
    ],
    ids=str,
)
def test_bad_parameters_are_named(task: type[Sudoku], changes: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        task(**changes)


def test_too_small_a_task_says_so() -> None:
    with pytest.raises(ValueError, match=r"addition, min_digits 1, max_digits 1, .* has too few different instances"):
        _ = Addition(max_digits=1).heldout
