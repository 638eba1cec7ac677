"""Diversity: of the texts of a set among each other, and of one text within itself.

Likelihood rewards a model that says one good text again and again, and so does a judge; these do not.

    self-BLEU     mean over texts of BLEU-4 with all other texts as references      (Zhu et al. 2018, 1802.01886)
    distinct-n    distinct n-grams / n-grams, over the whole set                     (Li et al. 2016)
    rep-n         1 − distinct n-grams / n-grams, within a text                      (Welleck et al. 2019, seq-rep-n)
    repeated      share of a text's tokens that lie in an n-gram which stood in it before
    compression   bytes / bytes that zlib needs

BLEU as Texygen computes it: clipped n-gram precisions of equal weight, 0.1 in place of a count of zero, the brevity
penalty by the reference of the closest length, the shorter one of two. A text without a token in common with the
others has 0.

Self-BLEU and distinct-n depend on the number of texts and on their lengths: compare sets of equal size only.
"""

from __future__ import annotations

import math
import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from paradigms.quality.samples import distinct_n

MAX_N = 4
ZERO_COUNT = 0.1  # what stands for a count of zero in BLEU
Gram = tuple[int, ...]


class Grams:
    """The n-grams of the texts of a set, counted once for figures of many of its subsets."""

    def __init__(self, texts: Iterable[Sequence[int]], *, max_n: int = MAX_N) -> None:
        self.max_n = max_n
        self.lengths: list[int] = []
        self.counts: list[list[Counter[Gram]]] = []  # by text and n − 1
        for text in texts:
            self.lengths.append(len(text))
            self.counts.append([Counter(grams_of(text, n)) for n in range(1, max_n + 1)])

    def self_bleu(self, chosen: Sequence[int] | None = None) -> float | None:
        """Self-BLEU of the texts with these numbers; None of fewer than two."""
        chosen = range(len(self.lengths)) if chosen is None else chosen
        if len(chosen) < 2:
            return None
        most = self._most(chosen)
        lengths = Counter(self.lengths[text] for text in chosen)
        ordered = sorted(lengths)
        return sum(self._bleu(text, most, lengths, ordered) for text in chosen) / len(chosen)

    def distinct(self, n: int, chosen: Sequence[int] | None = None) -> float | None:
        """Distinct n-grams / n-grams of the texts with these numbers; None where there are none."""
        chosen = range(len(self.lengths)) if chosen is None else chosen
        total = sum(self.counts[text][n - 1].total() for text in chosen)
        seen: set[Gram] = set()
        for text in chosen:
            seen.update(self.counts[text][n - 1])
        return len(seen) / total if total else None

    def _most(self, chosen: Sequence[int]) -> dict[Gram, tuple[int, int, int]]:
        """Of each n-gram: the largest count in a text, that text, and the largest count in another one."""
        most: dict[Gram, tuple[int, int, int]] = {}
        for text in chosen:
            for counts in self.counts[text]:
                for gram, count in counts.items():
                    first, owner, second = most.get(gram, (0, -1, 0))
                    if count > first:
                        most[gram] = (count, text, first)
                    elif count > second:
                        most[gram] = (first, owner, count)
        return most

    def _bleu(
        self, text: int, most: dict[Gram, tuple[int, int, int]], lengths: Counter[int], ordered: Sequence[int]
    ) -> float:
        log_precision = 0.0
        for n, counts in enumerate(self.counts[text], 1):
            clipped = 0
            for gram, count in counts.items():
                first, owner, second = most[gram]
                clipped += min(count, second if owner == text else first)
            if n == 1 and not clipped:
                return 0.0
            log_precision += math.log((clipped or ZERO_COUNT) / max(1, counts.total())) / self.max_n
        length = self.lengths[text]
        closest = _closest(length, lengths, ordered)
        penalty = 1.0 if length > closest else math.exp(1 - closest / length)
        return penalty * math.exp(log_precision)


def grams_of(tokens: Sequence[int], n: int) -> Iterator[Gram]:
    """The n-grams of a text, in order."""
    return zip(*(tokens[start:] for start in range(n)), strict=False)


def rep_n(tokens: Sequence[int], n: int = MAX_N) -> float | None:
    """1 − distinct n-grams / n-grams; None for a text of fewer than n tokens."""
    share = distinct_n(tokens, n)
    return None if share is None else 1 - share


def repeated_share(tokens: Sequence[int], n: int = MAX_N) -> float | None:
    """Share of the tokens that lie in an n-gram which began earlier in the text, too; None for an empty text."""
    if not tokens:
        return None
    seen: set[Gram] = set()
    repeated = [False] * len(tokens)
    for start, gram in enumerate(grams_of(tokens, n)):
        if gram in seen:
            repeated[start : start + n] = [True] * n
        seen.add(gram)
    return sum(repeated) / len(tokens)


def compression_ratio(data: bytes) -> float | None:
    """Bytes / bytes when compressed; None for an empty text."""
    return len(data) / len(zlib.compress(data, 9)) if data else None


def _closest(length: int, lengths: Counter[int], ordered: Sequence[int]) -> int:
    """The length of another text that is closest to one, the shorter of two."""
    if lengths[length] > 1:
        return length
    place = bisect_left(ordered, length)
    others = [*ordered[max(0, place - 1) : place], *ordered[place + 1 : place + 2]]
    return min(others, key=lambda other: (abs(other - length), other))
