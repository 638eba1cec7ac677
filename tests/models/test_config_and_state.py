"""Counts by formula equal the tensors; impossible configs say why."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

from paradigms.models.attention import AttentionConfig
from paradigms.models.config import ModelConfig
from paradigms.models.experts import ExpertsConfig
from paradigms.models.latent_attention import LatentAttentionConfig
from paradigms.models.mamba import MambaConfig
from paradigms.models.mamba2 import Mamba2Config
from paradigms.models.mamba3 import Mamba3Config
from paradigms.models.parallel_heads import ParallelHeadsConfig
from paradigms.models.shared_attention import SharedAttentionConfig
from paradigms.models.sliding_attention import SlidingAttentionConfig

BASE = {"vocab_size": 50, "d_model": 64, "max_positions": 64}
VARIANTS = [
    {"block": "AF"},
    {"block": "AF", "attention": AttentionConfig(num_kv_heads=1)},
    {"block": "AF", "attention": AttentionConfig(num_heads=8, num_kv_heads=2)},
    {"block": "AF", "attention": AttentionConfig(qkv_bias=True, qk_norm=True, head_dim=12)},
    {"block": "WF", "sliding_attention": SlidingAttentionConfig(window=11, num_kv_heads=2)},
    {"block": "WAM", "sliding_attention": SlidingAttentionConfig(window=1, qk_norm=True)},
    {"block": "M"},
    {"block": "M", "mamba2": Mamba2Config(num_groups=2, d_state=12, head_dim=16, d_conv=3)},
    {"block": "M", "mamba2": Mamba2Config(d_inner=96, head_dim=16, conv_bias=False, norm=None)},
    {"block": "M", "mamba2": Mamba2Config(proj_bias=True)},
    {"block": "T"},
    {"block": "T", "mamba3": Mamba3Config(num_groups=2, d_state=10, head_dim=16, rope_fraction=1.0)},
    {"block": "MAF"},
    {"block": "S"},
    {"block": "S", "mamba": MambaConfig(d_inner=40, d_state=3, d_conv=3, dt_rank=5, conv_bias=False, proj_bias=True)},
    {"block": "SF", "mamba": MambaConfig(inner_norms="plain")},
    {"block": "SEAF", "num_blocks": 1, "attention": AttentionConfig(rope_theta=None)},
    {"block": "SZZ", "shared_attention": SharedAttentionConfig(num_heads=8, num_kv_heads=2, head_dim=6, width=40)},
    {"block": "SFWF", "num_blocks": 1},
    {"block": "S", "mamba": MambaConfig(num_groups=4, d_state=8)},
    {"block": "PP", "parallel_heads": ParallelHeadsConfig(num_kv_heads=1, window=11, global_layers=(0,))},
    {"block": "P", "parallel_heads": ParallelHeadsConfig(rope_theta=None, mamba=MambaConfig(expand=1))},
    {"block": "SA", "mamba": MambaConfig(inner_norms="weighted", inner_norm_eps=1e-6)},
    {"block": "LF"},
    {"block": "LF", "latent_attention": LatentAttentionConfig(form="latent", q_rank=24, value_dim=20)},
    {"block": "LF", "latent_attention": LatentAttentionConfig(form="expanded", num_heads=3, rope_dim=8)},
    {"block": "AFAE"},
    {"block": "AE", "experts": ExpertsConfig(width=24, top_k=3, num_shared=2, shared_width=16, shared_gate=True)},
    {"block": "AF", "causal": False, "noise": "absorbing"},
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_parameters_by_formula_are_the_tensors(variant):
    config = ModelConfig(**BASE, **variant)
    assert config.num_parameters() == sum(parameter.numel() for parameter in config.build().parameters())


@pytest.mark.parametrize(
    ("variant", "dtype"),
    list(
        itertools.product(
            [v for v in VARIANTS if v.get("causal", True)], [torch.float64, torch.float32, torch.bfloat16]
        )
    ),
    ids=str,
)
def test_state_bytes_by_formula_are_the_tensors(variant, dtype):
    config = ModelConfig(**BASE, **variant)
    model = config.build().to(dtype)
    state = model.new_state(3, 40)
    model(torch.randint(0, 50, (3, 17)), state)
    model(torch.randint(0, 50, (3, 1)), state)
    assert state.used_bytes == config.state_bytes(batch_size=3, length=18, itemsize=dtype.itemsize)
    assert state.allocated_bytes == config.state_bytes(batch_size=3, length=40, itemsize=dtype.itemsize)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "variant", [v for v in VARIANTS if set(v["block"]) & set("AWPZ") and v.get("causal", True)], ids=str
)
def test_state_bytes_in_eight_bits_are_the_tensors(variant, dtype):
    config = ModelConfig(**BASE, **variant)
    state = config.build().to(dtype).new_state(3, 40, kv_dtype="int8")
    for length in (18, 40):
        state.advance([length - state.lengths[0]] * 3)
        formula = config.state_bytes(batch_size=3, length=length, itemsize=dtype.itemsize, kv_dtype="int8")
        assert state.used_bytes == formula
    assert state.allocated_bytes == formula


def test_kv_bytes_are_two_layers_length_heads_width():
    config = ModelConfig(**BASE, block="AF", num_blocks=3, attention=AttentionConfig(num_heads=8, num_kv_heads=2))
    assert config.state_bytes(batch_size=5, length=7, itemsize=4) == 2 * 3 * 7 * 2 * 8 * 5 * 4


def test_ssm_state_is_constant_in_length():
    config = ModelConfig(**BASE, block="M")
    sizes = {config.state_bytes(batch_size=1, length=length, itemsize=4) for length in (1, 10, 60)}
    assert len(sizes) == 1


@pytest.mark.parametrize("variant", [{"block": "AF"}, {"block": "M", "num_blocks": 8}, {"block": "AFM"}], ids=str)
@pytest.mark.parametrize("target", [1_200_000, 1_700_000])
def test_widths_are_solved_for_a_parameter_count(variant, target):
    config = ModelConfig(vocab_size=2048, target_parameters=target, **variant)
    assert abs(config.num_parameters() - target) <= 0.01 * target


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"block": "AX"}, ["model.block", "AX", "attention"]),
        ({"block": ""}, ["model.block"]),
        ({"attention": AttentionConfig(num_heads=5)}, ["d_model=64", "num_heads=5"]),
        ({"attention": AttentionConfig(num_kv_heads=0)}, ["num_kv_heads=0", "at least 1"]),
        ({"attention": AttentionConfig(head_dim=0)}, ["head_dim=0", "at least 1"]),
        ({"block": "AE", "experts": ExpertsConfig(width=0)}, ["model.experts.width=0", "at least 1"]),
        ({"attention": AttentionConfig(num_kv_heads=3)}, ["num_kv_heads=3", "num_heads=4"]),
        ({"block": "M", "mamba2": Mamba2Config(head_dim=48)}, ["head_dim=48", "128"]),
        ({"block": "AF", "mamba2": Mamba2Config()}, ["model.mamba2", "AF", "leave it out"]),
        ({"block": "M", "causal": False}, ["model.causal=true"]),
        ({"noise": "absorbing"}, ["model.causal=false"]),
        ({"noise": "salt", "causal": False}, ["salt", "absorbing"]),
        ({"shift_logits": True}, ["shift_logits"]),
        ({"num_blocks": 0}, ["num_blocks=0", "at least 1"]),
        ({"target_parameters": 100}, ["target_parameters=100", "out of reach"]),
    ],
    ids=str,
)
def test_impossible_configs_say_why(changes, words):
    with pytest.raises(ValueError) as error:
        ModelConfig(**{**BASE, **changes})
    for word in words:
        assert word in str(error.value)


def test_positions_beyond_the_limit_are_refused():
    model = ModelConfig(**BASE).build()
    with pytest.raises(ValueError, match=r"65 positions.*64"):
        model(torch.zeros(1, 65, dtype=torch.long))
    with pytest.raises(ValueError, match="max_positions=64"):
        model.new_state(1, 65)
    state = model.new_state(1, 8)
    model(torch.zeros(1, 8, dtype=torch.long), state)
    with pytest.raises(ValueError, match="9 positions"):
        model(torch.zeros(1, 1, dtype=torch.long), state)


def test_a_denoiser_is_cached_only_where_layers_keep_a_slot_a_position():
    config = ModelConfig(**BASE, causal=False, noise="absorbing")
    state = config.build().new_state(1, 10)
    state.advance([10])
    assert state.used_bytes == config.state_bytes(batch_size=1, length=10, itemsize=4)
    with pytest.raises(ValueError, match="decode it uncached"):
        dataclasses.replace(config, block="LF", attention=None).build().new_state(1, 8)
