"""The measured error of caches: against numbers worked out by hand, where it must be nothing, and as columns."""

from __future__ import annotations

import math

import pytest
import torch
from decoding.test_caches import RAGGED, build, run
from decoding.test_decoders import Vocabulary

from paradigms import cache_error as command
from paradigms.decoding.diffusion.caches.block import BlockCache
from paradigms.decoding.diffusion.caches.delayed import DelayedCache
from paradigms.decoding.diffusion.caches.dual import DualCache
from paradigms.decoding.diffusion.caches.error import CacheError, Compared, LookError, cache_error
from paradigms.decoding.diffusion.caches.prefix import PrefixCache
from paradigms.decoding.diffusion.decoder import MaskedDiffusion
from paradigms.decoding.diffusion.samplers.threshold import Threshold
from paradigms.decoding.native import NativeParadigm

THRESHOLD = Threshold(threshold=0.3)


def test_one_look_by_hand():
    error = LookError()
    p, q = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]), torch.tensor([[0.25, 0.625, 0.125], [0.1, 0.8, 0.1]])
    error.add(p.log(), q.log() + 3)  # logits are known up to a constant, distributions are not
    assert (error.looks, error.positions, error.other_argmax) == (1, 2, 1)
    assert error.kl_nats_sum == pytest.approx(0.75 * math.log(2) + 0.25 * math.log(0.4), abs=1e-6)
    assert error.largest_difference == pytest.approx(3 + math.log(2.5), abs=1e-6)
    assert CacheError({0: error}).columns()["cache_other_argmax_share"] == 0.5


def test_the_mask_is_not_compared():
    """No decoder ever says it."""
    model, mask = build(), Vocabulary.mask_id
    plain = model.logits_where
    calls = []

    def marked(*args, **more):
        found = plain(*args, **more)
        found[:, mask] += 5.0 * len(calls)  # another one at each call
        calls.append(1)
        return found

    model.logits_where = marked
    error = cache_error(MaskedDiffusion(cache=DualCache(refresh_every=1)), model, [RAGGED[:1]], Vocabulary)
    assert error.columns()["cache_largest_logit_difference"] < 1e-10


@pytest.mark.parametrize(
    ("cache", "model"),
    [
        (BlockCache(), build(4, shift=True)),
        (DualCache(refresh_every=1), build(shift=True)),
        (PrefixCache(), build(num_blocks=1, block="A")),
    ],
    ids=["block", "always refreshed", "one layer"],
)
def test_exact_caches_have_no_error(cache, model):
    decoder = MaskedDiffusion(cache=cache, sampler=THRESHOLD)
    found = cache_error(decoder, model, [RAGGED], Vocabulary)
    columns = found.columns()
    by_look = columns.pop("cache_kl_nats_by_look")
    assert len(by_look) == len(found.by_look)
    assert max(abs(value) for value in (*columns.values(), *by_look)) < 1e-9
    assert found.by_look.keys() == set(range(len(found.by_look)))


def test_looks_are_counted_and_the_first_is_exact():
    """Six open positions in two blocks of three, one a step: two looks of each number, and the same text."""
    model, batch = build(), RAGGED[2:3]
    decoder = MaskedDiffusion(cache=DualCache(), block_len=3)
    error = CacheError()
    watched = MaskedDiffusion(cache=Compared(DualCache(), error), block_len=3)
    texts, events, _ = run(watched, model, batch)
    plain, same, _ = run(decoder, model, batch)
    assert texts == plain
    assert [event.positions_computed for event in events] == [event.positions_computed for event in same]
    assert [event.forwards for event in events] == [event.forwards for event in same]
    found = [error.by_look[look] for look in range(3)]
    assert [(look.looks, look.positions) for look in found] == [(2, 2)] * 3
    assert found[0].largest_difference < 1e-10 and found[1].largest_difference > 1e-4
    assert found[2].kl_nats_sum > 0
    columns = error.columns()
    assert columns["cache_kl_nats_by_look"] == [look.kl_nats_sum / 2 for look in found]
    assert columns["cache_kl_nats"] == pytest.approx(sum(look.kl_nats_sum for look in found) / 6)


def test_refreshed_looks_are_exact_and_told_apart():
    decoder = MaskedDiffusion(cache=DelayedCache(refresh_every=2), sampler=THRESHOLD)
    found = cache_error(decoder, build(), [RAGGED, RAGGED[:2]], Vocabulary).by_look
    assert all((error.largest_difference < 1e-10) == (look % 2 == 0) for look, error in found.items())
    assert found[0].looks == len(RAGGED) + 2


def test_columns_of_the_records():
    """Approximate caches only."""
    approximate = NativeParadigm(build(), MaskedDiffusion(cache=DualCache(), block_len=5), Vocabulary())
    columns = approximate.quality_columns(RAGGED)
    assert columns["cache_kl_nats"] > 0 and 0 <= columns["cache_other_argmax_share"] <= 1
    assert NativeParadigm(build(), MaskedDiffusion(), Vocabulary()).quality_columns(RAGGED) == {}


def test_the_command(capsys):
    arguments = ["paradigm=diffusion", "decoder/cache=dual", "decoder.block_len=4", "workload.output_len=8"]
    assert command.main([*arguments, "--batches", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("| 1 | 2 | 2 | ") and len([line for line in lines if line.startswith("|")]) == 2 + 4
    assert command.main(["paradigm=ar"]) == 2
    assert "no masked diffusion" in capsys.readouterr().err
    assert command.main([*arguments, "--batches", "0"]) == 2
    assert "--batches=0" in capsys.readouterr().err
