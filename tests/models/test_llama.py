"""Llama and its relatives against `transformers`."""

from __future__ import annotations

import pytest
from models.hf import check_equal_logits, check_there_and_back, native_of, random_transformers_model

SIZES = {"vocab_size": 60, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
CONFIGS = {
    "multi-head": {"model_type": "llama", **SIZES, "num_key_value_heads": 4, "tie_word_embeddings": True},
    "grouped-query": {"model_type": "llama", **SIZES, "num_key_value_heads": 2, "head_dim": 24},
    "multi-query": {"model_type": "llama", **SIZES, "num_key_value_heads": 1, "rms_norm_eps": 1e-3},
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_logits_are_those_of_transformers(config):
    theirs = random_transformers_model(config)
    native = native_of(theirs)
    check_equal_logits(theirs, native)
    check_there_and_back(theirs, native)
