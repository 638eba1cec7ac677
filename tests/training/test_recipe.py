"""The budget, shapes and learning rates of a recipe; what it refuses."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paradigms.training.recipe import Recipe


def recipe(**changes) -> Recipe:
    return Recipe(**{"num_tokens": 1000, "batch_tokens": 100, "lengths": (20, 33, 100), **changes})


def test_batches_fill_their_budget_with_whole_rows_in_turn():
    assert [recipe().batch_shape(step) for step in range(4)] == [(5, 20), (3, 33), (1, 100), (5, 20)]
    assert recipe().longest == 100


@settings(deadline=None)
@given(
    num_tokens=st.integers(1, 5000),
    lengths=st.lists(st.integers(2, 100), min_size=1, max_size=5),
    batch_tokens=st.integers(100, 400),
)
def test_steps_are_the_fewest_that_reach_the_budget(num_tokens, lengths, batch_tokens):
    chosen = recipe(lengths=lengths, batch_tokens=batch_tokens)
    tokens = [rows * length for rows, length in map(chosen.batch_shape, range(num_tokens))]
    reached = next(step for step, total in enumerate(accumulate(tokens), 1) if total >= num_tokens)
    assert chosen.num_steps(num_tokens) == reached


@pytest.mark.parametrize("warmup_steps", [0, 1, 7, 1000])
@pytest.mark.parametrize("num_steps", [1, 2, 40, 400])
def test_the_rate_rises_to_its_peak_and_falls_towards_zero(warmup_steps, num_steps):
    rates = [recipe(warmup_steps=warmup_steps).rate_at(step, num_steps, 0.5) for step in range(num_steps)]
    top = rates.index(max(rates))
    assert max(rates) == 0.5 and top <= warmup_steps and top <= num_steps // 10
    assert rates[: top + 1] == sorted(rates[: top + 1]) and rates[top:] == sorted(rates[top:], reverse=True)
    assert min(rates) > 0
    if num_steps >= 40:
        assert rates[-1] < 0.02, "the last step is a small one"
        steps = [later - earlier for earlier, later in zip(rates[top + 1 :], rates[top + 2 :], strict=False)]
        assert max(steps) - min(steps) < 1e-12, "straight down"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_tokens": 0}, ["train.num_tokens=0", "at least 1"]),
        ({"batch_tokens": 99}, ["train.batch_tokens=99", "100 tokens", "train.lengths"]),
        ({"lengths": ()}, ["train.lengths=[]"]),
        ({"lengths": (1,)}, ["train.lengths=[1]", "at least 2"]),
        ({"learning_rates": ()}, ["train.learning_rates=[]"]),
        ({"learning_rates": (1e-3, 0.0)}, ["train.learning_rates=[0.001, 0.0]", "positive"]),
        ({"probe_tokens": 0}, ["train.probe_tokens=0"]),
        ({"num_validations": 0}, ["train.num_validations=0"]),
        ({"validation_windows": 0}, ["train.validation_windows=0"]),
        ({"validation_len": 0}, ["train.validation_len=0"]),
        ({"warmup_steps": -1}, ["train.warmup_steps=-1", "at least 0"]),
        ({"weight_decay": -0.1}, ["train.weight_decay=-0.1", "at least 0"]),
        ({"seed": -1}, ["train.seed=-1", "at least 0"]),
        ({"clip_norm": 0.0}, ["train.clip_norm=0.0", "above 0"]),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(changes, words):
    with pytest.raises(ValueError) as error:
        recipe(**changes)
    for word in words:
        assert word in str(error.value)
