"""A source of letters whose probabilities are known for every prefix, as a corpus.

Every document has the same length and is a row of its own, <bos> letters <eos> (`data.pairs`, with an empty prompt): it
begins where the source begins, and its end is certain. A letter is a byte and, by tokenizer=symbols, a token, so that
bits per byte are bits a letter.

A source has hidden states, and says how the belief over them follows the letters:

    p(x_t | x_<t) = Σ_s b_t(s) p(x_t | s),        b_t+1(s') ∝ Σ_s b_t(s) p(x_t, s' | s)

Likelihoods, samples and entropies follow from that; exact frequencies of n-grams and of pairs at a distance follow from
the same sums without the normalisation. Splits are drawn apart, held-out documents first, so that they stay the same
however much is trained on; a document that has been drawn before is drawn again, in whatever split.

Dimension letters: N documents, T positions, A letters, S hidden states, R rows of masses over states.
"""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from paradigms.data.splits import Corpus

MOST_REPEATED = 0.01  # share of draws: dropping more would change what the source is
SIMULATED = 2_000  # documents, where an entropy is simulated
BURN_IN, RUN = 256, 256  # letters of a document, where the entropy rate is
FLOOR = 1e-6  # of probabilities that are drawn, so that every text is possible


@dataclass(frozen=True, slots=True)
class Estimated:
    """A figure and its standard error, 0 where it is exact.

    Attributes:
        count: independent texts behind it; 0 where it is exact.
    """

    value: float
    se: float = 0.0
    count: int = 0

    @classmethod
    def mean(cls, values: np.ndarray) -> Estimated:
        """Of independent values; the error of a single one is not known (NaN)."""
        count = len(values)
        return cls(
            float(np.mean(values)), float(np.std(values, ddof=1) / math.sqrt(count)) if count > 1 else math.nan, count
        )

    @classmethod
    def ratio(cls, above: np.ndarray, below: np.ndarray) -> Estimated:
        """Of sums over independent texts, its error linearised; NaN where there is nothing below."""
        count, total = len(above), float(np.sum(below))
        if not total:
            return cls(math.nan, math.nan, count)
        value = float(np.sum(above)) / total
        if count < 2:
            return cls(value, math.nan, count)
        rest = np.asarray(above) - value * np.asarray(below)
        return cls(value, math.sqrt(count / (count - 1) * float((rest**2).sum())) / total, count)


@dataclass(frozen=True, kw_only=True)
class Process(ABC):
    """A source of a given kind. Subclasses add its parameters, and check them in `__post_init__`.

    Attributes:
        document_len: letters of a document.
        num_train_documents, num_validation_documents, num_heldout_documents: documents of each split, all different.
        seed: of the probabilities that are drawn, and of the documents.
    """

    document_len: int = 128
    num_train_documents: int = 20_000
    num_validation_documents: int = 200
    num_heldout_documents: int = 500
    seed: int = 0

    name: ClassVar[str]
    scores_answers: ClassVar[bool] = True  # rows of their own, see `Cell.check`: no window reaches beyond a document

    def __post_init__(self) -> None:
        for name in ("document_len", "num_train_documents", "num_validation_documents", "num_heldout_documents"):
            if getattr(self, name) < 1:
                raise ValueError(f"corpus.{name}={getattr(self, name)} must be at least 1")
        if self.seed < 0:
            raise ValueError(f"corpus.seed={self.seed} must be at least 0")

    # ------------------------------------------------------------ what a source is

    @property
    @abstractmethod
    def letters(self) -> tuple[str, ...]:
        """All letters, each one ASCII character."""

    @abstractmethod
    def begin(self, num: int) -> np.ndarray:
        """The belief before the first letter, for so many documents [N, ...]."""

    @abstractmethod
    def predict(self, belief_N: np.ndarray) -> np.ndarray:
        """Probabilities of the next letter [N, A]."""

    @abstractmethod
    def advance(self, belief_N: np.ndarray, letter_N: np.ndarray) -> np.ndarray:
        """The belief after one more letter; after an impossible one, whatever the source's docstring says."""

    @property
    @abstractmethod
    def start_S(self) -> np.ndarray:
        """Distribution of the hidden state before the first letter."""

    @property
    @abstractmethod
    def emission_SA(self) -> np.ndarray:
        """Probabilities of the next letter by hidden state."""

    @abstractmethod
    def move(self, mass_RS: np.ndarray, letter: int) -> np.ndarray:
        """Joint mass [R, S] of having been distributed so, then saying this letter, then being in a state."""

    # ------------------------------------------------------------ sizes

    @property
    def vocab_size(self) -> int:
        """Ids: begin- and end-of-text, the mask, and the letters."""
        return 3 + len(self.letters)

    @property
    def output_tokens(self) -> int:
        """Tokens of a document behind begin-of-text, its end included."""
        return self.document_len + 1

    @property
    def row_tokens(self) -> int:
        """Tokens of a training row."""
        return self.document_len + 2

    @property
    def title(self) -> str:
        """The name with its own parameters, for captions."""
        of_all = {field.name for field in fields(Process)}
        own = [f"{field.name} {getattr(self, field.name)}" for field in fields(self) if field.name not in of_all]
        return ", ".join([self.name.replace("_", " "), *own])

    # ------------------------------------------------------------ likelihood

    def log_probabilities(self, letters_NT: np.ndarray) -> np.ndarray:
        """ln p of every letter at each position given those before it, [N, T, A]; −inf of impossible ones.

        What stands behind a text's end (−1) changes nothing before it.
        """
        letters_NT = np.maximum(letters_NT, 0)
        N, T = letters_NT.shape
        probability_NTA = np.empty((N, T, len(self.letters)))
        belief_N = self.begin(N)
        for t in range(T):
            probability_NTA[:, t] = self.predict(belief_N)
            belief_N = self.advance(belief_N, letters_NT[:, t])
        with np.errstate(divide="ignore"):
            return np.log(probability_NTA)

    def log_likelihoods(self, letters_NT: np.ndarray) -> np.ndarray:
        """ln p of each letter given those before it [N, T]; −inf of impossible ones."""
        clipped_NT1 = np.maximum(letters_NT, 0)[..., None]
        return np.take_along_axis(self.log_probabilities(letters_NT), clipped_NT1, -1)[..., 0]

    def next_log_probabilities(self, prefix: str) -> np.ndarray:
        """ln p of the letter behind a text [A]."""
        belief_1 = self.begin(1)
        for letter in self.indices([prefix])[0] if prefix else ():
            belief_1 = self.advance(belief_1, np.array([letter]))
        with np.errstate(divide="ignore"):
            return np.log(self.predict(belief_1)[0])

    def sample(self, source: np.random.Generator, num: int, length: int) -> np.ndarray:
        """Documents of a length [N, T], letters by number; none that is impossible."""
        letters_NT = np.empty((num, length), np.int64)
        belief_N = self.begin(num)
        for t in range(length):
            letters_NT[:, t] = draw_letters(source, self.predict(belief_N))
            belief_N = self.advance(belief_N, letters_NT[:, t])
        return letters_NT

    # ------------------------------------------------------------ entropy and frequencies

    @cached_property
    def entropy_bits(self) -> Estimated:
        """Entropy of a document, H(x_1, ..., x_T) / T, in bits a letter.

        Simulated here: the mean over documents of what the next letter's entropy is along each, which varies less than
        −log p and has the same expectation.
        """
        return Estimated.mean(self._next_entropies(SIMULATED, self.document_len).mean(1))

    @cached_property
    def entropy_rate_bits(self) -> Estimated:
        """The limit of H(x_t | x_<t), in bits a letter.

        Simulated here: documents of 512 letters, of which the second half counts. H(x_t | x_<t) falls towards the rate,
        so what is left of the beginning makes it too large, never too small.
        """
        return Estimated.mean(self._next_entropies(SIMULATED // 4, BURN_IN + RUN)[:, BURN_IN:].mean(1))

    def _next_entropies(self, num: int, length: int) -> np.ndarray:
        """Entropies of the next letter along simulated documents, in bits [N, T]."""
        source = np.random.default_rng([self.seed, length, 0x656E74])
        entropy_NT = np.empty((num, length))
        belief_N = self.begin(num)
        for t in range(length):
            probability_NA = self.predict(belief_N)
            entropy_NT[:, t] = entropy_bits(probability_NA)
            belief_N = self.advance(belief_N, draw_letters(source, probability_NA))
        return entropy_NT

    def step(self, mass_RS: np.ndarray) -> np.ndarray:
        """Masses over states after one more letter, whichever it is."""
        return sum((self.move(mass_RS, letter) for letter in range(len(self.letters))), np.zeros_like(mass_RS))

    def masses(self, length: int) -> np.ndarray:
        """Distribution of the hidden state before each letter [T, S]."""
        mass_TS = np.empty((length, len(self.start_S)))
        mass_1S = self.start_S[None]
        for t in range(length):
            mass_TS[t] = mass_1S[0]
            mass_1S = self.step(mass_1S)
        return mass_TS

    def gram_probabilities(self, n: int, length: int) -> np.ndarray:
        """Exact expected frequencies of n-grams in documents of a length [A^n], the first letter highest."""
        mass_RS = self.masses(length - n + 1).mean(0, keepdims=True)
        for _ in range(n - 1):
            mass_RS = self._by_letter(mass_RS)
        return (mass_RS @ self.emission_SA).ravel()

    def pair_probabilities(self, distance: int, length: int) -> np.ndarray:
        """Exact expected frequencies [A, A] of letters so far apart (1: neighbours) in documents of a length."""
        mass_AS = self._by_letter(self.masses(length - distance).mean(0, keepdims=True))
        for _ in range(distance - 1):
            mass_AS = self.step(mass_AS)
        return mass_AS @ self.emission_SA

    def _by_letter(self, mass_RS: np.ndarray) -> np.ndarray:
        """Each row split by the letter that comes next [R A, S]."""
        moved_RAS = np.stack([self.move(mass_RS, letter) for letter in range(len(self.letters))], 1)
        return moved_RAS.reshape(-1, mass_RS.shape[1])

    # ------------------------------------------------------------ text

    def indices(self, documents: Sequence[str]) -> np.ndarray:
        """Documents of one length as numbers of letters [N, T].

        Raises:
            ValueError: what is no letter of this source.
        """
        number = {letter: index for index, letter in enumerate(self.letters)}
        try:
            return np.array([[number[letter] for letter in document] for document in documents], np.int64)
        except KeyError as error:
            raise ValueError(f"{error.args[0]!r} is no letter of {self.title}: {''.join(self.letters)}") from None

    def texts(self, letters_NT: np.ndarray) -> list[str]:
        """Documents by their letters."""
        return ["".join(row) for row in np.array(self.letters)[letters_NT]]

    def load(self) -> Corpus:
        """Documents of the source.

        Raises:
            ValueError: it repeats itself too often for so many different documents.
        """
        seen: set[str] = set()
        counts = {
            "heldout": self.num_heldout_documents,
            "validation": self.num_validation_documents,
            "train": self.num_train_documents,
        }
        drawn = {split: self._different(place, num, seen) for place, (split, num) in enumerate(counts.items())}
        documents = {split: drawn[split] for split in ("train", "validation", "heldout")}
        about: dict[str, Any] = {"process": self.name, "config": asdict(self), "documents": documents}
        return Corpus(
            name=self.title,
            documents=documents,
            sha256=hashlib.sha256(json.dumps(about).encode()).hexdigest(),
            num_bytes={split: len(texts) * self.document_len for split, texts in documents.items()},
            prompt_lens={split: (0,) * len(texts) for split, texts in documents.items()},
            symbols=self.letters,
            separator="",
        )

    def _different(self, split: int, num: int, seen: set[str]) -> tuple[str, ...]:
        """New documents, which join those that have been seen."""
        source = np.random.default_rng([self.seed, split, 0x646F63])
        found: list[str] = []
        repeated = 0
        while len(found) < num:
            for text in self.texts(self.sample(source, num - len(found), self.document_len)):
                if text in seen:
                    repeated += 1
                else:
                    seen.add(text)
                    found.append(text)
            if repeated > max(1, MOST_REPEATED * num):
                raise ValueError(
                    f"{self.title} repeats itself: {repeated} documents of corpus.document_len={self.document_len} had "
                    f"been drawn before when {len(found)} of {num} were found, and leaving them out would make it "
                    "another source; make documents longer, or ask for fewer (corpus.num_train_documents)"
                )
        return tuple(found)


def entropy_bits(probability_XA: np.ndarray) -> np.ndarray:
    """−Σ p log2 p over the last axis."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return -np.where(probability_XA > 0, probability_XA * np.log2(probability_XA), 0.0).sum(-1)


def draw_letters(source: np.random.Generator, probability_NA: np.ndarray) -> np.ndarray:
    """A letter by each row of probabilities [N]; never one of probability 0."""
    cumulative_NA = probability_NA.cumsum(1)
    target_N1 = source.random((len(probability_NA), 1)) * np.nextafter(cumulative_NA[:, -1:], 0)
    return (cumulative_NA <= target_N1).sum(1)


def drawn_rows(source: np.random.Generator, concentration: float, num_rows: int, width: int) -> np.ndarray:
    """Rows of probabilities from a symmetric Dirichlet distribution, none below a millionth."""
    rows = source.gamma(concentration, size=(num_rows, width)) + FLOOR / width
    rows = rows / rows.sum(1, keepdims=True)
    return (1 - FLOOR * width) * rows + FLOOR


def stationary(
    step: Callable[[np.ndarray], np.ndarray], start_S: np.ndarray, *, tolerance: float = 1e-14, most: int = 200_000
) -> np.ndarray:
    """The distribution that a chain over states comes to; every other step rests, which keeps it and ends periods.

    Raises:
        ValueError: it has not come there after `most` steps.
    """
    mass_1S = start_S[None]
    for _ in range(most):
        next_1S = (mass_1S + step(mass_1S)) / 2
        next_1S = next_1S / next_1S.sum()
        if np.abs(next_1S - mass_1S).sum() < tolerance * len(start_S):
            return next_1S[0]
        mass_1S = next_1S
    raise ValueError(
        f"this source mixes so slowly that {most} letters do not show its stationary distribution; raise the "
        "concentration of its probabilities (corpus.concentration), or lower corpus.stay"
    )
