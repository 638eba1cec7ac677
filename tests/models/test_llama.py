"""Llama and its relatives against `transformers`."""

from __future__ import annotations

import dataclasses

import pytest
from models.hf import check_equal_logits, check_there_and_back, native_of, random_transformers_model

from paradigms.models.attention import AttentionConfig
from paradigms.models.config import ModelConfig
from paradigms.models.families import family_of, family_of_native
from paradigms.models.rotary import RopeScaling
from paradigms.models.sliding_attention import SlidingAttentionConfig

SIZES = {"vocab_size": 60, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA = {"model_type": "llama", **SIZES, "num_key_value_heads": 2}
THREE = {**SIZES, "num_hidden_layers": 3, "num_key_value_heads": 2}
MIXED = {"use_sliding_window": True, "sliding_window": 7}
ROPE = {"rope_theta": 500.0, "factor": 4.0}
YARN = {**ROPE, "rope_type": "yarn", "original_max_position_embeddings": 16}
CONFIGS = {
    "multi-head": {"model_type": "llama", **SIZES, "num_key_value_heads": 4, "tie_word_embeddings": True},
    "grouped-query": {**LLAMA, "head_dim": 24},
    "multi-query": {**LLAMA, "num_key_value_heads": 1, "rms_norm_eps": 1e-3},
    "linear": {**LLAMA, "rope_parameters": {"rope_type": "linear", **ROPE}},
    "llama3": {
        **LLAMA,
        "rope_parameters": {
            **ROPE,
            "rope_type": "llama3",
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    },
    "yarn": {**LLAMA, "rope_parameters": YARN},
    "yarn, all said": {
        **LLAMA,
        "rope_parameters": {**YARN, "beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 1.4},
    },
    "yarn, DeepSeek's factor": {**LLAMA, "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5}},
    "mistral": {"model_type": "mistral", **SIZES, "num_key_value_heads": 2, "sliding_window": 9},
    "mistral, window of one": {"model_type": "mistral", **SIZES, "num_key_value_heads": 4, "sliding_window": 1},
    "mistral, wide": {"model_type": "mistral", **SIZES, "num_key_value_heads": 4, "sliding_window": 1000},
    "mistral, no window": {"model_type": "mistral", **SIZES, "num_key_value_heads": 2, "sliding_window": None},
    "qwen2": {"model_type": "qwen2", **SIZES, "num_key_value_heads": 2},
    "qwen2, last layers with a window": {"model_type": "qwen2", **THREE, **MIXED, "max_window_layers": 1},
    "qwen3": {"model_type": "qwen3", **SIZES, "num_key_value_heads": 2, "head_dim": 24},
    "qwen3, layers in turn": {
        "model_type": "qwen3",
        **THREE,
        **MIXED,
        "head_dim": 16,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_logits_are_those_of_transformers(config):
    theirs = random_transformers_model(config)
    native = native_of(theirs)
    check_equal_logits(theirs, native)
    check_there_and_back(theirs, native)


@pytest.mark.parametrize("name", ["linear", "llama3", "yarn", "yarn, all said", "yarn, DeepSeek's factor"])
def test_a_scaling_changes_the_logits(name):
    """So that the comparison above means something at this length."""
    theirs = random_transformers_model(CONFIGS[name])
    native = native_of(theirs)
    plain = random_transformers_model({**CONFIGS[name], "rope_parameters": {"rope_type": "default", **ROPE}})
    with pytest.raises(AssertionError):
        check_equal_logits(plain, native)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_parameters": {"rope_type": "dynamic", **ROPE}}, "dynamic"),
        ({"rope_parameters": {**YARN, "truncate": False}}, "truncate"),
        ({"rope_parameters": {"rope_theta": 500.0, "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"model_type": "mistral", "layer_types": ["full_attention", "sliding_attention"]}, "mistral"),
        ({"model_type": "qwen3", "layer_types": ["full_attention", "chunked_attention"]}, "chunked_attention"),
    ],
    ids=str,
)
def test_what_is_not_computed_is_refused(changes, words):
    config = random_transformers_model(LLAMA).config.to_dict() | changes
    family = family_of(config)
    assert family is not None
    with pytest.raises(ValueError, match=words):
        family.from_transformers(config)


@pytest.mark.parametrize(
    "changes",
    [
        {"attention": AttentionConfig(rope_theta=None)},
        {"attention": AttentionConfig(qkv_bias=True, qk_norm=True)},
        {"block": "AFWF"},
        {"block": "AFWF", "attention": AttentionConfig(qk_norm=True), "sliding_attention": SlidingAttentionConfig()},
        {"block": "AFA"},
        {"causal": False},
    ],
    ids=str,
)
def test_what_none_of_them_has_is_not_handed_out(changes):
    assert family_of_native(ModelConfig(vocab_size=50, **changes)) is None


def test_a_scaling_names_what_it_needs():
    with pytest.raises(ValueError, match=r"one of linear, llama3, yarn"):
        RopeScaling(kind="ntk", factor=2.0)
    with pytest.raises(ValueError, match=r"needs rope_scaling.original_max_positions"):
        RopeScaling(kind="yarn", factor=2.0)
    with pytest.raises(ValueError, match=r"beta_fast means nothing for kind=linear"):
        RopeScaling(kind="linear", factor=2.0, beta_fast=32.0)
    scaled = AttentionConfig(rope_scaling=RopeScaling(kind="linear", factor=2.0))
    with pytest.raises(ValueError, match="rope_theta"):
        ModelConfig(vocab_size=50, attention=dataclasses.replace(scaled, rope_theta=None))
    config = ModelConfig(vocab_size=50, attention=scaled)
    assert ModelConfig.from_dict(dataclasses.asdict(config)) == config
