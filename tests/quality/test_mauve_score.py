"""MAUVE with local features: its ends, its ceiling, and what is refused."""

import numpy as np
import pytest

from paradigms.quality import mauve
from paradigms.quality.mauve import TooFewTexts, byte_gram_features


def texts(count: int, seed: int, letters: str = "abcdef", length: int = 60) -> list[bytes]:
    draw = np.random.default_rng(seed)
    chance = np.arange(1, len(letters) + 1) / np.arange(1, len(letters) + 1).sum()
    return ["".join(draw.choice(list(letters), length, p=chance)).encode() for _ in range(count)]


def test_features_are_hashed_counts():
    one, same, other, empty, shuffled = byte_gram_features([b"abcabc", b"abcabc", b"xyzxyz", b"", b"aabbcc"])
    assert (one == same).all() and not empty.any()
    assert np.linalg.norm(one) == pytest.approx(1)
    assert one @ other < 0.2 < one @ shuffled < 0.9  # the same letters, other pairs
    unhashed = byte_gram_features([b"abcabc"], dimensions=1 << 20)[0]
    # a, b, c, ab, bc, abc twice; ca, bca, cab, abca, bcab, cabc once: the sum of squared roots is the 18 grams
    assert sorted((unhashed[unhashed > 0] ** 2 * 18).round().tolist()) == [1] * 6 + [2] * 6
    with pytest.raises(ValueError, match="dimensions=1000"):
        byte_gram_features([b"a"], dimensions=1000)


def test_short_texts_have_the_grams_that_fit():
    assert (byte_gram_features([b"a"])[0] > 0).sum() == 1
    assert (byte_gram_features([b"ab"])[0] > 0).sum() == 3


@pytest.mark.parametrize(("generated", "reference"), [(49, 200), (200, 99)])
def test_few_texts_are_refused_with_their_number(generated, reference):
    points = np.zeros((200, 4), np.float32)
    with pytest.raises(TooFewTexts, match=f"at least 50 texts a side, and there are {generated} .* and {reference} of"):
        mauve.compare(points[:generated], points[:reference])


def test_what_is_missing_is_said(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "mauve", None)
    with pytest.raises(ValueError, match="pip install"):
        mauve.mauve_of(np.zeros((60, 4)), np.zeros((60, 4)))


@pytest.fixture(scope="module")
def reference() -> np.ndarray:
    pytest.importorskip("mauve")
    return byte_gram_features(texts(120, 0))


def test_ends(reference):
    assert mauve.mauve_of(reference, reference) == pytest.approx(1, abs=1e-6)
    apart = byte_gram_features(texts(120, 1, "uvwxyz"))
    assert mauve.mauve_of(reference, apart) < 0.02


@pytest.mark.parametrize("letters", ["abcdef", "fedcba"], ids=["the same source", "other frequencies"])
def test_a_set_of_the_same_source_is_at_the_ceiling_and_another_is_below(reference, letters):
    found = mauve.compare(byte_gram_features(texts(60, 2, letters)), reference)
    low, high = found.lost.interval(0.999)
    assert found.texts == 60
    assert found.score.value == pytest.approx(found.ceiling.value - found.lost.value)
    assert (low <= 0 <= high) == (letters == "abcdef")
    columns = found.columns()
    assert columns["mauve_low"] < columns["mauve"] < columns["mauve_high"]
    assert {"mauve_ceiling_low", "mauve_lost_high", "mauve_lost_count"} <= columns.keys()
