"""Statistics of one generated sample: they show what a likelihood alone hides.

Dull, repetitive text is easy to predict, so a good judge's score may be bought with entropy: show the two side by side.
All of these depend on the sample's length (the entropy of n tokens is at most ln n): compare equal lengths only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import groupby


def token_entropy_nats(tokens: Sequence[int]) -> float | None:
    """Entropy of the sample's own token frequencies, −Σ (c/n) ln (c/n), in nats; None for an empty sample."""
    if not tokens:
        return None
    counts = Counter(tokens).values()
    return math.log(len(tokens)) - sum(c * math.log(c) for c in counts) / len(tokens)


def distinct_n(tokens: Sequence[int], n: int) -> float | None:
    """Distinct n-grams / n-grams (Li et al. 2016, distinct-n); None for a sample of fewer than n tokens."""
    num_grams = len(tokens) - n + 1
    if num_grams < 1:
        return None
    return len({tuple(tokens[i : i + n]) for i in range(num_grams)}) / num_grams


def longest_run(tokens: Sequence[int]) -> int:
    """Length of the longest stretch of one repeated token; 0 for an empty sample."""
    return max((sum(1 for _ in run) for _, run in groupby(tokens)), default=0)


def sample_statistics(tokens: Sequence[int]) -> dict[str, float | int | None]:
    """The columns of the `requests` table that depend on a sample's tokens alone."""
    tokens = tuple(tokens)
    return {
        "token_entropy_nats": token_entropy_nats(tokens),
        "distinct_1": distinct_n(tokens, 1),
        "distinct_2": distinct_n(tokens, 2),
        "longest_run": longest_run(tokens),
    }
