"""From texts to pairs of tokens, as lm-eval does it, and from tokens to texts."""

from __future__ import annotations

import math

import pytest
from harness.asking import TEXTS, asked
from lm_eval.api.model import TemplateLM

from paradigms.data.tokenizers import Tokenizer
from paradigms.harness.text import Generation, encode_context, encode_pair, text_of
from paradigms.training.checkpoint import load_tokenizer
from paradigms.zoo import folder as zoo_folder


class Theirs(TemplateLM):
    """lm-eval's own way from texts to pairs of tokens, over a tokenizer of ours."""

    def __init__(self, tokenizer):
        super().__init__()
        self.ours, self.pairs = tokenizer, []

    @property
    def eot_token_id(self):
        return self.ours.eos_id

    @property
    def prefix_token_id(self):
        return self.ours.bos_id

    def tok_encode(self, string, add_special_tokens=None, **more):
        return self.ours.encode(string)

    def _loglikelihood_tokens(self, requests, **more):
        self.pairs = [(context, answer) for _, context, answer in requests]
        return [(0.0, False)] * len(requests)

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        return []

    def generate_until(self, requests, disable_tqdm=False):
        return []


@pytest.mark.parametrize("name", ["byte", "bpe"])
def test_pairs_are_those_of_lm_eval(name):
    tokenizer = Tokenizer() if name == "byte" else load_tokenizer(zoo_folder("ar"))
    oracle = Theirs(tokenizer)
    oracle.loglikelihood(asked("loglikelihood", *TEXTS))
    for (context, answer), (prompt, tokens) in zip(TEXTS, oracle.pairs, strict=True):
        if not tokens:  # lm-eval has no answer left either, and would stop at an assertion
            with pytest.raises(ValueError, match="has no tokens behind its context"):
                encode_pair(tokenizer, context, answer, begin="none", max_positions=100, name="")
            continue
        found = encode_pair(tokenizer, context, answer, begin="none", max_positions=100, name="")
        assert (list(found.prompt), list(found.answer)) == (prompt, tokens)
        begun = encode_pair(tokenizer, context, answer, begin="text", max_positions=100, name="")
        assert begun.prompt == (tokenizer.bos_id, *(prompt if context else ())) and begun.answer == found.answer


def test_a_token_over_the_joint_is_noticed():
    bpe = load_tokenizer(zoo_folder("ar"))
    context, answer = "retu", "rn value of the"
    assert bpe.encode(context + answer)[: len(bpe.encode(context))] != bpe.encode(context)
    assert encode_pair(bpe, context, answer, begin="text", max_positions=50, name="").joined
    assert not encode_pair(bpe, "Return the", " list", begin="text", max_positions=50, name="").joined


def test_what_is_too_long_loses_its_left_end():
    tokenizer = Tokenizer()
    text = "abcdefgh"
    ids = tokenizer.encode(text)
    for positions in range(4, 12):
        pair = encode_pair(tokenizer, text[:5], text[5:], begin="text", max_positions=positions, name="")
        whole = [tokenizer.bos_id, *ids]
        assert [*pair.prompt, *pair.answer] == whole[-positions:] and list(pair.answer) == ids[5:]
        assert pair.num_cut == max(0, 9 - positions)
    for most in range(1, 10):
        prompt, num_cut = encode_context(tokenizer, text, begin="text", most=most)
        assert list(prompt) == [tokenizer.bos_id, *ids][-most:] and num_cut == max(0, 9 - most)
    assert encode_context(tokenizer, "", begin="none", most=5) == ((tokenizer.bos_id,), 0)
    with pytest.raises(ValueError, match="mine, document 3: an answer of 3 tokens leaves no room"):
        encode_pair(tokenizer, text[:5], text[5:], begin="text", max_positions=3, name="mine, document 3")
    with pytest.raises(ValueError, match="mine, document 3: the answer '' has no tokens"):
        encode_pair(tokenizer, text, "", begin="text", max_positions=30, name="mine, document 3")


@pytest.mark.parametrize(
    ("asked_for", "wanted"),
    [
        ({}, Generation()),
        ({"until": "x", "max_gen_toks": 5}, Generation(until=("x",), max_new_tokens=5)),
        ({"until": ["x", ""], "max_new_tokens": 7, "max_tokens": 9}, Generation(until=("x",), max_new_tokens=7)),
        ({"do_sample": False, "temperature": 0.7, "top_p": 0.9}, Generation()),
        ({"temperature": 0.7}, Generation(temperature=0.7)),
        ({"do_sample": True, "temperature": 1, "top_k": 3}, Generation(temperature=1.0, top_k=3)),
    ],
    ids=["nothing", "a string", "aliases", "greedy after all", "draws", "draws of three"],
)
def test_generation_as_tasks_ask_for_it(asked_for, wanted):
    assert Generation.of(asked_for, name="") == wanted


@pytest.mark.parametrize(
    ("asked_for", "words"),
    [
        ({"num_beams": 4}, "mine: generation_kwargs.num_beams=4 is no setting"),
        ({"do_sample": True}, "mine: generation_kwargs.do_sample=true at temperature 0"),
        ({"max_gen_toks": 0}, "mine: generation_kwargs.max_gen_toks=0 must be at least 1"),
        ({"max_tokens": "abc"}, "mine: generation_kwargs.max_tokens='abc' must be a whole number"),
        ({"temperature": "hot"}, "mine: generation_kwargs.temperature='hot' must be a number"),
        ({"temperature": math.nan}, "mine: generation_kwargs.temperature=nan must be a number"),
        ({"temperature": 1, "top_k": 2.5}, "mine: generation_kwargs.top_k=2.5 must be a whole number"),
        ({"until": [5]}, "mine: generation_kwargs.until has 5, which is no text; put it in quotes"),
    ],
    ids=["beams", "draws of nothing", "no tokens", "no length", "no temperature", "nan", "half a token", "a number"],
)
def test_generation_that_cannot_be(asked_for, words):
    with pytest.raises(ValueError, match=words):
        Generation.of(asked_for, name="mine")


def test_a_text_ends_before_its_stop_string_and_its_end():
    tokenizer = Tokenizer()
    ids = tokenizer.encode("one. two\nthree")
    stops = Generation(until=("\n", "."))
    assert text_of(tokenizer, ids, stops) == "one"
    assert text_of(tokenizer, ids, Generation()) == "one. two\nthree"
    assert text_of(tokenizer, [*ids[:2], tokenizer.eos_id, *ids[2:]], stops) == "on"
