"""Sliding windows: the ring against a plain band of attention, blocks against the mask, bytes that stop growing."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models.test_exactness import assert_close, random_model, tokens
from models.test_state import assert_same_future, read

from paradigms.models.attention import AttentionConfig
from paradigms.models.config import ModelConfig
from paradigms.models.ring import band
from paradigms.models.sliding_attention import SlidingAttention, SlidingAttentionConfig
from paradigms.models.span import device_span
from paradigms.models.state import GROWTH

SIZES = {"vocab_size": 50, "d_model": 32, "num_blocks": 2, "max_positions": 400}


def model_of(window: int, *, dtype: torch.dtype = torch.float64, block: str = "WF", **changes) -> torch.nn.Module:
    sliding = SlidingAttentionConfig(**{"window": window, "num_heads": 4, "num_kv_heads": 2, **changes})
    return random_model(ModelConfig(**SIZES, block=block, sliding_attention=sliding), dtype)


def one_layer(window: int) -> SlidingAttention:
    return model_of(window, block="W").layers[0].mixer


def test_a_layer_is_softmax_over_the_last_window_by_the_definition():
    """A loop over tokens and heads: scores of the positions i - window + 1 .. i, softmax, weighted sum of values."""
    window, T = 5, 17
    model = model_of(window, block="W", rope_theta=None)
    layer = model.layers[0].mixer
    H, K, D = layer.num_heads, layer.num_kv_heads, layer.head_dim
    x_TE = torch.randn(T, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    q, k, v = (x_TE @ layer.qkv).split((H * D, K * D, K * D), -1)
    expected = torch.zeros(T, H, D, dtype=torch.float64)
    for i in range(T):
        for h in range(H):
            shared = h * K // H
            seen = range(max(0, i - window + 1), i + 1)
            scores = [float(q.view(T, H, D)[i, h] @ k.view(T, K, D)[j, shared]) / math.sqrt(D) for j in seen]
            total = sum(math.exp(score) for score in scores)
            for j, score in zip(seen, scores, strict=True):
                expected[i, h] += math.exp(score) / total * v.view(T, K, D)[j, shared]
    caught = {}
    layer.register_forward_pre_hook(lambda _, arguments: (x_TE, *arguments[1:]))
    layer.register_forward_hook(lambda *arguments: caught.update(y=arguments[2]))
    model(tokens(model, 1, T))
    assert_close(caught["y"], expected.reshape(T, -1) @ layer.out)


@settings(max_examples=30, deadline=None)
@given(
    window=st.integers(1, 9),
    chunks=st.lists(st.integers(1, 24), min_size=1, max_size=5),
    static=st.booleans(),
    kv_dtype=st.sampled_from([None, "int8"]),
)
def test_any_chunks_are_the_whole(window, chunks, static, kv_dtype):
    """In 8 bits too: a token's numbers do not depend on what it came with, so only rounding at a half could differ."""
    model = model_of(window)
    tokens_BT = tokens(model, 2, sum(chunks))
    form = "static" if static else "growing"
    state = model.new_state(2, sum(chunks), form=form, kv_dtype=kv_dtype)
    whole = model.new_state(2, sum(chunks), kv_dtype=kv_dtype)
    want = model(tokens_BT) if kv_dtype is None else model(tokens_BT, whole)
    start = 0
    for size in chunks:
        looked = model(tokens_BT[:, start : start + size], state, write="none")
        logits = model(tokens_BT[:, start : start + size], state)
        assert_close(looked, logits)
        assert_close(logits, want[:, start : start + size])
        start += size


@settings(max_examples=25, deadline=None)
@given(
    window=st.integers(1, 9),
    before=st.lists(st.integers(1, 20), min_size=3, max_size=3),
    steps=st.lists(st.lists(st.integers(0, 8), min_size=3, max_size=3).filter(any), min_size=1, max_size=4),
    data=st.data(),
)
def test_ragged_rows_go_forward_and_back(window, before, steps, data):
    """Rows of any lengths bring any numbers of tokens, none included, and each goes back by its own."""
    model = model_of(window)
    text = tokens(model, 3, 80)
    state = read(model, [text[row, :length] for row, length in enumerate(before)])
    mark, ends = state.mark(), list(before)
    for step in steps:
        read(model, [text[row, end : end + step[row]] for row, end in enumerate(ends)], state)
        ends = [end + new for end, new in zip(ends, step, strict=True)]
    kept = [data.draw(st.integers(0, end - start)) for start, end in zip(before, ends, strict=True)]
    state.rollback(mark, kept)
    assert_same_future(model, state, [text[row, : before[row] + kept[row]] for row in range(3)])


def test_a_mark_outlives_growth():
    """The ring grows from GROWTH slots to its window between a mark and the way back."""
    model = model_of(GROWTH + 50)
    text = tokens(model, 1, GROWTH + 100)[0]
    state = model.new_state(1, 2 * GROWTH)
    read(model, [text[: GROWTH - 3]], state)
    mark = state.mark()
    read(model, [text[GROWTH - 3 : GROWTH + 70]], state)
    state.rollback(mark, [9])
    assert_same_future(model, state, [text[: GROWTH + 6]])


def test_rows_of_rings_of_different_sizes_meet():
    model = model_of(GROWTH + 50)
    text = tokens(model, 3, GROWTH + 40)
    long = model.new_state(1, 2 * GROWTH)
    read(model, [text[0, : GROWTH + 20]], long)
    state = model.new_state(2, 2 * GROWTH)
    read(model, [text[1, :30], text[2, :7]], state)
    state.insert(long)
    short = model.new_state(1, 2 * GROWTH)
    read(model, [text[2, :11]], short)
    state.insert(short, at=[0])
    assert_same_future(model, state, [text[2, :11], text[2, :7], text[0, : GROWTH + 20]])


@pytest.mark.parametrize("kv_dtype", [None, "int8"])
def test_a_step_placed_on_the_device_is_the_step(kv_dtype):
    """Rows before, at and far beyond a full ring; tensors stay where they are."""
    model = model_of(6)
    text = tokens(model, 3, 40)
    before = [2, 5, 23]
    states = [model.new_state(3, 40, form="static", kv_dtype=kv_dtype) for _ in range(2)]
    for state in states:
        read(model, [text[row, :length] for row, length in enumerate(before)], state)
    ours, reference = states
    places = [tensor.data_ptr() for layer in ours.layers if layer for tensor in layer.tensors()]
    for step in range(9):
        token_B1 = torch.stack([text[row, length + step] for row, length in enumerate(before)])[:, None]
        span = device_span(model.tables, ours.lengths_B, 40)
        hidden = model.through_layers(token_B1, span, ours.layers)
        ours.advance([1, 1, 1])
        looked = model.span_of(token_B1, reference)
        assert_close(hidden, model.through_layers(token_B1, looked, reference.layers))
        reference.advance([1, 1, 1])
    assert places == [tensor.data_ptr() for layer in ours.layers if layer for tensor in layer.tensors()]


@pytest.mark.parametrize("kv_dtype", [None, "int8"])
def test_one_token_at_a_time_can_be_taken_back(kv_dtype):
    model = model_of(6)
    text = tokens(model, 1, 40)
    with torch.inference_mode():
        state, straight = (model.new_state(1, 40, kv_dtype=kv_dtype) for _ in range(2))
        for start in range(20):
            model(text[:, start : start + 1], state)
        mark = state.mark()
        for start in range(20, 31):
            model(text[:, start : start + 1], state)
        state.rollback(mark, [4])
        model(text[:, :24], straight)
        for start in range(24, 40):
            assert_close(model(text[:, start : start + 1], state), model(text[:, start : start + 1], straight))


@pytest.mark.parametrize("length", [10, 11, 24, 25, 37])
@pytest.mark.parametrize("window", [1, 4, 5])
def test_blocks_are_the_band(window, length):
    layer = one_layer(window)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(3, heads, length, 8, dtype=torch.float64, generator=generator) for heads in (4, 2, 2))
    assert_close(layer.blocked(q, k, v), layer.attend(q, k, v, band(length, window, q.device)[None, None]))


def test_a_window_beyond_the_text_is_plain_attention():
    model = model_of(1000)
    attention = AttentionConfig(num_heads=4, num_kv_heads=2)
    plain = random_model(ModelConfig(**SIZES, block="AF", attention=attention), torch.float64)
    tokens_BT = tokens(model, 2, 30)
    assert torch.equal(model(tokens_BT), plain(tokens_BT))


def test_a_token_sees_the_window_and_no_further():
    """Of one layer: changing the token `window` before leaves the logits as they are, one later changes them."""
    model = random_model(
        ModelConfig(**{**SIZES, "num_blocks": 1}, block="W", sliding_attention=SlidingAttentionConfig(window=6)),
        torch.float64,
    )
    tokens_BT = tokens(model, 1, 20)
    for distance, sees in ((6, False), (5, True)):
        changed_BT = tokens_BT.clone()
        changed_BT[0, 19 - distance] = (changed_BT[0, 19 - distance] + 1) % 50
        difference = (model(tokens_BT)[0, 19] - model(changed_BT)[0, 19]).abs().max()
        assert (difference > 1e-6) == sees


@pytest.mark.parametrize("kv_dtype", [None, "int8"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_bytes_stop_growing_at_the_window(dtype, kv_dtype):
    model = model_of(20, dtype=dtype)
    size = dtype.itemsize
    a_slot = 2 * 2 * 2 * (8 * size if kv_dtype is None else 8 + size)  # layers, k and v, heads, width
    text = tokens(model, 2, 60)
    state = model.new_state(2, 60, kv_dtype=kv_dtype)
    for start in range(0, 60, 4):
        model(text[:, start : start + 4], state)
        filled = 2 * min(start + 4, 20) * a_slot
        formula = model.config.state_bytes(batch_size=2, length=start + 4, itemsize=size, kv_dtype=kv_dtype)
        assert state.used_bytes == formula == filled
        assert state.allocated_bytes == 2 * 20 * a_slot


def test_a_window_needs_a_causal_model_and_a_place():
    with pytest.raises(ValueError, match=r"sliding_attention layers \(W\), which only run forwards"):
        ModelConfig(**SIZES, block="WF", causal=False)
    with pytest.raises(ValueError, match=r"model.sliding_attention.window=0 must be at least 1"):
        ModelConfig(**SIZES, block="WF", sliding_attention=SlidingAttentionConfig(window=0))
    with pytest.raises(ValueError, match=r"model.sliding_attention.num_kv_heads=3"):
        ModelConfig(**SIZES, block="WF", sliding_attention=SlidingAttentionConfig(num_kv_heads=3))


@pytest.mark.gpu
@pytest.mark.parametrize("kv_dtype", [None, "int8"])
def test_a_window_computes_the_same_on_a_gpu(kv_dtype):
    """In blocks, in a chunk and by token; rounding in 8 bits may fall the other way, so those are held more loosely."""
    model = model_of(6, dtype=torch.float32)
    text = tokens(model, 2, 40)
    want = model(text, model.new_state(2, 40, kv_dtype=kv_dtype))
    model.cuda()
    state = model.new_state(2, 40, kv_dtype=kv_dtype)
    parts = [text[:, :20], text[:, 20:29], *text[:, 29:].split(1, 1)]
    logits = torch.cat([model(part.cuda(), state) for part in parts], 1).cpu()
    tolerance = 1e-2 if kv_dtype is None else 5e-2
    torch.testing.assert_close(logits, want, rtol=tolerance, atol=tolerance)
