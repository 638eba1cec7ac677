"""Times forwards of small models, each of one kind of layer: what `calibrated` fits its laws to.

A forward costs what its layers cost and what surrounds them: embedding, spans, states, norms, the head. So cells are
forwards of stacks of one kind, deep or shallow, narrow or wide, through `Model.forward` like any other, in the three
modes that run different code:

    token    one token of one row behind a state: the plan of `models.one_token`
    rows     one token of each of several rows behind a state
    tokens   many tokens: prompts, whole canvases, drafts; from a state or without

A kind is a letter of `config.LAYERS` with the options that make it run other operators (`A.gqa`, `S.inner_norms`).
Cells are visited in random order, several times, so that a slow moment of the machine hits a visit and not a cell.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from statistics import fmean, median
from typing import Any

import torch

from paradigms.decoding.sampling import Sampling
from paradigms.measure.clock import Clock, clock_for
from paradigms.models import one_token
from paradigms.models.config import LAYERS, ModelConfig
from paradigms.models.stack import Model
from paradigms.work import ForwardShape

VISITS, MOST_VISITS = 2, 8
AGREEMENT = 0.08  # the two quickest visits should differ by no more; a cell is visited again until they do, or
MORE_VISITS_S = 8.0  # so much time has gone into that
MOST_TRIES, AT_ONCE = 13, 4  # of a visit; the clock is read once for so many
VISIT_S = 0.003  # tries go on until so much has passed
VOCABULARY = 512

# Kinds that are calibrated, with the options of their part of the config (`kind_of` names them again).
KINDS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("A", {}),
    ("A", {"num_kv_heads": 2}),
    ("A", {"num_kv_heads": 2, "qk_norm": True}),
    ("A", {"num_kv_heads": 2, "qkv_bias": True}),
    ("A", {"rope_theta": None}),
    ("F", {}),
    ("M", {}),
    ("S", {}),
    ("S", {"inner_norms": "weighted"}),
    ("T", {}),
    ("L", {}),
    ("L", {"form": "expanded"}),
    ("L", {"form": "latent"}),
    ("E", {"width": 64}),
    ("E", {"width": 64, "num_shared": 1}),
    ("W", {"window": 64}),
    ("W", {"window": 64, "num_kv_heads": 2}),
    ("P", {"num_kv_heads": 2, "window": 64}),
    ("P", {"num_kv_heads": 2}),
    ("Z", {}),
    ("G", {}),
)
GROWING = "ALPZ"  # kinds whose state grows with the text


@dataclass(frozen=True, kw_only=True)
class LayerCell:
    """A forward that was timed.

    Attributes:
        kind: see `kind_of`; all layers of the model are of it.
        model: what ran.
        shape: the forward; `phase` says nothing here.
        visits_s: median of the tries of each visit.
    """

    kind: str
    model: ModelConfig
    shape: ForwardShape
    visits_s: tuple[float, ...] = ()

    @property
    def seconds(self) -> float:
        """Mean of the two quickest visits: noise of the machine only ever adds, and one alone may be a lucky one."""
        return quickest(self.visits_s)

    @property
    def name(self) -> str:
        """For people."""
        shape = self.shape
        return (
            f"{self.kind} x {len(self.model.layers)}, width {self.model.d_model}, vocabulary {self.model.vocab_size}, "
            f"{shape.rows} x {shape.tokens} tokens behind {shape.kept}"
            f"{'' if shape.written else ', nothing written'}{'' if self.model.causal else ', both ways'}"
        )


def quickest(visits_s: Sequence[float]) -> float:
    """Mean of the two quickest."""
    return sum(sorted(visits_s)[:2]) / min(2, len(visits_s))


def agree(visits_s: Sequence[float]) -> bool:
    """Whether the two quickest say the same."""
    first_s, second_s = sorted(visits_s)[:2]
    return second_s <= (1 + AGREEMENT) * first_s


class ThreadClock:
    """Time of this thread on its core, for work that one thread does: what others do meanwhile does not count."""

    def mark(self) -> int:
        return time.thread_time_ns()

    def read(self, stamps: Sequence[int]) -> list[float]:
        return [(stamp - stamps[0]) * 1e-9 for stamp in stamps]

    def synchronize(self) -> None:
        """Nothing is ever under way."""


def clock_of(device: torch.device, threads: int) -> Clock:
    """What cells are timed with: events on CUDA, the thread's own time where there is one thread, the host's clock."""
    return ThreadClock() if device.type == "cpu" and threads == 1 else clock_for(device, "device")


def kind_of(part: Any) -> str:
    """Name of a layer's kind: its letter and the options that make it run other operators."""
    letter = next(letter for letter, kind in LAYERS.items() if type(part) is kind)
    return ".".join([letter, *_options(letter, part)])


def _options(letter: str, part: Any) -> Iterator[str]:
    heads, kv_heads = getattr(part, "num_heads", None), getattr(part, "num_kv_heads", None)
    if letter in "AWZ" and kv_heads not in (None, heads):
        yield "gqa"
    if letter in "AW" and part.rope_theta is None:
        yield "no_positions"
    for name in ("qk_norm", "qkv_bias"):
        if getattr(part, name, False):
            yield name
    if letter == "L":
        yield part.form
        if part.q_rank is not None:
            yield "q_rank"
    if letter == "E" and part.num_shared:
        yield "shared"
    if letter == "P" and part.window is None:
        yield "global"
    if letter == "S" and part.inner_norms is not None:
        yield "inner_norms"
    if letter == "S" and part.num_groups > 1:
        yield "groups"


def mode_of(model: ModelConfig, shape: ForwardShape, *, dtype: str) -> str:
    """`token`, `rows` or `tokens`: which code runs such a forward."""
    if shape.tokens > 1 or not shape.kept:
        return "tokens"
    plain = model.norm == "rms" and not model.head_bias and model.conditioning is None
    return "token" if shape.rows == 1 and shape.written and plain and dtype in ("float32", "float64") else "rows"


# ---------------------------------------------------------------- which cells


def layer_cells() -> list[LayerCell]:
    """All cells, not timed yet."""
    cells = [cell for letter, options in KINDS for cell in _cells_of(letter, options)]
    return [*cells, *_cells_of_the_stack()]


def _cells_of(letter: str, options: dict[str, Any]) -> Iterator[LayerCell]:
    """Of one kind: widths by lengths, shallow where a layer takes long and deep where weights should not fit a cache.

    The first kind of each letter in KINDS is timed at lengths that its relatives are spared.
    """

    def cell(width: int, layers: int, rows: int, tokens: int, kept: int = 0, **how: Any) -> LayerCell:
        return _cell(letter, options, width, layers, rows, tokens, kept, **how)

    growing, first = letter in GROWING, next(own for own in KINDS if own[0] == letter) == (letter, options)
    for width, layers in ((64, 4), (96, 10), (160, 4), (160, 10), (320, 4)):
        yield cell(width, layers, 1, 1, 48)
    if growing:
        for width, kept in ((96, 400), (96, 4000), (160, 1500), (320, 700)):
            yield cell(width, 3, 1, 1, kept)
    for width, layers, rows in ((96, 2, 2), (96, 2, 8), (96, 2, 64), (160, 8, 5), (320, 2, 4), (320, 2, 20)):
        yield cell(width, layers, rows, 1, 80)
    if growing:
        for width, rows, kept in ((96, 8, 700), (96, 40, 350), (320, 8, 500)):
            yield cell(width, 2, rows, 1, kept)
    for width, layers, rows, tokens in (
        (96, 3, 1, 4),
        (96, 3, 1, 24),
        (96, 3, 1, 80),
        (96, 2, 1, 300),
        (96, 2, 8, 50),
        (160, 8, 1, 40),
        (320, 2, 1, 12),
        (320, 2, 1, 100),
        (320, 1, 8, 40),
    ):
        yield cell(width, layers, rows, tokens)
    if first:
        yield cell(96, 1, 1, 1500)
    if first and letter not in "PZ":
        yield cell(96, 1, 40, 80)
        yield cell(320, 1, 1, 500)
    if letter in "AW" and first:
        for width, rows, tokens in ((96, 1, 150), (320, 1, 300)):
            yield cell(width, 2, rows, tokens, keeps=False)
    if letter in "AW":
        yield cell(96, 2, 1, 12, 500)
        yield cell(160, 2, 6, 30, 250)
    if letter in "AL" and first:
        yield cell(96, 1, 1, 4000)
    if letter == "A" and first:
        for width, layers, rows, tokens in ((96, 2, 1, 90), (96, 2, 1, 500), (96, 1, 1, 2500), (320, 1, 1, 350)):
            yield cell(width, layers, rows, tokens, keeps=False, causal=False)
        yield cell(96, 1, 16, 100, keeps=False, causal=False)


def _cells_of_the_stack() -> Iterator[LayerCell]:
    """Shallow stacks whose vocabulary and logits differ: what the ends of a model cost."""
    for width in (96, 320):
        for vocabulary in (VOCABULARY, 6000):
            yield _cell("F", {}, width, 1, 1, 1, 48, vocabulary=vocabulary)
            yield _cell("F", {}, width, 1, 10, 1, 48, vocabulary=vocabulary)
            yield _cell("F", {}, width, 1, 50, 1, 48, vocabulary=vocabulary)
            yield _cell("F", {}, width, 1, 1, 60, vocabulary=vocabulary)
            yield _cell("F", {}, width, 1, 1, 400, vocabulary=vocabulary)
            yield _cell("F", {}, width, 1, 1, 60, vocabulary=vocabulary, keeps=False, logits=60)
            yield _cell("F", {}, width, 1, 1, 400, vocabulary=vocabulary, keeps=False, logits=400)


def _cell(
    letter: str,
    options: dict[str, Any],
    width: int,
    layers: int,
    rows: int,
    tokens: int,
    kept: int = 0,
    *,
    vocabulary: int = VOCABULARY,
    keeps: bool = True,
    causal: bool = True,
    logits: int | None = None,
) -> LayerCell:
    """`keeps`: whether a state is there and takes the tokens; `logits`: of all rows, one a row where None."""
    model = ModelConfig(
        vocab_size=vocabulary,
        d_model=width,
        block=letter,
        num_blocks=layers,
        causal=causal,
        noise=None if causal else "absorbing",
        max_positions=max(64, kept + tokens),
        **{LAYERS[letter].key: LAYERS[letter](**_sized(letter, options, width))},
    )
    shape = ForwardShape(
        phase="decode" if kept else "prefill",
        rows=rows,
        tokens=tokens,
        seen=kept + tokens,
        kept=kept,
        written=tokens if keeps else 0,
        logits=rows if logits is None else logits,
    )
    return LayerCell(kind=kind_of(model.parts[0]), model=model, shape=shape)


def _sized(letter: str, options: dict[str, Any], width: int) -> dict[str, Any]:
    """Inner widths in proportion to the model's."""
    inner = {"F": 8 * width // 3 // 8 * 8, "G": 4 * width, "E": 8 * (width // 16), "Z": 4 * width}
    return {**options, **({"width": inner[letter]} if letter in inner else {})}


# ---------------------------------------------------------------- timing


@torch.inference_mode()
def time_cells(
    cells: Sequence[LayerCell],
    *,
    clock: Clock,
    device: torch.device,
    dtype: str = "float32",
    visits: int = VISITS,
    seed: int = 0,
) -> list[LayerCell]:
    """The same cells, timed. On a CPU one thread should be set, and freed memory kept (`measure.environment`)."""
    made: dict[ModelConfig, Model] = {}
    found: list[list[float]] = [[] for _ in cells]

    def visit(index: int) -> None:
        cell = cells[index]
        if cell.model not in made:
            made[cell.model] = _made(cell.model, device, getattr(torch, dtype))
        call, after = _call(made[cell.model], cell.shape)
        found[index].append(visit_s(call, after, clock))

    for round_index in range(visits):
        for index in _shuffled(range(len(cells)), seed, round_index):
            visit(index)
    ends_s = time.perf_counter() + MORE_VISITS_S
    for round_index in range(visits, MOST_VISITS):
        unsure = [index for index, visits_s in enumerate(found) if len(visits_s) > 1 and not agree(visits_s)]
        for index in _shuffled(unsure, seed, round_index):
            if time.perf_counter() < ends_s:
                visit(index)
    return [replace(cell, visits_s=tuple(visits_s)) for cell, visits_s in zip(cells, found, strict=True)]


def _shuffled(indices: Sequence[int], seed: int, round_index: int) -> list[int]:
    order = list(indices)
    random.Random(f"{seed}/{round_index}").shuffle(order)
    return order


def _made(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> Model:
    """A network of small random numbers: initialising it as for training would take longer than timing it."""
    model = Model(config, initialise=False).to(device=device, dtype=dtype).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.uniform_(-0.05, 0.05)
    return model


def visit_s(call: Callable[[], Any], after: Callable[[], Any], clock: Clock) -> float:
    """Typical seconds of some calls, each followed by `after`, whose time does not count."""
    call()  # caches, plans, allocations
    after()
    tries_s: list[float] = []
    count = 1  # a long call is made once
    while len(tries_s) < MOST_TRIES and sum(tries_s) < VISIT_S:
        clock.synchronize()
        stamps = []
        for _ in range(count):
            stamps.append(clock.mark())
            call()
            stamps.append(clock.mark())
            after()
        tries_s += [end - start for start, end in list(pairwise(clock.read(stamps)))[::2]]
        count = AT_ONCE
    return typical(tries_s)


def typical(tries_s: Sequence[float]) -> float:
    """Mean without what took more than twice the median: a text pays for small delays, not for a busy neighbour."""
    most_s = 2 * median(tries_s)
    return fmean(each for each in tries_s if each <= most_s)


def _call(model: Model, shape: ForwardShape) -> tuple[Callable[[], Any], Callable[[], None]]:
    """The forward, and what comes between two of them: a token is drawn, as in a text, which leaves other code and
    numbers in the caches, and the state is put back to where it was.
    """
    B, T, device = shape.rows, shape.tokens, model.device
    ids = torch.Generator().manual_seed(1)
    tokens_BT = torch.randint(0, model.config.vocab_size, (B, T), generator=ids).to(device)
    logits_BV = torch.randn(B, model.config.vocab_size, generator=ids).to(device)
    uniform_B = torch.rand(B, generator=ids, dtype=torch.float64).to(device)
    logits_at = None if shape.logits == B * T else slice(-1, None)
    sampling = Sampling()
    state = None
    if shape.kept:
        state = model.new_state(B, shape.kept + T)
        state.reserve(shape.kept + T)
        state.advance([shape.kept] * B)

    def from_nothing() -> None:
        new = model.new_state(B, T) if shape.written else None
        model(tokens_BT, new, logits_at=logits_at)
        if new is not None and B == 1 and one_token.applies(model, tokens_BT[:, :1]):
            one_token.Plan(model, new)  # what follows a prompt pays for it once

    def behind() -> None:
        model(tokens_BT, state, logits_at=logits_at)

    def between() -> None:
        sampling.draw(logits_BV, uniform_B)
        if state is not None:
            state.advance([-T] * B)

    return (from_nothing if state is None else behind), between


# ---------------------------------------------------------------- on disk


def to_json(cells: Sequence[LayerCell], *, dtype: str, execution: str) -> dict[str, Any]:
    """What `Calibration.layers` holds: each model once, and the cells beside."""
    models = list(dict.fromkeys(cell.model for cell in cells))
    number = {model: index for index, model in enumerate(models)}
    return {
        "dtype": dtype,
        "execution": execution,
        "models": [_differing(model) for model in models],
        "cells": [
            {"model": number[cell.model], "shape": asdict(cell.shape), "visits_s": list(cell.visits_s)}
            for cell in cells
        ],
    }


def from_json(stored: dict[str, Any]) -> list[LayerCell]:
    """The cells that `to_json` wrote."""
    models = [ModelConfig.from_dict(values) for values in stored["models"]]
    return [
        LayerCell(
            kind=kind_of(models[entry["model"]].parts[0]),
            model=models[entry["model"]],
            shape=ForwardShape(**entry["shape"]),
            visits_s=tuple(entry["visits_s"]),
        )
        for entry in stored["cells"]
    ]


def _differing(model: ModelConfig) -> dict[str, Any]:
    """Fields of a config that are not the defaults."""
    plain = asdict(ModelConfig(vocab_size=model.vocab_size))
    return {key: value for key, value in asdict(model).items() if key == "vocab_size" or value != plain.get(key)}
