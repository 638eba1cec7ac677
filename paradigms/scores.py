"""Quality of what a cell generated and of the model behind it, as columns of the records; away from any clock."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from paradigms.data.cache import cached
from paradigms.data.splits import Corpus
from paradigms.data.symbols import SymbolTokenizer
from paradigms.data.tasks.task import Instance, Task
from paradigms.data.tokenizers import Tokenizer
from paradigms.heldout import NUM_MASKS, heldout_likelihood, heldout_window_len
from paradigms.measure.imported_code import imported_code_hash
from paradigms.paradigm import Request
from paradigms.quality.ngram import ByteNgram
from paradigms.quality.samples import sample_statistics
from paradigms.weights import Weights

LIKELIHOOD_CODE = (
    "paradigms.quality.likelihood",
    "paradigms.data.stream",
    "paradigms.data.pairs",
    "paradigms.data.tasks.rows",
)


def heldout_columns(weights: Weights, corpus: Corpus) -> dict[str, Any]:
    """Bits per byte of the held-out split under these weights, or its bound; computed once, then cached."""

    def evaluate() -> bytes:
        return json.dumps(dataclasses.asdict(heldout_likelihood(weights, corpus))).encode()

    key = {
        "checkpoint": weights.checkpoint,
        "corpus": corpus.sha256,
        "tokenizer": weights.tokenizer.sha256,
        "window": heldout_window_len(weights, corpus),
        "masks": NUM_MASKS,
        "dtype": str(weights.model.dtype),
        "code": imported_code_hash(*LIKELIHOOD_CODE),
    }
    found = json.loads(cached("likelihood", key, evaluate))
    return {name: found[name] for name in found if name.startswith("bits_per_byte")} | {
        "bits_per_byte_is_bound": found["is_bound"],
        "heldout_tokens": found["num_tokens"],
        "heldout_bytes": found["num_bytes"],
        "heldout_window": heldout_window_len(weights, corpus),
    }


def judge(corpus: Corpus) -> ByteNgram:
    """The scorer of samples: byte n-grams of the training text, no relative of any contestant."""
    return ByteNgram.cached((text.encode() for text in corpus.documents["train"]), name=corpus.sha256)


def score(tokenizer: Tokenizer, scorer: ByteNgram, request: Request, tokens: Sequence[int]) -> dict[str, Any]:
    """Quality columns of one generation, judged in its place: with its prompt, and what is given, as context.

    Where text is given behind gaps, it is judged too, as far as the judge looks back into the gap: the text is the same
    whoever fills the gap, so that `judge_given_bits_per_byte` says how well the filling leads to it.
    """
    data, is_output, is_joint = b"", [], []
    for is_open, stretch in stretches(request, tokens):
        piece = tokenizer.decode_bytes(stretch)
        joint = 0 if is_open or not any(is_output) else min(len(piece), scorer.order - 1)
        data += piece
        is_output += [is_open] * len(piece)
        is_joint += [True] * joint + [False] * (len(piece) - joint)
    nats = scorer.nats(data, context=tokenizer.decode_bytes(request.prompt))
    columns = {"judge_bits_per_byte": _bits_per_byte(nats[is_output]), "output_bytes": sum(is_output)}
    if request.canvas is not None:
        columns["judge_given_bits_per_byte"] = _bits_per_byte(nats[is_joint])
    return {**sample_statistics(tokens), **columns}


def score_answer(
    tokenizer: Tokenizer, instance: Instance, request: Request, tokens: Sequence[int], task: Task
) -> dict[str, Any]:
    """Columns of an answer to a task: `correct`, `answer_share` (of its symbols that are right), `answer_problem`.

    With a planted error: `planted_kept`, whether any of it is still there; `correct_behind`, whether the answer is
    right with the reference's symbols in the planted places.
    """
    assert isinstance(tokenizer, SymbolTokenizer)
    said = [token for _, stretch in stretches(request, tokens) for token in stretch]
    answer = said[: said.index(tokenizer.eos_id)] if tokenizer.eos_id in said else said
    names = tokenizer.names(answer)
    verdict = task.check(instance, names)
    columns: dict[str, Any] = {
        "correct": verdict.correct,
        "answer_share": verdict.share,
        "answer_problem": verdict.problem,
        "answer_symbols": len(names),
    }
    if planted := len(request.draft):
        columns["planted_kept"] = any(said == was for said, was in zip(tokens, request.draft, strict=False))
        places = [place for place, token in enumerate(request.layout) if token is None][:planted]
        mended = [instance.answer[place] if place in places else name for place, name in enumerate(names)]
        columns["correct_behind"] = task.check(instance, mended).correct
    return columns


def stretches(request: Request, tokens: Sequence[int]) -> list[tuple[bool, list[int]]]:
    """The canvas, filled, in stretches that were open (True) or given (False); cut where the tokens end."""
    found: list[tuple[bool, list[int]]] = []
    rest = iter(tokens)
    for given in request.layout:
        token = next(rest, None) if given is None else given
        if token is None:
            break
        if not found or found[-1][0] != (given is None):
            found.append((given is None, []))
        found[-1][1].append(token)
    return found


def _bits_per_byte(nats: np.ndarray) -> float | None:
    """Mean over the bytes; None where there is none."""
    return float(nats.mean() / np.log(2)) if len(nats) else None
