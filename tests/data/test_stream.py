import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paradigms.data.splits import SPLITS, build_corpus
from paradigms.data.stream import evaluation_windows, prompts, token_stream, training_batch
from paradigms.data.tokenizers import BOS_ID, EOS_ID, BpeTokenizer, Tokenizer

CORPUS = build_corpus("x", [f"Document {number} says " + f"{number * 7919} is a number; " * 4 for number in range(200)])
BYTES = Tokenizer()


def stream_of(*document_lengths):
    """Documents of tokens that never repeat, so that a window tells where it was cut."""
    parts, token = [], 3
    for length in document_lengths:
        parts += [BOS_ID, *range(token, token + length), EOS_ID]
        token += length
    return np.array(parts, dtype=np.uint16)


@pytest.mark.parametrize("split", SPLITS)
def test_a_stream_is_the_documents_of_its_split(split):
    stream = token_stream(CORPUS, BYTES, split)
    assert stream.dtype == np.uint16
    expected = []
    for document in CORPUS.documents[split]:
        expected += [BOS_ID, *BYTES.encode(document), EOS_ID]
    assert stream.tolist() == expected


def test_a_stream_is_cached_for_its_tokenizer_and_split(monkeypatch):
    bpe = BpeTokenizer(vocab_size=300).load(CORPUS)
    made = {(t.sha256, s): token_stream(CORPUS, t, s) for t in (BYTES, bpe) for s in SPLITS}
    monkeypatch.setattr(Tokenizer, "encode_batch", lambda self, texts: pytest.fail("encoded twice"))
    for tokenizer in (BYTES, bpe):
        for split in SPLITS:
            again = token_stream(CORPUS, tokenizer, split)
            assert np.array_equal(again, made[tokenizer.sha256, split])
            assert tokenizer.decode(again) == "".join(CORPUS.documents[split])


def test_a_cached_stream_cannot_be_changed_by_accident():
    with pytest.raises(ValueError, match="read-only"):
        token_stream(CORPUS, BYTES, "train")[0] = 7


def test_an_unknown_split_is_named():
    with pytest.raises(ValueError, match="split='test' is unknown; it is one of train, validation, heldout"):
        token_stream(CORPUS, BYTES, "test")


def test_rows_are_consecutive_tokens_behind_begin_of_text():
    stream = np.arange(100, 200, dtype=np.uint16)
    rows = training_batch(stream, seed=1, step=2, length=11, num_rows=64)
    assert (rows.shape, rows.dtype) == ((64, 11), np.int64)
    assert (rows[:, 0] == BOS_ID).all()
    assert (np.diff(rows[:, 1:], axis=1) == 1).all()


def test_rows_come_from_the_whole_stream():
    stream = np.arange(100, 120, dtype=np.uint16)
    starts = training_batch(stream, seed=0, step=0, length=11, num_rows=2000)[:, 1] - 100
    counts = np.bincount(starts, minlength=11)
    assert len(counts) == 11  # the last window ends with the stream
    assert counts.min() > 2000 / 11 / 2


def test_a_batch_depends_on_seed_step_and_row_only():
    stream = np.arange(3, 60000, dtype=np.uint16)
    few = training_batch(stream, seed=5, step=7, length=8, num_rows=4)
    many = training_batch(stream, seed=5, step=7, length=8, num_rows=9)
    assert np.array_equal(few, many[:4])
    assert len(np.unique(many[:, 1])) == 9
    for other in ({"seed": 6, "step": 7}, {"seed": 5, "step": 8}, {"seed": 7, "step": 5}):
        assert not np.array_equal(few, training_batch(stream, **other, length=8, num_rows=4))


def test_a_window_may_be_the_whole_stream_and_not_more():
    stream = np.arange(3, 13, dtype=np.uint16)
    assert training_batch(stream, seed=0, step=0, length=11, num_rows=1).tolist() == [[BOS_ID, *range(3, 13)]]
    with pytest.raises(ValueError, match="12 tokens do not fit in a stream of 10"):
        training_batch(stream, seed=0, step=0, length=12, num_rows=1)
    with pytest.raises(ValueError, match="length of 0 tokens is too small"):
        training_batch(stream, seed=0, step=0, length=0, num_rows=1)


@given(num_tokens=st.integers(1, 60), window=st.integers(1, 20), data=st.data())
def test_every_token_is_scored_exactly_once(num_tokens, window, data):
    stride = data.draw(st.integers(1, window))
    stream = np.arange(3, 3 + num_tokens, dtype=np.uint16)
    windows = evaluation_windows(stream, window=window, stride=stride)
    assert windows.tokens_NT[windows.scored_NT].tolist() == stream.tolist()


@given(num_tokens=st.integers(1, 60), window=st.integers(1, 20), data=st.data())
def test_windows_show_what_lies_before_and_nothing_else(num_tokens, window, data):
    stride = data.draw(st.integers(1, window))
    stream = np.arange(3, 3 + num_tokens, dtype=np.uint16)
    windows = evaluation_windows(stream, window=window, stride=stride)
    column_T = np.arange(window + 1)
    for index, row_T in enumerate(windows.tokens_NT):
        length, start = windows.lengths_N[index], index * stride
        assert row_T[0] == BOS_ID
        assert row_T[1:length].tolist() == stream[start : start + window].tolist()
        assert (row_T[length:] == EOS_ID).all()
        assert windows.first_scored_N[index] == (1 if index == 0 else 1 + window - stride)
        assert not windows.scored_NT[index, column_T >= length].any()


def test_windows_of_a_known_stream():
    windows = evaluation_windows(np.array([10, 11, 12, 13, 14], dtype=np.uint16), window=3)
    assert windows.tokens_NT.tolist() == [[BOS_ID, 10, 11, 12], [BOS_ID, 13, 14, EOS_ID]]
    assert windows.lengths_N.tolist() == [4, 3]
    overlapping = evaluation_windows(np.array([10, 11, 12, 13, 14], dtype=np.uint16), window=3, stride=2)
    assert overlapping.tokens_NT.tolist() == [[BOS_ID, 10, 11, 12], [BOS_ID, 12, 13, 14]]
    assert overlapping.first_scored_N.tolist() == [1, 2]


@pytest.mark.parametrize("stride", [None, 5])
def test_bytes_are_those_of_the_documents(stride):
    tokenizer = BpeTokenizer(vocab_size=300).load(CORPUS)
    windows = evaluation_windows(token_stream(CORPUS, tokenizer, "heldout"), window=32, stride=stride)
    assert windows.num_bytes_N(tokenizer.token_bytes).sum() == CORPUS.num_bytes["heldout"]


@pytest.mark.parametrize("stride", [0, 5])
def test_a_stride_that_skips_tokens_is_refused(stride):
    with pytest.raises(ValueError, match=f"stride={stride} must be from 1 to window=4"):
        evaluation_windows(stream_of(9), window=4, stride=stride)


def test_an_empty_stream_is_refused():
    with pytest.raises(ValueError, match="empty"):
        evaluation_windows(np.array([], dtype=np.uint16), window=4)


def test_prompts_are_beginnings_of_documents_that_are_long_enough():
    stream = stream_of(2, 9, 4, 5, 3)
    beginnings = {(BOS_ID, 5, 6, 7, 8), (BOS_ID, 14, 15, 16, 17), (BOS_ID, 18, 19, 20, 21)}
    assert set(prompts(stream, prompt_len=5, count=3, seed=0)) == beginnings


def test_a_shorter_list_begins_the_longer_one_and_seeds_differ():
    stream = stream_of(*[10] * 50)
    many = prompts(stream, prompt_len=4, count=80, seed=0)
    assert prompts(stream, prompt_len=4, count=7, seed=0) == many[:7]
    assert prompts(stream, prompt_len=4, count=7, seed=1) != many[:7]


def test_prompts_repeat_only_when_every_place_is_used():
    stream = stream_of(9, 2)
    num_places = len(stream) - 3 + 1
    once = prompts(stream, prompt_len=4, count=num_places, seed=3)
    assert len(set(once)) == num_places
    assert once[0] == (BOS_ID, 3, 4, 5)
    assert prompts(stream, prompt_len=4, count=2 * num_places, seed=3) == once * 2


def test_a_prompt_longer_than_every_document_is_a_window():
    stream = stream_of(5, 5, 5)
    for prompt in prompts(stream, prompt_len=16, count=4, seed=0):
        text = ",".join(map(str, prompt[1:]))
        assert text in ",".join(map(str, stream.tolist()))
        assert len(prompt) == 16


def test_a_prompt_may_be_begin_of_text_alone():
    assert prompts(stream_of(5, 5), prompt_len=1, count=2, seed=0) == [(BOS_ID,), (BOS_ID,)]


def test_a_prompt_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="100 tokens do not fit in a stream of 9"):
        prompts(stream_of(7), prompt_len=100, count=1, seed=0)
