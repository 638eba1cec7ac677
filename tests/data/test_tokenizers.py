import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paradigms.data.splits import Corpus, build_corpus
from paradigms.data.tokenizers import (
    BOS_ID,
    BYTE_VOCAB_SIZE,
    EOS_ID,
    FIRST_BYTE_ID,
    MASK_ID,
    BpeTokenizer,
    ByteTokenizer,
    StreamDecoder,
    Tokenizer,
)


def ids_of(data: bytes) -> list[int]:
    return [FIRST_BYTE_ID + byte for byte in data]


def corpus_of(train, heldout=("held out",), sha256="0"):
    documents = {"train": tuple(train), "validation": ("validation",), "heldout": tuple(heldout)}
    return Corpus(name="mine", documents=documents, sha256=sha256, num_bytes={})


TEXT = " ".join(f"the cat number {number} sat on the mat — naïve café, 日本語, 😀;" for number in range(50))
BPE = BpeTokenizer(vocab_size=BYTE_VOCAB_SIZE + 60)._train(corpus_of([TEXT]))
BYTES = ByteTokenizer().load(corpus_of([TEXT]))
both = pytest.mark.parametrize("tokenizer", [BYTES, BPE], ids=["bytes", "bpe"])


def merge_one_by_one(tokenizer: Tokenizer, word: bytes) -> list[int]:
    """Byte pair encoding as its definition says: join the pair that ranks first, leftmost first, while one is left."""
    ids_of_bytes = {data: token for token, data in enumerate(tokenizer.token_bytes) if data}
    ranks = {pair: rank for rank, pair in reversed(list(enumerate(tokenizer.merges)))}
    ids = ids_of(word)
    while True:
        pairs = [(ranks[pair], place) for place, pair in enumerate(pairwise(ids)) if pair in ranks]
        if not pairs:
            return ids
        _, place = min(pairs)
        left, right = ids[place : place + 2]
        ids[place : place + 2] = [ids_of_bytes[tokenizer.token_bytes[left] + tokenizer.token_bytes[right]]]


@both
@given(text=st.text())
def test_nothing_is_lost(tokenizer, text):
    assert tokenizer.decode_bytes(tokenizer.encode(text)) == text.encode()
    assert tokenizer.decode(tokenizer.encode(text)) == text


@both
@given(text=st.text(alphabet="the cat <bos>\n\t  é日😀"))
def test_ids_are_ordinary_and_their_bytes_add_up(tokenizer, text):
    ids = tokenizer.encode(text)
    assert all(FIRST_BYTE_ID <= token < tokenizer.vocab_size for token in ids)
    assert sum(len(tokenizer.token_bytes[token]) for token in ids) == len(text.encode())


@given(word=st.text(alphabet="thecatsonm", min_size=1))
def test_the_library_merges_as_the_definition_says(word):
    assert BPE.encode(word) == merge_one_by_one(BPE, word.encode())


@both
def test_text_never_becomes_a_special_token(tokenizer):
    text = "<bos><eos><mask> <bos>"
    assert not {BOS_ID, EOS_ID, MASK_ID}.intersection(tokenizer.encode(text))
    assert tokenizer.decode([BOS_ID, *tokenizer.encode(text), MASK_ID, EOS_ID]) == text


@both
def test_a_batch_is_one_by_one(tokenizer):
    texts = ["the cat", "", "sat <eos>", "日本"]
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]


def test_bytes_are_themselves():
    assert BYTES.vocab_size == 259
    assert BYTES.encode("aé") == [3 + 0x61, 3 + 0xC3, 3 + 0xA9]
    assert BYTES.token_bytes == (b"", b"", b"", *(bytes([byte]) for byte in range(256)))


def test_merges_apply_in_their_order():
    a, b, c = ids_of(b"abc")
    tokenizer = Tokenizer([(b, c), (a, b), (a, 259)])
    assert tokenizer.token_bytes[259:] == (b"bc", b"ab", b"abc")
    assert tokenizer.encode("abc") == [261]
    assert tokenizer.encode("abab") == [260, 260]
    assert tokenizer.encode("bcb") == [259, b]


def test_two_ways_to_the_same_bytes_share_an_id():
    a, b, c = ids_of(b"abc")
    tokenizer = Tokenizer([(a, b), (b, c), (259, c), (a, 260)])
    assert tokenizer.vocab_size == 262
    assert tokenizer.token_bytes[261] == b"abc"
    assert tokenizer.encode("abc") == [261]


def test_training_merges_the_most_frequent_pair_first():
    tokenizer = BpeTokenizer(vocab_size=BYTE_VOCAB_SIZE + 2)._train(corpus_of(["xyz", "xyz", "xyz", "xy"]))
    x, y, z = ids_of(b"xyz")
    assert tokenizer.merges == ((x, y), (BYTE_VOCAB_SIZE, z))


def test_training_sees_the_training_split_only(cache_folder):
    config = BpeTokenizer(vocab_size=300)
    first = config.load(corpus_of([TEXT], heldout=["held out"], sha256="1"))
    second = config.load(corpus_of([TEXT], heldout=["zzzz zzzz zzzz"] * 1000, sha256="2"))
    third = config.load(corpus_of([TEXT + "zzzz" * 1000], sha256="3"))
    assert first.merges == second.merges != third.merges
    assert len({first.sha256, second.sha256, third.sha256}) == 2


def test_a_trained_tokenizer_is_cached(monkeypatch):
    corpus = corpus_of([TEXT])
    first = BpeTokenizer(vocab_size=300).load(corpus)
    monkeypatch.setattr(BpeTokenizer, "_train", lambda self, corpus: pytest.fail("trained twice"))
    second = BpeTokenizer(vocab_size=300).load(corpus)
    assert second.merges == first.merges
    assert second.sha256 == first.sha256
    assert second.encode(TEXT) == first.encode(TEXT)


def test_the_vocabulary_has_the_size_asked_for():
    corpus = build_corpus(
        "x", [f"{number} {number**3} {number**5} and some words to make it longer " * 2 for number in range(300)]
    )
    for size in (260, 300, 512):
        assert BpeTokenizer(vocab_size=size).load(corpus).vocab_size == size


def test_a_vocabulary_that_the_text_cannot_fill_is_refused():
    with pytest.raises(ValueError, match=r"vocab_size=2048 is too large for corpus 'mine'.* yields 26\d tokens"):
        BpeTokenizer(vocab_size=2048).load(corpus_of(["xyz xyz"]))


@pytest.mark.parametrize("size", [0, 259, 65537])
def test_impossible_vocabulary_sizes(size):
    with pytest.raises(ValueError, match=f"vocab_size={size} must be from 260 .* to 65536"):
        BpeTokenizer(vocab_size=size)


@both
def test_saved_and_read_back(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    back = Tokenizer.from_file(tmp_path / "tokenizer.json")
    assert (back.sha256, back.token_bytes) == (tokenizer.sha256, tokenizer.token_bytes)
    assert back.encode(TEXT) == tokenizer.encode(TEXT)


def good():
    return {"format": "paradigms-tokenizer-1", "specials": ["<bos>", "<eos>", "<mask>"], "merges": [[3, 4]]}


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        json.dumps({}),
        json.dumps({**good(), "format": "other"}),
        json.dumps({**good(), "specials": ["<s>"]}),
        json.dumps({**good(), "merges": [[3, 259]]}),
        json.dumps({**good(), "merges": [[0, 3]]}),
        json.dumps({**good(), "merges": [[3]]}),
        json.dumps({**good(), "merges": None}),
    ],
)
def test_a_file_that_is_no_tokenizer_is_named(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"tokenizer\.json is not a tokenizer file"):
        Tokenizer.from_file(path)


@both
@pytest.mark.parametrize("wrong", [-1, 10**6])
def test_unknown_ids_are_refused(tokenizer, wrong):
    with pytest.raises(ValueError, match=f"token id {wrong} is not in the vocabulary; ids are 0 to"):
        tokenizer.decode([5, wrong])


@both
def test_lone_surrogates_are_refused(tokenizer):
    with pytest.raises(ValueError, match=r"lone surrogate .* at character 2"):
        tokenizer.encode("ab\udc80")


@both
@given(ids=st.lists(st.integers(0, 258)), cuts=st.lists(st.integers(0, 20)))
def test_a_stream_of_pieces_is_the_whole(tokenizer, ids, cuts):
    decoder, pieces, rest = StreamDecoder(tokenizer), [], ids
    for cut in cuts:
        pieces.append(decoder.feed(rest[:cut]))
        rest = rest[cut:]
    pieces += [decoder.feed(rest), decoder.finish()]
    assert "".join(pieces) == tokenizer.decode(ids)


@given(text=st.text())
def test_a_stream_never_shows_what_it_takes_back(text):
    decoder, shown = StreamDecoder(BYTES), ""
    for token in BYTES.encode(text):
        shown += decoder.feed([token])
        assert text.startswith(shown)
    assert shown == text
    assert decoder.finish() == ""


def test_a_stream_holds_back_an_incomplete_character():
    decoder = StreamDecoder(BYTES)
    first, second, third = ids_of("€".encode())
    assert [decoder.feed([first]), decoder.feed([second, EOS_ID]), decoder.feed([third])] == ["", "", "€"]
    assert [decoder.feed([first]), decoder.finish()] == ["", "\N{REPLACEMENT CHARACTER}"]
