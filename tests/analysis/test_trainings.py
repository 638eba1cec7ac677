"""Means over trainings cover as often as they say, and who wins is found by hand; alike ones are told apart seldom."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.series import SEED
from analysis.trainings import ALONE, NOT, SHARED, Mean, difference_p, over_trainings, standing


@pytest.mark.parametrize("mean", [0.1, 0.5, 0.9])
def test_the_interval_covers_as_often_as_it_says(mean):
    """Trainings that differ by a normal of 0.03, 200 instances each, drawn 150 times."""
    random = np.random.default_rng(3)
    hits = 0
    for _ in range(150):
        shares = np.clip(random.normal(mean, 0.03, 3), 0, 1)
        rows = pd.DataFrame({SEED: np.repeat([0, 1, 2], 200),
                             "correct": (random.random(600) < np.repeat(shares, 200)).astype(float)})  # fmt: skip
        found = over_trainings(rows)
        hits += found.low <= mean <= found.high
    assert hits / 150 > 0.93


def mean(value, variance=1e-4, df=2):
    return Mean(value, variance, df)


def test_standing_by_hand():
    assert standing({"a": mean(0.9), "b": mean(0.5)}) == {"a": ALONE, "b": NOT}
    assert standing({"a": mean(0.9), "b": mean(0.89)}) == {"a": SHARED, "b": SHARED}
    assert standing({"a": mean(0.9), "b": mean(0.89), "c": mean(0.1)}) == {"a": SHARED, "b": SHARED, "c": NOT}
    assert standing({"a": mean(0.0), "b": mean(0.0)}) == {"a": NOT, "b": NOT}
    assert standing({"a": mean(0.3), "b": mean(0.0, variance=0.09)}) == {"a": ALONE, "b": NOT}, "0 wins nothing"
    assert standing({"a": mean(0.3), "b": Mean(math.nan, math.nan, math.inf)}) == {"a": ALONE, "b": NOT}
    assert standing({"a": mean(0.3)}) == {"a": ALONE} and standing({}) == {}


def test_difference_is_welchs():
    one, other = np.array([0.5, 0.6, 0.55]), np.array([0.7, 0.66, 0.75, 0.71])
    means = [Mean(values.mean(), values.var(ddof=1) / len(values), len(values) - 1) for values in (one, other)]
    assert difference_p(*means) == pytest.approx(stats.ttest_ind(one, other, equal_var=False).pvalue)


def test_alike_paradigms_are_told_apart_seldom():
    """Negative control: four of the same accuracy; by Holm and the choice of the best, at most every tenth time."""
    random, apart = np.random.default_rng(5), 0
    for _ in range(120):
        means = {}
        for name in "abcd":
            hits = random.binomial(200, np.clip(random.normal(0.6, 0.04, 3), 0, 1))
            right = np.concatenate([np.arange(200) < count for count in hits]).astype(float)
            means[name] = Mean.of(pd.DataFrame({SEED: np.repeat([0, 1, 2], 200), "correct": right}))
        apart += NOT in standing(means).values()
    assert apart / 120 < 0.1
