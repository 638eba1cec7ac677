"""Planted errors from the config on: what is impossible says why, and a cell tells what became of them."""

from __future__ import annotations

import dataclasses

import pytest
import tiny

from paradigms import bench
from paradigms.cell import Cell
from paradigms.data.symbols import Symbols
from paradigms.data.tasks.star_graph import StarGraph
from paradigms.decoding.autoregressive import Autoregressive
from paradigms.decoding.diffusion.decoder import MaskedDiffusion
from paradigms.decoding.diffusion.samplers.remasking import Remasking
from paradigms.engines.transformers_generate import TransformersGenerate
from paradigms.paradigm import Request
from paradigms.weights import RandomWeights
from paradigms.workload import Device, Measure, Workload

TASK = StarGraph(num_heldout=4, num_validation=1)


def cell(network="ar", decoder=None, corpus=TASK, **work):
    model = dataclasses.replace(tiny.MODELS[network], vocab_size=TASK.vocab_size)
    sizes = {"prompt_len": TASK.prompt_tokens, "output_len": TASK.output_tokens, "batch_size": 4}
    return Cell(
        paradigm={"name": "mine", "label": "mine"},
        model=model,
        decoder=decoder or Autoregressive(),
        train=RandomWeights(),
        workload=Workload(**{**sizes, "prompts": "task", "planted": 1} | work),
        measure=Measure(**{**tiny.MEASURE, "min_repeats": 1, "max_repeats": 1, "rounds": 1, "quality": False}),
        device=Device(name="cpu"),
        corpus=corpus,
        tokenizer=Symbols(vocab_size=TASK.vocab_size),
    )


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: Request(id="0", prompt=(1, 2), max_new_tokens=4, draft=(20,) * 4),
            ["draft of 4 tokens", "max_new_tokens=4"],
        ),
        (lambda: Workload(planted=1), ["workload.planted=1", "workload=task"]),
        (lambda: Workload(planted=1, prompts="random"), ["workload.planted=1", "workload=task"]),
        (lambda: Workload(planted=-1), ["workload.planted=-1"]),
        (lambda: Workload(planted=5, output_len=5, prompts="task"), ["workload.planted=5", "output_len=5"]),
        (lambda: cell(decoder=TransformersGenerate()).check(), ["workload.planted=1", "paradigm=mine", "go on from"]),
        (lambda: cell(corpus=tiny.TinyText()).check(), ["workload=task", "star_graph"]),
    ],
)
def test_impossible_drafts_say_why(make, words):
    with pytest.raises(ValueError) as error:
        make()
    for word in words:
        assert word in str(error.value)


def test_a_decoder_without_drafts_answers_a_task_without_errors():
    cell(decoder=TransformersGenerate(), planted=0).check()
    for decoder in (Autoregressive(), Autoregressive(cache="none")):
        cell(decoder=decoder, planted=3).check()


@pytest.mark.parametrize(
    ("network", "decoder", "kept"),
    [
        ("ar", Autoregressive(), True),
        ("ssm", Autoregressive(), True),
        ("diffusion", MaskedDiffusion(), True),
        ("diffusion", MaskedDiffusion(sampler=Remasking(steps=5, eta=0.0)), True),
        ("diffusion", MaskedDiffusion(sampler=Remasking(steps=40, eta=0.5)), False),
    ],
    ids=["ar", "ssm", "diffusion", "steady", "remasking"],
)
def test_a_cell_with_planted_errors_runs_and_tells_what_became_of_them(network, decoder, kept, folders):
    made = cell(network, decoder, planted=2)
    made.check()
    _, tables = bench.run_unit(made, 0)
    found = [row["planted_kept"] for row in tables["requests"]]
    assert len(found) == 4 and (all(found) if kept else not all(found))
    for row, sample in zip(tables["requests"], tables["samples"], strict=True):
        assert row["committed_tokens"] == len(sample["token_ids"]) == TASK.output_tokens
        assert not row["correct"] and isinstance(row["correct_behind"], bool)
