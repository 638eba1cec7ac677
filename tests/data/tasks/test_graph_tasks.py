"""Walks with gaps, acrostics and texts with a given end, against every answer of small sizes."""

from __future__ import annotations

import random
from itertools import pairwise, product
from typing import Any

import pytest
import torch
from data.tasks.instances import answers, drawn, follows
from decoding.exact_denoiser import p_value

from paradigms.data.tasks.acrostic import Acrostic
from paradigms.data.tasks.last_word import LastWord
from paradigms.data.tasks.task import Instance
from paradigms.data.tasks.walk_infilling import Graph, WalkInfilling

FEW: dict[str, Any] = {"num_heldout": 4, "num_validation": 1}
WALKS = WalkInfilling(num_nodes=4, degree=2, num_gaps=2, gap_len=1, **FEW)
ACROSTICS = Acrostic(length=4, num_letters=2, words_per_letter=2, degree=2, **FEW)
TEXTS = LastWord(min_len=2, max_len=4, num_words=4, degree=2, **FEW)
OF_GRAPHS = [WALKS, ACROSTICS, TEXTS]
DEFAULTS = [WalkInfilling(), Acrostic(), LastWord()]


# ---------------------------------------------------------------- graphs


@pytest.mark.parametrize(("num_nodes", "degree"), [(2, 1), (5, 4), (7, 1), (20, 3), (64, 3), (20, 5)])
def test_a_graph_is_regular_and_follows_from_its_seed(num_nodes, degree):
    graph = Graph(num_nodes, degree, 0)
    edges = [(node, after) for node in range(num_nodes) for after in graph.follows[node]]
    assert len(set(edges)) == len(edges) == num_nodes * degree
    assert all(start != end for start, end in edges)
    assert sorted(start for start, _ in edges) == sorted(end for _, end in edges)
    assert {len(after) for after in graph.follows} == {degree}
    assert Graph(num_nodes, degree, 0).follows == graph.follows
    if degree < num_nodes - 1 and num_nodes > 5:
        assert len({Graph(num_nodes, degree, seed).follows for seed in range(5)}) == 5


def test_edges_of_graphs_are_drawn_alike():
    """Over seeds, every edge but loops is there as often: nothing is left of the ring that the switches begin with."""
    found = torch.zeros(6, 6)
    for seed in range(300):
        for node, after in enumerate(Graph(6, 2, seed).follows):
            found[node, list(after)] += 1
    share = found[~torch.eye(6, dtype=torch.bool)] / 300
    assert float(found.diagonal().sum()) == 0
    assert abs(share - 2 / 5).max() < 4 * (2 / 5 * 3 / 5 / 300) ** 0.5


def walks(graph, length):
    """All walks, by looking at every sequence of nodes."""
    edges = {(node, after) for node in range(graph.num_nodes) for after in graph.follows[node]}
    return [nodes for nodes in product(range(graph.num_nodes), repeat=length) if set(pairwise(nodes)) <= edges]


def test_every_walk_is_drawn_as_often():
    """And would not be if the first node were drawn unevenly: the test sees it."""
    graph = Graph(5, 2, 1)
    every = walks(graph, 4)
    assert len(every) == 5 * 2**3
    number = dict.fromkeys(every, 0)
    source = random.Random(5)
    for _ in range(6000):
        number[tuple(graph.walk(4, source))] += 1
    alike = torch.full((len(every),), 1 / len(every), dtype=torch.float64)
    counts = torch.tensor(list(number.values()))
    assert p_value(counts, alike) > 1e-3
    skewed = alike * torch.tensor([1.4 if nodes[0] == 0 else 1.0 for nodes in every])
    assert p_value(counts, skewed / skewed.sum()) < 1e-6


def test_possible_nodes_are_those_of_some_walk():
    source = random.Random(6)
    for seed in range(20):
        graph = Graph(5, 2, seed)
        nodes = range(5)
        for _ in range(20):
            allowed = [set(source.sample(nodes, source.randint(1, 5))) for _ in range(source.randint(1, 4))]
            fit = [
                walk
                for walk in walks(graph, len(allowed))
                if all(node in here for node, here in zip(walk, allowed, strict=True))
            ]
            assert graph.possible(allowed) == [{walk[place] for walk in fit} for place in range(len(allowed))]


# ---------------------------------------------------------------- right answers, by trying every one


def is_right(task, instance, answer):
    """By the task's words alone."""
    if not all(follows(task, one, other) for one, other in pairwise(answer)):
        return False
    match task:
        case WalkInfilling():
            asked_for = dict(instance.given)
            return len(answer) == task.answer_len and all(answer[at] == there for at, there in asked_for.items())
        case Acrostic():
            return "".join(word[0] for word in answer) == "".join(instance.prompt[:-1])
        case LastWord():
            first, last, length, _ = instance.prompt
            return len(answer) == int(length) and (answer[0], answer[-1]) == (first, last)
    raise AssertionError


@pytest.mark.parametrize("task", OF_GRAPHS, ids=lambda task: task.name)
def test_right_are_the_answers_that_every_rule_allows(task):
    several = 0
    for instance in drawn(task, 8):
        right = [answer for answer in answers(task) if is_right(task, instance, answer)]
        assert right == [answer for answer in answers(task) if task.check(instance, answer).correct]
        assert instance.answer in right
        several += len(right) > 1
    assert several, "any right answer is taken, not only the one that was drawn"


@pytest.mark.parametrize("task", OF_GRAPHS, ids=lambda task: task.name)
def test_a_verdict_is_whole_or_says_what_is_wrong(task):
    instance = drawn(task, 1)[0]
    for answer in answers(task):
        verdict = task.check(instance, answer)
        assert verdict.correct == (verdict.problem is None) == (verdict.share == 1.0)
        assert 0 <= verdict.share <= 1


@pytest.mark.parametrize("task", OF_GRAPHS, ids=lambda task: task.name)
def test_planted_symbols_are_in_no_right_answer_at_their_place(task):
    source, planted = random.Random(7), 0
    for instance in drawn(task, 20):
        given = dict(instance.given)
        right = [answer for answer in answers(task) if is_right(task, instance, answer)]
        places = [place for place in range(len(instance.answer)) if place not in given]
        for count in range(1, len(places) + 1):
            try:
                symbols = task.planted(instance, count, source)
            except ValueError as error:  # every symbol is right somewhere
                assert "no error can be planted" in str(error)
                possible = [{answer[place] for answer in right} for place in places[:count]]
                assert any(symbols == set(task.answer_symbols) for symbols in possible)
                continue
            assert len(symbols) == count
            for place, symbol in zip(places, symbols, strict=False):
                assert symbol in task.answer_symbols and all(answer[place] != symbol for answer in right)
            planted += 1
    assert planted > 20


@pytest.mark.parametrize(
    ("task", "instance"),
    [(task, one) for task in DEFAULTS for one in drawn(task, 3)],
    ids=lambda one: one.name if hasattr(one, "name") else "",
)
def test_default_sizes_can_be_planted_everywhere(task, instance):
    places = len(instance.answer) - len(instance.given)
    assert len(task.planted(instance, places, random.Random(0))) == places


def test_problems_of_a_walk():
    """0 -> 1, 2 -> 3 -> 0 ... as the graph of the seed has it, named by what is wrong first."""
    (instance,) = drawn(WALKS, 1)
    right = list(instance.answer)
    names = WALKS.answer_symbols

    def after(symbol, follow):
        return next(name for name in names if follows(WALKS, symbol, name) == follow)

    no_edge = [right[0], after(right[0], False), *right[2:]]
    assert WALKS.check(instance, no_edge).problem == "no edge"
    moved = [next(name for name in names if name != right[0]), *right[1:]]
    assert WALKS.check(instance, moved).problem == "changed what is given"
    assert WALKS.check(instance, [*right[:3], "walk:", right[4]]).problem == "no place"
    assert WALKS.check(instance, right[:-1]).problem == "too short"
    assert WALKS.check(instance, [*right, after(right[-1], True)]).problem == "too long"
    assert WALKS.check(instance, []).problem == "no answer"
    assert WALKS.check(instance, [*right[:3], "walk:", right[4]]).share == pytest.approx(3 / 5)
    assert WALKS.check(instance, moved).share == pytest.approx((3 + follows(WALKS, moved[0], right[1])) / 5)


def test_problems_of_acrostics_and_texts():
    (one,) = drawn(ACROSTICS, 1)
    first = one.answer[0]
    other_letter = "a1" if first[0] == "b" else "b1"
    assert ACROSTICS.check(one, (other_letter, *one.answer[1:])).problem == "wrong letter"
    assert ACROSTICS.check(one, ("a", *one.answer[1:])).problem == "no word"
    stuck = next(
        answer
        for answer in product(ACROSTICS.answer_symbols, repeat=4)
        if [word[0] for word in answer] == list(one.prompt[:-1]) and not is_right(ACROSTICS, one, answer)
    )
    assert ACROSTICS.check(one, stuck).problem == "must not follow"
    text = Instance(("w0", "w1", "3", "="), ())
    names = TEXTS.answer_symbols
    ends_elsewhere = next(
        answer
        for answer in product(names, repeat=3)
        if answer[0] == "w0" and answer[-1] != "w1" and all(follows(TEXTS, *pair) for pair in pairwise(answer))
    )
    assert TEXTS.check(text, ends_elsewhere).problem == "wrong last word"
    assert TEXTS.check(text, ends_elsewhere).share == pytest.approx(2 / 3)
    begins_elsewhere = next(answer for answer in product(names, repeat=3) if answer[0] != "w0")
    assert TEXTS.check(text, begins_elsewhere).problem == "wrong first word"
    assert TEXTS.check(text, ("w0", "w0", "w1")).problem == "must not follow"
    assert TEXTS.check(text, ("w0", "5", "w1")).problem == "no word"


# ---------------------------------------------------------------- how far one gets who does not look ahead


def steps(task):
    """Where one goes who takes any node that may follow, float64 [from, to]."""
    found = torch.zeros(task.graph.num_nodes, task.graph.num_nodes, dtype=torch.float64)
    for node, after in enumerate(task.graph.follows):
        found[node, list(after)] = 1 / len(after)
    return found


def luck(task, instances):
    """Of each instance, the probability that one gets through who takes any word that may stand next: of an acrostic
    any that has the right letter too.
    """
    step_WW, names = steps(task), task.answer_symbols
    match task:
        case Acrostic():
            of_letter = {letter: torch.tensor([name[0] == letter for name in names]) for letter in task.letters}
            chances = []
            for instance in instances:
                here_W = of_letter[instance.prompt[0]].double() / task.words_per_letter
                for letter in instance.prompt[1:-1]:
                    may_WW = step_WW * of_letter[letter]
                    here_W = here_W @ (may_WW / may_WW.sum(1, keepdim=True).clamp(min=1e-9))
                chances.append(float(here_W.sum()))
            return chances
        case LastWord():
            after = {length: torch.linalg.matrix_power(step_WW, length - 1) for length in range(2, task.max_len + 1)}
            ends = [(names.index(one.prompt[0]), names.index(one.prompt[1]), int(one.prompt[2])) for one in instances]
            return [float(after[length][first, last]) for first, last, length in ends]
        case WalkInfilling():  # of a gap: from its last place any edge to what is given will do
            edge_WW = (step_WW > 0).double()
            over_WW = torch.linalg.matrix_power(step_WW, task.gap_len) @ edge_WW
            gaps = [pair for one in instances for pair in pairwise(int(place) for _, place in one.given)]
            return [float(over_WW[start, end]) for start, end in gaps]
    raise AssertionError


@pytest.mark.parametrize(
    ("task", "share"),
    [(DEFAULTS[0], 0.17), (DEFAULTS[1], 0.21), (DEFAULTS[2], 0.016)],
    ids=["walk", "acrostic", "text"],
)
def test_who_does_not_look_ahead_rarely_gets_through(task, share):
    """The figure in the module's docstring, of the held-out instances of the default size."""
    chances = luck(task, task.heldout)
    assert sum(chances) / len(chances) == pytest.approx(share, rel=0.05)


def test_luck_is_what_walkers_have():
    """The calculation against walkers that are sent."""
    task, source = Acrostic(), random.Random(8)
    instance = task.heldout[0]
    through, names = 0, task.answer_symbols
    for _ in range(3000):
        word = source.choice([name for name in names if name[0] == instance.prompt[0]])
        for letter in instance.prompt[1:-1]:
            may = [name for name in names if name[0] == letter and follows(task, word, name)]
            if not may:
                break
            word = source.choice(may)
        else:
            through += 1
    (chance,) = luck(task, [instance])
    assert abs(through / 3000 - chance) < 4 * (chance * (1 - chance) / 3000) ** 0.5 + 1e-9


def test_luck_in_a_gap_is_what_the_checker_lets_through():
    """Walkers that fill the only gap of a walk, judged by the task."""
    task, source = WalkInfilling(num_gaps=1, num_heldout=10), random.Random(9)
    asked = task.heldout
    through = 0
    for instance in asked:
        for _ in range(400):
            nodes = [int(instance.answer[0])]
            while len(nodes) < task.answer_len - 1:
                nodes.append(source.choice(task.graph.follows[nodes[-1]]))
            through += task.check(instance, [*map(str, nodes), instance.answer[-1]]).correct
    chance = sum(luck(task, asked)) / len(asked)
    assert abs(through / 4000 - chance) < 4 * (chance * (1 - chance) / 4000) ** 0.5


# ---------------------------------------------------------------- sizes


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: WalkInfilling(num_gaps=0), ["corpus.num_gaps=0", "gap_len=3"]),
        (lambda: WalkInfilling(gap_len=0), ["gap_len=0"]),
        (lambda: WalkInfilling(degree=20), ["corpus.degree=20", "less than the 20 nodes"]),
        (lambda: WalkInfilling(degree=0), ["corpus.degree=0", "at least 1"]),
        (lambda: Acrostic(num_letters=27), ["corpus.num_letters=27", "1 to 26"]),
        (lambda: Acrostic(length=0), ["corpus.length=0"]),
        (lambda: Acrostic(words_per_letter=0), ["corpus.words_per_letter=0"]),
        (lambda: Acrostic(num_letters=2, words_per_letter=2, degree=4), ["corpus.degree=4", "4 nodes"]),
        (lambda: LastWord(min_len=1), ["corpus.min_len=1", "at least 2 words"]),
        (lambda: LastWord(min_len=5, max_len=4), ["min_len=5", "max_len=4"]),
        (lambda: LastWord(num_words=3), ["corpus.degree=3", "3 nodes"]),
        (lambda: LastWord(num_words=8, min_len=3, max_len=3, degree=2).heldout, ["too few different instances"]),
    ],
)
def test_impossible_sizes_say_why(make, words):
    with pytest.raises(ValueError) as error:
        make()
    for word in words:
        assert word in str(error.value)
