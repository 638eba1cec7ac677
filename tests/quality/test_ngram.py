"""The n-gram judge against a reading of its formula that a person can check."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paradigms.quality.ngram import ByteNgram

texts = st.lists(st.binary(max_size=40).map(lambda data: bytes(b % 4 for b in data)), max_size=4)


def reference_probability(documents: list[bytes], context: bytes, byte: int) -> float:
    """Witten-Bell by recursion over the whole context, counting anew each time."""
    shorter = reference_probability(documents, context[1:], byte) if context else 1 / 256
    followers = Counter(
        document[i + len(context)]
        for document in documents
        for i in range(len(document) - len(context))
        if document[i : i + len(context)] == context
    )
    if not followers:
        return shorter
    return (followers[byte] + len(followers) * shorter) / (followers.total() + len(followers))


@settings(deadline=None)
@given(texts.filter(any), st.integers(1, 5), st.binary(max_size=6), st.binary(min_size=1, max_size=8))
def test_agrees_with_the_reference(documents, order, context, data):
    context, data = bytes(b % 5 for b in context), bytes(b % 5 for b in data)
    nats = ByteNgram.fit(documents, order=order).nats(data, context=context)
    text = context + data
    for i, got in enumerate(nats, len(context)):
        history = text[max(0, i - order + 1) : i]
        assert got == pytest.approx(-math.log(reference_probability(documents, history, text[i])), rel=1e-12)


@settings(deadline=None, max_examples=40)
@given(texts.filter(any), st.integers(1, 7), st.binary(max_size=6))
def test_probabilities_sum_to_one(documents, order, context):
    model = ByteNgram.fit(documents, order=order)
    context = bytes(b % 5 for b in context)
    total = sum(math.exp(-model.nats(bytes([byte]), context=context)[0]) for byte in range(256))
    assert total == pytest.approx(1, abs=1e-12)


def test_known_answer():
    model = ByteNgram.fit([b"aab"], order=2)
    unigram_b = (1 + 2 / 256) / (3 + 2)  # c(b) = 1, c = 3, T = 2
    bigram_ab = (1 + 2 * unigram_b) / (2 + 2)  # after a: a and b once each
    assert model.nats(b"b")[0] == pytest.approx(-math.log(unigram_b))
    assert model.nats(b"b", context=b"a")[0] == pytest.approx(-math.log(bigram_ab))
    assert model.bits_per_byte(b"b", context=b"a") == pytest.approx(-math.log2(bigram_ab))


def test_no_gram_crosses_documents():
    apart, joined = ByteNgram.fit([b"a", b"b"], order=2), ByteNgram.fit([b"ab"], order=2)
    assert joined.nats(b"b", context=b"a")[0] < apart.nats(b"b", context=b"a")[0]
    assert apart.nats(b"b", context=b"a")[0] == apart.nats(b"b")[0]


def test_chunks_add_up_to_the_whole():
    model = ByteNgram.fit([b"the cat sat on the mat"], order=5)
    text = b"the mat on the cat"
    parts = [model.nats(text[i : i + 1], context=text[:i]) for i in range(len(text))]
    np.testing.assert_allclose(np.concatenate(parts), model.nats(text), rtol=1e-14)
    assert len(model.nats(b"")) == 0


def test_longer_contexts_help_on_structured_text():
    text = b"to be, or not to be, that is the question. " * 50
    bits = [ByteNgram.fit([text], order=n).bits_per_byte(text) for n in (1, 2, 3, 5)]
    assert bits == sorted(bits, reverse=True)


def test_cache_is_the_same_model(tmp_path, monkeypatch):
    monkeypatch.setenv("PARADIGMS_CACHE", str(tmp_path))
    documents = [b"abracadabra", b"", b"alakazam"]
    fitted = ByteNgram.cached(documents, name="x")

    def untouched():
        raise AssertionError("the cache was not used")
        yield b""

    text = b"abrakazam"
    again = ByteNgram.cached(untouched(), name="x")
    np.testing.assert_array_equal(again.nats(text), fitted.nats(text))
    np.testing.assert_array_equal(again.nats(text), ByteNgram.fit(documents).nats(text))
    other = ByteNgram.cached([b"zzz"], name="y")
    assert (other.nats(text) != fitted.nats(text)).any()


def test_errors_name_the_value():
    with pytest.raises(ValueError, match="order=9"):
        ByteNgram.fit([b"abc"], order=9)
    with pytest.raises(ValueError, match="every document is empty"):
        ByteNgram.fit([b""])
    with pytest.raises(ValueError, match="empty text"):
        ByteNgram.fit([b"abc"]).bits_per_byte(b"")
