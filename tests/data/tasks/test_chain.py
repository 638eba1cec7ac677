"""Chains of functions, followed by hand; what is drawn, and what is right of it."""

from __future__ import annotations

import random
from itertools import permutations
from typing import Any

import pytest
import torch
from data.tasks.instances import answers, drawn
from decoding.exact_denoiser import p_value

from paradigms.data.tasks.chain import Chain
from paradigms.data.tasks.task import Instance

FEW: dict[str, Any] = {"num_heldout": 4, "num_validation": 1}
CHAINS = [Chain(depth=2, num_values=3, num_functions=2, show_steps=shown, **FEW) for shown in (True, False)]


def followed(prompt, depth):
    """Values on the way, by the rules as they are written in the prompt."""
    *rules, slash, start = prompt[: -depth - 1]
    assert slash == "/" and prompt[-1] == "="
    told = {(rules[at], rules[at + 1]): rules[at + 3] for at in range(0, len(rules), 4)}
    assert all(rules[at + 2] == ">" for at in range(0, len(rules), 4)) and len(told) == len(rules) // 4
    path = [start]
    for name in prompt[-depth - 1 : -1]:
        path.append(told[name, path[-1]])
    return tuple(path[1:])


@pytest.mark.parametrize("task", CHAINS, ids=["steps", "last"])
def test_the_answer_follows_from_the_rules_of_the_prompt(task):
    for instance in drawn(task, 60):
        path = followed(instance.prompt, task.depth)
        right = [answer for answer in answers(task) if task.check(instance, answer).correct]
        assert right == [path if task.show_steps else path[-1:]] == [instance.answer]
        assert len(instance.prompt) == task.prompt_len and len(instance.answer) == task.answer_len


def test_every_function_and_question_is_drawn_alike():
    """Two functions that turn two values: each of 2 x 2 mappings, starts and sequences as often, and so the answers."""
    task = Chain(depth=2, num_values=2, num_functions=2, **FEW)
    number: dict[str, int] = {}
    for instance in drawn(task, 6400):
        key = str(task.identity(instance))
        number[key] = number.get(key, 0) + 1
    alike = torch.full((len(number),), 1 / len(number), dtype=torch.float64)
    counts = torch.tensor(list(number.values()))
    assert len(number) == 2 * 2 * 2 * 2**2 and p_value(counts, alike) > 1e-3
    skewed = alike.clone()
    skewed[:10] *= 1.4
    assert p_value(counts, skewed / skewed.sum()) < 1e-6


def test_the_last_value_is_a_guess_without_the_chain():
    """Whatever the start and the functions' names, each value comes last as often: one to one functions lose none."""
    task = Chain(depth=4, show_steps=False, **FEW)
    counts = torch.zeros(task.num_values, dtype=torch.long)
    for instance in drawn(task, 4000):
        if instance.prompt[-6] == "0" and instance.prompt[-5:-3] == ("f0", "f1"):
            counts[int(instance.answer[0])] += 1
    assert counts.sum() > 150
    assert p_value(counts, torch.full((task.num_values,), 1 / task.num_values, dtype=torch.float64)) > 1e-3


def test_both_variants_ask_the_same_questions_of_the_same_splits():
    shown, last = (Chain(show_steps=steps) for steps in (True, False))
    for one, other in zip(drawn(shown, 40), drawn(last, 40), strict=True):
        assert one.prompt == other.prompt and other.answer == one.answer[-1:]
        assert shown.split(one) == last.split(other)


def test_the_order_of_rules_asks_nothing():
    task, source = Chain(), random.Random(9)
    (instance,) = drawn(task, 1)
    size = 4 * task.num_functions * task.num_values
    rules = [instance.prompt[at : at + 4] for at in range(0, size, 4)]
    for _ in range(5):
        source.shuffle(rules)
        other = Instance((*(s for rule in rules for s in rule), *instance.prompt[size:]), instance.answer)
        assert task.identity(other) == task.identity(instance) and task.split(other) == task.split(instance)
    name, value, arrow, result = rules[0]
    changed = [(name, value, arrow, str((int(result) + 1) % task.num_values)), *rules[1:]]
    other = Instance((*(s for rule in changed for s in rule), *instance.prompt[size:]), instance.answer)
    assert task.identity(other) != task.identity(instance)


@pytest.mark.parametrize(
    ("task", "answer", "problem"),
    [
        (CHAINS[0], "1 2", None),
        (CHAINS[0], "2 2", "wrong first step"),
        (CHAINS[0], "1 0", "wrong step"),
        (CHAINS[0], "1 f0", "no value"),
        (CHAINS[0], "1", "too short"),
        (CHAINS[0], "1 2 2", "too long"),
        (CHAINS[0], "", "no answer"),
        (CHAINS[1], "2", None),
        (CHAINS[1], "1", "wrong value"),
        (CHAINS[1], "=", "no value"),
    ],
)
def test_problems_of_a_chain(task, answer, problem):
    """f0 goes one further, f1 stands still; from 0, f0 and f0 again."""
    rules = [("f0", a, ">", str((int(a) + 1) % 3)) for a in "012"] + [("f1", a, ">", a) for a in "012"]
    prompt = (*(s for rule in rules for s in rule), "/", "0", "f0", "f0", "=")
    assert followed(prompt, 2) == ("1", "2")
    verdict = task.check(Instance(prompt, ("1", "2") if task.show_steps else ("2",)), answer.split())
    assert (verdict.problem, verdict.correct) == (problem, problem is None)


def test_functions_are_one_to_one():
    for instance in drawn(Chain(), 50):
        rules = [instance.prompt[at : at + 4] for at in range(0, 4 * 2 * 5, 4)]
        for name in ("f0", "f1"):
            assert sorted(rule[3] for rule in rules if rule[0] == name) == list("01234")
    small = Chain(num_values=2, num_functions=1)
    tables = {str(small.identity(instance)[0]) for instance in drawn(small, 50)}
    assert len(tables) == len(list(permutations("01")))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Chain(depth=0), ["corpus.depth=0", "at least 1"]),
        (lambda: Chain(num_values=1), ["corpus.num_values=1", "at least 2"]),
        (lambda: Chain(num_functions=0), ["corpus.num_functions=0"]),
    ],
)
def test_impossible_sizes_say_why(make, words):
    with pytest.raises(ValueError) as error:
        make()
    for word in words:
        assert word in str(error.value)
