"""Sudoku: fill the empty cells so that every row, column and box holds every digit once (9x9: 2410.14157).

Prompt and answer are the grid row by row, the answer with its givens. The cells that follow at once lie anywhere: who
may fill them first need not guess, who writes row by row must have solved the puzzle before its first empty cell.

Every puzzle has exactly one solution. A complete grid is drawn, 4x4 uniformly among all 288, 9x9 filled by the solver
at random (every grid can come, not all equally often); then givens go in random order, each if the solution stays the
only one, until `num_givens` are left. Held-out puzzles are never trained on; their grids may be, and of 4x4 are.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from paradigms.data.tasks.task import Instance, Task, Verdict, compare

EMPTY, ANSWER = ".", "="
FEWEST_GIVENS = {4: 4, 9: 26}  # 4x4: none has fewer; 9x9: giving up cells at random mostly ends at 22 to 26
MOST_ORDERS = 100  # of one grid; 4x4 grids all have puzzles of 4 givens


@dataclass(frozen=True, kw_only=True)
class Sudoku(Task):
    """Attributes:
    size: cells of a row, 4 or 9.
    num_givens: cells that are given.
    """

    size: int = 4
    num_givens: int = 8
    name: ClassVar[str] = "sudoku"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size not in FEWEST_GIVENS:
            raise ValueError(f"corpus.size={self.size} must be 4 or 9, the cells of a row")
        fewest, most = FEWEST_GIVENS[self.size], self.size**2 - 1
        if not fewest <= self.num_givens <= most:
            raise ValueError(
                f"corpus.num_givens={self.num_givens} must be {fewest} to {most} with corpus.size={self.size}: fewer "
                "hardly ever leave one solution, and more leave no empty cell; "
                f"{8 if self.size == 4 else 40} is usual"
            )

    @property
    def symbols(self) -> tuple[str, ...]:
        return (*self.answer_symbols, EMPTY, ANSWER)

    @property
    def answer_symbols(self) -> tuple[str, ...]:
        return tuple(str(digit) for digit in range(1, self.size + 1))

    @property
    def prompt_len(self) -> int:
        return self.size**2 + 1

    @property
    def answer_len(self) -> int:
        return self.size**2

    def draw(self, source: random.Random) -> Instance:
        while True:
            grid = source.choice(grids_4x4()) if self.size == 4 else random_grid(self.size, source)
            for _ in range(MOST_ORDERS):
                if (cells := thinned(grid, self.size, self.num_givens, source)) is not None:
                    return self.instance(cells, grid)

    def instance(self, cells: Sequence[int], grid: Sequence[int]) -> Instance:
        """A puzzle with its solution, 0 where a cell is empty."""
        prompt = (str(value) if value else EMPTY for value in cells)
        return Instance((*prompt, ANSWER), tuple(map(str, grid)))

    def check(self, instance: Instance, answer: Sequence[str]) -> Verdict:
        """Right is every grid that keeps the rules and the givens; `share` is of the empty cells."""
        asked = instance.prompt[:-1]
        empty = [place for place, symbol in enumerate(asked) if symbol == EMPTY]
        right = sum(answer[place] == instance.answer[place] for place in empty if place < len(answer))
        share = right / (len(empty) + max(len(answer) - len(asked), 0))
        if len(answer) != len(asked):
            return Verdict(False, share, compare(answer, instance.answer).problem)
        problem = self._problem(asked, answer)
        return Verdict(True, 1.0) if problem is None else Verdict(False, share, problem)

    def _problem(self, asked: Sequence[str], answer: Sequence[str]) -> str | None:
        if not set(answer) <= set(self.answer_symbols):
            return "no digit"
        if any(symbol not in (EMPTY, said) for symbol, said in zip(asked, answer, strict=True)):
            return "changed a given"
        for kind, name in enumerate(("row", "column", "box")):
            if len({(units[kind], said) for units, said in zip(units_of(self.size), answer, strict=True)}) < len(
                answer
            ):
                return f"repeats in a {name}"
        return None


def solutions(cells: Sequence[int], size: int, source: random.Random | None = None) -> Iterator[tuple[int, ...]]:
    """All solutions of a puzzle, 0 where a cell is empty; with a source, in random order.

    The cell with the fewest candidates comes first; which digits a row, column or box holds are bits of a number.
    """
    taken = [0] * (3 * size)
    open_cells = []
    for place, value in enumerate(cells):
        if not value:
            open_cells.append((place, *units_of(size)[place]))
            continue
        for unit in units_of(size)[place]:
            if taken[unit] >> value & 1:
                return
            taken[unit] |= 1 << value
    yield from _filled(list(cells), open_cells, taken, size, source)


def _filled(
    cells: list[int], open_cells: list[tuple[int, ...]], taken: list[int], size: int, source: random.Random | None
) -> Iterator[tuple[int, ...]]:
    if not open_cells:
        yield tuple(cells)
        return
    chosen, most, bits = 0, -1, 0
    for index, (_, row, column, box) in enumerate(open_cells):
        seen = taken[row] | taken[column] | taken[box]
        count = seen.bit_count()
        if count > most:
            chosen, most, bits = index, count, seen
            if count >= size - 1:
                break
    open_cells[chosen], open_cells[-1] = open_cells[-1], open_cells[chosen]
    cell = place, row, column, box = open_cells.pop()
    digits = [digit for digit in range(1, size + 1) if not bits >> digit & 1]
    if source is not None:
        source.shuffle(digits)
    for digit in digits:
        cells[place] = digit
        for unit in (row, column, box):
            taken[unit] ^= 1 << digit
        yield from _filled(cells, open_cells, taken, size, source)
        for unit in (row, column, box):
            taken[unit] ^= 1 << digit
    cells[place] = 0
    open_cells.append(cell)  # their order means nothing


def thinned(grid: Sequence[int], size: int, num_givens: int, source: random.Random) -> list[int] | None:
    """A complete grid with so many cells left that has no other solution, cells taken away in random order.

    None where no further cell can go: one that had to stay has to stay for ever.
    """
    cells, left = list(grid), len(grid)
    taken = [(2 << size) - 2] * (3 * size)
    for place in source.sample(range(len(grid)), len(grid)):
        if left == num_givens:
            return cells
        value, cells[place] = cells[place], 0
        for unit in units_of(size)[place]:
            taken[unit] ^= 1 << value
        if _only(value, place, cells, taken, size):
            left -= 1
            continue
        cells[place] = value
        for unit in units_of(size)[place]:
            taken[unit] ^= 1 << value
    return cells if left == num_givens else None


def _only(value: int, place: int, cells: list[int], taken: list[int], size: int) -> bool:
    """Whether an emptied cell can be nothing else in any solution: seen at once for most cells, else by search."""
    units = units_of(size)
    row, column, box = units[place]
    seen = taken[row] | taken[column] | taken[box]
    others = [digit for digit in range(1, size + 1) if digit != value and not seen >> digit & 1]
    if not others:
        return True
    for rivals in rivals_of(size)[place]:
        for rival in rivals:
            row, column, box = units[rival]
            if not cells[rival] and not (taken[row] | taken[column] | taken[box]) >> value & 1:
                break
        else:
            return True
    for digit in others:
        cells[place] = digit
        other = next(solutions(cells, size), None)
        cells[place] = 0
        if other:
            return False
    return True


def random_grid(size: int, source: random.Random) -> tuple[int, ...]:
    """A complete grid, the first row uniform, the rest as the solver finds it at random."""
    first = source.sample(range(1, size + 1), size)
    return next(solutions([*first, *[0] * (size * (size - 1))], size, source))


@cache
def grids_4x4() -> tuple[tuple[int, ...], ...]:
    """All 288."""
    return tuple(solutions([0] * 16, 4))


@cache
def units_of(size: int) -> tuple[tuple[int, int, int], ...]:
    """The numbers of each cell's row, column and box among all 3 size of them."""
    side = math.isqrt(size)
    return tuple(
        (row, size + column, 2 * size + row // side * side + column // side)
        for row in range(size)
        for column in range(size)
    )


@cache
def rivals_of(size: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Of each cell, the other cells of its row, of its column and of its box."""
    units = units_of(size)
    return tuple(
        tuple(
            tuple(other for other in range(size**2) if other != place and units[other][kind] == units[place][kind])
            for kind in range(3)
        )
        for place in range(size**2)
    )
