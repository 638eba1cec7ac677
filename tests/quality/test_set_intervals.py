"""Intervals over texts cover as often as they say, on sets whose true figure is known."""

import math

import numpy as np
import pytest

from paradigms.quality.intervals import SHARE, Estimate, halves, mean, of_set, ratio


def test_known_answers():
    found = mean([1.0, None, 2.0, 3.0])
    assert (found.value, found.count) == (2, 3)
    assert found.se == pytest.approx(1 / math.sqrt(3))
    assert found.interval() == pytest.approx((2 - 4.302653 / math.sqrt(3), 2 + 4.302653 / math.sqrt(3)))
    assert ratio([2.0, None, 6.0], [1, 5, 3]).value == 2
    assert ratio([2.0, 6.0], [1, 3]).se == 0  # each text has the same ratio
    assert mean([None]) == Estimate(None, None, 0)
    assert mean([1.0]).columns("x") == {"x": 1.0, "x_low": None, "x_high": None, "x_count": 1}
    assert of_set(len, 3).se is None and of_set(lambda chosen: None, 9).value is None


def test_an_interval_ends_where_no_such_figure_lies():
    rare = mean([0.0] * 9 + [0.5])
    assert rare.columns("x")["x_low"] < 0 <= rare.columns("x", between=SHARE)["x_low"] < rare.value
    assert mean([1.0, 0.9]).columns("x", between=SHARE)["x_high"] == 1


def test_halves_are_halves():
    for half in halves(9, replicates=5, seed=0):
        assert len(set(half)) == 4 and set(half) <= set(range(9))


def coverage(estimate, truth: float, *, sets: int = 400, texts: int = 60) -> float:
    hits = 0
    for number in range(sets):
        interval = estimate(np.random.default_rng([1, number]), texts).interval()
        hits += interval[0] <= truth <= interval[1]
    return hits / sets


@pytest.mark.parametrize("kind", ["mean", "ratio", "of a set"])
def test_coverage(kind):
    """Nats that follow the length: 2 a token and noise. 400 sets: 95 % comes out within 91.7 and 98.3 % (3 errors)."""

    def estimate(random: np.random.Generator, texts: int) -> Estimate:
        tokens = random.integers(10, 50, texts)
        nats = 2 * tokens + random.exponential(20, texts) - 20
        if kind == "mean":
            return mean(nats.tolist())
        if kind == "ratio":
            return ratio(nats.tolist(), tokens.tolist())
        return of_set(lambda chosen: float(nats[list(chosen)].mean()), texts)

    found = coverage(estimate, 2.0 if kind == "ratio" else 59.0)
    assert 0.917 <= found <= 0.983


def test_coverage_notices_an_interval_that_is_too_narrow():
    def too_narrow(random: np.random.Generator, texts: int) -> Estimate:
        found = mean(random.exponential(1, texts).tolist())
        assert found.se is not None
        return Estimate(found.value, found.se / 2, found.count)

    assert coverage(too_narrow, 1.0) < 0.9
