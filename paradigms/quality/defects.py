"""Which metric sees which defect: metrics of samples on texts whose faults are known, against what was expected.

A metric that cannot tell good text from a known fault says nothing about unknown ones. Texts of a source are taken as
they are and spoilt in one way each; every metric is the difference from the source's ideal, with its interval:

    exact             new texts of the source                     at the ideal in every metric
    temperature 0.5   the source, sharpened                       likelihood, entropy, distinct-n, self-BLEU, MAUVE
    phrase            a text's first 8 bytes, over and over       repetition and entropy
    shuffled          a text's bytes in random order              likelihood and MAUVE; neither entropy nor distinct-1
    memorised         pieces of the training text                 novelty, and nothing else
    truncated         the first half of a text                    the share of truncated texts

`EXPECTED` has that in full, and was written before the figures. A source is a Markov chain of ours, whose likelihood is
exact, or the held-out text of a corpus: its judge (`ngram`) then gives the likelihood, has read the training text, and
is what is sampled at temperature 0.5. Since held-out documents are few, `phrase`, `shuffled` and `truncated` spoil the
very texts of `exact`.

A metric sees a defect when its interval leaves out 0. There are some sixty looks at once, so intervals are of 99.9 %.

Dimension letters: N texts, T bytes of a text, V symbols.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from paradigms.data.splits import Corpus
from paradigms.quality import mauve
from paradigms.quality.diversity import Grams, rep_n
from paradigms.quality.intervals import Estimate, mean, of_set, ratio
from paradigms.quality.ngram import NUM_BYTES, ByteNgram
from paradigms.quality.novelty import TrainingText, novelty_columns
from paradigms.quality.samples import distinct_n, token_entropy_nats

LEVEL = 0.999
DRAWN_SETS = 3  # two are the reference, and one is judged as it is and spoilt
COLD = 0.5
PHRASE = 8
METRICS = {
    "nats": "nats per byte under the source",
    "entropy": "token entropy, nats",
    "distinct_1": "distinct-1 of a text",
    "distinct_2": "distinct-2 of a text",
    "set_distinct_4": "distinct-4 of the set",
    "self_bleu": "self-BLEU",
    "rep_4": "rep-4",
    "mauve": "MAUVE, lost",
    "longest_match": "longest match with training / length",
    "truncated": "truncated share",
}
_SEES, _BLIND = True, False
EXPECTED: dict[str, dict[str, bool]] = {  # defect -> metric -> whether it must see it; not named: either
    "exact": dict.fromkeys(METRICS, _BLIND),
    "temperature 0.5": {
        **dict.fromkeys(("nats", "entropy", "distinct_1", "distinct_2", "set_distinct_4", "self_bleu", "mauve"), _SEES),
        "truncated": _BLIND,
    },
    "phrase": {"rep_4": _SEES, "entropy": _SEES, "truncated": _BLIND},
    "shuffled": {"nats": _SEES, "mauve": _SEES, "entropy": _BLIND, "distinct_1": _BLIND, "truncated": _BLIND},
    "memorised": {**dict.fromkeys(METRICS, _BLIND), "longest_match": _SEES},
    "truncated": {"truncated": _SEES},
}
DEFECTS = tuple(EXPECTED)


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


@dataclass(frozen=True, kw_only=True)
class Look:
    """What a metric says of a defect.

    Attributes:
        difference: from the ideal.
        sees: whether its interval leaves out 0.
        expected: whether it must; None: either.
    """

    metric: str
    defect: str
    difference: Estimate
    sees: bool
    expected: bool | None

    @property
    def holds(self) -> bool:
        return self.expected is None or self.sees == self.expected


def check_size(*, texts: int, length: int) -> None:
    """Raise ValueError unless so many texts of so many bytes can show anything."""
    if texts < mauve.FEWEST_TEXTS or length < 2 * PHRASE:
        raise ValueError(
            f"--texts {texts} --length {length} is too little to see anything; give at least {mauve.FEWEST_TEXTS} "
            f"texts of {2 * PHRASE} bytes"
        )


def most_texts(source: Source, *, at_most: int) -> int:
    """Texts of a set that a source has, if that is enough to see anything."""
    return (
        at_most if source.available is None else min(at_most, max(mauve.FEWEST_TEXTS, source.available // DRAWN_SETS))
    )


def check(
    source: Source,
    *,
    texts: int = 200,
    length: int = 64,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> list[Look]:
    """Every metric on every defect.

    Args:
        texts: of a set; the reference has twice as many, for MAUVE.
        length: bytes of a text.
        progress: told which defect comes next.

    Raises:
        ValueError: too few texts or documents.
    """
    check_size(texts=texts, length=length)
    if source.available is not None and DRAWN_SETS * texts > source.available:
        raise ValueError(
            f"--texts {texts} --length {length} needs {DRAWN_SETS * texts} documents of {length} bytes, and "
            f"{source.name} has {source.available}; ask for fewer texts or shorter ones"
        )
    random = np.random.default_rng([seed, 2])
    training = TrainingText.of(source.training)
    reference = source.draw(2 * texts, length, random)
    ideal = measure(reference[:texts], source, training, length=length)
    exact_nats = source.ideal_nats(length)
    if exact_nats is not None:
        ideal["nats"] = Estimate(exact_nats, 0.0, texts)
    reference_NE = mauve.byte_gram_features(reference)
    drawn = source.draw(texts, length, random)
    looks = []
    for defect in DEFECTS:
        if progress is not None:
            progress(defect)
        spoilt = spoil(defect, drawn, source, length, random)
        found = measure(spoilt, source, training, length=length)
        differences = {name: minus(found[name], ideal[name]) for name in found}
        differences["mauve"] = mauve.compare(mauve.byte_gram_features(spoilt), reference_NE, seed=seed).lost
        for metric in METRICS:
            expected = EXPECTED[defect].get(metric)
            looks.append(
                Look(
                    metric=metric,
                    defect=defect,
                    difference=differences[metric],
                    sees=_leaves_out_zero(differences[metric]),
                    expected=None if (defect, metric) in source.free else expected,
                )
            )
    return looks


def measure(texts: Sequence[bytes], source: Source, training: TrainingText, *, length: int) -> dict[str, Estimate]:
    """The metrics of a set but MAUVE.

    Args:
        length: bytes that were asked of a text.
    """
    grams = Grams(texts)
    matches = [novelty_columns([training.matches(text)]) for text in texts]
    return {
        "nats": ratio([source.nats(text) for text in texts], [len(text) for text in texts]),
        "entropy": mean([token_entropy_nats(text) for text in texts]),
        "distinct_1": mean([distinct_n(text, 1) for text in texts]),
        "distinct_2": mean([distinct_n(text, 2) for text in texts]),
        "set_distinct_4": of_set(lambda chosen: grams.distinct(4, chosen), len(texts)),
        "self_bleu": of_set(grams.self_bleu, len(texts)),
        "rep_4": mean([rep_n(text) for text in texts]),
        "longest_match": mean([columns["longest_match_share"] for columns in matches]),
        "truncated": mean([float(len(text) < length) for text in texts]),
    }


def spoil(defect: str, texts: Sequence[bytes], source: Source, length: int, random: np.random.Generator) -> list[bytes]:
    """A set of as many texts with a defect: these, spoilt, or others of the source."""
    if defect == "temperature 0.5":
        return source.cold(len(texts), length, random)
    if defect == "memorised":
        return pieces_of(source.training, length, random, count=len(texts))
    if defect == "phrase":
        return [(text[:PHRASE] * length)[:length] for text in texts]
    if defect == "shuffled":
        return [random.permutation(np.frombuffer(text, np.uint8)).tobytes() for text in texts]
    if defect == "truncated":
        return [text[: length // 2] for text in texts]
    return list(texts)


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


def minus(found: Estimate, ideal: Estimate) -> Estimate:
    """The difference of two independent estimates."""
    if found.value is None or ideal.value is None:
        return Estimate(None, None, min(found.count, ideal.count))
    se = None if found.se is None or ideal.se is None else math.hypot(found.se, ideal.se)
    return Estimate(found.value - ideal.value, se, min(found.count, ideal.count))


def table(looks: Sequence[Look]) -> str:
    """Markdown: a row a metric, a column a defect."""
    by: Mapping[tuple[str, str], Look] = {(look.metric, look.defect): look for look in looks}
    lines = ["| difference from the ideal | " + " | ".join(DEFECTS) + " |", "|---|" + "---:|" * len(DEFECTS)]
    for metric, label in METRICS.items():
        lines.append(f"| {label} | " + " | ".join(_shown(by[metric, defect]) for defect in DEFECTS) + " |")
    return "\n".join(lines)


def stationary(next_VV: np.ndarray) -> np.ndarray:
    """The distribution that a chain keeps: π P = π, Σ π = 1."""
    V = len(next_VV)
    equations = np.vstack([next_VV.T - np.eye(V), np.ones(V)])
    return np.linalg.lstsq(equations, np.append(np.zeros(V), 1.0), rcond=None)[0]


def _shown(look: Look) -> str:
    value, interval = look.difference.value, look.difference.interval(LEVEL)
    if value is None or interval is None:
        return "?"
    mark = "**sees**" if look.sees else "·"
    wrong = "" if look.holds else " (not as expected)"
    return f"{value:+.3f} ± {(interval[1] - interval[0]) / 2:.3f} {mark}{wrong}"


def _leaves_out_zero(estimate: Estimate) -> bool:
    interval = estimate.interval(LEVEL)
    return interval is not None and not interval[0] <= 0 <= interval[1]


def _draw(chance_NV: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """A column of each row, with its probability."""
    cumulative_NV = chance_NV.cumsum(1)
    return (cumulative_NV < random.random((len(chance_NV), 1)) * cumulative_NV[:, -1:]).sum(1)


def _found(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """values[keys == wanted], 0 where there is no such key."""
    index = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[index] == wanted, values[index], 0)
