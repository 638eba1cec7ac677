"""Bits by position against the exact curve of a known process, and against the sum over all positions."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from data.processes.source_models import SourceDenoiser, SourceModel

from paradigms.data.pairs import PairRows
from paradigms.data.processes.markov import Markov
from paradigms.data.processes.process import entropy_bits
from paradigms.data.stream import EvaluationWindows
from paradigms.data.symbols import SymbolTokenizer
from paradigms.models.config import ModelConfig
from paradigms.quality.by_position import buckets, by_position, column_nats
from paradigms.quality.likelihood import evaluate

PROCESS = Markov(
    order=2,
    alphabet=4,
    document_len=20,
    num_train_documents=10,
    num_validation_documents=10,
    num_heldout_documents=1500,
)


def rows(process, count=None):
    corpus, tokenizer = process.load(), SymbolTokenizer(process.letters, "")
    return PairRows.of(corpus, tokenizer, "heldout").windows(process.row_tokens, count=count), tokenizer


def exact_curve(process) -> np.ndarray:
    """H(x_t | x_<t) in bits for each letter [T]."""
    return process.masses(process.document_len) @ entropy_bits(process.emission_SA)


def test_buckets_double():
    assert list(buckets(1)) == [(1, 1)]
    assert list(buckets(21)) == [(1, 1), (2, 3), (4, 7), (8, 15), (16, 21)]
    assert [n for first, last in buckets(100) for n in range(first, last + 1)] == list(range(1, 101))


def test_the_curve_of_a_source_that_is_its_own_model():
    windows, tokenizer = rows(PROCESS)
    found = by_position(SourceModel(PROCESS), windows, tokenizer.token_bytes, mask_id=2)
    assert [(each.first, each.last) for each in found] == list(buckets(21))
    curve = exact_curve(PROCESS)
    assert curve[0] > curve[1] + 0.1 > curve[2] + 0.2, "or this test could not fail"
    np.testing.assert_allclose(curve[2:], curve[2])
    for each in found:
        letters = range(each.first, min(each.last, 20) + 1)  # column 21 is the end, certain and without bytes
        expected = np.mean([curve[column - 1] for column in letters])
        assert abs(each.bits_per_byte.value - expected) < 4 * each.bits_per_byte.se
        assert each.bits_per_byte.se < 0.05 and each.bits_per_byte.count == 1500
        assert (each.num_bytes, each.is_bound) == (1500 * len(letters), False)


def test_a_model_that_looks_back_too_little_is_seen_where_it_does():
    """The source of order 1 with the same pairs: right for two letters, then too dear."""
    pairs = PROCESS.pair_probabilities(1, 20)
    shorter = dataclasses.replace(PROCESS, order=1)
    shorter.__dict__["rows_CA"] = pairs / pairs.sum(1, keepdims=True)
    windows, tokenizer = rows(PROCESS)
    own, true = (
        by_position(SourceModel(process), windows, tokenizer.token_bytes, mask_id=2) for process in (shorter, PROCESS)
    )
    gaps = [a.bits_per_byte.value - b.bits_per_byte.value for a, b in zip(own, true, strict=True)]
    assert abs(gaps[0]) < 1e-6 and min(gaps[2:]) > 5 * max(each.bits_per_byte.se for each in true)


def test_an_exact_denoiser_costs_in_all_what_the_source_does():
    """5 letters and their end: every mask is read, so nothing is left to chance."""
    process = Markov(order=1, alphabet=2, document_len=5)
    letters_NT = np.array(list(itertools.product(range(2), repeat=5)))[::3]
    windows = EvaluationWindows(
        tokens_NT=np.pad(letters_NT + 3, ((0, 0), (1, 1)), constant_values=((0, 0), (0, 1))),
        lengths_N=np.full(len(letters_NT), 7),
        first_scored_N=np.ones(len(letters_NT), np.int64),
    )
    nats_NT, is_bound = column_nats(SourceDenoiser(process), windows, mask_id=2, num_masks=63)
    true_NT = -process.log_likelihoods(letters_NT)
    np.testing.assert_allclose(nats_NT.sum(1), true_NT.sum(1), rtol=1e-9)
    assert is_bound and not np.allclose(nats_NT[:, 1:-1], true_NT, rtol=0.05), "by position it is another order"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"causal": False, "noise": "absorbing", "shift_logits": True},
        {"causal": False, "noise": "absorbing", "canvas_block": 4},
    ],
    ids=["causal", "denoiser", "blocks"],
)
def test_all_positions_together_are_the_likelihood(changes):
    config = ModelConfig(vocab_size=12, d_model=16, num_blocks=1, max_positions=16, **changes)
    model = config.build().double().train()
    rng = np.random.default_rng(0)
    windows = EvaluationWindows(
        tokens_NT=rng.integers(3, 12, (6, 13)),
        lengths_N=np.array([13, 13, 9, 13, 13, 12]),
        first_scored_N=np.array([1, 1, 1, 5, 1, 1]),
    )
    token_bytes = [b"x"] * 12
    whole = evaluate(model, windows, token_bytes, mask_id=2, num_masks=4)
    found = by_position(model, windows, token_bytes, mask_id=2, num_masks=4, batch_size=5)
    assert model.training
    bits = sum(each.bits_per_byte.value * each.num_bytes for each in found)
    assert bits / whole.num_bytes == pytest.approx(whole.bits_per_byte, rel=1e-6)
    assert sum(each.num_tokens for each in found) == whole.num_tokens
    assert {each.is_bound for each in found} == {whole.is_bound}


def test_errors_say_what_to_do():
    windows, tokenizer = rows(PROCESS, 3)
    model = SourceModel(PROCESS)
    model.config.max_positions = 8
    with pytest.raises(ValueError, match=r"model\.max_positions=8"):
        by_position(model, windows, tokenizer.token_bytes, mask_id=2)
    with pytest.raises(ValueError, match="mask_id=None"):
        by_position(SourceDenoiser(PROCESS), windows, tokenizer.token_bytes, mask_id=None)
