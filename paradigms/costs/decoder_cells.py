"""Times what decoders take themselves: draws, ranking and bookkeeping beside the forwards.

The decoders are the real ones, driven through `decode`, over a small real model whose own time is taken out: what runs
between two forwards finds other code and numbers in the caches than its own. A cell is a whole text, and its features
are sums over the forwards that `Decoder.forwards` plans. Of a cell:

    overhead    one a forward, and one more by the way that a token is drawn (`drawn calls`)
    begun       one a text, with `asked`, its positions of all rows: prompts, random numbers, states
    drawn       logits that are turned into probabilities and tokens: positions x vocabulary; likewise `greedy`, where
                the largest is taken, and `top_k`, `top_p`, where they are restricted before
    canvas      positions of all rows, prompt included, that are cloned, filled and compared
    block       positions of all rows that are ranked
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from paradigms.build import build
from paradigms.costs.fitting import Features, Law, fit
from paradigms.costs.layer_cells import quickest
from paradigms.decoding.autoregressive import Autoregressive
from paradigms.decoding.diffusion.caches.none import NoCache
from paradigms.decoding.diffusion.decoder import MaskedDiffusion
from paradigms.measure.clock import Clock
from paradigms.models.config import ModelConfig
from paradigms.models.stack import Model
from paradigms.models.state import State
from paradigms.paradigm import Request
from paradigms.work import BatchShape, ForwardShape

VISITS = 2
SAMPLERS = (
    "ancestral.Ancestral",
    "entropy.Entropy",
    "factor.Factor",
    "first_hitting.FirstHitting",
    "low_confidence.LowConfidence",
    "margin.Margin",
    "random.Random",
    "remasking.Remasking",
    "threshold.Threshold",
    "top1.Top1",
)
CACHES = ("prefix.PrefixCache", "dual.DualCache", "delayed.DelayedCache")
# Rows, prompt, output, vocabulary.
_SHAPES = ((1, 16, 24, 512), (1, 200, 32, 2000), (6, 40, 24, 512), (24, 30, 12, 2000), (1, 16, 120, 512))
_CACHED_SHAPES = ((1, 40, 48, 512), (1, 200, 48, 2000), (8, 40, 32, 512))


@dataclass(frozen=True, kw_only=True)
class DecoderCell:
    """A text that was decoded over free logits.

    Attributes:
        decoder: its config, as `paradigms.build.build` takes it.
        batch: the requests.
        vocab_size: V.
        tokens_per_forward: seen, where the decoder's number of forwards depends on values; None elsewhere.
        visits_s: seconds of each visit.
    """

    decoder: dict[str, Any]
    batch: BatchShape
    vocab_size: int
    tokens_per_forward: float | None = None
    visits_s: tuple[float, ...] = ()

    @property
    def seconds(self) -> float:
        """See `LayerCell.seconds`."""
        return quickest(self.visits_s)

    @property
    def name(self) -> str:
        """For people."""
        batch = self.batch
        decoder = build(self.decoder)
        kinds = " + ".join((*kinds_of(decoder), draws_of(decoder)))
        return f"{kinds}, {batch.rows} x {batch.prompt_len} + {batch.output_len} tokens, vocabulary {self.vocab_size}"


def kinds_of(decoder: Any) -> tuple[str, ...]:
    """The laws that add up to a decoder's own time: of the decoder with its sampler, and of its cache."""
    if not isinstance(decoder, MaskedDiffusion):
        return (type(decoder).__name__,)
    own = f"{type(decoder).__name__}.{type(decoder.sampler).__name__}"
    return (own,) if isinstance(decoder.cache, NoCache) else (own, type(decoder.cache).__name__)


def draws_of(decoder: Any) -> str:
    """Which feature the logits of a decoder are: how a token is taken from them."""
    if decoder.temperature == 0:
        return "greedy"
    restricted = [name for name in ("top_k", "top_p") if getattr(decoder, name) is not None]
    return "+".join(restricted) or "drawn"


def decoder_cells() -> list[DecoderCell]:
    """All cells, not timed yet."""
    return list(_cells())


def _cells() -> Iterator[DecoderCell]:
    def cell(decoder: dict[str, Any], shape: tuple[int, int, int, int]) -> DecoderCell:
        rows, prompt_len, output_len, vocab_size = shape
        batch = BatchShape(rows=rows, prompt_len=prompt_len, output_len=output_len)
        return DecoderCell(decoder=decoder, batch=batch, vocab_size=vocab_size)

    left_to_right = {"_target_": "paradigms.decoding.autoregressive.Autoregressive"}
    for how in ({}, {"temperature": 0.0}, {"top_k": 20}, {"top_p": 0.9}):
        for shape in (*_SHAPES, (64, 30, 24, 2000), (8, 30, 24, 8000)):
            yield cell({**left_to_right, **how}, shape)
    for sampler in SAMPLERS:
        parts = {
            "_target_": "paradigms.decoding.diffusion.decoder.MaskedDiffusion",
            "sampler": {"_target_": f"paradigms.decoding.diffusion.samplers.{sampler}", **_steps(sampler)},
            "cache": {"_target_": "paradigms.decoding.diffusion.caches.none.NoCache"},
        }
        for shape in _SHAPES:
            yield cell(parts, shape)
        for shape in _SHAPES[:4:3]:
            yield cell({**parts, "temperature": 0.0}, shape)
        if sampler.endswith(".Random"):
            for cache in CACHES:
                for shape in _CACHED_SHAPES:
                    kept = {"_target_": f"paradigms.decoding.diffusion.caches.{cache}"}
                    yield cell({**parts, "cache": kept, "block_len": 16}, shape)


def _steps(sampler: str) -> dict[str, Any]:
    """Two tokens a step where that can be chosen, so that ranking is more than a maximum."""
    return {} if sampler.split(".")[0] in ("factor", "first_hitting", "threshold") else {"steps": "L/2"}


# ---------------------------------------------------------------- timing


class TimedOut(Model):
    """A model that keeps the stamps of its own work, so that it can be taken out."""

    def __init__(self, config: ModelConfig, clock: Clock) -> None:
        super().__init__(config)
        self.clock = clock
        self.stamps: list[Any] = []

    def forward(self, *args: Any, **how: Any) -> Tensor:
        return self._stamped(super().forward, *args, **how)

    def logits_where(self, *args: Any, **how: Any) -> Tensor:
        return self._stamped(super().logits_where, *args, **how)

    def new_state(self, *args: Any, **how: Any) -> State:
        return self._stamped(super().new_state, *args, **how)

    def _stamped(self, work: Callable[..., Any], *args: Any, **how: Any) -> Any:
        self.stamps.append(self.clock.mark())
        found = work(*args, **how)
        self.stamps.append(self.clock.mark())
        return found


@dataclass(frozen=True)
class _Vocabulary:
    vocab_size: int
    eos_id: int = 1
    mask_id: int | None = 2

    def decode(self, ids: Sequence[int], /) -> str:
        return " ".join(map(str, ids))


@torch.inference_mode()
def time_decoders(
    cells: Sequence[DecoderCell], *, clock: Clock, device: torch.device, visits: int = VISITS, seed: int = 0
) -> list[DecoderCell]:
    """The same cells, timed, each once a visit after a visit that does not count."""
    runs = [_run(cell, clock, device) for cell in cells]
    found: list[list[float]] = [[] for _ in cells]
    events = [0] * len(cells)
    for visit in range(visits + 1):
        order = list(range(len(cells)))
        random.Random(f"{seed}/{visit}").shuffle(order)
        for index in order:
            decoder, model, requests, vocabulary = runs[index]
            clock.synchronize()
            model.stamps = [clock.mark()]
            events[index] = sum(bool(event.forwards) for event in decoder.decode(model, requests, vocabulary))
            model.stamps.append(clock.mark())
            if visit:
                read_s = clock.read(model.stamps)
                found[index].append(sum(end - start for start, end in list(pairwise(read_s))[::2]))
    return [
        replace(
            cell,
            visits_s=tuple(visits_s),
            tokens_per_forward=cell.batch.output_len / count if run[0].depends_on_values else None,
        )
        for cell, visits_s, run, count in zip(cells, found, runs, events, strict=True)
    ]


def _run(cell: DecoderCell, clock: Clock, device: torch.device) -> tuple[Any, TimedOut, list[Request], _Vocabulary]:
    decoder, batch = build(cell.decoder), cell.batch
    model = TimedOut(model_of(cell), clock).to(device).eval().requires_grad_(False)
    prompt = tuple(3 + place % (cell.vocab_size - 3) for place in range(batch.prompt_len))
    requests = [
        Request(id=str(row), prompt=prompt, max_new_tokens=batch.output_len, seed=row) for row in range(batch.rows)
    ]
    return decoder, model, requests, _Vocabulary(cell.vocab_size)


def model_of(cell: DecoderCell) -> ModelConfig:
    """As little as a decoder will drive, with layers that keep keys and values."""
    causal = cell.decoder["_target_"].endswith(".Autoregressive")
    return ModelConfig(
        vocab_size=cell.vocab_size,
        d_model=64,
        block="AF",
        num_blocks=1,
        causal=causal,
        noise=None if causal else "absorbing",
        max_positions=cell.batch.prompt_len + cell.batch.output_len,
    )


# ---------------------------------------------------------------- laws


def decoder_features(decoder: Any, vocab_size: int, shape: ForwardShape, batch: BatchShape) -> Features:
    """Of what a decoder does beside one forward.

    Raises:
        ValueError: a decoder that is not calibrated.
    """
    if isinstance(decoder, Autoregressive):
        begins = shape.phase == "prefill"
        return {
            "overhead": 1.0,
            f"{draws_of(decoder)} calls": 1.0,
            draws_of(decoder): shape.logits * vocab_size,
            "canvas": shape.rows * shape.seen if decoder.cache == "none" else 0.0,
            "begun": float(begins),
            "asked": float(batch.rows * (batch.prompt_len + batch.output_len) * begins),
        }
    if not isinstance(decoder, MaskedDiffusion):
        raise ValueError(
            f"decoder {type(decoder).__name__} is not calibrated, only Autoregressive and MaskedDiffusion; leave its "
            "cells out"
        )
    width = batch.output_len if decoder.block_len is None else min(decoder.block_len, batch.output_len)
    return {
        "overhead": 1.0,
        f"{draws_of(decoder)} calls": 1.0,
        draws_of(decoder): shape.logits * vocab_size,
        "canvas": batch.rows * (batch.prompt_len + batch.output_len),
        "block": shape.rows * width,
    }


def fit_decoders(cells: Sequence[DecoderCell]) -> tuple[dict[str, Law], dict[str, list[DecoderCell]]]:
    """Laws by kind, decoders first, then caches as what comes on top; and the cells that each was fitted to."""
    own: dict[str, list[tuple[DecoderCell, Features]]] = {}
    cached: dict[str, list[tuple[DecoderCell, Features]]] = {}
    for cell in cells:
        decoder = build(cell.decoder)
        sums: dict[str, float] = {}
        for shape in decoder.forwards(model_of(cell), cell.batch, tokens_per_forward=cell.tokens_per_forward):
            for name, value in decoder_features(decoder, cell.vocab_size, shape, cell.batch).items():
                sums[name] = sums.get(name, 0.0) + shape.times * value
        kinds = kinds_of(decoder)
        (own if len(kinds) == 1 else cached).setdefault(kinds[-1], []).append((cell, sums))
    laws = {
        kind: fit([features for _, features in group], [cell.seconds for cell, _ in group])
        for kind, group in own.items()
    }
    for kind, group in cached.items():
        known_s = [laws[kinds_of(build(cell.decoder))[0]].seconds(features) for cell, features in group]
        only_overhead = [{"overhead": features["overhead"]} for _, features in group]
        laws[kind] = fit(only_overhead, [cell.seconds for cell, _ in group], known_s)
    return laws, {kind: [cell for cell, _ in group] for kind, group in (own | cached).items()}


def seconds(laws: dict[str, Law], decoder: Any, features: Features) -> float:
    """What a decoder takes beside one forward.

    Raises:
        ValueError: a decoder, sampler, cache or way to draw that was not calibrated.
    """
    kinds, draws = kinds_of(decoder), draws_of(decoder)
    missing = [kind for kind in kinds if kind not in laws]
    if missing:
        raise ValueError(f"{missing[0]} is not calibrated; calibrated decoders and caches: {', '.join(laws)}")
    if draws not in laws[kinds[0]].factors:
        known = ", ".join(sorted(set(laws[kinds[0]].factors) & {"drawn", "greedy", "top_k", "top_p"}))
        raise ValueError(f"{kinds[0]} is not calibrated with tokens taken by {draws}; calibrated: {known}")
    return sum(laws[kind].seconds(features) for kind in kinds)


# ---------------------------------------------------------------- on disk


def to_json(cells: Sequence[DecoderCell]) -> dict[str, Any]:
    """What `Calibration.decoders` holds."""
    return {"cells": [{**asdict(cell), "visits_s": list(cell.visits_s)} for cell in cells]}


def from_json(stored: dict[str, Any]) -> list[DecoderCell]:
    """The cells that `to_json` wrote."""
    return [
        DecoderCell(**{**entry, "batch": BatchShape(**entry["batch"]), "visits_s": tuple(entry["visits_s"])})
        for entry in stored["cells"]
    ]
