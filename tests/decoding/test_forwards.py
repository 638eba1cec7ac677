"""The forwards that a decoder says it will make against those that it makes, call by call."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections import Counter
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from statistics import mean, stdev

import pytest
import theirs
import tiny
import torch

from paradigms.data.tokenizers import ByteTokenizer
from paradigms.decoding.autoregressive import Autoregressive
from paradigms.decoding.diffusion import caches, samplers
from paradigms.decoding.diffusion.caches.block import BlockCache
from paradigms.decoding.diffusion.caches.delayed import DelayedCache, binomial, hypergeometric, largest_of
from paradigms.decoding.diffusion.caches.dual import DualCache
from paradigms.decoding.diffusion.caches.none import NoCache
from paradigms.decoding.diffusion.caches.prefix import PrefixCache
from paradigms.decoding.diffusion.contract import Sampler
from paradigms.decoding.diffusion.decoder import MaskedDiffusion
from paradigms.decoding.diffusion.samplers.ancestral import Ancestral
from paradigms.decoding.diffusion.samplers.entropy import Entropy
from paradigms.decoding.diffusion.samplers.factor import Factor
from paradigms.decoding.diffusion.samplers.first_hitting import FirstHitting
from paradigms.decoding.diffusion.samplers.low_confidence import LowConfidence
from paradigms.decoding.diffusion.samplers.margin import Margin
from paradigms.decoding.diffusion.samplers.random import Random
from paradigms.decoding.diffusion.samplers.remasking import Remasking
from paradigms.decoding.diffusion.samplers.threshold import Threshold
from paradigms.decoding.diffusion.samplers.top1 import Top1
from paradigms.decoding.uniform_diffusion import UniformDiffusion
from paradigms.decoding.uniform_samplers import Ancestral as UniformAncestral
from paradigms.decoding.uniform_samplers import EntropyBound
from paradigms.engines.canvas_generate import CanvasGenerate
from paradigms.engines.transformers_generate import TransformersGenerate
from paradigms.measure.clock import FakeClock
from paradigms.measure.ledger import Ledger
from paradigms.measure.timeline import record
from paradigms.models.transformers_model import transformers_config
from paradigms.paradigm import Request
from paradigms.work import BatchShape, ForwardShape

VOCABULARY = ByteTokenizer().load(tiny.corpus())
EARLY = EntropyBound(num_steps=8, entropy_bound=5.0, confidence_threshold=1.5)
BATCHES = [BatchShape(rows=1, prompt_len=1, output_len=7), BatchShape(rows=3, prompt_len=6, output_len=10)]
SHARED = [Random, Margin, Entropy, LowConfidence, Top1]  # equal shares of the canvas at every step
CACHES = [
    NoCache(), PrefixCache(), PrefixCache(refresh_every=2), DualCache(), DualCache(refresh_every=3), DelayedCache(),
    DelayedCache(refresh_every=2), BlockCache(),
]  # fmt: skip
DRAWN = [
    Ancestral(steps="L"), Ancestral(steps=5), Ancestral(steps=30), Ancestral(steps=6, reuse=False),
    Ancestral(steps=12, reuse=False, draws="float32"), Remasking(steps=6), Remasking(steps=10, eta=0.5),
    Remasking(steps=8, schedule="rescale", eta=0.3), Remasking(steps=8, schedule="confidence", eta=None),
    Remasking(steps=12, schedule="loop", eta=0.2, t_on=0.55, t_off=0.05, alpha_on=0.9),
]  # fmt: skip


def named(value) -> str:
    return str(value).replace(" ", "")


@lru_cache
def model(name: str, **changes):
    return tiny.random_model(dataclasses.replace(tiny.MODELS[name], **changes)).eval().requires_grad_(False)


def requests(batch: BatchShape, first_seed: int = 0) -> list[Request]:
    return [
        Request(
            id=str(row),
            prompt=(VOCABULARY.bos_id, *[40 + row] * (batch.prompt_len - 1)),
            max_new_tokens=batch.output_len,
            seed=first_seed + row,
        )
        for row in range(batch.rows)
    ]


@dataclasses.dataclass
class Noted:
    """A native decoder on a model whose forwards are noted."""

    decoder: object
    model: object
    ledger: Ledger = dataclasses.field(default_factory=Ledger)
    parameters: int = 0
    weight_bytes: int = 0

    def run(self, batch):
        return self.ledger.of(self.decoder.decode(self.ledger.noting(self.model), batch, VOCABULARY))

    def describe(self):
        return {}


def made(decoder, model, batch: BatchShape):
    """What the ledger noted, and the recording."""
    noted = Noted(decoder, model)
    recording = record(noted, requests(batch), clock=FakeClock())
    return noted.ledger.shapes, recording


def merged(shapes) -> list[ForwardShape]:
    """Equal forwards that follow each other as one."""
    alike = groupby(dataclasses.replace(shape, times=1) for shape in shapes for _ in range(int(shape.times)))
    return [dataclasses.replace(shape, times=len(list(group))) for shape, group in alike]


def sums(shapes) -> tuple[float, float, float]:
    """Forwards, positions and logits."""
    shapes = list(shapes)
    return (
        sum(shape.times for shape in shapes),
        sum(shape.times * shape.positions for shape in shapes),
        sum(shape.times * shape.logits for shape in shapes),
    )


def holds(decoder, model, batch: BatchShape) -> None:
    shapes, recording = made(decoder, model, batch)
    planned = list(decoder.forwards(model.config, batch))
    assert merged(planned) == shapes
    by_model = Counter()
    for shape in planned:
        by_model[shape.model] += shape.times
    assert by_model == recording.nfe
    assert sum(shape.times * shape.positions for shape in planned) == recording.positions_computed


def kinds(package, base=None) -> set[type]:
    """Public classes of a package that make samplers or caches."""
    found = set()
    for module in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{module.name}")
        for _, kind in inspect.getmembers(module, inspect.isclass):
            own = kind.__module__ == module.__name__ and dataclasses.is_dataclass(kind)
            is_kind = issubclass(kind, base) if base else "check" in dir(kind) and "open" in dir(kind)
            if own and is_kind and not kind.__subclasses__():
                found.add(kind)
    return found


def test_every_sampler_and_cache_is_looked_at_here():
    assert kinds(samplers, Sampler) == {*SHARED, FirstHitting, *map(type, DRAWN), Threshold, Factor}
    assert {kind.__name__ for kind in kinds(caches)} == {type(cache).__name__ for cache in CACHES} | {"Compared"}


# ---------------------------------------------------------------- left to right


@pytest.mark.parametrize("batch", BATCHES, ids=named)
@pytest.mark.parametrize("cache", ["state", "none"])
@pytest.mark.parametrize("name", ["ar", "ssm"])
def test_left_to_right(name, cache, batch):
    holds(Autoregressive(cache=cache), model(name), batch)


@pytest.mark.parametrize("use_cache", [True, False])
def test_the_library_s_generate(use_cache):
    network, batch, decoder = model("ar"), BATCHES[1], TransformersGenerate(use_cache=use_cache)
    events = list(decoder.decode(network, requests(batch), VOCABULARY))
    planned = list(decoder.forwards(network.config, batch))
    assert [(shape.phase, shape.positions) for shape in planned] == [
        (event.phase, event.positions_computed) for event in events
    ]
    assert planned == list(Autoregressive(cache="state" if use_cache else "none").forwards(network.config, batch))


# ---------------------------------------------------------------- masked diffusion


def decoders_of_fixed_work():
    for cache in CACHES:
        for block_len in (None, 4) if not isinstance(cache, BlockCache) else (None,):
            for sampler in (*(kind(steps=steps) for kind in SHARED[:2] for steps in ("L", "L/3", 5)), FirstHitting()):
                yield MaskedDiffusion(sampler=sampler, cache=cache, block_len=block_len)
    for kind in SHARED[2:]:
        yield MaskedDiffusion(sampler=kind(steps="L/2"), block_len=3)


def short(decoder) -> str:
    return named(f"{decoder.sampler}-{decoder.cache}-{decoder.block_len}")


@pytest.mark.parametrize("batch", BATCHES, ids=named)
@pytest.mark.parametrize("decoder", list(decoders_of_fixed_work()), ids=short)
def test_masks_decided_in_fixed_shares(decoder, batch):
    for shift in (False, True):
        if shift and isinstance(decoder.cache, DelayedCache):
            continue  # drawn: see below
        block = 4 if isinstance(decoder.cache, BlockCache) else None
        holds(decoder, model("diffusion", shift_logits=shift, canvas_block=block), batch)


@pytest.mark.parametrize("canvas_block", [3, 4])
@pytest.mark.parametrize("cache", [NoCache(), BlockCache()], ids=named)
def test_blocks_of_the_model_s_own(cache, canvas_block):
    for prompt_len in (2, 3, 8):
        batch = BatchShape(rows=2, prompt_len=prompt_len, output_len=9)
        for shift in (False, True):
            network = model("diffusion", shift_logits=shift, canvas_block=canvas_block)
            holds(MaskedDiffusion(sampler=Random(steps="L/2"), cache=cache), network, batch)


def within(found: list[tuple[float, ...]], planned: tuple[float, ...]) -> None:
    """Means over runs lie within 3 standard errors of what was planned; what does not vary is equal."""
    for values, expected in zip(zip(*found, strict=True), planned, strict=True):
        error = stdev(values) / len(values) ** 0.5
        assert abs(mean(values) - expected) <= 3 * error + 2e-3 * expected, (mean(values), error, expected)


def runs(decoder, network, batch, number=50):
    found = []
    for run in range(number):
        noted = Noted(decoder, network)
        for _ in noted.run(requests(batch, first_seed=run * batch.rows)):
            pass
        found.append(sums(noted.ledger.shapes))
    return found


def mostly_slow(values, always: set[int]):
    """Some of the values always, the others with the slow tests."""
    slow = pytest.mark.slow
    return [value if index in always else pytest.param(value, marks=slow) for index, value in enumerate(values)]


@pytest.mark.parametrize("rows", mostly_slow([1, 3], {1}))
@pytest.mark.parametrize("sampler", mostly_slow(DRAWN, {1, 3, 8}), ids=named)
def test_what_is_drawn_enters_as_its_mean(sampler, rows):
    batch = BatchShape(rows=rows, prompt_len=3, output_len=10)
    network = model("diffusion", shift_logits=False)
    for decoder in (
        MaskedDiffusion(sampler=sampler),
        MaskedDiffusion(sampler=sampler, block_len=5, cache=DualCache(refresh_every=2)),
    ):
        decoder.check(network.config, output_len=10)
        within(runs(decoder, network, batch), sums(decoder.forwards(network.config, batch)))


@pytest.mark.parametrize("sampler", [Random(steps="L"), Random(steps=4), FirstHitting()], ids=named)
@pytest.mark.parametrize("rows", mostly_slow([1, 4], {1}))
def test_columns_before_wanted_positions_stand_behind_kept_ones_as_often_as_planned(rows, sampler):
    batch = BatchShape(rows=rows, prompt_len=3, output_len=12)
    network = model("diffusion", shift_logits=True)
    for block_len in (None, 6):
        decoder = MaskedDiffusion(sampler=sampler, cache=DelayedCache(), block_len=block_len)
        within(runs(decoder, network, batch), sums(decoder.forwards(network.config, batch)))


@pytest.mark.parametrize("rows", mostly_slow([1, 3], {0}))
@pytest.mark.parametrize("sampler", mostly_slow(DRAWN, {0, 9}), ids=named)
def test_a_delayed_cache_reads_as_many_masks_as_a_sampler_expects(sampler, rows):
    batch = BatchShape(rows=rows, prompt_len=3, output_len=12)
    network = model("diffusion", shift_logits=False)
    decoder = MaskedDiffusion(sampler=sampler, cache=DelayedCache())
    within(runs(decoder, network, batch), sums(decoder.forwards(network.config, batch)))


def test_the_largest_of_several_rows_by_hand():
    # two wanted, one kept among three: K w w, w K w, w w K behind a kept column: 1, 2, 1 wanted behind a kept one
    chances = hypergeometric(3, 2, 2)
    assert chances == pytest.approx([0, 2 / 3, 1 / 3])
    assert [largest_of(rows, chances) for rows in (1, 2)] == pytest.approx([4 / 3, 1 * 4 / 9 + 2 * 5 / 9])
    assert binomial(3, 0.25) == pytest.approx([27 / 64, 27 / 64, 9 / 64, 1 / 64])
    assert largest_of(1, binomial(2000, 0.3)) == pytest.approx(600)


def test_ancestral_steps_are_as_many_as_its_formula_says():
    """T (1 - (1 - 1/T)^L), and without reuse T - sum over k < T of (k/T)^L, of one row."""
    batch, config = BatchShape(rows=1, prompt_len=3, output_len=10), tiny.MODELS["diffusion"]
    for T in (1, 4, 10, 1000):
        for reuse, expected in ((True, T * (1 - (1 - 1 / T) ** 10)), (False, T - sum((k / T) ** 10 for k in range(T)))):
            shapes = list(MaskedDiffusion(sampler=Ancestral(steps=T, reuse=reuse)).forwards(config, batch))
            assert sums(shapes)[0] == pytest.approx(expected, rel=1e-6)
            assert sums(shapes)[2] == pytest.approx(10, rel=1e-6)  # each position is looked at once


# ---------------------------------------------------------------- where the text decides

DECIDED_BY_TEXT = [
    MaskedDiffusion(sampler=Threshold(threshold=0.02)),
    MaskedDiffusion(sampler=Factor(factor=3.0), block_len=5, cache=DualCache()),
    MaskedDiffusion(sampler=Random(), eos="early"),
]


@pytest.mark.parametrize("decoder", DECIDED_BY_TEXT, ids=short)
def test_the_pace_of_a_text_gives_its_forwards(decoder):
    network, batch = model("diffusion"), BatchShape(rows=1, prompt_len=4, output_len=20)
    _, recording = made(decoder, network, batch)
    pace = batch.output_len / recording.nfe["model"]
    planned = sums(decoder.forwards(network.config, batch, tokens_per_forward=pace))
    assert planned[0] == pytest.approx(recording.nfe["model"])
    if isinstance(decoder.cache, NoCache):
        assert planned[1] == pytest.approx(recording.positions_computed)


def test_a_pace_is_asked_for_where_the_text_decides_and_nowhere_else():
    config, batch = tiny.MODELS["diffusion"], BATCHES[0]
    decoder = MaskedDiffusion(sampler=Threshold())
    with pytest.raises(ValueError, match="tokens_per_forward=null: the text decides"):
        list(decoder.forwards(config, batch))
    for wrong in (0, -1.0, float("inf")):
        with pytest.raises(ValueError, match=r"tokens_per_forward=.* must be more than 0"):
            list(decoder.forwards(config, batch, tokens_per_forward=wrong))
    with pytest.raises(ValueError, match=r"tokens_per_forward=1.5 has no effect"):
        list(MaskedDiffusion().forwards(config, batch, tokens_per_forward=1.5))
    with pytest.raises(ValueError, match=r"tokens_per_forward=1 has no effect"):
        Autoregressive().forwards(tiny.MODELS["ar"], batch, tokens_per_forward=1)
    with pytest.raises(ValueError, match="needs a causal model"):
        Autoregressive().forwards(config, batch)


# ---------------------------------------------------------------- canvases of uniform noise


@pytest.fixture(scope="module")
def canvas_model(tmp_path_factory):
    folder: Path = theirs.write_canvas_folder(tmp_path_factory.mktemp("planned") / "model")
    return transformers_config(str(folder)).load().requires_grad_(False)


@pytest.mark.parametrize("output_len", [5, 8, 20])
@pytest.mark.parametrize("kind", [UniformDiffusion, CanvasGenerate])
def test_canvases_of_all_steps(canvas_model, kind, output_len):
    fixed = EntropyBound(num_steps=4, stability_threshold=None, confidence_threshold=None)
    batch, decoder = BatchShape(rows=2, prompt_len=5, output_len=output_len), kind(sampler=fixed)
    if kind is UniformDiffusion:
        holds(decoder, canvas_model, batch)
        holds(UniformDiffusion(sampler=UniformAncestral(num_steps=3)), canvas_model, batch)
    events = list(decoder.decode(canvas_model, requests(batch), VOCABULARY))
    planned = list(decoder.forwards(canvas_model.config, batch))
    assert [(shape.phase, {shape.model: 1}, shape.positions) for shape in planned] == [
        (event.phase, event.forwards, event.positions_computed) for event in events
    ]


def test_canvases_that_end_early(canvas_model):
    batch, decoder = BatchShape(rows=1, prompt_len=5, output_len=20), UniformDiffusion(sampler=EARLY)
    _, recording = made(decoder, canvas_model, batch)
    forwards = sum(recording.nfe.values())
    planned = list(decoder.forwards(canvas_model.config, batch, tokens_per_forward=20 / forwards))
    assert sums(planned)[0] == pytest.approx(forwards)
    assert sums(planned)[1] == pytest.approx(recording.positions_computed)
    with pytest.raises(ValueError, match=r"tokens_per_forward=20 is out of reach: with 1 to 8 looks"):
        list(decoder.forwards(canvas_model.config, batch, tokens_per_forward=20))
    with pytest.raises(ValueError, match="max_positions"):
        decoder.forwards(canvas_model.config, BatchShape(rows=1, prompt_len=5, output_len=2000), tokens_per_forward=2)


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
