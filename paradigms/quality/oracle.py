"""Quality with an oracle: text and models of a known process, held against the process itself.

Of generated texts:

- **true bits**, −log2 p of their letters under the source, against the source's entropy. Lower is not better: what
  writes only likely text lies below it. Letters that the source cannot write (p = 0) are counted apart.
- **n-gram distance**, total variation ½ Σ |f − p| between the n-gram frequencies f of the texts and the source's exact
  ones p, and **mutual information** I = Σ f(a, b) log2 f(a, b) / (f(a) f(b)) of letters at a distance. Neither is 0 for
  a finite set of perfect texts, nor the exact figure: each is compared with that of 39 sets of as many texts of the
  same lengths, drawn from the source. One more such set lies between the least and the greatest of them in 95 % of all
  cases, exactly, whatever the distribution: 40 exchangeable values, two of which are outermost.
- **agreements** of nested clauses, by distance: how many clauses close at it, and how many of them rightly.

Of a model: **excess bits**, its cost of held-out documents less the source's, document by document. It is the
divergence KL(source || model) a letter, exact for causal models and a bound for denoisers; 0 is ideal.

What a text is: the letters before end-of-text. Texts of another length than the source's documents, and texts cut short
by a token that is no letter, are counted; no text is left out.

Dimension letters: N texts, T positions, A letters, V tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paradigms.data.processes.agreement import Agreement
from paradigms.data.processes.process import Estimated, Process
from paradigms.data.stream import EvaluationWindows
from paradigms.data.symbols import FIRST_SYMBOL_ID
from paradigms.models.stack import Model
from paradigms.quality.by_position import buckets, column_nats

NUM_SETS = 39  # whose range holds one more set in (39 - 1) / (39 + 1) = 95 % of all cases
GRAMS = (1, 2, 3)
DISTANCES = (1, 2, 4, 8, 16, 32, 64)
NO_LETTER = -1  # behind a text's end


@dataclass(frozen=True, kw_only=True)
class Texts:
    """Generated texts as letters.

    Attributes:
        letters_NT: numbers of letters, −1 behind each text's end, cut to the length of the source's documents.
        another_length: texts that are shorter or longer than those.
        broken: texts that hold a token which is neither a letter nor end-of-text; it ends them.
    """

    letters_NT: np.ndarray
    another_length: int
    broken: int

    def __len__(self) -> int:
        return len(self.letters_NT)

    @classmethod
    def read(cls, token_ids: Sequence[Sequence[int]], process: Process, *, eos_id: int) -> Texts:
        """Texts of tokens of `data.symbols`."""
        letters_NT = np.full((len(token_ids), process.document_len), NO_LETTER, np.int64)
        another_length = broken = 0
        for row, tokens in enumerate(token_ids):
            numbers = np.asarray(tokens, np.int64) - FIRST_SYMBOL_ID
            ends = np.flatnonzero(numbers < 0)
            length = int(ends[0]) if len(ends) else len(numbers)
            broken += bool(len(ends)) and tokens[length] != eos_id
            another_length += length != process.document_len
            kept = numbers[: min(length, process.document_len)]
            letters_NT[row, : len(kept)] = kept
        return cls(letters_NT=letters_NT, another_length=another_length, broken=broken)


@dataclass(frozen=True, kw_only=True)
class TrueBits:
    """What texts cost the source.

    Attributes:
        bits: a letter, over the letters that it can write.
        impossible: share of letters that it cannot write where they stand.
    """

    bits: Estimated
    impossible: Estimated


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A statistic of texts beside that of sets of as many texts from the source.

    Attributes:
        value: of the texts; NaN where they have nothing to count.
        mean, low, high: of the sets.
        exact: the statistic of the source itself, without any sampling; NaN where it has no meaning.
    """

    value: float
    mean: float
    low: float
    high: float
    exact: float = math.nan

    @property
    def as_the_source(self) -> bool:
        """Whether the texts could be the source's, at 95 %; what is not defined for either is not held against them."""
        if math.isnan(self.value) or math.isnan(self.low):
            return math.isnan(self.value) == math.isnan(self.low)
        return self.low <= self.value <= self.high


@dataclass(frozen=True, kw_only=True)
class Excess:
    """What held-out documents cost a model more than their source; end-of-text, which costs the source nothing, counts.

    Attributes:
        bits: a letter, over documents.
        model_bits, true_bits: of the model and of the source.
        is_bound: the model's is at most this.
    """

    bits: Estimated
    model_bits: float
    true_bits: float
    is_bound: bool


def true_bits(process: Process, letters_NT: np.ndarray) -> TrueBits:
    """−log2 p of the letters of texts, −1 behind their ends."""
    log_p_NT = process.log_likelihoods(letters_NT)
    there_NT = letters_NT != NO_LETTER
    possible_NT = there_NT & np.isfinite(log_p_NT)
    bits_NT = np.where(possible_NT, -log_p_NT / math.log(2), 0.0)
    return TrueBits(
        bits=Estimated.ratio(bits_NT.sum(1), possible_NT.sum(1)),
        impossible=Estimated.ratio((there_NT & ~possible_NT).sum(1), there_NT.sum(1)),
    )


def excess_bits(
    process: Process, model: Model, windows: EvaluationWindows, *, mask_id: int | None, num_masks: int = 16
) -> Excess:
    """Of the rows of documents that `Process.load` gives, <bos> letters <eos> each."""
    nats_NT, is_bound = column_nats(model, windows, mask_id=mask_id, num_masks=num_masks)
    return excess_of(process, nats_NT, windows, is_bound=is_bound)


def excess_of(process: Process, nats_NT: np.ndarray, windows: EvaluationWindows, *, is_bound: bool) -> Excess:
    """The same, of costs that are known."""
    true_NT = source_nats(process, windows)
    num_letters = process.document_len * len(true_NT)
    difference_N = (nats_NT.sum(1) - true_NT.sum(1)) / math.log(2) / process.document_len
    return Excess(
        bits=Estimated.mean(difference_N),
        model_bits=float(nats_NT.sum() / math.log(2) / num_letters),
        true_bits=float(true_NT.sum() / math.log(2) / num_letters),
        is_bound=is_bound,
    )


def source_nats(process: Process, windows: EvaluationWindows) -> np.ndarray:
    """What each token of rows of documents costs the source [N, T + 2]; their ends are certain."""
    letters_NT = windows.tokens_NT[:, 1 : 1 + process.document_len] - FIRST_SYMBOL_ID
    nats_NT = np.zeros(windows.tokens_NT.shape)
    nats_NT[:, 1 : 1 + process.document_len] = -process.log_likelihoods(letters_NT)
    return nats_NT


def compare(process: Process, texts: Texts, *, seed: int = 0) -> dict[str, Compared]:
    """Statistics of texts against the source's: `grams_n`, `information_d`; of agreements `closings_d` and `kept_d`,
    where d is the least distance of a bucket.
    """
    letters_NT = texts.letters_NT
    N, T = letters_NT.shape
    source = np.random.default_rng([seed, N, 0x6F7261])
    sets_XNT = process.sample(source, NUM_SETS * N, T).reshape(NUM_SETS, N, T)
    sets_XNT = np.where(letters_NT == NO_LETTER, NO_LETTER, sets_XNT)
    exact = exact_statistics(process)
    grams = {n: process.gram_probabilities(n, T) for n in GRAMS if n <= T}
    own, *of_sets = (_statistics(process, grams, each_NT) for each_NT in (letters_NT, *sets_XNT))
    found = {}
    for name, value in own.items():
        known = [values[name] for values in of_sets if not math.isnan(values[name])] or [math.nan]
        mean = sum(known) / len(known)
        found[name] = Compared(value=value, mean=mean, low=min(known), high=max(known), exact=exact[name])
    return found


def exact_statistics(process: Process) -> dict[str, float]:
    """What `compare` would find in endless text of the source; NaN of clauses a text, which nobody has worked out."""
    T = process.document_len
    exact = {f"grams_{n}": 0.0 for n in GRAMS if n <= T}
    for distance in _distances(T):
        exact[f"information_{distance}"] = mutual_information_bits(process.pair_probabilities(distance, T))
    if isinstance(process, Agreement):
        for first, _ in buckets(T - 1):
            exact |= {f"closings_{first}": math.nan, f"kept_{first}": 1.0}
    return exact


def _distances(length: int) -> list[int]:
    return [distance for distance in DISTANCES if distance < length]


def _statistics(process: Process, grams: Mapping[int, np.ndarray], letters_NT: np.ndarray) -> dict[str, float]:
    """Of one set of texts; `grams` are the exact frequencies of the source's."""
    found = {f"grams_{n}": gram_distance(letters_NT, n, exact) for n, exact in grams.items()}
    for distance in _distances(process.document_len):
        counts_AA = pair_counts(letters_NT, distance, len(process.letters))
        found[f"information_{distance}"] = mutual_information_bits(counts_AA)
    if isinstance(process, Agreement):
        for (first, _), (closed, kept) in closings(process, letters_NT).items():
            found[f"closings_{first}"] = closed / len(letters_NT)
            found[f"kept_{first}"] = kept / closed if closed else math.nan
    return found


def gram_distance(letters_NT: np.ndarray, n: int, exact: np.ndarray) -> float:
    """Total variation between the n-gram frequencies of texts and exact ones [A^n]; NaN of texts without any."""
    A = round(len(exact) ** (1 / n))
    places = np.lib.stride_tricks.sliding_window_view(letters_NT, n, axis=1)
    whole_Xn = places[(places != NO_LETTER).all(-1)]
    if not len(whole_Xn):
        return math.nan
    numbers_X = whole_Xn @ A ** np.arange(n - 1, -1, -1)
    frequency = np.bincount(numbers_X, minlength=len(exact)) / len(numbers_X)
    return float(np.abs(frequency - exact).sum() / 2)


def pair_counts(letters_NT: np.ndarray, distance: int, num_letters: int) -> np.ndarray:
    """How often each two letters stand so far apart in a text [A, A]."""
    left, right = letters_NT[:, :-distance], letters_NT[:, distance:]
    both = right != NO_LETTER
    counts = np.bincount(left[both] * num_letters + right[both], minlength=num_letters**2)
    return counts.reshape(num_letters, num_letters)


def mutual_information_bits(joint_AA: np.ndarray) -> float:
    """Of two letters, from how often or how probably they stand together; NaN where nothing does."""
    total = joint_AA.sum()
    if not total:
        return math.nan
    joint_AA = joint_AA / total
    independent_AA = joint_AA.sum(1, keepdims=True) * joint_AA.sum(0, keepdims=True)
    there = joint_AA > 0
    return float((joint_AA[there] * np.log2(joint_AA[there] / independent_AA[there])).sum())


def closings(process: Agreement, letters_NT: np.ndarray) -> dict[tuple[int, int], tuple[int, int]]:
    """Bucket of distances -> clauses that close so far from their beginning, and how many of them agree."""
    found = {bucket: [0, 0] for bucket in buckets(letters_NT.shape[1] - 1)}
    by_distance = [counts for (first, last), counts in found.items() for _ in range(first, last + 1)]
    for letters_T in letters_NT:
        for distance, agrees in process.agreements(letters_T[letters_T != NO_LETTER].tolist()):
            counts = by_distance[distance - 1]
            counts[0] += 1
            counts[1] += agrees
    return {bucket: (closed, kept) for bucket, (closed, kept) in found.items()}
