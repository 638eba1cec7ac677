"""What a cell asks of its paradigm: the batch of a repeat, equal for every paradigm."""

from __future__ import annotations

import random

import numpy as np

from paradigms.cell import Cell
from paradigms.data.splits import Corpus
from paradigms.data.stream import prompts, token_stream
from paradigms.data.symbols import SymbolTokenizer
from paradigms.data.tasks.rows import filled_prompt
from paradigms.data.tasks.task import Instance, Task
from paradigms.data.tokenizers import Tokenizer
from paradigms.paradigm import Request
from paradigms.workload import Workload


def make_requests(cell: Cell, round_index: int, repeat: int, *, corpus: Corpus, tokenizer: Tokenizer) -> list[Request]:
    """The batch of a repeat: equal for every paradigm, another one in each round and repeat."""
    work = cell.workload
    first = (round_index * cell.measure.max_repeats + repeat) * work.batch_size
    indices = range(first, first + work.batch_size)
    if work.prompts == "task":
        assert corpus.task is not None and isinstance(tokenizer, SymbolTokenizer), "Cell.check refuses others"
        return [_of_task(work, index, corpus.task, tokenizer) for index in indices]
    if work.prompts == "heldout":
        stream = token_stream(corpus, tokenizer, "heldout")
        ids = {"bos_id": tokenizer.bos_id, "eos_id": tokenizer.eos_id}
        chosen = prompts(stream, prompt_len=work.text_len, count=indices.stop, seed=work.seed, **ids)[first:]
    else:
        chosen = [_random_prompt(work.seed, index, work.text_len, tokenizer) for index in indices]
    return [
        Request(
            id=f"{work.seed}/{index}",
            prompt=tuple(text[: work.prompt_len]),
            max_new_tokens=work.output_len,
            canvas=work.canvas(text[work.prompt_len :]),
            seed=_seed(work, index),
            ignore_eos=work.stop == "length",
            stop_strings=work.stop_strings,
        )
        for index, text in zip(indices, chosen, strict=True)
    ]


def instance_of(task: Task, request: Request) -> Instance:
    """What a request of `make_requests` asks."""
    return task.heldout[int(request.id.rpartition("/")[2])]


def _of_task(work: Workload, index: int, task: Task, tokenizer: SymbolTokenizer) -> Request:
    instance = task.heldout[index]
    layout: list[int | None] = [None] * work.output_len
    for position, symbol in instance.given:
        (layout[position],) = tokenizer.ids([symbol])
    given = dict(instance.given)
    right = tuple(symbol for place, symbol in enumerate(instance.answer) if place not in given)
    if work.plant == "wrong":
        planted = task.planted(instance, work.planted, random.Random(_seed(work, index)))
    else:
        planted = right[: work.planted]
    return Request(
        id=f"{work.seed}/{index}",
        prompt=tuple(filled_prompt(task, instance, tokenizer)),
        max_new_tokens=layout.count(None),
        canvas=tuple(layout) if instance.given else None,
        in_order=task.given_in_order,
        draft=tuple(tokenizer.ids(planted)),
        seed=_seed(work, index),
        ignore_eos=work.stop == "length",
    )


def _seed(work: Workload, index: int) -> int:
    return work.seed * 1_000_003 + index


def _random_prompt(seed: int, index: int, length: int, tokenizer: Tokenizer) -> list[int]:
    plain = tokenizer.plain_ids
    draw = np.random.default_rng([seed, index]).integers(0, len(plain), length - 1)
    return [tokenizer.bos_id, *(plain[token] for token in draw.tolist())]
