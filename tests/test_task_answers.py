"""Columns of answers to tasks, and what makes a task's cell impossible; on answers that are written down."""

from __future__ import annotations

import pytest

from paradigms.build import build
from paradigms.cli import compose, planned_cells
from paradigms.data.symbols import SymbolTokenizer
from paradigms.data.tasks.rows import TaskRows
from paradigms.data.tasks.star_graph import StarGraph
from paradigms.data.tasks.walk_infilling import WalkInfilling
from paradigms.paradigm import Request
from paradigms.requests import instance_of, make_requests
from paradigms.scores import score_answer
from paradigms.weights import load_corpus

TASK = StarGraph(num_heldout=4, num_validation=4)
TOKENIZER = SymbolTokenizer(TASK.symbols)


def scored(answer: list[str], *, draft: tuple[str, ...] = (), eos: bool = True) -> dict[str, object]:
    instance = TASK.heldout[0]
    tokens = TOKENIZER.ids(answer) + [TOKENIZER.eos_id] * eos
    request = Request(
        id="0/0",
        prompt=(TOKENIZER.bos_id, *TOKENIZER.ids(instance.prompt)),
        max_new_tokens=TASK.output_tokens,
        draft=tuple(TOKENIZER.ids(draft)),
        ignore_eos=False,
    )
    return score_answer(TOKENIZER, instance, request, tokens, TASK)


def test_columns_of_an_answer() -> None:
    right = list(TASK.heldout[0].answer)
    assert scored(right) == {"correct": True, "answer_share": 1.0, "answer_problem": None, "answer_symbols": 4}
    assert scored(right, eos=False)["correct"], "the length ends it"
    assert scored([*right, right[0]])["answer_problem"] == "too long"
    assert scored([])["answer_problem"] == "no answer"
    assert scored([right[0], "|", *right[2:]])["answer_problem"] == "wrong branch"


def test_a_planted_error_is_judged_apart_from_what_is_behind_it() -> None:
    right = list(TASK.heldout[0].answer)
    wrong = next(symbol for symbol in TASK.answer_symbols if symbol != right[0])
    kept = scored([wrong, *right[1:]], draft=(wrong,))
    assert (kept["correct"], kept["planted_kept"], kept["correct_behind"]) == (False, True, True)
    mended = scored(right, draft=(wrong,))
    assert (mended["correct"], mended["planted_kept"], mended["correct_behind"]) == (True, False, True)
    lost = scored([wrong, wrong, *right[2:]], draft=(wrong,))
    assert (lost["correct"], lost["planted_kept"], lost["correct_behind"]) == (False, True, False)
    one_of_two = scored([right[0], wrong, *right[2:]], draft=(wrong, wrong))
    assert (one_of_two["correct"], one_of_two["planted_kept"], one_of_two["correct_behind"]) == (False, True, True)


def test_planted_places_are_the_open_ones() -> None:
    task = WalkInfilling(num_heldout=2, num_validation=2)
    tokenizer = SymbolTokenizer(task.symbols)
    instance = task.heldout[0]
    given = dict(instance.given)
    layout = [tokenizer.ids([given[i]])[0] if i in given else None for i in range(task.output_tokens)]
    request = Request(
        id="0/0",
        prompt=(tokenizer.bos_id, *tokenizer.ids(instance.prompt)),
        max_new_tokens=layout.count(None),
        canvas=tuple(layout),
        draft=tuple(tokenizer.ids(instance.answer[:1])),
        ignore_eos=False,
    )
    written = [symbol for place, symbol in enumerate(instance.answer) if place not in given]
    wrong = next(symbol for symbol in task.answer_symbols if symbol not in task.graph.follows[int(given[0])])
    tokens = [*tokenizer.ids([wrong, *written[1:]]), tokenizer.eos_id]
    found = score_answer(tokenizer, instance, request, tokens, task)
    assert not found["correct"] and found["correct_behind"]


def test_requests_ask_the_held_out_instances_one_after_the_other() -> None:
    cell = build(compose(["task=star_graph", "paradigm=ar", "workload.batch_size=3", "workload.planted=1"]))
    corpus = load_corpus(cell.corpus)
    tokenizer = cell.tokenizer.load(corpus)
    batches = [make_requests(cell, 0, repeat, corpus=corpus, tokenizer=tokenizer) for repeat in range(2)]
    asked = [instance_of(corpus.task, request) for batch in batches for request in batch]
    assert asked == list(corpus.task.heldout[:6])
    for request, instance in zip(batches[0] + batches[1], asked, strict=True):
        assert tokenizer.names(request.prompt[1:]) == list(instance.prompt)
        (said,) = tokenizer.names(request.draft)
        assert said != instance.answer[0] and said in corpus.task.answer_symbols


@pytest.mark.parametrize("task", ["copying", "addition", "mqar"])
def test_what_is_asked_is_what_was_trained_on(task: str) -> None:
    """The same prompt, and as many open places behind it: a denoiser counts what is left."""
    cell = build(compose([f"task={task}", "paradigm=ar", "workload.batch_size=20"]))
    corpus = load_corpus(cell.corpus)
    tokenizer = cell.tokenizer.load(corpus)
    rows = TaskRows(task=corpus.task, tokenizer=tokenizer, split="heldout").windows(corpus.task.row_tokens, count=20)
    for request, tokens_T, scored_T in zip(
        make_requests(cell, 0, 0, corpus=corpus, tokenizer=tokenizer), rows.tokens_NT, rows.scored_NT, strict=True
    ):
        assert list(request.prompt) == tokens_T[: corpus.task.prompt_tokens].tolist()
        assert [given is None for given in request.layout] == scored_T[corpus.task.prompt_tokens :].tolist()


def test_a_right_plant_is_the_control() -> None:
    options = ["task=walk_infilling", "paradigm=diffusion", "workload.batch_size=3", "workload.planted=2"]
    cell = build(compose([*options, "workload.plant=right"]))
    corpus = load_corpus(cell.corpus)
    tokenizer = cell.tokenizer.load(corpus)
    for request in make_requests(cell, 0, 0, corpus=corpus, tokenizer=tokenizer):
        instance = instance_of(corpus.task, request)
        given = dict(instance.given)
        right = [symbol for place, symbol in enumerate(instance.answer) if place not in given]
        assert tokenizer.names(request.draft) == right[:2]


@pytest.mark.parametrize("plant", ["wrong", "right"])
def test_every_answer_is_planted_alike_and_one_that_is_too_short_refused(plant: str) -> None:
    sizes = ["task=copying", "paradigm=ar", "corpus.max_len=4", "corpus.alphabet=40", "workload.batch_size=40"]
    sizes += [f"workload.plant={plant}"]
    planned_cells([*sizes, "corpus.min_len=3", "workload.planted=2"])
    cell = build(compose([*sizes, "corpus.min_len=3", "workload.planted=2"]))
    corpus = load_corpus(cell.corpus)
    requests = make_requests(cell, 0, 0, corpus=corpus, tokenizer=cell.tokenizer.load(corpus))
    assert {len(request.draft) for request in requests} == {2}
    with pytest.raises(ValueError, match=r"nothing to say of some answer .*, whose shortest has 2 symbols: plant"):
        planned_cells([*sizes, "corpus.min_len=2", "workload.planted=2"])


def test_a_place_where_all_is_right_is_found_before_anything_is_trained() -> None:
    dense = ["task=walk_infilling", "paradigm=ar", "corpus.degree=10", "workload.planted=3"]
    with pytest.raises(ValueError, match=r"every symbol is right at place 2 .* lower corpus\.degree"):
        planned_cells(dense)
    planned_cells([*dense, "workload.plant=right"])


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ["workload.batch_size=600"],
            "are 3000 instances, and corpus.num_heldout=500: ask for fewer, or",
        ),
        (["corpus.num_heldout=0"], "corpus.num_heldout=0 must be at least 1: an empty set scores nothing"),
        (["corpus.degree=30", "corpus.path_len=10", "corpus.num_nodes=400"], "positions; the model has model.max_pos"),
        (["workload.output_len=9"], "workload.output_len=9, but star graph, degree 2, path_len 4, num_nodes 20 has 5"),
        (["workload.stop_strings=[x]"], "workload.stop_strings=['x'] end texts"),
        (["tokenizer=byte"], "workload=task asks the instances of a task, one token a symbol"),
        (["workload=fixed_length"], "corpus=star_graph is a task and has no text to go on from; use workload=task"),
        (["corpus=stdlib_docs"], "corpus=StdlibDocs has no prompt_tokens: tokenizer=symbols, workload=task"),
        (["workload.plant=right"], "workload.plant=right says what is planted, and workload.planted=0 plants nothing"),
        (["workload.plant=some", "workload.planted=1"], "workload.plant='some' is unknown; it is one of wrong, right"),
        (["workload.planted=5"], "fewer than workload.output_len=5"),
        (["workload.planted=4"], "whose shortest has 4 symbols: plant fewer"),
    ],
    ids=[
        "too-few",
        "empty",
        "too-long",
        "length",
        "strings",
        "tokenizer",
        "workload",
        "corpus",
        "control",
        "plant",
        "planted",
        "all",
    ],
)
def test_impossible_task_cells_say_what_to_change(overrides: list[str], words: str) -> None:
    with pytest.raises(ValueError) as error:
        planned_cells(["task=star_graph", "paradigm=ar", *overrides])
    assert words in str(error.value) and "interpolation" not in str(error.value)


def test_options_beside_several_tasks_are_refused_with_a_way_out() -> None:
    tasks = ["task=copying,mqar", "paradigm=ar"]
    for option, way_out in (("train.num_tokens=9", "train=task"), ("corpus.num_heldout=600", "++corpus.num_heldout=")):
        with pytest.raises(ValueError, match=r"is no option of the .* or with several tasks ") as error:
            planned_cells([*tasks, option])
        assert way_out in str(error.value)
    assert len(planned_cells([*tasks, "train=task", "train.num_tokens=20000", "++corpus.num_heldout=600"])[1]) == 2


@pytest.mark.parametrize("task, in_order", [("mqar", True), ("walk_infilling", False), ("star_graph", False)])
def test_keys_that_are_asked_are_reached_in_order_and_ends_of_gaps_are_known(task, in_order) -> None:
    cell = build(compose([f"task={task}", "paradigm=ar", "workload.batch_size=2"]))
    corpus = load_corpus(cell.corpus)
    requests = make_requests(cell, 0, 0, corpus=corpus, tokenizer=cell.tokenizer.load(corpus))
    assert [request.in_order for request in requests] == [in_order, in_order]
    if task == "mqar":  # a key, a place for its value, ..., and one for the end
        given = [[token is not None for token in request.layout] for request in requests]
        assert given == [[True, False] * 4 + [False]] * 2 and requests[0].max_new_tokens == 5


def test_what_is_given_of_an_answer_cannot_be_planted() -> None:
    """Four of eight symbols are keys: four planted values leave nothing to say."""
    planned_cells(["task=mqar", "paradigm=ar", "workload.planted=3"])
    with pytest.raises(ValueError, match="whose shortest has 4 symbols: plant fewer"):
        planned_cells(["task=mqar", "paradigm=ar", "workload.planted=4"])
