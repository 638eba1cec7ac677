"""Token streams, and what is cut from them: training batches, evaluation windows, prompts.

A stream is a split's documents one after another in the order of their hashes, each as <bos> document <eos>. Everything
cut from it is a pure function of its arguments: a training that resumes at a step gets the batch it would have got.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from .cache import cached
from .splits import SPLITS, Corpus
from .tokenizers import BOS_ID, EOS_ID, Tokenizer


class Rows(Protocol):
    """Prompts with answers, each in a row of its own; see `pairs` and `tasks.rows`."""

    @property
    def longest(self) -> int: ...

    def check(self, length: int, which: str) -> None: ...

    def batch(self, *, seed: int, step: int, length: int, num_rows: int) -> tuple[np.ndarray, np.ndarray]: ...

    def windows(self, length: int, *, count: int | None = None) -> EvaluationWindows: ...


def token_stream(corpus: Corpus, tokenizer: Tokenizer, split: str) -> np.ndarray:
    """The stream of a split, read-only, uint16 [T], or uint32 where ids need it; cached on disk under the hashes of
    corpus and tokenizer.
    """
    if split not in SPLITS:
        raise ValueError(f"split={split!r} is unknown; it is one of {', '.join(SPLITS)}")

    width = 2 if tokenizer.vocab_size <= 2**16 else 4

    def make() -> bytes:
        parts = []
        for ids in tokenizer.encode_batch(corpus.documents[split]):
            parts.append(np.array([tokenizer.bos_id, *ids, tokenizer.eos_id], dtype=f"<u{width}"))
        return np.concatenate(parts).tobytes()

    key = {"corpus": corpus.sha256, "tokenizer": tokenizer.sha256, "split": split}
    return np.frombuffer(cached("tokens", key, make), dtype=f"<u{width}").astype(f"u{width}", copy=False)


def training_batch(
    stream: np.ndarray, *, seed: int, step: int, length: int, num_rows: int, bos_id: int = BOS_ID
) -> np.ndarray:
    """Random windows, int64 [num_rows, length]: <bos>, then length - 1 consecutive tokens from anywhere in the stream.

    The offset of a row depends on (seed, step, row) only; there is no state to save.
    """
    num_offsets = _num_offsets(stream, length - 1)
    rows = np.full((num_rows, length), bos_id, dtype=np.int64)
    for row in range(num_rows):
        offset = draw("train", seed, step, row) % num_offsets
        rows[row, 1:] = stream[offset : offset + length - 1]
    return rows


@dataclass(frozen=True, kw_only=True)
class EvaluationWindows:
    """What bits per byte are measured on.

    Attributes:
        tokens_NT: int64 [N, window + 1]: <bos>, then up to `window` stream tokens, then <eos> as padding.
        lengths_N: columns that are not padding, <bos> included.
        first_scored_N: first column that is scored; columns before it are context.

    Convention: columns first_scored to length - 1 are scored, so every token of the stream exactly once, its <bos> and
    <eos> too; their nats count and they have no bytes. The <bos> in column 0 is always given.
    """

    tokens_NT: np.ndarray
    lengths_N: np.ndarray
    first_scored_N: np.ndarray

    def spread(self, count: int, *, among: np.ndarray | None = None) -> EvaluationWindows:
        """At most `count` windows, evenly spread over all, or over those with these indices."""
        found = np.arange(len(self.lengths_N)) if among is None else among
        chosen = found[np.unique(np.linspace(0, len(found) - 1, min(count, len(found))).round().astype(int))]
        return EvaluationWindows(
            tokens_NT=self.tokens_NT[chosen],
            lengths_N=self.lengths_N[chosen],
            first_scored_N=self.first_scored_N[chosen],
        )

    @property
    def scored_NT(self) -> np.ndarray:
        """Which columns are scored, bool [N, window + 1]."""
        column_T = np.arange(self.tokens_NT.shape[1])
        return (column_T >= self.first_scored_N[:, None]) & (column_T < self.lengths_N[:, None])

    def num_bytes_N(self, token_bytes: Sequence[bytes]) -> np.ndarray:
        """UTF-8 bytes of the scored tokens of each window, the denominator of bits per byte."""
        bytes_V = np.array([len(token) for token in token_bytes])
        return np.where(self.scored_NT, bytes_V[self.tokens_NT], 0).sum(axis=1)


def evaluation_windows(
    stream: np.ndarray, *, window: int, stride: int | None = None, bos_id: int = BOS_ID, eos_id: int = EOS_ID
) -> EvaluationWindows:
    """Cut a stream into windows of `window` tokens, each behind a <bos>; the last may be shorter.

    Args:
        stream: [T].
        window: stream tokens a window sees.
        stride: tokens from one window's start to the next, `window` when None. With fewer, windows overlap and a token
            is scored in the first window that contains it, with at least window - stride tokens of context.
        bos_id, eos_id: of the tokenizer.
    """
    stride = window if stride is None else stride
    if not 1 <= stride <= window:
        raise ValueError(f"stride={stride} must be from 1 to window={window}, or tokens would be left out")
    if len(stream) == 0:
        raise ValueError("the token stream is empty; there is nothing to evaluate")
    num_windows = 1 + max(0, -(-(len(stream) - window) // stride))
    tokens_NT = np.full((num_windows, window + 1), eos_id, dtype=np.int64)
    tokens_NT[:, 0] = bos_id
    lengths_N = np.empty(num_windows, dtype=np.int64)
    for index in range(num_windows):
        piece = stream[index * stride : index * stride + window]
        tokens_NT[index, 1 : 1 + len(piece)] = piece
        lengths_N[index] = 1 + len(piece)
    first_scored_N = np.full(num_windows, 1 + window - stride, dtype=np.int64)
    first_scored_N[0] = 1
    return EvaluationWindows(tokens_NT=tokens_NT, lengths_N=lengths_N, first_scored_N=first_scored_N)


def prompts(
    stream: np.ndarray, *, prompt_len: int, count: int, seed: int, bos_id: int = BOS_ID, eos_id: int = EOS_ID
) -> list[tuple[int, ...]]:
    """Prompts of prompt_len tokens, <bos> included, cut from different places of a stream (see `prompt_offsets`); when
    every place is used, again from the first. A longer list begins with the shorter one.
    """
    places = prompt_offsets(stream, prompt_len=prompt_len, count=count, seed=seed, bos_id=bos_id, eos_id=eos_id)
    chosen = [places[index % len(places)] for index in range(count)]
    return [(bos_id, *stream[offset : offset + prompt_len - 1].tolist()) for offset in chosen]


def prompt_offsets(
    stream: np.ndarray, *, prompt_len: int, count: int, seed: int, bos_id: int = BOS_ID, eos_id: int = EOS_ID
) -> list[int]:
    """At most `count` different places of a stream that a prompt of prompt_len tokens goes on from, behind its <bos>.

    First the starts of documents that are long enough, in an order given by the seed; when there are too few of them,
    windows from anywhere. A longer list begins with the shorter one.
    """
    num_tokens = prompt_len - 1
    num_offsets = _num_offsets(stream, num_tokens)
    bos = np.flatnonzero(stream == bos_id)
    eos = np.flatnonzero(stream == eos_id)
    if bos_id == eos_id:  # one token begins and ends a document: they alternate
        bos, eos = bos[::2], eos[1::2]
    starts = bos[eos - bos - 1 >= num_tokens] + 1
    offsets = sorted(starts.tolist(), key=lambda start: draw("prompt", seed, start))[:count]
    used, number = set(offsets), 0
    while len(offsets) < count and len(used) < num_offsets:
        offset = draw("window", seed, number) % num_offsets
        number += 1
        if offset not in used:
            used.add(offset)
            offsets.append(offset)
    return offsets


def _num_offsets(stream: np.ndarray, num_tokens: int) -> int:
    if num_tokens < 0:
        raise ValueError(f"a length of {num_tokens + 1} tokens is too small; <bos> alone is 1")
    if num_tokens > len(stream):
        raise ValueError(
            f"{num_tokens + 1} tokens do not fit in a stream of {len(stream)}; use a shorter length or a larger corpus"
        )
    return len(stream) - num_tokens + 1


def draw(purpose: str, *numbers: int) -> int:
    """A random number of 64 bits that depends on these alone."""
    text = ",".join([purpose, *map(str, numbers)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
