"""Sources of the texts that metrics are tried on (`defects`): a Markov chain, whose likelihood is exact, or the
held-out text of a corpus under n-grams of its training text.

Dimension letters: N texts, T bytes of a text, V symbols.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from paradigms.data.splits import Corpus
from paradigms.quality.ngram import NUM_BYTES, ByteNgram

COLD = 0.5


class Source(Protocol):
    """Where texts come from.

    Attributes:
        name: for captions.
        training: the documents that a model of the source would have been trained on.
        free: (defect, metric) pairs of `EXPECTED` that this source cannot promise.
    """

    @property
    def name(self) -> str: ...

    @property
    def training(self) -> Sequence[bytes]: ...

    @property
    def free(self) -> Sequence[tuple[str, str]]: ...

    @property
    def available(self) -> int | None:
        """Texts that can be drawn; None where there is no end."""
        ...

    def draw(self, count: int, length: int, random: np.random.Generator) -> list[bytes]:
        """Independent texts; never the same ones twice."""
        ...

    def cold(self, count: int, length: int, random: np.random.Generator) -> list[bytes]:
        """The same at temperature 0.5."""
        ...

    def nats(self, text: bytes) -> float:
        """−ln p of a text."""
        ...

    def ideal_nats(self, length: int) -> float | None:
        """Expectation of `nats` a byte over texts of this length; None where nobody knows it."""
        ...


@dataclass(frozen=True, eq=False)
class Chain:
    """A stationary Markov chain over letters: its likelihood and entropy are known exactly.

    Attributes:
        next_VV: probability of the next letter [before, after].
        start_V: the stationary distribution.
        training: documents drawn from it.
    """

    next_VV: np.ndarray
    start_V: np.ndarray
    training: Sequence[bytes]
    name: str = "Markov chain"
    free: Sequence[tuple[str, str]] = ()

    @classmethod
    def of(
        cls, *, symbols: int = 24, concentration: float = 0.1, documents: int = 400, length: int = 400, seed: int = 0
    ) -> Chain:
        """A chain whose rows are drawn from a symmetric Dirichlet distribution, with some training text.

        Args:
            concentration: of the Dirichlet distribution; small ones make the next letter surer.
            documents, length: of the training text.
        """
        random = np.random.default_rng([seed, 0])
        next_VV = random.dirichlet(np.full(symbols, concentration), symbols) * 0.99 + 0.01 / symbols
        chain = cls(next_VV, stationary(next_VV), ())
        return cls(next_VV, chain.start_V, chain.draw(documents, length, np.random.default_rng([seed, 1])))

    @property
    def available(self) -> None:
        """There is no end."""

    @property
    def entropy_rate(self) -> float:
        """−Σ_i π_i Σ_j P_ij ln P_ij, nats a letter."""
        return float(-(self.start_V[:, None] * self.next_VV * np.log(self.next_VV)).sum())

    def draw(self, count: int, length: int, random: np.random.Generator) -> list[bytes]:
        return self._drawn(count, length, random, self.next_VV)

    def cold(self, count: int, length: int, random: np.random.Generator) -> list[bytes]:
        cold_VV = self.next_VV ** (1 / COLD)
        return self._drawn(count, length, random, cold_VV / cold_VV.sum(1, keepdims=True))

    def nats(self, text: bytes) -> float:
        letters_T = np.frombuffer(text, np.uint8) - ord("a")
        return float(-np.log(self.start_V[letters_T[0]]) - np.log(self.next_VV[letters_T[:-1], letters_T[1:]]).sum())

    def ideal_nats(self, length: int) -> float:
        start = float(-(self.start_V * np.log(self.start_V)).sum())
        return (start + (length - 1) * self.entropy_rate) / length

    def _drawn(self, count: int, length: int, random: np.random.Generator, next_VV: np.ndarray) -> list[bytes]:
        letters_NT = np.empty((count, length), np.uint8)
        letters_NT[:, 0] = _draw(np.broadcast_to(self.start_V, (count, len(next_VV))), random)
        for t in range(1, length):
            letters_NT[:, t] = _draw(next_VV[letters_NT[:, t - 1]], random)
        return [row.tobytes() for row in letters_NT + np.uint8(ord("a"))]


@dataclass(frozen=True, eq=False)
class HeldOut:
    """The held-out text of a corpus, one piece a document, so that pieces are independent.

    Attributes:
        pieces: of held-out documents, in random order; `draw` takes them from the front.
        judge: n-grams of the training text.
    """

    pieces: list[bytes]
    judge: ByteNgram
    training: Sequence[bytes]
    name: str
    free: Sequence[tuple[str, str]] = (("memorised", "nats"),)  # the judge has read the training text

    @classmethod
    def of(cls, corpus: Corpus, *, length: int, seed: int = 0) -> HeldOut:
        training = [text.encode() for text in corpus.documents["train"]]
        heldout = [text.encode() for text in corpus.documents["heldout"]]
        random = np.random.default_rng([seed, 0])
        pieces = pieces_of(heldout, length, random)
        judge = ByteNgram.cached(training, name=corpus.sha256)
        return cls(pieces, judge, training, f"held-out text of {corpus.name}")

    @property
    def available(self) -> int:
        return len(self.pieces)

    def draw(self, count: int, length: int, random: np.random.Generator) -> list[bytes]:
        if count > len(self.pieces):
            raise ValueError(f"{self.name} has {len(self.pieces)} more texts of {length} bytes, not {count}")
        return [self.pieces.pop() for _ in range(count)]

    def cold(self, count: int, length: int, random: np.random.Generator) -> list[bytes]:
        return sample_judge(self.judge, count, length, random, temperature=COLD)

    def nats(self, text: bytes) -> float:
        return float(self.judge.nats(text).sum())

    def ideal_nats(self, length: int) -> None:
        """The reference says it."""


def pieces_of(
    documents: Sequence[bytes], length: int, random: np.random.Generator, *, count: int | None = None
) -> list[bytes]:
    """Pieces of different documents that are long enough, from a random place of each, in random order; with a count
    of more than there are, again from the first document.
    """
    long = [document for document in documents if len(document) >= length]
    if not long:
        raise ValueError(f"no document has {length} bytes; ask for shorter texts (--length)")
    order = random.permutation(len(long))
    chosen = [long[order[n % len(long)]] for n in range(len(long) if count is None else count)]
    starts = [int(random.integers(len(document) - length + 1)) for document in chosen]
    return [document[start : start + length] for document, start in zip(chosen, starts, strict=True)]


def sample_judge(
    judge: ByteNgram, count: int, length: int, random: np.random.Generator, *, temperature: float = 1.0
) -> list[bytes]:
    """Texts that the n-gram judge writes; each is a draw from p^(1 / temperature)."""
    bytes_NT = np.zeros((count, length), np.uint8)
    for t in range(length):
        chance_NV = next_bytes(judge, bytes_NT[:, max(0, t - judge.order + 1) : t]) ** (1 / temperature)
        bytes_NT[:, t] = _draw(chance_NV / chance_NV.sum(1, keepdims=True), random)
    return [row.tobytes() for row in bytes_NT]


def next_bytes(judge: ByteNgram, context_NT: np.ndarray) -> np.ndarray:
    """The judge's probability of each next byte after contexts of equal length, at most its order − 1 [N, 256]."""
    chance_NV = np.full((len(context_NT), NUM_BYTES), 1 / NUM_BYTES)
    for n, table in enumerate(judge.tables[: context_NT.shape[1] + 1], 1):
        context_N = np.zeros(len(context_NT), np.uint64)
        for column_N in context_NT[:, context_NT.shape[1] - n + 1 :].T:
            context_N = (context_N << np.uint64(8)) | column_N
        gram_NV = (context_N[:, None] << np.uint64(8)) | np.arange(NUM_BYTES, dtype=np.uint64)
        count_NV = _found(table.gram_keys, table.gram_counts, gram_NV)
        total_N1 = _found(table.context_keys, table.context_counts, context_N)[:, None]
        kinds_N1 = _found(table.context_keys, table.context_kinds, context_N)[:, None]
        longer_NV = (count_NV + kinds_N1 * chance_NV) / np.maximum(total_N1 + kinds_N1, 1)
        chance_NV = np.where(total_N1 > 0, longer_NV, chance_NV)
    return chance_NV


def stationary(next_VV: np.ndarray) -> np.ndarray:
    """The distribution that a chain keeps: π P = π, Σ π = 1."""
    V = len(next_VV)
    equations = np.vstack([next_VV.T - np.eye(V), np.ones(V)])
    return np.linalg.lstsq(equations, np.append(np.zeros(V), 1.0), rcond=None)[0]


def _draw(chance_NV: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """A column of each row, with its probability."""
    cumulative_NV = chance_NV.cumsum(1)
    return (cumulative_NV < random.random((len(chance_NV), 1)) * cumulative_NV[:, -1:]).sum(1)


def _found(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """values[keys == wanted], 0 where there is no such key."""
    index = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[index] == wanted, values[index], 0)
