"""Sample statistics by known answers."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paradigms.quality.samples import distinct_n, longest_run, sample_statistics, token_entropy_nats


def test_known_answers():
    assert sample_statistics([7, 7, 7, 8]) == {
        "token_entropy_nats": pytest.approx(-0.75 * math.log(0.75) - 0.25 * math.log(0.25)),
        "distinct_1": 2 / 4,
        "distinct_2": 2 / 3,  # (7,7) twice, (7,8) once
        "longest_run": 3,
    }


def test_too_short_is_undefined_not_zero():
    assert sample_statistics([]) == {
        "token_entropy_nats": None,
        "distinct_1": None,
        "distinct_2": None,
        "longest_run": 0,
    }
    assert distinct_n([5], 2) is None
    assert token_entropy_nats([5]) == 0


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), min_size=2, max_size=50))
def test_bounds(tokens):
    entropy = token_entropy_nats(tokens)
    assert entropy is not None
    assert -1e-12 <= entropy <= math.log(len(set(tokens))) + 1e-12
    assert distinct_n(tokens, 1) == len(set(tokens)) / len(tokens)
    assert 1 <= longest_run(tokens) <= max(map(tokens.count, tokens))
    assert (longest_run(tokens) == 1) == all(a != b for a, b in pairwise(tokens))
