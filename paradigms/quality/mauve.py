"""MAUVE (Pillutla et al. 2021, 2102.01454): how much the distribution of a set of texts is that of another.

Texts become points, points become the histogram of joint k-means clusters (one for ten texts a side, in the library
`mauve-text`), and MAUVE is the area under the frontier of the two histograms' divergences, 1 when they are equal. It is
not 1 for two sets of the same source, and grows with the number of texts: so the reference is split in two, and what
one half has with the other is the ceiling that stands beside every figure.

The library's features need a large model from a hub; these are local, and the choice is recorded:

    scorer       mean over a text's tokens of the hidden states of the external scorer
    byte grams   counts of the text's 1- to 4-grams of bytes, hashed into 1,024 numbers, their square roots, length 1:
                 they see words and spelling, not meaning

Intervals are over the texts: all sets are halved at random again and again (see `intervals.of_set`). Sides below 50
texts are refused: five clusters tell nothing.

Dimension letters: N texts, E features.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from paradigms.quality.intervals import SHARE, Estimate

FEWEST_TEXTS = 50  # a side
REPLICATES = 20
DIMENSIONS, LONGEST_GRAM = 1024, 4
_ODD = np.uint64(0x9E3779B97F4A7C15)  # multiplicative hashing
INSTALL = "MAUVE needs mauve-text, which is not installed: pip install -c constraints.txt -e '.[quality]'"


class TooFewTexts(ValueError):
    """A side has too few texts for MAUVE."""


@dataclass(frozen=True)
class Mauve:
    """Attributes:
    score: of the generated texts against half of the reference.
    ceiling: of the other half of the reference against it.
    lost: ceiling − score, whose interval is its own, since the same halves enter both.
    texts: a side.
    """

    score: Estimate
    ceiling: Estimate
    lost: Estimate
    texts: int

    def columns(self) -> dict[str, Any]:
        return {
            **self.score.columns("mauve", between=SHARE),
            **self.ceiling.columns("mauve_ceiling", between=SHARE),
            **self.lost.columns("mauve_lost"),
        }


def compare(generated_NE: np.ndarray, reference_NE: np.ndarray, *, seed: int = 0) -> Mauve:
    """MAUVE of a set against a reference, with its ceiling; all sides have equally many texts.

    Raises:
        TooFewTexts: fewer than 50 generated texts, or than 100 of reference.
        ValueError: the library is not there.
    """
    texts = min(len(generated_NE), len(reference_NE) // 2)
    if texts < FEWEST_TEXTS:
        raise TooFewTexts(
            f"MAUVE needs at least {FEWEST_TEXTS} texts a side, and there are {len(generated_NE)} generated and "
            f"{len(reference_NE)} of reference, which is split in two: generate more (workload.batch_size, "
            "measure.rounds), or do without"
        )
    random = np.random.default_rng(seed)
    generated_NE = generated_NE[random.permutation(len(generated_NE))[:texts]]
    chosen = random.permutation(len(reference_NE))
    first_NE, second_NE = reference_NE[chosen[:texts]], reference_NE[chosen[texts : 2 * texts]]

    def both(generated: np.ndarray, first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
        return mauve_of(generated, first, seed=seed), mauve_of(second, first, seed=seed)

    score, ceiling = both(generated_NE, first_NE, second_NE)
    halves = np.array(
        [
            both(*(side[random.permutation(texts)[: texts // 2]] for side in (generated_NE, first_NE, second_NE)))
            for _ in range(REPLICATES)
        ]
    )
    score_se, ceiling_se = (float(se) for se in halves.std(0, ddof=1))
    return Mauve(
        score=Estimate(score, score_se, texts),
        ceiling=Estimate(ceiling, ceiling_se, texts),
        lost=Estimate(ceiling - score, float((halves[:, 1] - halves[:, 0]).std(ddof=1)), texts),
        texts=texts,
    )


def mauve_of(first_NE: np.ndarray, second_NE: np.ndarray, *, seed: int = 0) -> float:
    """MAUVE between two sets of points, 0 to 1.

    Raises:
        ValueError: the library is not there.
    """
    try:
        import mauve
    except ImportError:
        raise ValueError(INSTALL) from None
    with _quiet():
        found = mauve.compute_mauve(
            p_features=np.ascontiguousarray(first_NE, np.float32),
            q_features=np.ascontiguousarray(second_NE, np.float32),
            num_buckets=max(2, round(min(len(first_NE), len(second_NE)) / 10)),  # type: ignore[arg-type]  # or "auto"
            device_id=-1,
            verbose=False,
            seed=seed,
        )
    return float(found.mauve)


@contextmanager
def _quiet() -> Iterator[None]:
    """Nothing on the standard error: each k-means wants 39 points a cluster there, and MAUVE means to give it fewer."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def byte_gram_features(
    texts: Sequence[bytes], *, dimensions: int = DIMENSIONS, longest: int = LONGEST_GRAM
) -> np.ndarray:
    """Hashed byte n-grams of each text, float32 [N, E], of length 1; zeros for an empty text."""
    features_NE = np.zeros((len(texts), dimensions), np.float32)
    shift = np.uint64(64 - (dimensions.bit_length() - 1))
    if dimensions != 1 << (dimensions.bit_length() - 1):
        raise ValueError(f"dimensions={dimensions} must be a power of two")
    for row_E, text in zip(features_NE, texts, strict=True):
        bytes_T = np.frombuffer(text, np.uint8)
        keys = [np.zeros(0, np.uint64)]
        gram_T = np.zeros(len(bytes_T), np.uint64)
        for n in range(1, min(longest, len(bytes_T)) + 1):
            gram_T = (gram_T[: len(bytes_T) - n + 1] << np.uint64(8)) | bytes_T[n - 1 :]
            keys.append(gram_T + (np.uint64(n) << np.uint64(56)))
        row_E += np.sqrt(np.bincount((np.concatenate(keys) * _ODD) >> shift, minlength=dimensions))
        row_E /= np.linalg.norm(row_E) or 1.0
    return features_NE
