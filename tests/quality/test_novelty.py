"""The suffix array against sorting, matches against looking everywhere."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paradigms.quality import novelty
from paradigms.quality.novelty import SEEN_BYTES, SEPARATOR, TrainingText, novelty_columns, suffix_order

letters = st.binary(max_size=40).map(lambda data: bytes(97 + byte % 3 for byte in data))
documents = st.lists(letters, min_size=1, max_size=4).filter(any)


def brute_matches(documents: list[bytes], data: bytes) -> list[int]:
    return [
        max(n for n in range(len(data) - at + 1) if any(data[at : at + n] in document for document in documents))
        for at in range(len(data))
    ]


@settings(deadline=None, max_examples=200)
@given(documents)
def test_suffixes_are_sorted(documents):
    text = b"".join(document + bytes([SEPARATOR]) for document in documents if document)
    order = suffix_order(np.frombuffer(text, np.uint8))
    behind = bytes([SEPARATOR]) * len(text)
    suffixes = [(text[start:] + behind)[: len(text)] for start in order]
    assert sorted(order.tolist()) == list(range(len(text)))
    assert suffixes == sorted(suffixes)


@settings(deadline=None, max_examples=200)
@given(documents, letters)
def test_matches_are_those_of_looking_everywhere(documents, data):
    assert TrainingText.of(documents).matches(data).tolist() == brute_matches(documents, data)


@settings(deadline=None, max_examples=100)
@given(documents, st.binary(max_size=12).map(lambda data: bytes((97, 98, 255)[byte % 3] for byte in data)))
def test_bytes_that_are_no_utf8_match_nothing(documents, data):
    assert TrainingText.of(documents).matches(data).tolist() == brute_matches(documents, data)


def test_no_match_runs_from_one_document_into_the_next():
    training = TrainingText.of([b"abcdefgh", b"ijklmnop"])
    assert training.matches(b"efghijkl").max() == 4
    assert TrainingText.of([b"abcdefghijklmnop"]).matches(b"efghijkl").max() == 8


def test_long_repeats_are_told_apart_by_what_follows():
    """Many rounds of doubling: the same 3,000 bytes in three documents, whose ends differ."""
    same = bytes(97 + (i * i) % 23 for i in range(3000))
    training = TrainingText.of([same + end for end in (b"xyz", b"xzy", b"zzz")])
    assert training.matches(same + b"xzy")[0] == 3003
    assert training.matches(same + b"xyy")[0] == 3002
    assert training.matches(b"q" + same[:50])[0] == (1 if b"q" in same else 0)


def test_a_match_deeper_than_the_sort_is_cut_there(monkeypatch):
    monkeypatch.setattr(novelty, "DEPTH", 16)
    training = TrainingText.of([b"ab" * 40])
    assert training.matches(b"ab" * 40).max() == 16


def test_memorised_text_is_seen_and_new_text_is_not():
    draw = np.random.default_rng(0)
    documents = [draw.integers(97, 123, 400, dtype=np.uint8).tobytes() for _ in range(20)]
    training = TrainingText.of(documents)
    new = draw.integers(97, 123, 100, dtype=np.uint8).tobytes()
    known = novelty_columns([training.matches(documents[3][50:150])])
    assert known == {"longest_match_bytes": 100, "longest_match_share": 1.0, "seen_share": 1.0}
    assert novelty_columns([training.matches(new)])["longest_match_bytes"] < 8
    assert novelty_columns([training.matches(new)])["seen_share"] == 0
    half = novelty_columns([training.matches(documents[3][50:100] + new[:50])])
    assert 50 <= half["longest_match_bytes"] < 55
    assert half["seen_share"] == (half["longest_match_bytes"] - SEEN_BYTES + 1) / (100 - SEEN_BYTES + 1)


def test_stretches_do_not_join():
    training = TrainingText.of([b"abcdefgh" * 10])
    assert novelty_columns([training.matches(b"abcd"), training.matches(b"efgh")])["longest_match_bytes"] == 4
    assert novelty_columns([]) == {"longest_match_bytes": 0, "longest_match_share": None, "seen_share": None}


def test_cache_is_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("PARADIGMS_CACHE", str(tmp_path))
    first = TrainingText.cached([b"abracadabra"], name="x")
    monkeypatch.setattr(novelty, "suffix_order", None)
    again = TrainingText.cached([b"abracadabra"], name="x")
    assert again.matches(b"cadabrab").tolist() == first.matches(b"cadabrab").tolist() == [7, 6, 5, 4, 3, 2, 2, 1]


def test_errors_name_the_value(monkeypatch):
    with pytest.raises(ValueError, match="every document is empty"):
        TrainingText.of([b""])
    monkeypatch.setattr(novelty, "MOST_BYTES", 10)
    with pytest.raises(ValueError, match="12 bytes is more than the 10"):
        TrainingText.of([b"abracadabra"])
