"""Crossings of known functions, against their closed forms and against every value tried."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paradigms.costs.crossing import crossings


def test_a_line_against_a_constant():
    """a + b x = c at x = (c - a) / b; within 1 + s of each other from (c / (1 + s) - a) / b to (c (1 + s) - a) / b."""
    (found,) = crossings(lambda x: 2 + 0.03 * x, lambda x: 12.0, 1, 100_000, spread=0.2)
    assert found.at == 334 and found.smaller_before == 0
    assert found.low == math.ceil((12 / 1.2 - 2) / 0.03) and found.high == math.floor((12 * 1.2 - 2) / 0.03)
    assert not found.low_open and not found.high_open


@given(
    a=st.integers(0, 50),
    b=st.integers(1, 9),
    c=st.integers(1, 500),
    spread=st.floats(0.01, 0.9),
    high=st.integers(2, 400),
)
def test_as_every_value_says(a, b, c, spread, high):
    def first(x):
        return a + b * x

    values = range(1, high + 1)
    changes = [x for x in values[1:] if (first(x) < c) != (first(x - 1) < c)]
    found = crossings(first, lambda x: c, 1, high, spread=spread)
    assert [each.at for each in found] == changes
    for each in found:
        near = [x for x in values if abs(math.log(first(x) / c)) <= math.log1p(spread)]
        assert each.low == min([*near, each.at]) and each.high == max([*near, each.at])
        assert each.low_open == (1 in near) and each.high_open == (high in near)


def test_none_two_and_unknown_spread():
    assert crossings(lambda x: x, lambda x: x + 1, 1, 1000, spread=0.1) == []
    both = crossings(lambda x: 50 + (x - 100) ** 2 / 100, lambda x: 75.0, 1, 300, spread=None)
    assert [each.at for each in both] == [51, 150] and both[0].low is None
    assert [each.smaller_before for each in both] == [1, 0]


def test_two_that_were_equal_so_far_do_not_change_places():
    assert crossings(lambda x: max(x, 20), lambda x: 20 + 1e-12, 1, 100, spread=0.1) == []
    (found,) = crossings(lambda x: min(max(x, 20), 40), lambda x: {True: 30, False: 20}[x > 20], 1, 100, spread=None)
    assert (found.at, found.smaller_before) == (30, 0)
    (found,) = crossings(lambda x: 40 - x, lambda x: 20 + 0 * x, 1, 39, spread=None)
    assert (found.at, found.smaller_before) == (21, 1)


@pytest.mark.parametrize(("low", "high"), [(0, 4), (5, 5), (7, 3)])
def test_an_empty_range_is_refused(low, high):
    with pytest.raises(ValueError, match=f"from {low} to {high} is empty"):
        crossings(lambda x: x, lambda x: 2, low, high, spread=None)
