"""What holds of every task: its answers are right and others are not, its splits never meet, its files build it.

Tasks are found, not listed: a new one is held against all of this as soon as it lies there. Unless `RIGHT` says more of
it, a task has one right answer to each instance.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import json
import os
import pkgutil
import random
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import cache
from typing import Any, ClassVar

import numpy as np
import pytest
from omegaconf import OmegaConf

from paradigms import cli
from paradigms.build import build
from paradigms.cell import Cell
from paradigms.data import tasks
from paradigms.data.symbols import SymbolTokenizer
from paradigms.data.tasks.copying import Copying
from paradigms.data.tasks.rows import TaskRows
from paradigms.data.tasks.task import Instance, Task, text
from paradigms.data.tokenizers import BOS_ID, EOS_ID, SPECIALS

PACKAGE = tasks.__name__
NUM_DRAWN, NUM_TRAINED = 60, 2000


def kinds() -> dict[str, type[Task]]:
    """Every task of the package by its name."""
    for module in pkgutil.iter_modules(tasks.__path__):
        importlib.import_module(f"{PACKAGE}.{module.name}")
    found: dict[str, type[Task]] = {}
    waiting: list[type[Task]] = [Task]
    while waiting:
        subclasses = waiting.pop().__subclasses__()
        waiting += subclasses
        for kind in subclasses:
            if kind.__module__.startswith(f"{PACKAGE}.") and not inspect.isabstract(kind):
                assert kind.name not in found, "two tasks of one name"
                found[kind.name] = kind
    return dict(sorted(found.items()))


KINDS = kinds()
of_every_task = pytest.mark.parametrize("name", KINDS)


@cache
def small(name: str) -> Task:
    return KINDS[name](num_heldout=12, num_validation=8)


@cache
def drawn(name: str) -> tuple[Instance, ...]:
    source = random.Random(1)
    return tuple(small(name).draw(source) for _ in range(NUM_DRAWN))


def reaches_target(task: Any, instance: Instance, answer: Sequence[str]) -> bool:
    """Countdown: every number is used once, every step is exact, and the target is what is left."""
    *inputs, _, target, _ = instance.prompt
    numbers = [int(number) for number in inputs]
    for start in range(0, len(answer), 6):
        step = re.fullmatch(r"(\d+) ([-+*/]) (\d+) = (\d+) ,", " ".join(answer[start : start + 6]))
        if step is None:
            return False
        left, right, said = (int(step[group]) for group in (1, 3, 4))
        for operand in (left, right):
            if operand not in numbers:
                return False
            numbers.remove(operand)
        exact = {"+": left + right, "-": left - right, "*": left * right, "/": Fraction(left, right or 1)}[step[2]]
        if exact != said or said > task.max_number or (step[2] == "/" and right == 0):
            return False
        numbers.append(said)
    return numbers == [int(target)]


def is_walk(names: Sequence[str], follows: Sequence[Sequence[int]], answer: Sequence[str]) -> bool:
    edges = {(names[node], names[after]) for node in range(len(names)) for after in follows[node]}
    return set(answer) <= set(names) and set(itertools.pairwise(answer)) <= edges


def fills_the_gaps(task: Any, instance: Instance, answer: Sequence[str]) -> bool:
    kept = len(answer) == len(instance.answer) and all(answer[place] == symbol for place, symbol in instance.given)
    return kept and is_walk(task.answer_symbols, task.graph.follows, answer)


def spells_the_prompt(task: Any, instance: Instance, answer: Sequence[str]) -> bool:
    spelt = [*(word[:1] for word in answer), "="] == list(instance.prompt)
    return spelt and is_walk(task.answer_symbols, task.graph.follows, answer)


def leads_to_the_last_word(task: Any, instance: Instance, answer: Sequence[str]) -> bool:
    asked = (*answer[:1], *answer[-1:], str(len(answer)), "=") == instance.prompt
    return asked and is_walk(task.answer_symbols, task.graph.follows, answer)


# What is right, of tasks with several right answers, by code that is not theirs.
RIGHT: dict[str, Callable[[Any, Instance, Sequence[str]], bool]] = {
    "acrostic": spells_the_prompt,
    "countdown": reaches_target,
    "last_word": leads_to_the_last_word,
    "walk_infilling": fills_the_gaps,
}


def is_right(task: Task, instance: Instance, answer: Sequence[str]) -> bool:
    if tuple(answer) == instance.answer:
        return True
    return task.name in RIGHT and RIGHT[task.name](task, instance, answer)


def key(task: Task, instance: Instance) -> str:
    return json.dumps(task.identity(instance))


# ---------------------------------------------------------------- instances and answers


@of_every_task
def test_what_is_drawn_is_right_and_fits(name):
    task = small(name)
    assert len(set(task.symbols)) == len(task.symbols) and not set(SPECIALS) & set(task.symbols)
    assert set(task.answer_symbols) <= set(task.symbols)
    for instance in drawn(name):
        verdict = task.check(instance, instance.answer)
        assert (verdict.correct, verdict.share, verdict.problem) == (True, 1.0, None)
        assert task.check(instance, list(instance.answer)) == verdict
        assert 1 <= len(instance.prompt) <= task.prompt_len and 1 <= len(instance.answer) <= task.answer_len
        is_open = [symbol for place, symbol in enumerate(instance.answer) if place not in dict(instance.given)]
        assert set(instance.prompt) <= set(task.symbols) and set(is_open) <= set(task.answer_symbols)
        assert len(is_open) <= task.answer_len
        given = dict(instance.given)
        assert all(instance.answer[place] == symbol for place, symbol in given.items())
        assert len(given) == len(instance.given) < len(instance.answer)


@of_every_task
def test_the_lengths_that_are_told_are_reached(name):
    """At default sizes: rows are as long as they must be, and no longer."""
    task = KINDS[name]()
    instances = [*task.heldout, *drawn(name)]
    assert max(len(instance.prompt) for instance in instances) == task.prompt_len
    assert max(len(instance.answer) for instance in instances) == task.answer_len


@of_every_task
def test_draws_follow_from_the_generator_alone(name):
    task, again = small(name), KINDS[name](num_heldout=5)
    assert [task.draw(random.Random(seed)) for seed in range(5)] == [
        again.draw(random.Random(seed)) for seed in range(5)
    ]
    assert len({key(task, instance) for instance in drawn(name)}) > NUM_DRAWN / 2


def corrupted(task: Task, instance: Instance, source: random.Random) -> list[tuple[str, ...]]:
    """An answer with a symbol changed at some places, there or all over, one left out, one more, and nothing."""
    answer = instance.answer
    others = (*task.answer_symbols, SPECIALS[2])
    found: list[tuple[str, ...]] = [()]
    for place in source.sample(range(len(answer)), min(len(answer), 6)):
        found += [(*answer[:place], symbol, *answer[place + 1 :]) for symbol in source.sample(others, 2)]
        found += [
            tuple(symbol if each == answer[place] else each for each in answer) for symbol in source.sample(others, 2)
        ]
        found.append((*answer[:place], *answer[place + 1 :]))
        found.append((*answer[:place], source.choice(task.answer_symbols), *answer[place:]))
    found += [answer[:-1], answer[1:], (*answer, answer[-1]), (*answer, source.choice(task.answer_symbols))]
    found.append(tuple(source.sample(answer, len(answer))))
    return [each for each in found if each != answer]


@of_every_task
def test_answers_with_a_mistake_are_wrong_unless_the_rules_allow_them(name):
    task, source = small(name), random.Random(2)
    num_wrong = 0
    for instance in drawn(name):
        for answer in corrupted(task, instance, source):
            verdict = task.check(instance, answer)
            assert verdict.correct == is_right(task, instance, answer), (instance, answer, verdict)
            assert verdict.correct == (verdict.problem is None) and 0 <= verdict.share <= 1
            assert verdict.share == 1 or not verdict.correct
            num_wrong += not verdict.correct
        assert not task.check(instance, ()).correct
    assert num_wrong > 5 * NUM_DRAWN


@of_every_task
def test_whatever_is_said_gets_a_verdict(name):
    task, source = small(name), random.Random(3)
    problems = set()
    for instance in drawn(name):
        for length in (1, len(instance.answer), task.answer_len, task.answer_len + 1):
            for symbols in (task.symbols, task.answer_symbols, SPECIALS):
                answer = source.choices(symbols, k=length)
                verdict = task.check(instance, answer)
                assert verdict.correct == is_right(task, instance, answer) == (verdict.problem is None)
                problems.add(verdict.problem)
    assert len(problems - {None}) < 30 and all(len(each) <= 40 for each in problems - {None}), "kinds, not instances"


@of_every_task
def test_planted_symbols_are_wrong_where_they_stand(name):
    task, source = small(name), random.Random(4)
    for instance in drawn(name)[:20]:
        places = [place for place in range(len(instance.answer)) if place not in dict(instance.given)]
        planted = task.planted(instance, 2, source)
        assert len(planted) == min(2, len(places)) and set(planted) <= set(task.answer_symbols)
        for place, symbol in zip(places, planted, strict=False):
            answer = (*instance.answer[:place], symbol, *instance.answer[place + 1 :])
            assert symbol != instance.answer[place]
            assert task.check(instance, answer).correct == is_right(task, instance, answer)


# ---------------------------------------------------------------- splits


def met_again(task: Task, count: int) -> list[Instance]:
    """Training instances that ask what the held-out or the validation set asks: literally, or by their identity."""
    fixed = (*task.heldout, *task.validation)
    asked = {key(task, instance) for instance in fixed} | {(instance.prompt, instance.given) for instance in fixed}
    trained = (task.training_instance(0, number // 128, number % 128) for number in range(count))
    return [each for each in trained if {key(task, each), (each.prompt, each.given)} & asked]


@of_every_task
def test_training_never_meets_what_is_held_out(name):
    task = small(name)
    sets = {"heldout": task.heldout, "validation": task.validation}
    assert {split: len(each) for split, each in sets.items()} == {"heldout": 12, "validation": 8}
    for split, instances in sets.items():
        assert {task.split(instance) for instance in instances} == {split}
        assert len({key(task, instance) for instance in instances}) == len(instances), "all different"
    assert {task.split(task.training_instance(0, 0, row)) for row in range(100)} == {"train"}
    assert met_again(task, NUM_TRAINED) == []


@of_every_task
def test_what_is_asked_does_not_depend_on_the_answer(name):
    """Else one prompt, answered in two ways, could be trained on and held out."""
    task = small(name)
    for instance in drawn(name):
        assert key(task, replace(instance, answer=instance.answer[::-1])) == key(task, instance)


RUNNING = itertools.count()


@dataclass(frozen=True, kw_only=True)
class Forgetful(Copying):
    """Its identity ignores the prompt, and is another one at each draw."""

    name: ClassVar[str] = "forgetful"

    def identity(self, instance: Instance) -> Any:
        return next(RUNNING)


@dataclass(frozen=True, kw_only=True)
class Constant(Copying):
    """Its identity ignores the prompt, and is always the same."""

    name: ClassVar[str] = "constant"

    def identity(self, instance: Instance) -> Any:
        return []


def test_an_identity_that_ignores_the_prompt_is_caught():
    sizes = {"alphabet": 2, "min_len": 1, "max_len": 8, "num_heldout": 10, "num_validation": 5}
    assert met_again(Copying(**sizes), NUM_TRAINED) == [], "however few instances there are"
    assert len(met_again(Forgetful(**sizes), NUM_TRAINED)) > 20
    task = Constant(**sizes)
    for split in {"heldout", "validation"} - {task.split(task.draw(random.Random(0)))}:
        with pytest.raises(
            ValueError, match=rf"^constant, .*too few different instances.* {split} split after 0; make"
        ):
            getattr(task, split)


HELDOUT_IN_A_NEW_PROCESS = """
import importlib, json, sys
for name, (module, kind) in json.load(sys.stdin).items():
    task = getattr(importlib.import_module(module), kind)(num_heldout=12, num_validation=8)
    print(json.dumps([name, [[each.prompt, each.answer, each.given] for each in task.heldout + task.validation]]))
"""


@pytest.fixture(scope="module")
def elsewhere() -> dict[str, Any]:
    """The fixed sets as another process makes them, with hashes of its own."""
    asked = {name: (kind.__module__, kind.__qualname__) for name, kind in KINDS.items()}
    done = subprocess.run(
        [sys.executable, "-c", HELDOUT_IN_A_NEW_PROCESS],
        **{"input": json.dumps(asked), "capture_output": True, "text": True, "check": True},
        env={**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": str(cli.CONF.parent)},
    )
    return dict(json.loads(line) for line in done.stdout.splitlines())


@of_every_task
def test_the_fixed_sets_are_the_same_in_a_new_process(name, elsewhere):
    here = [[each.prompt, each.answer, each.given] for each in small(name).heldout + small(name).validation]
    assert json.loads(json.dumps(here)) == elsewhere[name]


@of_every_task
def test_more_held_out_instances_begin_with_the_fewer(name):
    assert replace(small(name), num_heldout=5).heldout == small(name).heldout[:5]


# ---------------------------------------------------------------- rows and files


@of_every_task
def test_rows_follow_from_seed_step_and_row(name):
    task = small(name)
    tokenizer = SymbolTokenizer(task.symbols)
    rows = TaskRows(task=task, tokenizer=tokenizer, split="train")
    sizes = {"length": task.row_tokens + 2, "num_rows": 6}
    tokens_RT, scored_RT = rows.batch(seed=3, step=7, **sizes)
    others = [rows.batch(seed=seed, step=step, **sizes)[0] for seed, step in ((3, 8), (4, 7))]
    fresh = TaskRows(task=replace(task), tokenizer=tokenizer, split="train")
    again_RT, again_scored_RT = fresh.batch(seed=3, step=7, **sizes | {"num_rows": 4})
    assert np.array_equal(again_RT, tokens_RT[:4]) and np.array_equal(again_scored_RT, scored_RT[:4])
    assert not any(np.array_equal(other, tokens_RT) for other in others)
    assert len({tokens_T.tobytes() for tokens_T in tokens_RT}) > 3, "rows differ"
    for row, (tokens_T, scored_T) in enumerate(zip(tokens_RT, scored_RT, strict=True)):
        instance = task.training_instance(3, 7, row)
        prompt, answer = tokenizer.ids(instance.prompt), tokenizer.ids(instance.answer)
        before, behind = task.prompt_len - len(prompt), len(tokens_T) - 1 - task.prompt_len - len(answer)
        assert behind >= 1
        assert tokens_T.tolist() == [BOS_ID, *[EOS_ID] * before, *prompt, *answer, *[EOS_ID] * behind]
        given = {task.prompt_tokens + place for place, _ in instance.given}
        scored = [column for column in range(task.prompt_tokens, len(tokens_T)) if column not in given]
        assert np.flatnonzero(scored_T).tolist() == scored


@of_every_task
def test_a_corpus_holds_the_fixed_sets_as_text(name):
    task = small(name)
    corpus = task.load()
    tokenizer = SymbolTokenizer(task.symbols)
    assert corpus.documents["train"] == () and corpus.task is task and task.vocab_size == tokenizer.vocab_size
    assert corpus.prompt_lens is not None
    for split in ("validation", "heldout"):
        found = zip(corpus.documents[split], corpus.prompt_lens[split], getattr(task, split), strict=True)
        for document, prompt_len, instance in found:
            assert document[:prompt_len] == text(instance.prompt)
            assert tokenizer.names(tokenizer.encode_batch([document])[0]) == [*instance.prompt, *instance.answer]
    assert corpus.sha256 != replace(task, num_heldout=11).load().sha256


@of_every_task
def test_its_files_compose_and_build_it(name):
    config = cli.compose([f"task={name}", "paradigm=ar", "model.target_parameters=null"])
    cell = build(config)
    assert isinstance(cell, Cell)
    cell.check()
    task = cell.corpus
    assert isinstance(task, Task) and type(task) is KINDS[name]
    work = cell.workload
    assert (work.prompt_len, work.output_len) == (1 + task.prompt_len, task.answer_len + 1)
    assert cell.model.vocab_size == 3 + len(task.symbols)


@of_every_task
def test_its_file_spells_out_every_parameter(name):
    values = OmegaConf.to_container(OmegaConf.load(cli.CONF / "corpus" / f"{name}.yaml"))
    assert isinstance(values, dict)
    assert values.keys() - {"_target_"} == {field.name for field in fields(KINDS[name])}
    assert build(values) == KINDS[name](), "the defaults are those of the file"


def test_every_task_file_chooses_a_task():
    assert {path.stem for path in (cli.CONF / "task").glob("*.yaml")} >= set(KINDS) >= {"star_graph", "mqar"}
