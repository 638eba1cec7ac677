"""The state of a prediction against what decoders say they keep; slots of planned and noted forwards add up."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import tiny

from paradigms.costs.prediction import predict
from paradigms.data.tokenizers import ByteTokenizer
from paradigms.decoding.autoregressive import Autoregressive
from paradigms.decoding.diffusion.caches.block import BlockCache
from paradigms.decoding.diffusion.caches.dual import DualCache
from paradigms.decoding.diffusion.caches.none import NoCache
from paradigms.decoding.diffusion.caches.prefix import PrefixCache
from paradigms.decoding.diffusion.decoder import MaskedDiffusion
from paradigms.decoding.diffusion.samplers.random import Random
from paradigms.measure.ledger import Ledger
from paradigms.paradigm import Request
from paradigms.work import BatchShape

VOCABULARY = ByteTokenizer().load(tiny.corpus())
BATCH = BatchShape(rows=2, prompt_len=6, output_len=10)


class Device:
    """One that takes its time."""

    name, memory_bytes, spread = "made up", 2**30, None

    def forward_s(self, model: Any, shape: Any, *, dtype: str, execution: str) -> float:
        return 1.0

    def decoder_s(self, decoder: Any, vocab_size: int, shape: Any, batch: Any) -> float:
        return 1.0

    def bound_by(self, model: Any, shape: Any, *, dtype: str, execution: str) -> str:
        return "overhead"


def masked(cache: Any, *, steps: str = "L/2", block_len: int | None = 4) -> MaskedDiffusion:
    return MaskedDiffusion(sampler=Random(steps=steps), cache=cache, block_len=block_len)


CELLS = {
    "ar": ("ar", Autoregressive(), {}),
    "ar without a cache": ("ar", Autoregressive(cache="none"), {}),
    "ssm": ("ssm", Autoregressive(), {}),
    "none": ("diffusion", masked(NoCache()), {}),
    "prefix": ("diffusion", masked(PrefixCache()), {}),
    "prefix, read again": ("diffusion", masked(PrefixCache(refresh_every=2), steps="L"), {}),
    "dual": ("diffusion", masked(DualCache()), {}),
    "block": ("diffusion", masked(BlockCache()), {"canvas_block": 4}),
    "block, one look each": ("diffusion", masked(BlockCache(), steps="L/3"), {"canvas_block": 4}),
}


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("name", CELLS)
def test_state_is_what_decoders_keep(name, shift):
    kind, decoder, changes = CELLS[name]
    config = dataclasses.replace(tiny.MODELS[kind], **changes)
    if not config.causal:
        config = dataclasses.replace(config, shift_logits=shift)
    model = tiny.random_model(config).eval().requires_grad_(False)
    ledger = Ledger()
    requests = [
        Request(id=str(row), prompt=(VOCABULARY.bos_id,) * BATCH.prompt_len, max_new_tokens=BATCH.output_len, seed=row)
        for row in range(BATCH.rows)
    ]
    told = [
        event.state().used if event.state is not None else 0
        for event in ledger.of(decoder.decode(ledger.noting(model), requests, VOCABULARY))
    ]
    assert predict(config, decoder, BATCH, Device(), dtype="float64").state_bytes == max(told)
    for shape in [*ledger.shapes, *decoder.forwards(config, BATCH)]:
        assert shape.seen == shape.kept + shape.tokens  # what is computed is not read, also where it is written over
        assert shape.forgotten <= shape.written in (0, shape.tokens)
