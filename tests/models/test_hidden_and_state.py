"""What masks hide, against entries counted one by one; bytes of the state, against the tensors that change."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from models.shaped import forwards
from models.test_exactness import CONFIGS, SIZES, random_model, tokens
from torch import Tensor

from paradigms.models import operations
from paradigms.models.attention import AttentionConfig
from paradigms.models.config import ModelConfig
from paradigms.models.forward_pass import below_diagonal
from paradigms.models.layer_state import LayerState, SlotState
from paradigms.models.ring import RingState, band
from paradigms.models.sliding_attention import SlidingAttentionConfig
from paradigms.work import ForwardShape

PLAIN: dict[str, Any] = {**SIZES}
HEADS = AttentionConfig(num_heads=3, head_dim=8)
WINDOW = SlidingAttentionConfig(num_heads=3, head_dim=8, window=6)
ATTENDING = {
    "causal": ModelConfig(**PLAIN, block="A", attention=HEADS),
    "both ways": ModelConfig(**PLAIN, block="A", attention=HEADS, causal=False, noise="absorbing"),
    "by blocks": ModelConfig(**PLAIN, block="A", attention=HEADS, causal=False, noise="absorbing", canvas_block=5),
    "window": ModelConfig(**PLAIN, block="W", sliding_attention=WINDOW),
}


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", ATTENDING)
def test_hidden_pairs_are_those_that_the_masks_hide(monkeypatch, name, rows):
    """Of every call of torch's attention: all entries of its mask, counted."""
    config = ATTENDING[name]
    model, hidden = random_model(config, torch.float64), []
    plain = torch.nn.functional.scaled_dot_product_attention

    def watched(q: Tensor, k: Tensor, v: Tensor, *, attn_mask: Tensor | None, is_causal: bool, enable_gqa: bool):
        sees = torch.ones(q.shape[0], q.shape[2], k.shape[2], dtype=torch.bool)
        sees = sees.tril() if is_causal else sees if attn_mask is None else sees & attn_mask[:, 0]
        hidden.append(int((~sees).sum()) * 3 * 4 * 8)
        return plain(q, k, v, attn_mask=attn_mask, is_causal=is_causal, enable_gqa=enable_gqa)

    monkeypatch.setattr("torch.nn.functional.scaled_dot_product_attention", watched)
    for call, shape in forwards(model, rows, (13, 4, 7, 1, 2)):
        hidden.clear()
        with torch.enable_grad():  # no plan
            call()
        assert config.counts(shape, itemsize=8).hidden_flops == _seen_once_more(config, shape, sum(hidden)), shape


def _seen_once_more(config: ModelConfig, shape: ForwardShape, hidden: int) -> int:
    """Blocks of a window compute queries that pad the last one: what they see is thrown away as well."""
    if config.block != "W" or shape.seen != shape.tokens or shape.tokens < 12:
        return hidden
    padded = -(-shape.tokens // 6) * 6
    visible = int(band(shape.tokens, 6, torch.device("cpu")).sum()) * shape.rows
    every = padded * 12 * shape.rows * 96 * config.num_blocks
    assert hidden < every
    return every - visible * 96 * config.num_blocks


@pytest.mark.parametrize("start", range(0, 12, 3))
@pytest.mark.parametrize("window", [None, 1, 4, 30])
def test_pairs_below_a_diagonal(start, window):
    for stop in range(start + 1, 20):
        sees = sum(1 for i in range(start, stop) for j in range(i + 1) if window is None or i - j < window)
        assert below_diagonal(start, stop, window) == sees


@pytest.mark.parametrize("chunk_len", [1, 4, 32])
def test_chunks_are_as_few_and_as_short_as_can_be(chunk_len):
    for tokens_ in range(1, 100):
        length, chunks = operations.chunks_of(tokens_, chunk_len)
        assert length <= chunk_len and (chunks - 1) * chunk_len < tokens_ <= chunks * length < tokens_ + chunks


@pytest.mark.parametrize("tokens_", [1, 3, 8, 9, 16, 21])
@pytest.mark.parametrize("chunk_len", [1, 4, 8, 32])
@pytest.mark.parametrize("has_state", [False, True])
def test_hidden_products_of_chunks(tokens_, chunk_len, has_state):
    """Entry by entry: of C B^T and its product with u those of later tokens or for none; of the state those of none."""
    shared, inner, states = 6, 8, 3
    length, chunks = operations.chunks_of(tokens_, chunk_len)
    hidden = 0
    for chunk in range(chunks):
        for i in range(length):
            is_token = chunk * length + i < tokens_
            hidden += sum(2 * (shared + inner) for j in range(length) if j > i or not is_token)
            read_out, taken_in = has_state or chunk > 0, has_state or chunk < chunks - 1
            hidden += 0 if is_token else (read_out + taken_in) * 2 * inner * states
    sizes = {"tokens": tokens_, "chunk_len": chunk_len, "shared": shared, "inner": inner, "states": states}
    sizes["has_state"] = has_state
    assert operations.chunked_hidden(**sizes) == hidden
    assert hidden <= operations.chunked_products(**sizes)


def test_values_that_are_padded_are_hidden():
    latent = dataclasses.replace(CONFIGS["latent expanded at each step"].part("L"), value_dim=16)  # keys are 24 wide
    narrow = dataclasses.replace(CONFIGS["latent expanded at each step"], latent_attention=latent)
    wide = dataclasses.replace(narrow, latent_attention=dataclasses.replace(latent, value_dim=24))
    shape = ForwardShape(phase="prefill", rows=2, tokens=9, seen=9, logits=2)
    hidden = {config: config.counts(shape, itemsize=4).hidden_flops for config in (narrow, wide)}
    visible = 2 * 45 * latent.num_heads * narrow.num_blocks
    assert hidden[narrow] - hidden[wide] == 2 * 8 * visible


STATEFUL = {name: config for name, config in CONFIGS.items() if config.has_state or config.keeps_slots}


@pytest.mark.parametrize(
    ("name", "kv_dtype"),
    [(name, None) for name in STATEFUL] + [(name, "int8") for name in ("grouped-query", "window", "hymba", "zamba")],
)
def test_bytes_of_the_state_are_those_of_the_tensors_that_are_touched(name, kv_dtype):
    """A prompt, a chunk behind it, a token: slots that change are written, those that were filled are read; what is no
    slot a position is read and written whole, and so is a ring that several tokens come to.
    """
    config = STATEFUL[name]
    model = random_model(config, torch.float32)
    state, text, length = model.new_state(2, 40, kv_dtype=kv_dtype), tokens(model, 2, 40), 0
    for size in (9, 4, 1):
        layers = [part for layer in state.layers if layer is not None for part in getattr(layer, "both", [layer])]
        before = [[tensor.clone() for tensor in layer.tensors()] for layer in layers]
        read = sum(_read(layer, length, size) for layer in layers)
        model(text[:, length : length + size], state)
        shape = ForwardShape(
            phase="decode", rows=2, tokens=size, seen=length + size, kept=length, written=size, logits=2
        )
        counts = config.counts(shape, itemsize=4, kv_dtype=kv_dtype)
        assert counts.state_read_bytes == read
        assert counts.state_written_bytes == sum(
            _written(layer, old, length, size) for layer, old in zip(layers, before, strict=True)
        )
        length += size
    assert state.used_bytes == config.state_bytes(batch_size=2, length=length, itemsize=4, kv_dtype=kv_dtype)


def _is_replaced(layer: LayerState, length: int, size: int) -> bool:
    return isinstance(layer, RingState) and length > 0 and size > 1


def _read(layer: LayerState, length: int, size: int) -> int:
    whole = _is_replaced(layer, length, size) or not isinstance(layer, SlotState)
    return layer.allocated_bytes() if whole else layer.used_bytes([length, length])


def _written(layer: LayerState, before: list[Tensor], length: int, size: int) -> int:
    if _is_replaced(layer, length, size) or not isinstance(layer, SlotState):
        assert all((old != new).any() for old, new in zip(before, layer.tensors(), strict=True))
        return layer.allocated_bytes()
    total = 0
    for old, new in zip(before, layer.tensors(), strict=True):
        changed_SX = (old != new).movedim(layer.slot_dim, 0).flatten(1)
        assert changed_SX.any()
        total += int(changed_SX.any(1).sum()) * new.nbytes // new.shape[layer.slot_dim]
    return total
