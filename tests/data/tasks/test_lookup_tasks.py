"""Recall and copying: every instance of a tiny size, with the right answer read from its prompt by code of its own.

`laws` has all prompts of each tiny task with their probabilities, by enumeration; `READ` reads a prompt.
"""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare

from paradigms.data.tasks.copying import Copying
from paradigms.data.tasks.induction import Induction
from paradigms.data.tasks.mqar import Mqar
from paradigms.data.tasks.ngram_lookup import NgramLookup
from paradigms.data.tasks.reversal import Reversal
from paradigms.data.tasks.selective_copying import SelectiveCopying
from paradigms.data.tasks.task import Instance, Task

Prompt = tuple[str, ...]  # of recall with the keys that are asked behind it, which are given in the answer
NOBODYS = "<mask>"  # no symbol of any task

TINY: dict[str, Task] = {
    "copying": Copying(alphabet=2, min_len=1, max_len=3),
    "reversal": Reversal(alphabet=2, min_len=2, max_len=3),
    "selective_copying": SelectiveCopying(num_tokens=2, length=3, alphabet=2, num_noise=2),
    "induction": Induction(length=5, alphabet=2, num_followers=2),
    "ngram_lookup": NgramLookup(n=1, length=4, alphabet=4),
    "mqar": Mqar(num_pairs=2, num_keys=3, num_values=3, num_queries=1, length=6),
    "mqar_all": Mqar(num_pairs=2, num_keys=2, num_values=3, length=5),
}
of_each = pytest.mark.parametrize("name", TINY)


# ---------------------------------------------------------------- what is right


def before(prompt: Prompt) -> Prompt:
    assert prompt[-1] == "=" and "=" not in prompt[:-1]
    return prompt[:-1]


def looked_up(prompt: Prompt) -> Prompt:
    """Behind the last earlier place of the prompt's last symbol."""
    place = max(i for i in range(len(prompt) - 1) if prompt[i] == prompt[-1])
    return (prompt[place + 1],)


def behind_special(prompt: Prompt) -> Prompt:
    assert [symbol for symbol in prompt if symbol == "#"] == ["#", "#"] and prompt[-1] == "#"
    return prompt[prompt.index("#") + 1 :][:2]


def recalled(prompt: Prompt) -> Prompt:
    """Each key that is asked, and the symbol behind its first occurrence."""
    values = {key: value for key, value in itertools.pairwise(prompt) if value[0] == "v"}
    return tuple(symbol for key in prompt[prompt.index("=") + 1 :] for symbol in (key, values[key]))


def asks(instance: Instance) -> Prompt:
    return (*instance.prompt, *(symbol for _, symbol in instance.given))


def instance_of(name: str, prompt: Prompt, answer: Prompt) -> Instance:
    asked = prompt[TINY[name].prompt_len :] if TINY[name].given_in_order else ()
    return Instance(prompt[: len(prompt) - len(asked)], answer, tuple((2 * i, key) for i, key in enumerate(asked)))


READ: dict[str, Callable[[Prompt], Prompt]] = {
    "copying": before,
    "reversal": lambda prompt: tuple(prompt[-2 - i] for i in range(len(before(prompt)))),
    "selective_copying": lambda prompt: tuple(symbol for symbol in before(prompt) if symbol in "0123456789"),
    "induction": behind_special,
    "ngram_lookup": looked_up,
    "mqar": recalled,
    "mqar_all": recalled,
}


# ---------------------------------------------------------------- all instances


def uniform(prompts: Sequence[Prompt]) -> dict[Prompt, float]:
    assert len(set(prompts)) == len(prompts) > 0
    return dict.fromkeys(prompts, 1 / len(prompts))


def strings(low: int, high: int) -> dict[Prompt, float]:
    """Each length equally likely, and of a length each string."""
    lengths = range(low, high + 1)
    return {
        (*string, "="): 1 / len(lengths) / 2**length
        for length in lengths
        for string in itertools.product("01", repeat=length)
    }


def recalls(num_keys: int, num_asked: int, filler: int) -> dict[Prompt, float]:
    return uniform(
        [
            (one, a, two, b, *"." * filler, "=", *asked)
            for one, two in itertools.permutations([f"k{i}" for i in range(num_keys)], 2)
            for a, b in itertools.permutations(("v0", "v1", "v2"), 2)
            for asked in itertools.permutations((one, two), num_asked)
        ]
    )


def all_of(symbols: Sequence[str], length: int, legal: Callable[[Prompt], bool]) -> dict[Prompt, float]:
    return uniform([prompt for prompt in itertools.product(symbols, repeat=length) if legal(prompt)])


def laws() -> dict[str, dict[Prompt, float]]:
    def scattered(prompt: Prompt) -> bool:
        return "=" not in prompt[:-1] and prompt[-1] == "=" and sum(each in "01" for each in prompt) == 2

    def twice(prompt: Prompt) -> bool:
        return prompt.count("#") == 2 and prompt[-1] == "#" and prompt.index("#") < 2

    def once_before(prompt: Prompt) -> bool:
        return prompt[:-1].count(prompt[-1]) == 1 and prompt[-2] != prompt[-1]

    return {
        "copying": strings(1, 3),
        "reversal": strings(2, 3),
        "selective_copying": all_of(("0", "1", ".0", ".1", "="), 4, scattered),
        "induction": all_of("01#", 5, twice),
        "ngram_lookup": all_of("0123", 4, once_before),
        "mqar": recalls(num_keys=3, num_asked=1, filler=1),
        "mqar_all": recalls(num_keys=2, num_asked=2, filler=0),
    }


def p_value(law: dict[Prompt, float], prompts: Sequence[Prompt]) -> float:
    counts = Counter(prompts)
    assert counts.keys() <= law.keys(), "no prompt beside those of the enumeration"
    assert sum(law.values()) == pytest.approx(1)
    return chisquare([counts[each] for each in law], [len(prompts) * law[each] for each in law]).pvalue


@of_each
def test_draws_follow_the_law_of_all_instances(name):
    task, source = TINY[name], random.Random(0)
    instances = [task.draw(source) for _ in range(6000)]
    prompts = [asks(instance) for instance in instances]
    assert all(instance.answer == READ[name](prompt) for prompt, instance in zip(prompts, instances, strict=True))
    assert set(prompts) == laws()[name].keys(), "each of them comes"
    assert p_value(laws()[name], prompts) > 1e-3


def test_another_law_is_seen():
    """Strings as likely as one another, whatever their length, are not what is drawn."""
    source = random.Random(0)
    prompts = [TINY["copying"].draw(source).prompt for _ in range(6000)]
    assert p_value(uniform(list(strings(1, 3))), prompts) < 1e-9


@of_each
def test_of_all_answers_to_all_instances_those_that_the_prompt_demands_are_right(name):
    task = TINY[name]
    symbols = (*task.symbols, NOBODYS)
    for prompt in laws()[name]:
        right = READ[name](prompt)
        num_right = 0
        instance = instance_of(name, prompt, right)
        open_places = slice(1, None, 2) if task.given_in_order else slice(None)
        for length in range(min(task.answer_len + 1, 4) + 1):
            for answer in itertools.product(symbols, repeat=length):
                verdict = task.check(instance, answer)
                said, wanted = answer[open_places], right[open_places]
                places = sum(a == b for a, b in zip(said, wanted, strict=False))
                assert verdict.correct == (answer == right) == (verdict.problem is None)
                assert verdict.share == places / max(len(wanted), len(said))
                num_right += verdict.correct
        assert num_right == 1


@of_each
def test_instances_that_ask_the_same_have_one_answer(name):
    """And prompts of different identity differ in what they ask."""
    task = TINY[name]
    answers: dict[str, set[Prompt]] = {}
    for prompt in laws()[name]:
        answer = READ[name](prompt)
        answers.setdefault(repr(task.identity(instance_of(name, prompt, answer))), set()).add(answer)
    assert {len(each) for each in answers.values()} == {1}
    num_asked = {"selective_copying": 4, "mqar": 72 // 2, "mqar_all": 24 // 2}
    assert len(answers) == num_asked.get(name, len(laws()[name]))


# ---------------------------------------------------------------- n-grams


def followers(prompt: Prompt, n: int) -> list[str]:
    """What stands behind each earlier occurrence of the last n symbols, in their order."""
    string, context = " ".join(("", *prompt, "")), " ".join(("", *prompt[-n:], ""))
    found = [match.start() for match in re.finditer(f"(?={re.escape(context)})", string)]
    assert found[-1] + len(context) == len(string)
    return [string[place + len(context) :].split(" ")[0] for place in found[:-1]]


LOOKUPS = [
    NgramLookup(),
    NgramLookup(n=3, length=64, alphabet=8),
    NgramLookup(n=2, length=16, alphabet=4),
    NgramLookup(n=5),
]


@pytest.mark.parametrize("task", LOOKUPS, ids=lambda task: f"n{task.n}_of_{task.alphabet}")
def test_a_context_stands_once_before_and_its_ends_mislead(task):
    source, n = random.Random(0), task.n
    instances = [task.draw(source) for _ in range(1500)]
    for instance in instances:
        assert followers(instance.prompt, n) == list(instance.answer)
        for shorter in range(1, n):
            others = [symbol for symbol in followers(instance.prompt, shorter) if symbol != instance.answer[0]]
            assert len(others) >= 2
    for choose in (0, -1):  # the first and the last place of the context without its first symbol
        guessed = np.mean([followers(each.prompt, n - 1)[choose] == each.answer[0] for each in instances])
        assert guessed < 0.4


def test_a_random_prompt_does_not_mislead():
    """What the test above would see without decoys."""
    source, task = random.Random(0), NgramLookup(n=3)
    plain = [(source.choices(task.symbols, k=26), source.choices(task.symbols, k=3)) for _ in range(200)]
    prompts = [(*rest[:10], *context, *rest[10:], *context) for rest, context in plain]
    misled = [len(set(followers(prompt, 2)) - set(followers(prompt, 3))) >= 1 for prompt in prompts]
    assert np.mean(misled) < 0.3


def test_places_of_contexts_are_spread_over_the_prompt():
    task, source = NgramLookup(n=2, length=14, alphabet=30), random.Random(0)
    places = Counter()
    for _ in range(3000):
        prompt = task.draw(source).prompt
        places[next(i for i in range(12) if prompt[i : i + 2] == prompt[-2:])] += 1
    # 3 free symbols and 3 blocks of 3 in any order: the context's block lies behind f free symbols and b blocks
    chances = Counter()
    for order in itertools.permutations(("context", "decoy", "other", "a", "b", "c")):
        at = order.index("context")
        chances[sum(1 if part in "abc" else 3 for part in order[:at])] += 1
    assert places.keys() == chances.keys()
    expected = [3000 * chances[place] / sum(chances.values()) for place in chances]
    assert chisquare([places[place] for place in chances], expected).pvalue > 1e-3


# ---------------------------------------------------------------- sizes, problems, parameters


@pytest.mark.parametrize(("length", "num_pairs"), [(64, 4), (128, 8), (256, 16), (512, 64)])
def test_recall_has_the_lengths_of_the_paper(length, num_pairs):
    task = Mqar(length=length, num_pairs=num_pairs, num_keys=4096, num_values=4096)
    instance = task.draw(random.Random(0))
    prompt = instance.prompt
    assert len(prompt) == task.prompt_len == length and len(instance.answer) == 2 * num_pairs
    keys, values = prompt[: 2 * num_pairs : 2], prompt[1 : 2 * num_pairs : 2]
    assert len(set(keys)) == len(set(values)) == num_pairs and not set(keys) & set(values)
    asked = instance.answer[::2]
    assert sorted(asked) == sorted(keys), "each key is asked once"
    assert instance.given == tuple((2 * place, key) for place, key in enumerate(asked))
    assert set(prompt[2 * num_pairs : -1]) == {"."}
    assert instance.answer[1::2] == tuple(dict(zip(keys, values, strict=True))[key] for key in asked)


def test_the_defaults_fit_into_rows_of_64():
    for kind in {type(task) for task in TINY.values()}:
        assert kind().row_tokens <= 64


STRING = Instance(("3", "1", "4", "="), ("3", "1", "4"))
BACKWARDS = Instance(("3", "1", "4", "="), ("4", "1", "3"))
NOISY = Instance((".0", "3", ".0", ".0", "1", "="), ("3", "1"))
PAIRS = Instance(("k1", "v5", "k0", "v2", ".", "="), ("k0", "v2", "k1", "v5"), ((0, "k0"), (2, "k1")))
CONTEXT = Instance(tuple("512782092412"), ("7",))
SPECIAL = Instance(tuple("5#278#"), ("2", "7"))
NOISES = SelectiveCopying(num_tokens=2, length=5)
RECALL = Mqar(num_pairs=2, length=6)
LOOKUP = NgramLookup(length=12)
TWO = Induction(length=6, num_followers=2)
PROBLEMS: list[tuple[Task, Instance, str, str]] = [
    (Copying(), STRING, "", "no answer"),
    (Copying(), STRING, "3 1", "too short"),
    (Copying(), STRING, "3 1 4 4", "too long"),
    (Copying(), STRING, "1 1 4", "wrong start"),
    (Copying(), STRING, "3 4 1", "lost on the way"),
    (Reversal(), BACKWARDS, "3 1 4", "not reversed"),
    (Reversal(), BACKWARDS, "3 1 3", "wrong start"),
    (Reversal(), BACKWARDS, "4 1 4", "lost on the way"),
    (NOISES, NOISY, ".0 3", "noise copied"),
    (NOISES, NOISY, "1 3", "wrong order"),
    (NOISES, NOISY, "3 3", "wrong symbol"),
    (NOISES, NOISY, "3 . 1", "too long"),
    (RECALL, PAIRS, "k0 v5 k1 v2", "value of another key"),
    (RECALL, PAIRS, "k0 v2 k1 v9", "value of no key"),
    (RECALL, PAIRS, "k0 v2 k1 k1", "no value"),
    (RECALL, PAIRS, "k0 v2 k1 <mask>", "no value"),
    (RECALL, PAIRS, "k1 v5 k0 v2", "changed what is given"),
    (RECALL, PAIRS, "k0 v2 k1", "too short"),
    (RECALL, PAIRS, "k0 v2 k1 v5 k0", "too long"),
    (RECALL, PAIRS, "", "no answer"),
    (LOOKUP, CONTEXT, "0", "context too short"),
    (LOOKUP, CONTEXT, "4", "context too short"),
    (LOOKUP, CONTEXT, "8", "wrong symbol"),
    (NgramLookup(n=1, length=12), CONTEXT, "8", "wrong symbol"),
    (TWO, SPECIAL, "7 8", "wrong place"),
    (TWO, SPECIAL, "2 8", "lost on the way"),
]


@pytest.mark.parametrize(
    ("task", "instance", "said", "problem"),
    PROBLEMS,
    ids=[f"{task.name}-{said.replace(' ', '_')}" for task, _, said, _ in PROBLEMS],
)
def test_a_problem_says_what_went_wrong(task, instance, said, problem):
    verdict = task.check(instance, said.split())
    assert not verdict.correct and verdict.problem == problem
    assert task.check(instance, instance.answer).problem is None


def test_prompts_that_differ_in_what_means_nothing_ask_the_same():
    turned = replace(PAIRS, prompt=("k0", "v2", "k1", "v5", *PAIRS.prompt[4:]))
    assert RECALL.identity(turned) == RECALL.identity(PAIRS)
    asked = replace(PAIRS, answer=("k1", "v5", "k0", "v2"), given=((0, "k1"), (2, "k0")))
    assert RECALL.identity(asked) != RECALL.identity(PAIRS), "the order of keys decides the answer"
    moved = replace(NOISY, prompt=("3", ".0", ".0", "1", ".0", "="))
    assert NOISES.identity(moved) == NOISES.identity(NOISY)
    assert NOISES.identity(replace(NOISY, prompt=("1", ".0", ".0", "3", ".0", "="))) != NOISES.identity(NOISY)


BAD: list[tuple[type[Task], dict[str, Any], str]] = [
    (Copying, {"alphabet": 1}, r"corpus\.alphabet=1 must be at least 2"),
    (Copying, {"min_len": 0}, r"corpus\.min_len=0 and max_len=20"),
    (Reversal, {"min_len": 9, "max_len": 8}, r"corpus\.min_len=9 and max_len=8"),
    (Copying, {"num_heldout": 0}, r"corpus\.num_heldout=0"),
    (SelectiveCopying, {"num_tokens": 32}, r"corpus\.num_tokens=32 of corpus\.length=32 places"),
    (SelectiveCopying, {"num_tokens": 0}, r"corpus\.num_tokens=0"),
    (SelectiveCopying, {"num_noise": 0}, r"num_noise=0: at least 2 data symbols, at least 1"),
    (SelectiveCopying, {"alphabet": 1}, r"corpus\.alphabet=1"),
    (Induction, {"alphabet": 1}, r"corpus\.alphabet=1"),
    (Induction, {"num_followers": 0}, r"corpus\.num_followers=0"),
    (Induction, {"length": 5, "num_followers": 4}, r"corpus\.length=5 must be at least 6"),
    (NgramLookup, {"n": 0}, r"corpus\.n=0"),
    (NgramLookup, {"alphabet": 1}, r"alphabet=1"),
    (NgramLookup, {"length": 10}, r"corpus\.length=10 must be at least 11"),
    (NgramLookup, {"alphabet": 4, "length": 17}, r"corpus\.length=17 is more than the 16 contexts .* make it shorter"),
    (Mqar, {"num_pairs": 0}, r"corpus\.num_pairs=0"),
    (Mqar, {"num_keys": 3}, r"corpus\.num_keys=3 must be at least 4"),
    (Mqar, {"num_pairs": 1, "num_values": 1}, r"corpus\.num_values=1 must be at least 2"),
    (Mqar, {"num_queries": 5}, r"corpus\.num_queries=5 must be from 1 to corpus\.num_pairs=4"),
    (Mqar, {"num_queries": 0}, r"corpus\.num_queries=0"),
    (Mqar, {"length": 8}, r"corpus\.length=8 must be at least 9"),
]


@pytest.mark.parametrize(
    ("kind", "params", "message"),
    BAD,
    ids=[f"{kind.name}-{'-'.join(params)}-{i}" for i, (kind, params, _) in enumerate(BAD)],
)
def test_impossible_sizes_are_errors_that_name_the_key(kind, params, message):
    with pytest.raises(ValueError, match=message):
        kind(**params)


@pytest.mark.parametrize(
    "task",
    [
        Induction(length=3, alphabet=2),
        Mqar(length=9),
        Mqar(length=None, num_pairs=2),
        Mqar(num_pairs=1, num_keys=2, num_values=2, length=3),
        NgramLookup(length=11),
        NgramLookup(n=1, length=4, alphabet=4),
        SelectiveCopying(num_tokens=31),
        Reversal(min_len=1, max_len=1, alphabet=2),
    ],
    ids=lambda task: task.title.replace(" ", "_"),
)
def test_the_smallest_sizes_are_drawn(task):
    for seed in range(20):
        instance = task.draw(random.Random(seed))
        assert len(instance.prompt) == task.prompt_len and task.check(instance, instance.answer).correct


def test_a_task_with_too_few_instances_says_so():
    with pytest.raises(
        ValueError, match=r"copying, alphabet 2, .* has too few different instances: .* after \d+; make"
    ):
        Copying(alphabet=2, max_len=5).load()
