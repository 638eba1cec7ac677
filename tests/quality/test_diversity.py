"""Diversity against hand-computed values, a reading of BLEU that a person can check, and nltk where it is."""

import math
import zlib
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paradigms.quality.diversity import Grams, compression_ratio, grams_of, rep_n, repeated_share

texts = st.lists(st.lists(st.integers(0, 3), max_size=9), min_size=2, max_size=6)


def reference_bleu(references: list[list[int]], text: list[int], max_n: int = 4) -> float:
    """Sentence BLEU, formula by formula: Papineni et al. 2002 with 0.1 in place of a count of zero."""
    product = 1.0
    for n in range(1, max_n + 1):
        counts = Counter(tuple(text[i : i + n]) for i in range(len(text) - n + 1))
        most: Counter = Counter()
        for reference in references:
            most |= Counter(tuple(reference[i : i + n]) for i in range(len(reference) - n + 1))
        clipped = sum(min(count, most[gram]) for gram, count in counts.items())
        if n == 1 and clipped == 0:
            return 0.0
        product *= ((clipped or 0.1) / max(1, sum(counts.values()))) ** (1 / max_n)
    closest = min((abs(len(reference) - len(text)), len(reference)) for reference in references)[1]
    return product * (1.0 if len(text) > closest else math.exp(1 - closest / len(text)))


def reference_self_bleu(texts: list[list[int]]) -> float:
    return sum(reference_bleu(texts[:n] + texts[n + 1 :], text) for n, text in enumerate(texts)) / len(texts)


def test_known_answers():
    same = [1, 2, 3, 4, 5]
    assert Grams([same, same]).self_bleu() == pytest.approx(1)
    assert Grams([[1, 2, 3, 4], [5, 6, 7, 8]]).self_bleu() == 0
    # 1 2 3 9 against 1 2 3 4: 3/4 of the tokens, 2/3 of the pairs, 1/2 of the triples, 0.1 of the one 4-gram
    by_hand = (3 / 4 * 2 / 3 * 1 / 2 * 0.1) ** 0.25
    assert Grams([[1, 2, 3, 4], [1, 2, 3, 9]]).self_bleu() == pytest.approx(by_hand)
    # a shorter text pays exp(1 − 6/5)
    assert Grams([[1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6]]).self_bleu() == pytest.approx(
        (math.exp(1 - 6 / 5) + (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25) / 2
    )
    assert Grams([[1, 2]]).self_bleu() is None


@settings(deadline=None, max_examples=150)
@given(texts)
def test_self_bleu_is_that_of_the_formula(texts):
    assert Grams(texts).self_bleu() == pytest.approx(reference_self_bleu(texts), rel=1e-12, abs=1e-15)


@settings(deadline=None, max_examples=60)
@given(texts, st.data())
def test_a_subset_is_as_if_it_were_alone(texts, data):
    chosen = data.draw(st.lists(st.sampled_from(range(len(texts))), min_size=2, unique=True))
    grams, alone = Grams(texts), Grams([texts[n] for n in chosen])
    assert grams.self_bleu(chosen) == pytest.approx(alone.self_bleu(), rel=1e-12, abs=1e-15)
    for n in (1, 2, 4):
        assert grams.distinct(n, chosen) == alone.distinct(n)


def test_self_bleu_is_that_of_nltk():
    bleu = pytest.importorskip("nltk.translate.bleu_score")
    texts = [[(3 * n + i * i) % 7 for i in range(5 + n % 4)] for n in range(8)]
    smooth = bleu.SmoothingFunction().method1
    theirs = [
        bleu.sentence_bleu(texts[:n] + texts[n + 1 :], text, smoothing_function=smooth) for n, text in enumerate(texts)
    ]
    assert Grams(texts).self_bleu() == pytest.approx(sum(theirs) / len(theirs))


def test_distinct_of_a_set_is_not_the_mean_of_its_texts():
    grams = Grams([[1, 2, 3], [1, 2, 3]])
    assert grams.distinct(1) == 3 / 6  # each text by itself has 1
    assert grams.distinct(2) == 2 / 4
    assert grams.distinct(4) is None


def test_repetition():
    assert rep_n([1, 2, 1, 2, 1, 2], 2) == pytest.approx(1 - 2 / 5)
    assert rep_n([1, 2, 3], 4) is None
    assert repeated_share([1, 2, 3, 4, 5], 2) == 0
    assert repeated_share([1, 2, 9, 1, 2, 8], 2) == 2 / 6  # the second "1 2"
    assert repeated_share([7] * 5, 2) == 4 / 5  # all but the first token
    assert repeated_share([], 2) is None
    assert list(grams_of([1, 2, 3], 2)) == [(1, 2), (2, 3)]


@settings(deadline=None)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=20), st.integers(1, 4))
def test_repeated_tokens_by_brute_force(tokens, n):
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    hit = {j for i, gram in enumerate(grams) if gram in grams[:i] for j in range(i, i + n)}
    assert repeated_share(tokens, n) == len(hit) / len(tokens)


def test_compression():
    assert compression_ratio(b"") is None
    assert compression_ratio(b"ab" * 500) == 1000 / len(zlib.compress(b"ab" * 500, 9)) > 20
