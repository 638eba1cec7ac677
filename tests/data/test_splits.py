import hashlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paradigms.data.splits import SPLITS, build_corpus, split_of


def numbered(count):
    return [
        f"Document {number} says something long enough to be kept, and says it only here." for number in range(count)
    ]


def test_splits_are_disjoint_and_complete():
    texts = numbered(500)
    corpus = build_corpus("x", texts)
    members = [text for split in SPLITS for text in corpus.documents[split]]
    assert sorted(members) == sorted(texts)
    assert corpus.num_bytes == {split: len("".join(corpus.documents[split]).encode()) for split in SPLITS}


def test_shares_are_those_asked_for():
    corpus = build_corpus("x", numbered(4000), validation_fraction=0.1, heldout_fraction=0.3)
    shares = {split: len(corpus.documents[split]) / 4000 for split in SPLITS}
    assert shares == pytest.approx({"train": 0.6, "validation": 0.1, "heldout": 0.3}, abs=0.03)


def test_order_and_repetition_do_not_matter():
    texts = numbered(300)
    shuffled = texts + texts[:50]
    random.Random(0).shuffle(shuffled)
    assert build_corpus("x", shuffled) == build_corpus("x", texts)


def test_a_document_keeps_its_split_when_others_come_and_go():
    few, many = build_corpus("x", numbered(200)), build_corpus("x", numbered(400))
    for split in SPLITS:
        assert set(few.documents[split]) <= set(many.documents[split])
    assert few.sha256 != many.sha256


def test_texts_that_differ_in_whitespace_are_one_document():
    texts = numbered(300)
    respaced = [text.replace(" ", "\n  ") for text in texts]
    both, one = build_corpus("x", texts + respaced), build_corpus("x", texts)
    assert {split: len(both.documents[split]) for split in SPLITS} == {
        split: len(one.documents[split]) for split in SPLITS
    }
    assert both == build_corpus("x", respaced + texts)


def test_the_hash_tells_the_splits_apart():
    texts = numbered(300)
    assert build_corpus("x", texts).sha256 != build_corpus("x", texts, heldout_fraction=0.2).sha256


def test_the_hash_of_a_document_decides_its_split_by_the_documented_rule():
    corpus = build_corpus("x", numbered(300))
    for split in SPLITS:
        for text in corpus.documents[split]:
            position = int(hashlib.sha256(text.encode()).hexdigest(), 16) / 2**256
            assert split == ("heldout" if position < 0.05 else "validation" if position < 0.1 else "train")


@given(st.binary(min_size=32, max_size=32), st.floats(0.01, 0.4), st.floats(0.01, 0.4))
def test_growing_the_training_share_moves_documents_only_into_training(digest, fraction, heldout):
    wide = split_of(digest, validation_fraction=fraction, heldout_fraction=heldout)
    narrow = split_of(digest, validation_fraction=fraction / 2, heldout_fraction=heldout)
    assert narrow == wide or (wide, narrow) == ("validation", "train")


def test_short_documents_are_dropped():
    corpus = build_corpus("x", [*numbered(300), "short", " " * 100, "a" + " " * 80 + "b"])
    assert corpus == build_corpus("x", numbered(300))


def test_an_empty_corpus_is_refused():
    with pytest.raises(ValueError, match="'mine' is empty"):
        build_corpus("mine", ["too short", ""])


def test_an_empty_split_is_refused():
    with pytest.raises(ValueError, match=r"leaves the \w+ split empty: it has only 2 distinct"):
        build_corpus("mine", numbered(2))


def test_a_lone_surrogate_is_refused():
    with pytest.raises(ValueError, match="lone surrogate"):
        build_corpus("mine", [*numbered(300), "bad \ud800" + "x" * 80])
