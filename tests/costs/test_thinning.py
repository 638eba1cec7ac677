"""Long runs of steps, as a few of them with weights: the same sums where costs are linear, the same ends."""

from dataclasses import replace

import pytest

from paradigms.costs.thinning import PLACES, WHOLE, thinned
from paradigms.work import ForwardShape


def steps(number: int, first: int = 10) -> list[ForwardShape]:
    return [
        ForwardShape(phase="decode", rows=2, tokens=1, seen=first + n, kept=first + n - 1, written=1, logits=2)
        for n in range(number)
    ]


PROMPT = ForwardShape(phase="prefill", rows=2, tokens=9, seen=9, written=9, logits=2)


@pytest.mark.parametrize("number", [1, WHOLE, WHOLE + 1, 1000, 65_537])
def test_linear_costs_keep_their_sum(number):
    shapes = [PROMPT, *steps(number)]
    few = list(thinned(shapes))
    assert few[0] == PROMPT and few[-1].seen == shapes[-1].seen
    assert sum(shape.times for shape in few) == pytest.approx(len(shapes))
    assert sum(shape.times * shape.kept for shape in few) == pytest.approx(sum(shape.kept for shape in shapes))
    assert len(few) == (len(shapes) if number <= WHOLE else PLACES + 1)


def test_quadratic_costs_nearly_do():
    shapes = steps(4000)
    exact = sum(shape.seen**2 for shape in shapes)
    assert sum(shape.times * shape.seen**2 for shape in thinned(shapes)) == pytest.approx(exact, rel=1e-3)


def test_what_differs_otherwise_is_left_alone():
    mixed = [replace(shape, tokens=1 + index % 2, times=0.5) for index, shape in enumerate(steps(600))]
    assert list(thinned(mixed)) == mixed
    growing = [
        ForwardShape(phase="decode", rows=1, tokens=n, seen=n, logits=1) for n in range(1, 2000)
    ]  # a text that is read again each time
    few = list(thinned(growing))
    assert len(few) == PLACES
    assert sum(shape.times * shape.tokens for shape in few) == pytest.approx(sum(range(1, 2000)))


def test_times_of_a_run_are_kept():
    twice = [replace(shape, times=2.0) for shape in steps(1000)]
    assert sum(shape.times for shape in thinned(twice)) == pytest.approx(2000)
