"""Attention's options: keys and values in 8 bits, and operators that an option which is off does not add."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models.test_exactness import random_model, tokens, trained_model
from models.test_state import read
from torch.utils._python_dispatch import TorchDispatchMode

from paradigms import zoo
from paradigms.models.attention import AttentionConfig
from paradigms.models.config import ModelConfig
from paradigms.models.kv_cache import dequantise, quantise
from paradigms.models.rotary import RopeScaling
from paradigms.models.sliding_attention import SlidingAttentionConfig

SIZES = {"vocab_size": 50, "d_model": 64, "num_blocks": 2, "max_positions": 64}
GROUPED = AttentionConfig(num_kv_heads=2)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 1000),
    size=st.sampled_from([0.0, 1e-30, 1e-3, 1.0, 1e4]),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
)
def test_eight_bits_are_wrong_by_at_most_half_a_scale(seed, size, dtype):
    generator = torch.Generator().manual_seed(seed)
    k, v = (torch.randn(2, 3, 4, 16, generator=generator, dtype=torch.float64).mul(size).to(dtype) for _ in range(2))
    exact, stored = torch.cat((k, v), 1).double(), quantise(k, v)
    assert [one.dtype for one in stored] == [torch.int8, dtype]
    numbers, scale = (one.double() for one in stored)
    assert ((exact - numbers * scale).abs() <= scale * (0.5 + 1e-6)).all()
    assert ((numbers.abs() == 127).any(-1) | (exact == 0).all(-1)).all(), "the largest uses the whole range"
    read_back = torch.cat(dequantise(*stored), 1)
    assert read_back.dtype == dtype
    torch.testing.assert_close(read_back.double(), numbers * scale, rtol=torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("block", ["AF", "WF", "AWM"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_cache_in_eight_bits_says_nearly_the_same(block, dtype):
    """Logits within 5 % of the largest on random weights, and not the same; bytes are those of the formula."""
    config = ModelConfig(
        **SIZES, block=block, sliding_attention=SlidingAttentionConfig(window=9) if "W" in block else None
    )
    model = random_model(config, dtype)
    text = tokens(model, 3, 40)
    state, exact = model.new_state(3, 40, kv_dtype="int8"), model.new_state(3, 40)
    for part in (text[:, :30], text[:, 30:31], text[:, 31:39], text[:, 39:]):
        logits, want = model(part, state).double(), model(part, exact).double()
        error = (logits - want).abs().max() / want.abs().max()
        assert 0 < error < 0.05
    formula = config.state_bytes(batch_size=3, length=40, itemsize=dtype.itemsize, kv_dtype="int8")
    assert state.used_bytes == formula < exact.used_bytes
    assert state.allocated_bytes == formula


@pytest.mark.skipif("ar" not in zoo.names(), reason="the zoo has no Transformer")
def test_eight_bits_hardly_change_what_a_trained_model_says():
    """Of its own text: less than a thousandth of a nat a token between the two distributions."""
    model = trained_model("ar", torch.float32)
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode():
        text, written = tokens(model, 2, 1), model.new_state(2, 64)
        for _ in range(64):
            probability = model(text[:, -1:], written)[:, 0].softmax(-1)
            text = torch.cat((text, torch.multinomial(probability, 1, generator=generator)), 1)
        exact, eight = (
            model(text, model.new_state(2, 65, kv_dtype=kv_dtype)).double().log_softmax(-1)
            for kv_dtype in (None, "int8")
        )
    divergence = (exact.exp() * (exact - eight)).sum(-1).mean()
    assert 0 < divergence < 1e-3


def test_bytes_in_eight_bits_are_one_a_number_and_a_scale_a_token_and_head():
    config = ModelConfig(**SIZES, attention=GROUPED)
    formula = config.state_bytes(batch_size=5, length=7, itemsize=4, kv_dtype="int8")
    assert formula == 5 * 7 * 2 * 2 * 2 * (16 + 4)  # rows, tokens, layers, k and v, heads x (width + scale)


def test_a_tree_is_kept_in_eight_bits_too():
    model = random_model(ModelConfig(**SIZES, attention=GROUPED), torch.float64)
    text = tokens(model, 1, 20)
    state = model.new_state(1, 30, kv_dtype="int8")
    read(model, [text[0, :9]], state)
    mark = state.mark()
    sees = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]], dtype=torch.bool)
    model(text[:, 9:12], state, positions_BT=torch.tensor([9, 10, 10]), among_BTT=sees)
    state.keep(mark, [[0, 2]])
    alone = model.new_state(1, 30, kv_dtype="int8")
    read(model, [torch.cat((text[0, :10], text[0, 11:12]))], alone)
    assert (model(text[:, 12:13], state) - model(text[:, 12:13], alone)).abs().max() < 1e-10


def test_what_cannot_be_kept_in_eight_bits_is_refused():
    model = ModelConfig(**SIZES).build()
    with pytest.raises(ValueError, match=r"kv_dtype='int4' is unknown.*int8"):
        model.new_state(1, 8, kv_dtype="int4")
    with pytest.raises(ValueError, match=r"kv_dtype=int8.*block='M' has no layer of keys and values"):
        ModelConfig(**SIZES, block="M").build().new_state(1, 8, kv_dtype="int8")


class Operators(TorchDispatchMode):
    """Counts torch operators."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def operators(attention: AttentionConfig, num_tokens: int) -> int:
    """Of one forward after five tokens."""
    model = random_model(ModelConfig(**SIZES, attention=attention), torch.float32)
    state = read(model, [tokens(model, 1, 5)[0]])
    with Operators() as counted:
        model(tokens(model, 1, num_tokens), state)
    return counted.count


def test_options_that_are_off_cost_no_operator():
    """Scaled frequencies live in the table, a bias is added by the product; only a norm adds operators."""
    plain = operators(AttentionConfig(), 7)
    scaled = AttentionConfig(rope_scaling=RopeScaling(kind="yarn", factor=2.0, original_max_positions=32))
    assert operators(scaled, 7) == operators(AttentionConfig(qkv_bias=True), 7) == plain
    assert operators(AttentionConfig(qk_norm=True), 7) > plain
    assert operators(scaled, 1) == operators(AttentionConfig(), 1)
