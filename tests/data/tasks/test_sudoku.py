"""Sudoku against brute force: all 4x4 grids by filtering rows that are permutations."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache

import pytest
from scipy.stats import chisquare

from paradigms.data.tasks.sudoku import Sudoku, grids_4x4, random_grid, solutions, thinned
from paradigms.data.tasks.task import Instance

SURE = 1e-4  # what a chi-square test of a right generator passes, with fixed seeds


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


def test_instances_that_ask_the_same_are_one() -> None:
    one, same, other = (
        Sudoku().identity(Instance(tuple(prompt.split()), ())) for prompt in ("1 . =", "1 . =", ". 1 =")
    )
    assert one == same != other


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"size": 6}, r"corpus\.size=6 must be 4 or 9"),
        ({"num_givens": 3}, r"corpus\.num_givens=3 must be 4 to 15 with corpus\.size=4.*; 8 is usual"),
        ({"num_givens": 16}, r"corpus\.num_givens=16 must be 4 to 15"),
        ({"size": 9}, r"corpus\.num_givens=8 must be 26 to 80 with corpus\.size=9.*; 40 is usual"),
    ],
    ids=str,
)
def test_bad_parameters_are_named(changes: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Sudoku(**changes)
