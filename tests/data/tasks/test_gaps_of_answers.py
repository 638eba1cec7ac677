"""Answers with gaps, on their way through requests, decoders and scores."""

from __future__ import annotations

import dataclasses
from itertools import pairwise, product
from typing import Any

import pytest
import tiny
from data.tasks.instances import follows
from decoding.test_decoders import run

from paradigms import bench
from paradigms.cell import Cell
from paradigms.data.symbols import Symbols, SymbolTokenizer
from paradigms.data.tasks.last_word import LastWord
from paradigms.data.tasks.walk_infilling import WalkInfilling
from paradigms.decoding.autoregressive import Autoregressive
from paradigms.decoding.diffusion.decoder import MaskedDiffusion
from paradigms.engines.transformers_generate import TransformersGenerate
from paradigms.requests import instance_of, make_requests
from paradigms.scores import score_answer
from paradigms.weights import RandomWeights
from paradigms.workload import Device, Measure, Workload

FEW: dict[str, Any] = {"num_heldout": 4, "num_validation": 1}
WALKS = WalkInfilling(num_nodes=4, degree=2, num_gaps=2, gap_len=1, **FEW)


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
