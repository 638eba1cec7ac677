"""Tokenizers of others: what they mean in bytes, where texts begin and end, what they cannot do."""

from __future__ import annotations

import json

import numpy as np
import pytest
import theirs
import tiny

from paradigms.data.pretrained_tokenizer import IdsOnly, LibraryTokenizer, PretrainedTokenizer
from paradigms.data.stream import evaluation_windows, prompts, token_stream
from paradigms.data.tokenizers import StreamDecoder

BOS, EOS = theirs.SIZES["bos_token_id"], theirs.SIZES["eos_token_id"]
TEXTS = ["the cache keeps it's 2024", "naïve café — 日本 🙂\n\n\tend", "<s> is text here </s>", "", " two  spaces "]


def library(kind: str, **ids: int) -> LibraryTokenizer:
    return LibraryTokenizer(theirs.library_json(kind), **{"bos_id": BOS, "eos_id": EOS, "vocab_size": 300, **ids})


@pytest.mark.parametrize("kind", ["byte level", "sentencepiece"])
@pytest.mark.parametrize("text", TEXTS)
def test_bytes_of_tokens_are_those_of_the_text(kind, text):
    tokenizer = library(kind)
    ids = tokenizer.encode(text)
    dummy = " " if kind == "sentencepiece" and text else ""
    assert b"".join(tokenizer.token_bytes[token] for token in ids) == (dummy + text).encode()
    assert tokenizer.decode([BOS, *ids, EOS]) == dummy + text
    assert not {BOS, EOS} & set(ids), "a text never turns into a special token"
    stream = StreamDecoder(tokenizer)
    assert "".join([*(stream.feed([token]) for token in ids), stream.finish()]) == dummy + text


def test_a_vocabulary_without_bytes_says_so_and_still_speaks(tmp_path):
    folder = theirs.write_folder(tmp_path, tokenizer="word piece", weights=False)
    config = PretrainedTokenizer(path=str(folder))
    config.check(needs_text=True, needs_bytes=False)
    with pytest.raises(ValueError, match=r"cannot be mapped to bytes.*measure\.quality=false"):
        config.check(needs_text=True, needs_bytes=True)
    tokenizer = config.load(tiny.corpus())
    ids = tokenizer.encode("The cache keeps")
    assert not any(tokenizer.token_bytes) and tokenizer.decode([BOS, *ids]) == "the cache keeps"


def test_a_folder_without_a_tokenizer_has_ids_alone(tmp_path):
    config = PretrainedTokenizer(path=str(theirs.write_folder(tmp_path, tokenizer=None, weights=False)))
    config.check(needs_text=False, needs_bytes=False)
    with pytest.raises(ValueError, match="workload=random_prompts"):
        config.check(needs_text=True, needs_bytes=False)
    tokenizer = config.load(tiny.corpus())
    assert isinstance(tokenizer, IdsOnly) and tokenizer.vocab_size == config.vocab_size == 300
    assert tokenizer.decode([5, 6]) == "" and not {BOS, EOS} & set(tokenizer.plain_ids)


def test_begin_and_end_of_text_are_where_the_folder_says(tmp_path):
    folder = theirs.write_folder(tmp_path, weights=False)

    def found():
        config = PretrainedTokenizer(path=str(folder))
        PretrainedTokenizer.load.__globals__["_load"].cache_clear()
        tokenizer = config.load(tiny.corpus())
        return tokenizer.bos_id, tokenizer.eos_id

    assert found() == (BOS, EOS)  # config.json
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, EOS]}))
    assert found() == (BOS, 7)  # the first of several
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": None, "eos_token": {"content": "<unk>"}}))
    assert found() == (BOS, 0)


def test_one_token_for_both_ends(tmp_path):
    """As GPT-2 and Qwen2 have it: documents still begin and end."""
    folder = theirs.write_folder(tmp_path, weights=False, bos_token_id=None)
    tokenizer = PretrainedTokenizer(path=str(folder)).load(tiny.corpus())
    assert tokenizer.bos_id == tokenizer.eos_id == EOS
    stream = token_stream(tiny.corpus(), tokenizer, "heldout")
    ids = {"bos_id": EOS, "eos_id": EOS}
    documents = {tuple(tokenizer.encode(text)[:5]) for text in tiny.corpus().documents["heldout"]}
    for prompt in prompts(stream, prompt_len=6, count=5, seed=0, **ids):
        assert prompt[0] == EOS and prompt[1:] in documents
    windows = evaluation_windows(stream, window=16, **ids)
    assert (windows.tokens_NT[:, 0] == EOS).all()
    assert windows.num_bytes_N(tokenizer.token_bytes).sum() == tiny.corpus().num_bytes["heldout"]


def test_large_vocabularies_have_wide_streams():
    tokenizer = library("byte level", vocab_size=70_000, bos_id=69_999)
    stream = token_stream(tiny.corpus(), tokenizer, "heldout")
    assert stream.dtype == np.uint32 and stream[0] == 69_999


def test_a_token_beyond_the_embedding_is_an_error():
    with pytest.raises(ValueError, match="beyond the model's vocab_size=100"):
        library("byte level", vocab_size=100)


def test_plain_ids_are_what_text_is_made_of():
    tokenizer = library("byte level")
    assert not {0, BOS, EOS} & set(tokenizer.plain_ids)
    assert all(tokenizer.token_bytes[token] for token in tokenizer.plain_ids)
    assert {token for text in tiny.texts(20) for token in tokenizer.encode(text)} <= set(tokenizer.plain_ids)
