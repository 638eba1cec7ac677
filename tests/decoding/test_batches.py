"""A batch is its rows: every sampler over every cache gives each row what it gives it alone, for the same work.

Samplers and caches are found, not listed: a new one is tested as soon as it lies in its folder. Rows differ in prompt,
canvas and given text, finish at different steps, and then leave the forwards.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from functools import cache
from itertools import product

import pytest
import torch
from decoding.test_decoders import BOS, EOS, MASK, V, Vocabulary, run
from hypothesis import given, settings
from hypothesis import strategies as some

from paradigms.decoding.diffusion import caches, samplers
from paradigms.decoding.diffusion.caches.block import BlockCache
from paradigms.decoding.diffusion.caches.none import NoCache
from paradigms.decoding.diffusion.contract import Sampler
from paradigms.decoding.diffusion.decoder import MaskedDiffusion
from paradigms.decoding.diffusion.samplers.ancestral import Ancestral
from paradigms.decoding.diffusion.samplers.entropy import Entropy
from paradigms.decoding.diffusion.samplers.random import Random
from paradigms.decoding.diffusion.samplers.remasking import Remasking
from paradigms.decoding.diffusion.samplers.threshold import Threshold
from paradigms.models.attention import AttentionConfig
from paradigms.models.config import ModelConfig
from paradigms.paradigm import Request

BLOCK = 4


def found(package, is_one):
    """Configs in the modules of a package from which no other is derived, with default settings where all have one."""
    names = [f"{package.__name__}.{module.name}" for module in pkgutil.iter_modules(package.__path__)]
    kinds = {kind for name in names for kind in vars(importlib.import_module(name)).values() if isinstance(kind, type)}
    leaves = [kind for kind in kinds if is_one(kind) and dataclasses.is_dataclass(kind) and not kind.__subclasses__()]
    missing = dataclasses.MISSING
    whole = [
        kind
        for kind in leaves
        if all((field.default, field.default_factory) != (missing, missing) for field in dataclasses.fields(kind))
    ]
    return [kind() for kind in sorted(whole, key=lambda kind: kind.__name__)]


SAMPLERS = [
    *found(samplers, lambda kind: issubclass(kind, Sampler)),
    Random(steps="L/3"),
    Ancestral(steps=16, reuse=False),
    Ancestral(steps=12, reuse=False, draws="float32"),
    Entropy(steps="L/2", choice_temperature=0.3),
    Threshold(threshold=0.3),
    Remasking(steps=12, schedule="confidence", eta=None),
    Remasking(steps=12, schedule="loop", eta=0.1, t_on=0.7, t_off=0.3, alpha_on=0.6),
]
CACHES = found(caches, lambda kind: hasattr(kind, "open"))
CACHES += [dataclasses.replace(kept, refresh_every=2) for kept in CACHES if hasattr(kept, "refresh_every")]


@cache
def build(canvas_block=None, shift=True):
    torch.manual_seed(0)
    config = ModelConfig(
        vocab_size=V, d_model=32, num_blocks=1, max_positions=64, attention=AttentionConfig(num_heads=2), causal=False,
        noise="absorbing", shift_logits=shift, canvas_block=canvas_block,
    )  # fmt: skip
    model = config.build()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(4)
    return model.double().eval().requires_grad_(False)


def canvas(pattern):
    """`__56_` is two open positions, two given tokens, and an open one."""
    return tuple(None if sign == "_" else int(sign) for sign in pattern)


def request(seed, prompt_len, pattern, **more):
    layout = canvas(pattern)
    prompt = (BOS, *[3 + seed % 7] * (prompt_len - 1))
    return Request(
        id=f"{seed}", prompt=prompt, max_new_tokens=layout.count(None), canvas=layout, seed=seed, **more
    )  # fmt: skip


BATCH = [
    request(0, 3, "_" * 11),
    request(1, 7, "_" * 11),
    request(2, 1, "_" * 5),
    request(3, 4, "7__56_____88888_9"),
    request(4, 3, "_" * 8),
    request(5, 3, "_"),
]


def story(decoder, model, batch):
    """Of each row, the tokens and the groups of positions that became final together, in order; and the events."""
    rows, events, ended = run(decoder, model, batch)
    groups = [
        [
            found
            for event in events
            if (found := [k for k, final in enumerate(event.final_BK[row].tolist()) if final and k < len(tokens)])
        ]
        for row, tokens in enumerate(rows)
    ]
    return [(rows[row], groups[row], ended[row]) for row in range(len(batch))], events


def decoder_of(sampler, kept, **more):
    """Over blocks, but for samplers without a cache, which are tested over the whole canvas."""
    blocks = {} if isinstance(kept, NoCache | BlockCache) else {"block_len": BLOCK}
    return MaskedDiffusion(sampler=sampler, cache=kept, **{**blocks, **more})


def model_of(kept):
    return build(BLOCK) if isinstance(kept, BlockCache) else build()


def check_batch(decoder, model, batch):
    together, events = story(decoder, model, batch)
    alone = [story(decoder, model, [one]) for one in batch]
    assert together == [rows[0] for rows, _ in alone]
    assert together[::-1] == story(decoder, model, batch[::-1])[0]
    computed = [sum(event.positions_computed for event in some_events) for _, some_events in alone]
    assert sum(event.positions_computed for event in events) == sum(computed), "a row that is done costs nothing"
    forwards = [sum(event.forwards["model"] for event in some_events) for _, some_events in alone]
    assert max(forwards) <= sum(event.forwards["model"] for event in events) <= sum(forwards)
    if decoder.block_len is None and model.config.canvas_block is None:
        assert len(events) == max(len(some_events) for _, some_events in alone)


PAIRS = [(sampler, NoCache()) for sampler in SAMPLERS]
PAIRS += [
    (sampler, CACHES[index % len(CACHES)]) for index, sampler in enumerate(SAMPLERS)
]  # each of both at least once
REST = [pair for pair in product(SAMPLERS, CACHES) if pair not in PAIRS]


@pytest.mark.parametrize(("sampler", "kept"), PAIRS, ids=str)
def test_batched_equals_one_by_one(sampler, kept):
    check_batch(decoder_of(sampler, kept), model_of(kept), BATCH)


@pytest.mark.slow
@pytest.mark.parametrize(("sampler", "kept"), REST, ids=str)
def test_batched_equals_one_by_one_for_every_other_pair(sampler, kept):
    check_batch(decoder_of(sampler, kept), model_of(kept), BATCH)


def test_each_sampler_and_cache_is_among_the_pairs():
    assert len(SAMPLERS) >= 16 and len(CACHES) >= 8
    assert all(any(sampler == one for one, _ in PAIRS) for sampler in SAMPLERS)
    assert all(any(kept == one for _, one in PAIRS) for kept in CACHES)


NATURAL = [
    request(
        seed, 1 + seed % 5, "_" * (6 + seed % 7), ignore_eos=False, stop_strings=(Vocabulary.decode([7]),) * (seed % 2)
    )
    for seed in range(12)
]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
def test_rows_that_end_early_equal_one_by_one(sampler):
    """Full canvas for one half of the samplers, blocks without and with a cache for the other."""
    kept = CACHES[SAMPLERS.index(sampler) % len(CACHES)]
    check_batch(decoder_of(sampler, kept, eos="early"), model_of(kept), NATURAL)


# ---------------------------------------------------------------- ends


@pytest.mark.parametrize("sampler", [Random(), Threshold(threshold=0.3), Remasking(steps=24)], ids=str)
@pytest.mark.parametrize("block_len", [None, 1, 4])
def test_an_early_end_is_an_end_and_saves_work(sampler, block_len):
    """Rows end where they say so, by end-of-text, stop string or length, with fewer positions than a full canvas."""
    model = build()
    batch = [dataclasses.replace(one, max_new_tokens=20, canvas=None) for one in NATURAL]
    work, rows = {}, {}
    for eos in ("free", "early", "suppressed"):
        decoder = MaskedDiffusion(sampler=sampler, block_len=block_len, eos=eos)
        rows[eos], events = story(decoder, model, batch)
        work[eos] = sum(event.positions_computed for event in events)
        for tokens, _, reason in rows[eos]:
            if reason == "eos":
                assert tokens.index(EOS) == len(tokens) - 1 and eos != "suppressed"
            elif reason == "length":
                assert len(tokens) == 20 and EOS not in tokens
            assert eos != "suppressed" or EOS not in tokens
    reasons = [reason for _, _, reason in rows["early"]]
    assert {"eos", "stop_string"} <= set(reasons)
    if sampler.revises and block_len is None:
        assert work["early"] == work["free"], "nothing of a canvas is known before its last step"
    else:
        assert work["early"] < work["free"]
    if block_len == 1 or sampler.revises:  # what comes behind an end has not been seen by what comes before it
        assert [(tokens, reason) for tokens, _, reason in rows["early"]] == [
            (tokens, reason) for tokens, _, reason in rows["free"]
        ]


def test_behind_a_decided_end_of_text_nothing_is_decided():
    """Threshold sampling of a full canvas, in which ends come before their beginnings are decided."""
    one = request(3, 2, "_" * 24, ignore_eos=False)
    later = 0
    for seed in range(40):
        batch = [dataclasses.replace(one, seed=seed)]
        end = None
        for event in MaskedDiffusion(sampler=Random(), eos="early").decode(build(), batch, Vocabulary):
            tokens, final = event.token_ids_BK[0].tolist(), event.final_BK[0].tolist()
            assert end is None or not any(final[end + 1 :])
            decided = [k for k, token in enumerate(tokens) if token == EOS]
            later += end is not None
            end = min(decided, default=None)
            if event.finished == {0: "eos"}:
                assert end is not None and MASK not in tokens[: end + 1] and event.num_committed == {0: end + 1}
    assert later > 20


def test_a_given_end_of_text_is_no_end():
    one = Request(
        id="0", prompt=(BOS,), max_new_tokens=4, canvas=(None, EOS, None, None, EOS, None), ignore_eos=False, seed=1
    )
    decoder = MaskedDiffusion(sampler=Random(), eos="early")
    for seed in range(8):
        (row,), _, ended = run(decoder, build(), [dataclasses.replace(one, seed=seed)])
        assert (ended[0] == "eos") == (EOS in row) and (EOS in row or len(row) == 4)


# ---------------------------------------------------------------- any request


@given(some.data())
@settings(max_examples=30, deadline=None)
def test_whatever_is_asked(data):
    """No mask remains, prompts and given tokens never change, and a row takes as many steps as it may."""
    sampler, kept = data.draw(some.sampled_from(SAMPLERS)), data.draw(some.sampled_from(CACHES))
    block_len = data.draw(some.sampled_from([None, 1, 3, BLOCK]))
    blocks = {} if isinstance(kept, BlockCache) else {"block_len": block_len}
    patterns = some.text("__56", min_size=1, max_size=12).filter(lambda pattern: "_" in pattern)
    shapes = data.draw(some.lists(some.tuples(some.integers(1, 6), patterns), min_size=1, max_size=3))
    batch = [request(seed, prompt_len, pattern) for seed, (prompt_len, pattern) in enumerate(shapes)]
    decoder, model = decoder_of(sampler, kept, **blocks), model_of(kept)
    rows, events, ended = run(decoder, model, batch)
    for one, row in zip(batch, rows, strict=True):
        assert len(row) == one.max_new_tokens and MASK not in row
    assert ended == dict.fromkeys(range(len(batch)), "length")
    open_positions = max(one.max_new_tokens for one in batch)
    if not isinstance(sampler, Ancestral | Remasking):
        blocks_at_most = max(len(one.prompt) % BLOCK + len(one.layout) for one in batch)
        assert 1 <= sum(event.forwards["model"] for event in events) <= max(open_positions, blocks_at_most) * len(batch)


@given(
    some.integers(1, 6), some.text("__56", min_size=2, max_size=12).filter(lambda pattern: "_" in pattern), some.data()
)
@settings(max_examples=30, deadline=None)
def test_prompts_given_and_decided_tokens_never_change(prompt_len, pattern, data):
    """Watched in what the model is given, at every step."""
    sampler = data.draw(some.sampled_from([one for one in SAMPLERS if not one.revises]))
    model, one, seen = build(), request(1, prompt_len, pattern), []
    plain = type(model).logits_where

    class Watched:
        config, device, dtype = model.config, model.device, model.dtype

        @staticmethod
        def logits_where(tokens_BT, wanted_BT, **more):
            seen.append(tokens_BT[0].tolist())
            return plain(model, tokens_BT, wanted_BT, **more)

    (row,), _, _ = run(MaskedDiffusion(sampler=sampler), Watched(), [one])
    rest = iter(row)
    whole = [*one.prompt, *(next(rest) if token is None else token for token in one.layout)]
    first = [*one.prompt, *(MASK if token is None else token for token in one.layout)]
    assert seen[0] == first
    for before, after in zip(seen, [*seen[1:], whole], strict=True):
        assert all(old in (MASK, new) for old, new in zip(before, after, strict=True))
