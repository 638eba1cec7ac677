"""Instances of a task, and everything that can be said to them."""

from __future__ import annotations

import random
from itertools import product


def drawn(task, count, seed=0):
    source = random.Random(seed)
    return [task.draw(source) for _ in range(count)]


def answers(task):
    """Everything that can be said, to one symbol more than the longest answer."""
    for length in range(task.answer_len + 2):
        yield from product(task.answer_symbols, repeat=length)


def follows(task, one, other):
    """Whether a word or place may follow another, read off the graph of the task."""
    names = task.answer_symbols
    return names.index(other) in task.graph.follows[names.index(one)]
