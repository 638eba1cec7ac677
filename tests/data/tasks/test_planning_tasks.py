"""Chains, walks with gaps, acrostics and texts with a given end, against every answer of small sizes; and the way of an
infilling task through decoders and scores.
"""

from __future__ import annotations

import dataclasses
import random
from itertools import pairwise, permutations, product
from typing import Any

import pytest
import tiny
import torch
from decoding.exact_denoiser import p_value
from decoding.test_decoders import run

from paradigms import bench
from paradigms.cell import Cell
from paradigms.data.symbols import Symbols, SymbolTokenizer
from paradigms.data.tasks.acrostic import Acrostic
from paradigms.data.tasks.chain import Chain
from paradigms.data.tasks.last_word import LastWord
from paradigms.data.tasks.task import Instance
from paradigms.data.tasks.walk_infilling import Graph, WalkInfilling
from paradigms.decoding.autoregressive import Autoregressive
from paradigms.decoding.diffusion.decoder import MaskedDiffusion
from paradigms.engines.transformers_generate import TransformersGenerate
from paradigms.requests import instance_of, make_requests
from paradigms.scores import score_answer
from paradigms.weights import RandomWeights
from paradigms.workload import Device, Measure, Workload

FEW: dict[str, Any] = {"num_heldout": 4, "num_validation": 1}
WALKS = WalkInfilling(num_nodes=4, degree=2, num_gaps=2, gap_len=1, **FEW)
ACROSTICS = Acrostic(length=4, num_letters=2, words_per_letter=2, degree=2, **FEW)
TEXTS = LastWord(min_len=2, max_len=4, num_words=4, degree=2, **FEW)
CHAINS = [Chain(depth=2, num_values=3, num_functions=2, show_steps=shown, **FEW) for shown in (True, False)]
OF_GRAPHS = [WALKS, ACROSTICS, TEXTS]
DEFAULTS = [Chain(), WalkInfilling(), Acrostic(), LastWord()]


def drawn(task, count, seed=0):
    source = random.Random(seed)
    return [task.draw(source) for _ in range(count)]


def answers(task):
    """Everything that can be said, to one symbol more than the longest answer."""
    for length in range(task.answer_len + 2):
        yield from product(task.answer_symbols, repeat=length)


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


def follows(task, one, other):
    """Whether a word or place may follow another, read off the graph."""
    names = task.answer_symbols
    return names.index(other) in task.graph.follows[names.index(one)]


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
    [(task, one) for task in DEFAULTS[1:] for one in drawn(task, 3)],
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
        case WalkInfilling():  # of a gap
            over_WW = torch.linalg.matrix_power(step_WW, task.gap_len + 1)
            gaps = [pair for one in instances for pair in pairwise(int(place) for _, place in one.given)]
            return [float(over_WW[start, end]) for start, end in gaps]
    raise AssertionError


@pytest.mark.parametrize(
    ("task", "share"),
    [(DEFAULTS[1], 0.055), (DEFAULTS[2], 0.21), (DEFAULTS[3], 0.016)],
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


# ---------------------------------------------------------------- chains


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


# ---------------------------------------------------------------- sizes


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Chain(depth=0), ["corpus.depth=0", "at least 1"]),
        (lambda: Chain(num_values=1), ["corpus.num_values=1", "at least 2"]),
        (lambda: Chain(num_functions=0), ["corpus.num_functions=0"]),
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


@pytest.mark.parametrize("task", DEFAULTS, ids=lambda task: task.name)
def test_instances_fit_the_size_that_the_task_tells(task):
    longest = [0, 0]
    for instance in [*task.heldout, *drawn(task, 100)]:
        assert set(instance.prompt) | set(instance.answer) <= set(task.symbols)
        assert set(instance.answer) <= set(task.answer_symbols) <= set(task.symbols)
        assert task.check(instance, instance.answer).correct
        longest = [max(longest[0], len(instance.prompt)), max(longest[1], len(instance.answer))]
    assert longest == [task.prompt_len, task.answer_len] and task.row_tokens <= 64
    assert len(set(task.symbols)) == len(task.symbols)


# ---------------------------------------------------------------- gaps on the way through decoders and scores

NETWORKS = {
    name: dataclasses.replace(tiny.MODELS[name], vocab_size=WalkInfilling(**FEW).vocab_size)
    for name in ("ar", "ssm", "diffusion")
}
DECODERS = {
    "suffix first": ("ar", Autoregressive()),
    "prefix only": ("ar", Autoregressive(infilling="prefix_only")),
    "ssm": ("ssm", Autoregressive()),
    "diffusion": ("diffusion", MaskedDiffusion()),
    "blocks": ("diffusion", MaskedDiffusion(block_len=4)),
}


def cell(decoder, **work):
    task = WalkInfilling(**FEW)
    network, how = DECODERS[decoder]
    return Cell(
        paradigm={"name": "mine", "label": "mine"},
        model=NETWORKS[network],
        decoder=how,
        train=RandomWeights(),
        workload=Workload(
            **{"prompt_len": task.prompt_tokens, "output_len": task.output_tokens, "batch_size": 4, "prompts": "task"}
            | work
        ),
        measure=Measure(**{**tiny.MEASURE, "min_repeats": 1, "max_repeats": 1, "rounds": 1, "quality": False}),
        device=Device(name="cpu"),
        corpus=task,
        tokenizer=Symbols(vocab_size=task.vocab_size),
    )


def test_a_request_gives_what_the_instance_gives():
    made = cell("suffix first")
    task, tokenizer = made.corpus, SymbolTokenizer(made.corpus.symbols)
    asked = make_requests(made, 0, 0, corpus=task.load(), tokenizer=tokenizer)
    assert len(asked) == 4
    for request in asked:
        instance = instance_of(task, request)
        assert instance == task.heldout[int(request.id.split("/")[1])]
        layout = [None if token is None else tokenizer.names([token])[0] for token in request.layout]
        assert layout == [*(dict(instance.given).get(place) for place in range(task.answer_len)), None]
        assert request.max_new_tokens == layout.count(None) == 3 * 3 + 1
        assert tokenizer.names(request.prompt) == ["<bos>", "walk:"]
        assert not request.ignore_eos or made.workload.stop == "length"


def test_the_whole_canvas_is_judged():
    """What was drawn is right, another filling of the same gaps too, and one place changed is wrong, at its place."""
    made = cell("suffix first")
    task, tokenizer = made.corpus, SymbolTokenizer(made.corpus.symbols)
    others = 0
    for request in make_requests(made, 0, 0, corpus=task.load(), tokenizer=tokenizer):
        instance, given = instance_of(task, request), dict(instance_of(task, request).given)
        open_places = [place for place in range(task.answer_len) if place not in given]

        def judged(answer, request=request, instance=instance, open_places=open_places):
            tokens = [*tokenizer.ids(answer[place] for place in open_places), tokenizer.eos_id]
            return score_answer(tokenizer, instance, request, tokens, task)

        assert judged(instance.answer) == {
            "correct": True, "answer_share": 1.0, "answer_problem": None, "answer_symbols": task.answer_len
        }  # fmt: skip
        for gap in product(task.answer_symbols, repeat=3):
            answer = (instance.answer[0], *gap, *instance.answer[4:])
            right = all(follows(task, one, other) for one, other in pairwise(answer[:5]))
            others += right and answer != instance.answer
            if right or gap[0] == "0":
                assert judged(answer)["correct"] == right
        cut = score_answer(tokenizer, instance, request, tokenizer.ids(instance.answer[1:3]), task)
        assert cut["answer_problem"] == "too short" and cut["answer_symbols"] == 3
        early = [*tokenizer.ids(instance.answer[1:3]), tokenizer.eos_id]
        assert score_answer(tokenizer, instance, request, early, task)["answer_symbols"] == 3
    assert others > 4


@pytest.mark.parametrize("stop", ["length", "natural"])
@pytest.mark.parametrize("decoder", DECODERS)
def test_decoders_fill_the_gaps_and_keep_what_is_given(decoder, stop):
    """Random weights; each row as alone, given places where they were, and what is scored is the filled canvas."""
    made = cell(decoder, stop=stop)
    task, tokenizer = made.corpus, SymbolTokenizer(made.corpus.symbols)
    batch = make_requests(made, 0, 0, corpus=task.load(), tokenizer=tokenizer)
    model = tiny.random_model(made.model).eval().requires_grad_(False)
    together = run(made.decoder, model, batch)[0]
    assert together == [run(made.decoder, model, [one])[0][0] for one in batch]
    for request, tokens in zip(batch, together, strict=True):
        assert len(tokens) == request.max_new_tokens or (stop == "natural" and tokens[-1] == tokenizer.eos_id)
        found = score_answer(tokenizer, instance_of(task, request), request, tokens, task)
        rest, filled = iter(tokens), []
        for token in request.layout:
            filled.append(next(rest, None) if token is None else token)
        text = filled[: filled.index(None)] if None in filled else filled
        text = text[: text.index(tokenizer.eos_id)] if tokenizer.eos_id in text else text
        assert found["answer_symbols"] == len(text)
        verdict = task.check(instance_of(task, request), tokenizer.names(text))
        assert (found["correct"], found["answer_share"]) == (verdict.correct, verdict.share)


def test_gaps_of_answers_ask_for_a_decoder_that_fills_them():
    """And the control that does not read ahead has a use, as it has none for an answer without gaps."""
    cell("prefix only").check()
    with pytest.raises(ValueError, match=r"corpus\.num_gaps=3 gives text behind gaps"):
        dataclasses.replace(cell("suffix first"), decoder=TransformersGenerate()).check()
    task = LastWord(**FEW)
    sizes = {"prompt_len": task.prompt_tokens, "output_len": task.output_tokens}
    without = dataclasses.replace(
        cell("prefix only", **sizes),
        corpus=task,
        tokenizer=Symbols(vocab_size=task.vocab_size),
        model=dataclasses.replace(NETWORKS["ar"], vocab_size=task.vocab_size),
    )
    with pytest.raises(ValueError, match="infilling=prefix_only says how gaps are filled"):
        without.check()


@pytest.mark.parametrize("decoder", ["suffix first", "diffusion"])
def test_a_cell_with_gaps_in_its_answers_runs_and_is_scored(decoder, folders):
    made = cell(decoder)
    made.check()
    _, tables = bench.run_unit(made, 0)
    assert len(tables["requests"]) == 4
    for row, sample in zip(tables["requests"], tables["samples"], strict=True):
        given = [token for token in sample["canvas_ids"] if token is not None]
        assert len(given) == 4 and row["committed_tokens"] == row["requested_tokens"] == 10
        assert row["answer_problem"] is not None and not row["correct"] and 0 < row["answer_share"] < 1
