"""Caches of masked diffusion against a model that reads each row again, whole and alone, at every look."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from decoding.test_decoders import BOS, MASK, V, run
from torch import Tensor

from paradigms.decoding.diffusion.caches.block import BlockCache
from paradigms.decoding.diffusion.caches.delayed import DelayedCache
from paradigms.decoding.diffusion.caches.dual import DualCache
from paradigms.decoding.diffusion.caches.none import NoCache
from paradigms.decoding.diffusion.caches.prefix import PrefixCache
from paradigms.decoding.diffusion.decoder import MaskedDiffusion
from paradigms.decoding.diffusion.samplers.ancestral import Ancestral
from paradigms.decoding.diffusion.samplers.random import Random
from paradigms.decoding.diffusion.samplers.remasking import Remasking
from paradigms.decoding.diffusion.samplers.threshold import Threshold
from paradigms.models.attention import AttentionConfig
from paradigms.models.conditioning import ConditioningConfig
from paradigms.models.config import ModelConfig
from paradigms.paradigm import Outline, Request

EXACT = {torch.float32: 1e-5, torch.float64: 1e-10}
SAMPLERS = [Random(steps="L/2"), Threshold(threshold=0.3)]
APPROXIMATE = [PrefixCache, DualCache, DelayedCache]


def build(canvas_block=None, *, shift=False, num_blocks=2, block="AF", dtype=torch.float64, **more):
    torch.manual_seed(0)
    config = ModelConfig(
        vocab_size=V, d_model=32, block=block, num_blocks=num_blocks, max_positions=64, causal=False,
        noise="absorbing", canvas_block=canvas_block, shift_logits=shift, attention=AttentionConfig(num_heads=2),
        **more,
    )  # fmt: skip
    model = config.build()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(4)
    return model.to(dtype).eval().requires_grad_(False)


def requests(*rows):
    """Rows of (prompt tokens, open positions) or (prompt tokens, canvas with ... where it is open)."""
    batch = []
    for i, (prompt, canvas) in enumerate(rows):
        given = None if isinstance(canvas, int) else tuple(None if token is ... else token for token in canvas)
        new = canvas if given is None else given.count(None)
        batch.append(
            Request(
                id=str(i), prompt=(BOS, *[3 + i] * (prompt - 1)), max_new_tokens=new, seed=i, canvas=given,
            )
        )  # fmt: skip
    return batch


# Prompts that end inside blocks, canvases that end early, text given between open positions and over a whole block.
RAGGED = requests((3, 10), (7, 8), (1, 6), (5, [..., 9, *[8] * 8, ..., 7, ...]))


@dataclasses.dataclass(frozen=True)
class Watched:
    """A cache whose logits are held against rows read whole and alone; `seen` is told of every look.

    seen(number of the row's look at the block, largest difference at each wanted position)
    """

    cache: Any
    seen: Callable[[int, Tensor], None]
    before: Callable[[Any], None] = lambda reader: None

    def check(self, model, *, block_len):
        self.cache.check(model, block_len=block_len)

    def open(self, model, canvas):
        return WatchedReader(self, self.cache.open(model, canvas), model, canvas)


class WatchedReader:
    def __init__(self, watched, reader, model, canvas):
        self.watched, self.reader, self.model, self.canvas = watched, reader, model, canvas
        self.looks: list[int] = []

    def __getattr__(self, name):
        return getattr(self.reader, name)

    @property
    def forwards(self):
        return self.reader.forwards

    @forwards.setter
    def forwards(self, value):
        self.reader.forwards = value

    @property
    def positions(self):
        return self.reader.positions

    @positions.setter
    def positions(self, value):
        self.reader.positions = value

    def begin(self, block):
        self.looks = [0] * len(block.starts)
        self.reader.begin(block)

    def logits(self, block, rows, wanted_BW, time_B):
        self.watched.before(self.reader)
        found_MV = self.reader.logits(block, rows, wanted_BW, time_B)
        done = 0
        for row_wanted_W, row in zip(wanted_BW, range(len(wanted_BW)) if rows is None else rows, strict=True):
            columns = block.column_BW[row, : len(row_wanted_W)][row_wanted_W]
            alone = self.canvas.tokens_BT[row : row + 1, self.canvas.num_columns - self.canvas.totals[row] :]
            at = columns - self.canvas.num_columns + self.canvas.totals[row]
            expected = self.model(alone)[0, at]
            apart = (found_MV[done : done + len(at)] - expected).abs().amax(-1)
            self.watched.seen(self.looks[row], apart)
            done += len(at)
            self.looks[row] += 1
        assert done == len(found_MV)
        return found_MV


def watch(cache, model, batch, *, sampler, block_len=None, **more):
    """Differences of all looks, by the number of the row's look at its block; and what `run` returns."""
    apart: dict[int, list[float]] = {}

    def seen(look, apart_M):
        apart.setdefault(look, []).extend(apart_M.tolist())

    decoder = MaskedDiffusion(cache=Watched(cache, seen, **more), sampler=sampler, block_len=block_len)
    found = run(decoder, model, batch)
    return {look: max(values, default=0.0) for look, values in apart.items()}, found


def total(events):
    return sum(event.forwards["model"] for event in events), sum(event.positions_computed for event in events)


# Exact


@pytest.mark.parametrize("W", [1, 3, 8])
@pytest.mark.parametrize(("shift", "dtype"), [(False, torch.float64), (True, torch.float64), (True, torch.float32)])
def test_kept_blocks_change_no_logit(W, shift, dtype):
    """Whole generations: logits within rounding, and so the same tokens; as many forwards as without a cache."""
    model = build(W, shift=shift, dtype=dtype)
    for sampler in SAMPLERS:
        apart, (texts, events, _) = watch(BlockCache(), model, RAGGED, sampler=sampler)
        assert max(apart.values()) < EXACT[dtype]
        uncached, plain, _ = run(MaskedDiffusion(sampler=sampler), model, RAGGED)
        assert texts == uncached
        assert total(events)[0] == total(plain)[0]
        assert total(events)[1] < total(plain)[1]


@pytest.mark.parametrize("block_len", [None, 5])
def test_without_a_cache_rows_are_read_whole(block_len):
    apart, _ = watch(NoCache(), build(shift=True), RAGGED, sampler=Threshold(threshold=0.3), block_len=block_len)
    assert max(apart.values()) < 1e-10


def test_later_blocks_of_a_block_causal_model_are_not_read():
    """Two blocks of 4 behind a prompt of 4: four looks at 8 positions, then four at 12."""
    _, events, _ = run(MaskedDiffusion(), build(4), requests((4, 8)))
    assert total(events) == (8, 4 * 8 + 4 * 12)


def test_only_runs_of_equal_steps_are_outlined():
    """A run that is summed from a few of its steps (`measure.extrapolate_over_s`) must not read more in later ones."""
    whole, blocks = build().config, build(4).config
    assert MaskedDiffusion().outline(whole, 8) == Outline(num_events=8, grows=False)
    for decoder, model in (
        (MaskedDiffusion(), blocks),
        (MaskedDiffusion(block_len=4), whole),
        (MaskedDiffusion(cache=DualCache()), whole),
        (MaskedDiffusion(sampler=Threshold()), whole),
    ):
        assert decoder.outline(model, 8) is None


@pytest.mark.parametrize("shift", [False, True])
def test_positions_of_kept_blocks(shift):
    """A prompt of 6 in blocks of 4: 2 open positions, then 4. One position a step."""
    batch = requests((6, 6))
    _, events, _ = run(MaskedDiffusion(cache=BlockCache()), build(4, shift=shift), batch)
    left = int(shift)  # the last column before a block is read again
    first = [8, 4 + left]  # prompt and block; then from the prompt's last whole block on
    second = [8 + left] + [4 + left] * 3
    assert total(events) == (6, sum(first + second))
    assert [event.positions_computed for event in events] == first + second
    slots = [4 - left] * 2 + [8 - left] * 4
    sizes = [event.state().used for event in events]
    assert sizes == [build(4).config.state_bytes(batch_size=1, length=length, itemsize=8) for length in slots]


@pytest.mark.parametrize("cache", [BlockCache(), PrefixCache(), DualCache(), DelayedCache()], ids=str)
def test_a_corrupted_slot_is_seen(cache):
    """The tests above would notice: one number of one kept slot of one row."""
    exact = isinstance(cache, BlockCache)
    model = build(4 if exact else None)

    def corrupt(reader):
        state = reader.states.whole
        if state.lengths[0] >= 4 if exact else reader.looks[0] == 1:
            state.layers[0].keys_BKSD[0, 0, 1, 0] += 0.5

    batch = requests((5, 6))
    clean, _ = watch(cache, model, batch, sampler=Random())
    apart, _ = watch(cache, model, batch, sampler=Random(), before=corrupt)
    assert (clean[1] < 1e-10) == exact
    assert abs(apart[1] - clean[1]) > 1e-4


# Approximate


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("kind", APPROXIMATE)
def test_approximate_caches_are_exact_where_they_read_the_whole_row(kind, shift):
    """At each block's first look and at each refresh; not between, which shows that there is something to see."""
    model = build(shift=shift)
    for sampler in SAMPLERS:
        for block_len, refresh_every in ((5, None), (None, 3)):
            cache = kind(refresh_every=refresh_every)
            apart, _ = watch(cache, model, RAGGED, sampler=sampler, block_len=block_len)
            exact = {look for look in apart if look == 0 or (refresh_every and look % refresh_every == 0)}
            assert max(apart[look] for look in exact) < 1e-10
            assert all(apart[look] > 1e-4 for look in apart.keys() - exact if apart[look])
            assert max(apart.values()) > 1e-4


@pytest.mark.parametrize("kind", APPROXIMATE)
def test_refreshed_at_every_look_they_write_the_same(kind):
    model = build(shift=True)
    for sampler in (Threshold(threshold=0.3), Remasking(steps=14, eta=0.3)):
        plain, events, _ = run(MaskedDiffusion(sampler=sampler, block_len=7), model, RAGGED)
        cached, same, _ = run(MaskedDiffusion(sampler=sampler, block_len=7, cache=kind(refresh_every=1)), model, RAGGED)
        assert cached == plain
        assert total(same) == total(events)


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("kind", APPROXIMATE)
def test_one_layer_keeps_nothing_that_goes_stale(kind, shift):
    """Keys and values of a first layer depend on the token alone: what is kept of a token that was read is exact, and
    what is kept of a mask that has become one since is not. Tokens that become masks again are among them.
    """
    model = build(shift=shift, num_blocks=1, block="A")
    for sampler in (*SAMPLERS, Remasking(steps=14, eta=0.3)):
        apart, _ = watch(kind(), model, RAGGED, sampler=sampler, block_len=5)
        assert max(apart.values()) < 1e-10


CASES = [(kind(refresh_every=3), sampler) for kind in APPROXIMATE
         for sampler in (Threshold(threshold=0.3), Ancestral(steps=24, reuse=True))]  # fmt: skip


@pytest.mark.parametrize(("cache", "sampler"), [*CASES, (BlockCache(), Threshold(threshold=0.3))], ids=str)
def test_batched_equals_one_by_one(cache, sampler):
    """Also in positions: a row that has nothing left to decide in a block costs nothing until the next."""
    exact = isinstance(cache, BlockCache)
    model = build(6 if exact else None, shift=True)
    decoder = MaskedDiffusion(cache=cache, sampler=sampler, block_len=6)
    texts, events, _ = run(decoder, model, RAGGED)
    alone = [run(decoder, model, [request]) for request in RAGGED]
    assert texts == [rows[0] for rows, _, _ in alone]
    assert texts[::-1] == run(decoder, model, RAGGED[::-1])[0]
    if sampler.depends_on_values:
        assert total(events)[1] == sum(total(events)[1] for _, events, _ in alone)
        assert total(events)[0] < sum(total(events)[0] for _, events, _ in alone)


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("every", [None, 3])
def test_positions_of_approximate_caches(every, shift):
    """A prompt of 4 and two blocks of 5, one position a step; shifted, a window begins one column earlier."""
    model, batch, left = build(shift=shift), requests((4, 10)), int(shift)

    def read(kind, between):
        _, events, _ = run(MaskedDiffusion(cache=kind(refresh_every=every), block_len=5), model, batch)
        expected = [
            14 if index == 0 or (every and index % every == 0) else between(block, index)
            for block in range(2)
            for index in range(5)
        ]
        found = [event.positions_computed for event in events]
        return events, found, expected

    events, found, expected = read(PrefixCache, lambda block, index: 10 - 5 * block + left)
    assert found == expected
    assert events[-1].state().used == model.config.state_bytes(batch_size=1, length=9 - left, itemsize=8)
    events, found, expected = read(DualCache, lambda block, index: 5 + left)
    assert found == expected
    assert events[0].state().used == model.config.state_bytes(batch_size=1, length=9 - left, itemsize=8)
    events, found, expected = read(DelayedCache, lambda block, index: 10 - 5 * block - index + 1)
    if shift:  # a column before a wanted position may be read besides
        assert all(0 <= more - least <= 1 for more, least in zip(found, expected, strict=True))
    else:
        assert found == expected
        assert events[-1].state().used == model.config.state_bytes(batch_size=1, length=13, itemsize=8)


def test_the_time_is_passed_on():
    model = build(conditioning=ConditioningConfig(width=16, frequency_dim=8))
    with torch.no_grad():
        model.conditioning.modulation.normal_(std=0.5)
    for kind in APPROXIMATE:
        plain = run(MaskedDiffusion(block_len=5), model, RAGGED)[0]
        assert run(MaskedDiffusion(block_len=5, cache=kind(refresh_every=1)), model, RAGGED)[0] == plain


def config(**more):
    return ModelConfig(vocab_size=V, **{"causal": False, "noise": "absorbing", **more})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: DualCache(refresh_every=0), ["refresh_every=0", "null"]),
        (lambda: BlockCache().check(config(), block_len=4), ["canvas_block=null", "dual"]),
        (lambda: BlockCache().check(config(canvas_block=8), block_len=4), ["block_len=4", "canvas_block=8"]),
        (lambda: DualCache().check(config(canvas_block=8), block_len=8), ["cache=dual", "cache=block"]),
        (lambda: BlockCache().check(config(canvas_block=8, block="LF"), block_len=8), ["cache=block", "cache=none"]),
        (
            lambda: BlockCache().check(config(canvas_block=8, conditioning=ConditioningConfig()), block_len=8),
            ["reads_time", "cache=none"],
        ),
        (
            lambda: PrefixCache().check(config(causal=True, noise=None, block="M"), block_len=8),
            ["cache=prefix", "cache=none"],
        ),
    ],
)  # fmt: skip
def test_caches_that_cannot_serve_say_why(make, words):
    with pytest.raises(ValueError) as error:
        make()
    for word in words:
        assert word in str(error.value)


def test_no_mask_remains_and_texts_have_their_length():
    for kind in APPROXIMATE:
        texts, _, _ = run(MaskedDiffusion(cache=kind(), sampler=Threshold(threshold=0.3), block_len=5), build(), RAGGED)
        assert [len(text) for text in texts] == [request.max_new_tokens for request in RAGGED]
        assert all(MASK not in text for text in texts)
