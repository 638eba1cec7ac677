"""Novelty: how much of a text stands in the training text already, to the byte.

A model that has learnt its training text by heart is fluent, diverse and close to held-out text in every statistic;
only a look at the training text tells. For every byte of a text, the longest stretch from there on that occurs in a
training document is found in a suffix array (Manber and Myers 1993): exact, whatever the tokenizer.

    longest match       the longest of them, in bytes, and divided by the text's length
    seen share          of the text's stretches of 32 bytes, those that occur in training

Held-out text has matches, too: set phrases, boilerplate. Show it beside.

Suffixes are sorted by doubling (ranks by 8, 16, 32, ... bytes), only those that are still tied. Documents are separated
by a byte that UTF-8 does not have, so that no match runs from one into the next.

Dimension letters: N bytes of the training text, M positions that are looked up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from paradigms.data.cache import cached

SEPARATOR = 0xFF  # in no UTF-8 text
FIRST = 8  # bytes that the first sort looks at
DEPTH = 1 << 16  # bytes after which suffixes are taken for equal; longer matches are cut
STEP = 16  # bytes compared at once
SEEN_BYTES = 32
MOST_BYTES = 1 << 27  # of training text: a suffix takes 20 bytes while it is sorted


@dataclass(frozen=True, slots=True)
class TrainingText:
    """Attributes:
    text_N: documents, each followed by a separator.
    order_N: its suffixes, sorted.
    """

    text_N: np.ndarray
    order_N: np.ndarray

    @classmethod
    def of(cls, documents: Iterable[bytes]) -> TrainingText:
        """Sort the suffixes of a training text.

        Raises:
            ValueError: no text, or more than fits.
        """
        text_N = _joined(documents)
        return cls(text_N, suffix_order(text_N))

    @classmethod
    def cached(cls, documents: Iterable[bytes], *, name: str) -> TrainingText:
        """`of`, its order through the package's disk cache.

        Args:
            name: identifies the documents, such as the corpus's SHA-256.
        """
        text_N = _joined(documents)
        key = {"corpus": name, "bytes": len(text_N), "depth": DEPTH, "format": 1}
        data = cached("suffixes", key, lambda: suffix_order(text_N).astype("<u4").tobytes())
        return cls(text_N, np.frombuffer(data, "<u4").astype(np.int64))

    def matches(self, data: bytes) -> np.ndarray:
        """For each byte of a text, how many bytes from there on stand together in a training document [len(data)]."""
        text_M = np.frombuffer(data, np.uint8)
        at_M = np.arange(len(text_M))
        if not len(text_M):
            return at_M
        low_M, high_M = np.zeros(len(at_M), np.int64), np.full(len(at_M), len(self.order_N))
        while (open_M := low_M < high_M).any():  # the first suffix that is not below the text's
            middle_M = (low_M + high_M) // 2
            below_M = np.zeros(len(at_M), bool)
            below_M[open_M] = self._is_below(self.order_N[middle_M[open_M]], text_M, at_M[open_M])
            low_M = np.where(open_M & below_M, middle_M + 1, low_M)
            high_M = np.where(open_M & ~below_M, middle_M, high_M)
        longest_M = np.zeros(len(at_M), np.int64)
        for neighbour_M in (low_M - 1, low_M):
            inside_M = (neighbour_M >= 0) & (neighbour_M < len(self.order_N))
            start_M = self.order_N[neighbour_M[inside_M]]
            longest_M[inside_M] = np.maximum(longest_M[inside_M], self._common(start_M, text_M, at_M[inside_M]))
        separators = np.append(np.flatnonzero(text_M == SEPARATOR), len(text_M))
        return np.minimum(longest_M, separators[np.searchsorted(separators, at_M)] - at_M)

    def _is_below(self, start_M: np.ndarray, text: np.ndarray, at_M: np.ndarray) -> np.ndarray:
        """Whether each training suffix comes before the text's; not where the text's is its beginning."""
        common_M = self._common(start_M, text, at_M)
        ended_M = (at_M + common_M >= len(text)) | (common_M >= DEPTH)
        theirs_M = _bytes_at(self.text_N, start_M + common_M)
        ours_M = _bytes_at(text, at_M + common_M)
        return ~ended_M & (theirs_M < ours_M)

    def _common(self, start_M: np.ndarray, text: np.ndarray, at_M: np.ndarray) -> np.ndarray:
        """Bytes that each training suffix and the text's have in common at their beginnings, at most `DEPTH`."""
        common_M = np.zeros(len(at_M), np.int64)
        going = np.arange(len(at_M))
        while len(going):
            offset = common_M[going, None] + np.arange(STEP)
            theirs, ours = start_M[going, None] + offset, at_M[going, None] + offset
            same = (_bytes_at(self.text_N, theirs) == _bytes_at(text, ours)) & (ours < len(text))
            same &= (theirs < len(self.text_N)) & (offset < DEPTH)
            whole = same.all(1)
            common_M[going] += np.where(whole, STEP, same.argmin(1))
            going = going[whole]
        return common_M


def novelty_columns(stretches: Sequence[np.ndarray]) -> dict[str, float | int | None]:
    """Columns of one text, from `TrainingText.matches` of its stretches (one, unless text is given between them);
    shares are None of a text that is too short for them.
    """
    length = sum(map(len, stretches))
    longest = max((int(matches.max(initial=0)) for matches in stretches), default=0)
    seen = [matches[: max(0, len(matches) - SEEN_BYTES + 1)] >= SEEN_BYTES for matches in stretches]
    starts = np.concatenate(seen) if seen else np.zeros(0, bool)
    return {
        "longest_match_bytes": longest,
        "longest_match_share": longest / length if length else None,
        "seen_share": float(starts.mean()) if len(starts) else None,
    }


def suffix_order(text_N: np.ndarray) -> np.ndarray:
    """Starts of the suffixes, sorted by their first `DEPTH` bytes [N]; behind the end stands a byte above all others.

    Args:
        text_N: uint8, its last byte 255.
    """
    N = len(text_N)
    padded = np.concatenate([text_N, np.full(FIRST, SEPARATOR, np.uint8)])
    key_N = np.zeros(N, np.uint64)
    for k in range(FIRST):
        key_N = (key_N << np.uint64(8)) | padded[k : k + N]
    order_N = np.argsort(key_N, kind="stable")
    first_N = _is_first(key_N[order_N])
    del key_N
    rank = np.full(N + 1, N)  # of each suffix, the place of the first that is equal so far; the end is above all
    rank[order_N] = np.maximum.accumulate(np.where(first_N, np.arange(N), 0))
    width = FIRST
    while width < DEPTH:
        tied = np.flatnonzero(~(first_N & np.append(first_N[1:], True)))  # places in the order
        if not len(tied):
            break
        suffixes = order_N[tied]
        following = rank[np.minimum(suffixes + width, N)]
        key = (rank[suffixes].astype(np.uint64) << np.uint64(32)) | following.astype(np.uint64)
        by = np.argsort(key, kind="stable")
        order_N[tied] = suffixes[by]
        first_N[tied] = _is_first(key[by])
        rank[suffixes[by]] = np.maximum.accumulate(np.where(first_N[tied], tied, 0))
        width *= 2
    return order_N


def _joined(documents: Iterable[bytes]) -> np.ndarray:
    data = b"".join(document + bytes([SEPARATOR]) for document in documents if document)
    if not data:
        raise ValueError("novelty needs training text; every document is empty")
    if len(data) > MOST_BYTES:
        raise ValueError(
            f"a training text of {len(data):,} bytes is more than the {MOST_BYTES:,} whose suffixes are sorted here; "
            "leave novelty out (--no-novelty)"
        )
    return np.frombuffer(data, np.uint8)


def _is_first(keys: np.ndarray) -> np.ndarray:
    """Of sorted keys, whether each differs from the one before."""
    return np.concatenate([np.ones(min(1, len(keys)), bool), keys[1:] != keys[:-1]])


def _bytes_at(text: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Bytes at these places; those behind the end are above all."""
    return np.where(places < len(text), text[np.minimum(places, len(text) - 1)], SEPARATOR)
