"""Star graphs, against paths found in the prompt's own edges, over every graph of a small size."""

from __future__ import annotations

import random
from itertools import pairwise, permutations, product

import pytest
from decoding.exact_denoiser import p_value
from torch import tensor

from paradigms.data.tasks.star_graph import ANSWER, ASK, EDGE, StarGraph
from paradigms.data.tasks.task import Instance

SMALL = StarGraph(degree=2, path_len=3, num_nodes=5, num_heldout=1, num_validation=1)


def asked(prompt):
    """Edges, source and goal, read symbol by symbol."""
    *edges, ask, source, goal, answer = prompt
    assert (ask, answer) == (ASK, ANSWER) and set(edges[2::3]) == {EDGE}
    return set(zip(edges[::3], edges[1::3], strict=True)), source, goal


def paths(edges, source, goal):
    """All ways from source to goal, by trying every edge."""
    if source == goal:
        return [(source,)]
    return [(source, *rest) for start, end in edges if start == source for rest in paths(edges, end, goal)]


def graphs(task):
    """Every graph, question and order of edges of a small task: paths are any disjoint rows of nodes."""
    steps = task.path_len - 1
    for first, *others in permutations(task.answer_symbols, 1 + task.degree * steps):
        own = [(first, *others[start : start + steps]) for start in range(0, len(others), steps)]
        for path in own:
            edges = [edge for one in own for edge in pairwise(one)]
            yield first, path, edges


def instance(source, path, edges):
    prompt = [symbol for edge in edges for symbol in (*edge, EDGE)]
    return Instance((*prompt, ASK, source, path[-1], ANSWER), tuple(path))


def test_right_is_the_one_path_of_every_graph():
    """Of all 156 answers of up to three nodes to each of 120 questions, the checker takes the only path alone."""
    answers = [answer for length in range(4) for answer in product(SMALL.answer_symbols, repeat=length)]
    questions = [instance(*one) for one in graphs(SMALL)]
    assert len({str(SMALL.identity(one)) for one in questions}) == 120
    for one in questions:
        (path,) = paths(*asked(one.prompt))
        assert [answer for answer in answers if SMALL.check(one, answer).correct] == [path]


@pytest.mark.parametrize("task", [SMALL, StarGraph(), StarGraph(degree=5, path_len=5, num_nodes=50)], ids=str)
def test_drawn_graphs_are_stars_and_their_answer_is_the_only_path(task):
    source = random.Random(1)
    for _ in range(50):
        one = task.draw(source)
        edges, first, goal = asked(one.prompt)
        assert len(edges) == task.degree * (task.path_len - 1)
        starts = [start for start, _ in edges]
        assert starts.count(first) == task.degree and len(set(starts)) == len(edges) - task.degree + 1
        assert len({end for _, end in edges} | {first}) == 1 + len(edges), "every node but the source is entered once"
        assert paths(edges, first, goal) == [one.answer] and len(one.answer) == task.path_len == task.answer_len
        assert len(one.prompt) == task.prompt_len and set(one.prompt + one.answer) <= set(task.symbols)


def test_graphs_are_drawn_alike():
    """Each of the 120 questions of the small task as often, whatever the order of its edges; not so if one were left
    out.
    """
    number = {str(SMALL.identity(one)): 0 for one in ALL}
    source = random.Random(2)
    for _ in range(12_000):
        number[str(SMALL.identity(SMALL.draw(source)))] += 1
    counts = tensor(list(number.values()))
    alike = tensor([1 / len(number)] * len(number)).double()
    assert len(number) == 120 and p_value(counts, alike) > 1e-3
    skewed = alike.clone()
    skewed[:40] *= 1.5
    assert p_value(counts, skewed / skewed.sum()) < 1e-6


ALL = [instance(*one) for one in graphs(SMALL)]


def test_the_order_of_edges_asks_nothing():
    source = random.Random(3)
    one = StarGraph().draw(source)
    edges = sorted(asked(one.prompt)[0])
    for _ in range(10):
        source.shuffle(edges)
        other = instance(one.answer[0], one.answer, edges)
        assert StarGraph().identity(other) == StarGraph().identity(one)
        assert StarGraph().split(other) == StarGraph().split(one)
    goals = {end for _, end in edges} - {start for start, _ in edges}
    (elsewhere,) = goals - {one.answer[-1]}
    asks_otherwise = Instance((*one.prompt[:-2], elsewhere, ANSWER), one.answer)
    assert StarGraph().identity(asks_otherwise) != StarGraph().identity(one)
    turned = [(end, start) for start, end in edges]
    assert StarGraph().identity(instance(one.answer[0], one.answer, turned)) != StarGraph().identity(one)
    assert len({str(SMALL.identity(each)) for each in ALL}) == 120


@pytest.mark.parametrize(
    ("answer", "problem", "share"),
    [
        ("0 1 2", None, 1.0),
        ("0 3 4", "wrong branch", 1 / 3),
        ("0 3 2", "wrong branch", 2 / 3),
        ("0 1 4", "lost on the way", 2 / 3),
        ("1 1 2", "wrong source", 2 / 3),
        ("0 1", "too short", 2 / 3),
        ("0 1 2 2", "too long", 3 / 4),
        ("", "no answer", 0.0),
        ("0 1 =", "lost on the way", 2 / 3),
    ],
)
def test_problems(answer, problem, share):
    one = instance("0", ("0", "1", "2"), [("0", "1"), ("1", "2"), ("0", "3"), ("3", "4")])
    verdict = SMALL.check(one, answer.split())
    assert (verdict.problem, verdict.correct) == (problem, problem is None)
    assert verdict.share == pytest.approx(share)


def test_planted_symbols_are_wrong_where_they_stand():
    task, source = StarGraph(), random.Random(4)
    for count in range(task.answer_len + 1):
        one = task.draw(source)
        planted = task.planted(one, count, source)
        assert len(planted) == count and set(planted) <= set(task.answer_symbols)
        assert all(said != right for said, right in zip(planted, one.answer, strict=False))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"degree": 0}, ["corpus.degree=0", "path_len=4"]),
        ({"path_len": 1}, ["path_len=1", "2 nodes"]),
        ({"num_nodes": 6}, ["corpus.num_nodes=6", "7 nodes"]),
        ({"num_heldout": 0}, ["corpus.num_heldout=0", "at least 1"]),
    ],
)
def test_impossible_graphs_say_why(values, words):
    with pytest.raises(ValueError) as error:
        StarGraph(**values)
    for word in words:
        assert word in str(error.value)


def test_too_few_graphs_for_a_held_out_set_are_told():
    with pytest.raises(ValueError, match="too few different instances"):
        _ = StarGraph(degree=2, path_len=2, num_nodes=3).heldout
