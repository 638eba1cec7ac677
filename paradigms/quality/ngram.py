"""A byte n-gram model: the judge of samples that no contestant is, and the baseline that each of them must beat.

A model that scores its own samples flatters itself, and so does a judge of its own family. Counts of bytes have no
architecture, no tokenizer and no training run, and anyone can recompute them from the training text.

Witten-Bell interpolation (Witten and Bell 1991; Chen and Goodman 1998, section 2.5), with h' the context h without its
oldest byte, c a count in the training text, and T(h) the number of distinct bytes seen after h:

    P(w | h) = (c(hw) + T(h) P(w | h')) / (c(h) + T(h)),        below the unigram: 1/256

A context never seen has c = T = 0 and leaves the word to the shorter one, so that every byte has a probability.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO

import numpy as np

from paradigms.data.cache import cached

NUM_BYTES = 256
MAX_ORDER = 7  # an n-gram is one 64-bit number, and its context's key is that shifted


@dataclass(frozen=True, slots=True)
class _Table:
    """Counts of the n-grams of one length; keys are sorted, so that a lookup is a binary search."""

    gram_keys: np.ndarray
    gram_counts: np.ndarray
    context_keys: np.ndarray
    context_counts: np.ndarray  # c(h): how often h was followed by anything
    context_kinds: np.ndarray  # T(h): by how many distinct bytes

    @classmethod
    def of(cls, keys: np.ndarray) -> _Table:
        gram_keys, gram_counts = np.unique(keys, return_counts=True)
        context_keys, first, kinds = np.unique(gram_keys >> np.uint64(8), return_index=True, return_counts=True)
        totals = np.add.reduceat(gram_counts, first) if len(first) else gram_counts
        return cls(gram_keys, gram_counts, context_keys, totals, kinds)


@dataclass(frozen=True, slots=True)
class ByteNgram:
    """Probabilities of the next byte, given up to `order - 1` bytes before it.

    Attributes:
        tables: counts of the 1-grams, 2-grams, ... up to `order`.
    """

    tables: tuple[_Table, ...]

    @property
    def order(self) -> int:
        return len(self.tables)

    @classmethod
    def fit(cls, documents: Iterable[bytes], *, order: int = 5) -> ByteNgram:
        """Count the n-grams of a training text; none reaches from one document into the next.

        Raises:
            ValueError: `order` outside 1..7, or no text.
        """
        if not 1 <= order <= MAX_ORDER:
            raise ValueError(f"order={order} is not possible; an n-gram judge has 1 to {MAX_ORDER} bytes")
        pieces = [np.frombuffer(document, np.uint8) for document in documents if document]
        if not pieces:
            raise ValueError("the n-gram judge needs training text; every document is empty")
        text = np.concatenate(pieces)
        offset = np.concatenate([np.arange(len(piece)) for piece in pieces])  # of each byte within its document
        whole = ((n, offset[n - 1 :] >= n - 1) for n in range(1, order + 1))
        return cls(tuple(_Table.of(_gram_keys(text, n)[inside]) for n, inside in whole))

    @classmethod
    def cached(cls, documents: Iterable[bytes], *, name: str, order: int = 5) -> ByteNgram:
        """`fit`, through the package's disk cache.

        Args:
            documents: only looked at when nothing is cached.
            name: identifies their content, such as the corpus's SHA-256.
        """
        key = {"corpus": name, "order": order, "format": 1}
        return cls.from_bytes(cached("ngram", key, lambda: cls.fit(documents, order=order).to_bytes()))

    def to_bytes(self) -> bytes:
        """All counts, in numpy's .npz format."""
        arrays = {
            f"{field}_{n}": getattr(table, field)
            for n, table in enumerate(self.tables, 1)
            for field in _Table.__slots__
        }
        file = BytesIO()
        np.savez(file, order=np.array(self.order), **arrays)
        return file.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> ByteNgram:
        with np.load(BytesIO(data)) as arrays:
            return cls(
                tuple(
                    _Table(**{field: arrays[f"{field}_{n}"] for field in _Table.__slots__})
                    for n in range(1, int(arrays["order"]) + 1)
                )
            )

    def nats(self, data: bytes, *, context: bytes = b"") -> np.ndarray:
        """−ln P of every byte of `data` [len(data)], float64.

        Args:
            context: what stands before it and is not scored, such as a sample's prompt.
        """
        context = context[max(0, len(context) - (self.order - 1)) :]
        text = np.frombuffer(context + data, np.uint8)
        probability = np.full(len(text), 1 / NUM_BYTES)
        for n, table in enumerate(self.tables, 1):
            if len(text) < n:
                break
            keys = _gram_keys(text, n)
            gram_counts = _look_up(table.gram_keys, table.gram_counts, keys)
            contexts = keys >> np.uint64(8)
            counts = _look_up(table.context_keys, table.context_counts, contexts)
            kinds = _look_up(table.context_keys, table.context_kinds, contexts)
            shorter = probability[n - 1 :]
            seen = counts > 0
            shorter[seen] = ((gram_counts + kinds * shorter) / np.maximum(counts + kinds, 1))[seen]
        return -np.log(probability[len(context) :])

    def bits_per_byte(self, data: bytes, *, context: bytes = b"") -> float:
        """Mean of −log2 P over the bytes of `data`.

        Raises:
            ValueError: `data` is empty.
        """
        if not data:
            raise ValueError("bits per byte of an empty text are undefined; skip samples without text")
        return float(self.nats(data, context=context).mean() / np.log(2))


def _gram_keys(text: np.ndarray, n: int) -> np.ndarray:
    """Each n bytes of `text` as one number, the oldest byte highest [len(text) − n + 1]."""
    num_grams = max(0, len(text) - n + 1)
    keys = np.zeros(num_grams, np.uint64)
    for k in range(n):
        keys = (keys << np.uint64(8)) | text[k : k + num_grams]
    return keys


def _look_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """values[keys == wanted], 0 where there is no such key."""
    if not len(keys):
        return np.zeros(len(wanted), np.int64)
    index = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[index] == wanted, values[index], 0)
