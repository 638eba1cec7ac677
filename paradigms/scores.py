"""Quality of what a cell generated and of the model behind it, as columns of the records; away from any clock."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from paradigms.data.cache import cached
from paradigms.data.splits import Corpus
from paradigms.data.tokenizers import Tokenizer
from paradigms.measure.environment import code_hash
from paradigms.quality.ngram import ByteNgram
from paradigms.quality.samples import sample_statistics
from paradigms.weights import HELDOUT_MASKS, HELDOUT_WINDOW, Weights, heldout_likelihood


def heldout_columns(weights: Weights, corpus: Corpus) -> dict[str, Any]:
    """Bits per byte of the held-out split under these weights, or its bound; computed once, then cached."""

    def evaluate() -> bytes:
        return json.dumps(dataclasses.asdict(heldout_likelihood(weights, corpus))).encode()

    key = {
        "checkpoint": weights.checkpoint,
        "corpus": corpus.sha256,
        "tokenizer": weights.tokenizer.sha256,
        "window": HELDOUT_WINDOW,
        "masks": HELDOUT_MASKS,
        "dtype": str(weights.model.dtype),
        "code": code_hash("models", "quality", "data"),
    }
    found = json.loads(cached("likelihood", key, evaluate))
    return {name: found[name] for name in found if name.startswith("bits_per_byte")} | {
        "bits_per_byte_is_bound": found["is_bound"],
        "heldout_tokens": found["num_tokens"],
        "heldout_bytes": found["num_bytes"],
        "heldout_window": HELDOUT_WINDOW,
    }


def judge(corpus: Corpus) -> ByteNgram:
    """The scorer of samples: byte n-grams of the training text, no relative of any contestant."""
    return ByteNgram.cached((text.encode() for text in corpus.documents["train"]), name=corpus.sha256)


def score(tokenizer: Tokenizer, scorer: ByteNgram, prompt: Sequence[int], tokens: Sequence[int]) -> dict[str, Any]:
    """Quality columns of one generation, its prompt as context."""
    data = tokenizer.decode_bytes(tokens)
    context = tokenizer.decode_bytes(prompt)
    judged = scorer.bits_per_byte(data, context=context) if data else None
    return {**sample_statistics(tokens), "judge_bits_per_byte": judged, "output_bytes": len(data)}
