"""Drafts: tokens that stand at the first output positions from the start. Decoders that do not revise keep them and go
on from them; ReMDM may take them back.
"""

from __future__ import annotations

import dataclasses
from math import prod
from typing import Any

import pytest
import torch
from decoding.exact_denoiser import Chain, ExactDenoiser, Independent, close, p_value
from decoding.test_batches import BLOCK, CACHES, SAMPLERS, canvas, decoder_of, model_of
from decoding.test_batches import build as denoiser
from decoding.test_decoders import BOS, EOS, MASK, Vocabulary, build, run
from hypothesis import given, settings
from hypothesis import strategies as some

from paradigms.decoding import draws
from paradigms.decoding.autoregressive import Autoregressive
from paradigms.decoding.diffusion.caches.block import BlockCache
from paradigms.decoding.diffusion.caches.none import NoCache
from paradigms.decoding.diffusion.canvas import Canvas
from paradigms.decoding.diffusion.decoder import MaskedDiffusion
from paradigms.decoding.diffusion.samplers.ancestral import Ancestral
from paradigms.decoding.diffusion.samplers.first_hitting import FirstHitting
from paradigms.decoding.diffusion.samplers.random import Random
from paradigms.decoding.diffusion.samplers.remasking import Remasking
from paradigms.decoding.diffusion.samplers.threshold import Threshold
from paradigms.decoding.prompts import drafts, rearranged
from paradigms.decoding.stopping import never_mask
from paradigms.paradigm import Request

KEEPING = [sampler for sampler in SAMPLERS if not sampler.revises]
REVISING = [sampler for sampler in SAMPLERS if sampler.revises]
STEADY = [dataclasses.replace(one, eta=0.0) for one in REVISING if one.schedule != "confidence"]


def over_caches(samplers, first=0):
    """Each sampler without a cache, and over one of the caches in turn."""
    rest = [kept for kept in CACHES if not isinstance(kept, NoCache)]
    turns = [(sampler, rest[(first + index) % len(rest)]) for index, sampler in enumerate(samplers)]
    return [(sampler, NoCache()) for sampler in samplers] + turns


def request(seed, prompt_len, pattern, draft=(), **more):
    layout = canvas(pattern)
    prompt = (BOS, *[3 + seed % 7] * (prompt_len - 1))
    return Request(
        id=f"{seed}", prompt=prompt, max_new_tokens=layout.count(None), canvas=layout, seed=seed, draft=tuple(draft),
        **more,
    )  # fmt: skip


BATCH = [  # no draft; within the first block; a whole block, and more; text given before, in and behind it
    request(0, 3, "_" * 11),
    request(1, 7, "_" * 11, (20, 21)),
    request(2, 1, "_" * 10, (22, 23, 24, 25)),
    request(3, 4, "7__56_____88888_9", (26, 27, 28)),
    request(4, 3, "_" * 12, range(20, 31)),
    request(5, 2, "_" * 8, (31, 32, 33, 34, 35)),
]


def story(decoder, model, batch):
    """Of each row, the tokens, the groups of positions behind the draft that became final together, in order, and why
    it ended; and the events.
    """
    rows, events, ended = run(decoder, model, batch)
    groups = [
        [
            found
            for event in events
            if (
                found := [
                    position
                    for k, position in enumerate(event.positions_K)
                    if len(one.draft) <= position < len(rows[row])
                    and (event.final_BK is None or event.final_BK[row, k])
                ]
            )
        ]
        for row, one in enumerate(batch)
    ]
    return [(rows[row], groups[row], ended[row]) for row in range(len(batch))], events


def check_rows(decoder, model, batch):
    """A batch is its rows; for the same work where rows that are done leave."""
    together, events = story(decoder, model, batch)
    alone = [story(decoder, model, [one]) for one in batch]
    assert together == [rows[0] for rows, _ in alone]
    assert together[::-1] == story(decoder, model, batch[::-1])[0]
    if isinstance(decoder, MaskedDiffusion):
        computed = sum(event.positions_computed for _, own in alone for event in own)
        assert sum(event.positions_computed for event in events) == computed, "a row that is done costs nothing"
    return together, events


# ---------------------------------------------------------------- kept, and told once


@pytest.mark.parametrize(("sampler", "kept"), over_caches([*KEEPING, *STEADY]), ids=str)
def test_drafts_are_kept_and_rows_do_not_depend_on_others(sampler, kept):
    rows, events = check_rows(decoder_of(sampler, kept), model_of(kept), BATCH)
    for one, (tokens, _, _) in zip(BATCH, rows, strict=True):
        assert tuple(tokens[: len(one.draft)]) == one.draft
        assert len(tokens) == one.max_new_tokens and MASK not in tokens
    if not sampler.revises:
        told = events[0].final_BK
        assert all(told[row, : len(one.draft)].all() for row, one in enumerate(BATCH)), "final from the start"
        for event in events[1:]:
            assert not any(event.final_BK[row, : len(one.draft)].any() for row, one in enumerate(BATCH))


@pytest.mark.parametrize(("sampler", "kept"), over_caches(REVISING, first=1), ids=str)
def test_rows_whose_drafts_may_change_do_not_depend_on_others(sampler, kept):
    rows, _ = check_rows(decoder_of(sampler, kept), model_of(kept), BATCH)
    for one, (tokens, _, _) in zip(BATCH, rows, strict=True):
        assert len(tokens) == one.max_new_tokens and MASK not in tokens


@pytest.mark.parametrize(
    "decoder",
    [Autoregressive(), Autoregressive(cache="none"), Autoregressive(infilling="prefix_only"),
     Autoregressive(temperature=0.7, top_k=5)],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("block", ["AF", "M"])
def test_causal_models_keep_drafts_and_go_on_from_them(decoder, block):
    model = build(block=block)
    rows, events = check_rows(decoder, model, BATCH)
    assert len(events) == 12, "a draft costs what any token costs"
    for one, (tokens, _, reason) in zip(BATCH, rows, strict=True):
        assert tokens == by_hand(decoder, model, one) and reason == "length"
        assert tuple(tokens[: len(one.draft)]) == one.draft


def by_hand(decoder, model, one):
    """The text grows, and every token is drawn from its end, or is the draft's."""
    suffix = decoder.infilling == "suffix_first"
    read, written = list(rearranged(one, EOS) if suffix else one.prompt), []
    for token in one.layout:
        if token is None:
            logits_1V = never_mask(model(torch.tensor([read]))[:, -1], Vocabulary)
            uniform = draws.uniform([one.seed], torch.tensor([len(written)]), 0, "token")[0]
            drawn = int(decoder.draw(logits_1V, uniform))
            token = one.draft[len(written)] if len(written) < len(one.draft) else drawn
            written.append(token)
        read.append(token)
    return written


def test_what_stands_from_the_start():
    assert drafts(BATCH[:1], torch.device("cpu")) is None
    found = drafts(BATCH[:3], torch.device("cpu"))
    assert found.tolist() == [[-1] * 4, [20, 21, -1, -1], [22, 23, 24, 25]]
    assert found.dtype == torch.int64


# ---------------------------------------------------------------- what comes behind is decided given them


ONE_A_STEP = [one for one in KEEPING if getattr(one, "steps", "L") == "L" and not isinstance(one, Ancestral)]


@pytest.mark.parametrize("sampler", [*ONE_A_STEP, Threshold(threshold=0.3)], ids=str)
@pytest.mark.parametrize("pattern", ["_" * 9, "__5_6_______", "7______8"])
@pytest.mark.parametrize("count", [1, 5])
def test_a_draft_is_read_as_given_text_is(sampler, pattern, count):
    """Over a whole canvas, at one position a step: the same tokens in the same order as behind a canvas that gives
    the draft's tokens, and as many forwards; and not those that follow another draft.
    """
    tokens = [20, 21, 22, 23, 24][:count]
    one = request(3, 4, pattern, tokens)
    layout, rest = list(one.layout), iter(tokens)
    for place, token in enumerate(layout):
        if token is None:
            layout[place] = next(rest, None)
    as_given = dataclasses.replace(one, draft=(), canvas=tuple(layout), max_new_tokens=layout.count(None))
    decoder, model = MaskedDiffusion(sampler=sampler), denoiser()
    (drafted,), events = story(decoder, model, [one])
    (wanted,), others = story(decoder, model, [as_given])
    assert drafted[0][count:] == wanted[0]
    assert [[k - count for k in group] for group in drafted[1]] == wanted[1]
    assert sum(e.forwards["model"] for e in events) == sum(e.forwards["model"] for e in others)
    assert sum(e.positions_computed for e in events) == sum(e.positions_computed for e in others)
    texts = {
        tuple(run(decoder, model, [dataclasses.replace(one, draft=(token,) * count)])[0][0][count:])
        for token in range(20, 28)
    }
    assert len(texts) > 1, "another draft, another text"


CHAIN = Chain.of([0.5, 0.3, 0.2], [[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.25, 0.15, 0.6]], 4)
NUMBER = 2000


def exact_rows(sampler, draft, model=None, **more):
    """What an exact denoiser of the chain writes behind a draft."""
    model = model or ExactDenoiser(CHAIN)
    batch = [
        Request(id=f"{seed}", prompt=(model.bos_id,), max_new_tokens=model.chain.length, seed=seed, draft=draft)
        for seed in range(NUMBER)
    ]
    events = list(MaskedDiffusion(sampler=sampler, **more).decode(model, batch, model.vocabulary))  # type: ignore[arg-type]
    final_SNL = torch.stack([event.final_BK for event in events])
    assert bool((final_SNL.sum(0) == 1).all()), "every position is final once"
    return events[-1].token_ids_BK


@pytest.mark.parametrize("sampler", [Random(), FirstHitting(), Ancestral(steps=4096)], ids=str)
@pytest.mark.parametrize("draft", [(2,), (1, 0)], ids=str)
def test_behind_a_draft_the_distribution_is_conditional(sampler, draft):
    """p(x_d .. x_L | draft) of the chain; not what it says without the draft, which the same test refuses."""
    rows_NL = exact_rows(sampler, draft)
    assert bool((rows_NL[:, : len(draft)] == torch.tensor(draft)).all())
    probabilities = CHAIN.probabilities.view([CHAIN.vocab_size] * CHAIN.length)
    given_draft = probabilities[draft].flatten()
    marginal = probabilities.sum(tuple(range(len(draft)))).flatten()
    places = torch.tensor([CHAIN.vocab_size**power for power in reversed(range(CHAIN.length - len(draft)))])
    counts = (rows_NL[:, len(draft) :] * places).sum(-1).bincount(minlength=len(given_draft))
    assert p_value(counts, given_draft / given_draft.sum()) > 1e-3
    assert p_value(counts, marginal) < 1e-6


# ---------------------------------------------------------------- revision


@pytest.mark.parametrize(
    "sampler",
    [Remasking(steps=8, eta=0.1), Remasking(steps=12, schedule="rescale", eta=0.15),
     Remasking(steps=10, schedule="loop", eta=0.2, t_on=0.7, t_off=0.3, alpha_on=0.6), Remasking(steps=8, eta=0.0)],
    ids=str,
)  # fmt: skip
def test_how_often_revision_changes_a_draft(sampler):
    """A draft lasts with probability q = prod(1 - σ); what is taken back is drawn again, where positions are
    independent as the draft's token with probability p: q + (1 - q) p in all.
    """
    model, draft = Independent([0.6, 0.4], length=5), (1, 0)
    rows_NL = exact_rows(sampler, draft, model=model)
    assert bool((rows_NL < 2).all()), "no mask remains"
    steps = sampler.steps
    lasts = prod(1 - sampler.rates(1 - k / steps, 1 - (k + 1) / steps)[1] for k in range(steps))
    for place, token in enumerate(draft):
        same = (rows_NL[:, place] == token).double()
        expected = lasts + (1 - lasts) * [0.6, 0.4][token]
        if sampler.eta == 0:
            assert bool((same == 1).all()) and lasts == 1
        else:
            assert 0.1 < lasts < 0.95 and close(same, expected)
            assert not close(same, 1.0) and not close(same, [0.6, 0.4][token])
    behind = (rows_NL[:, 2:] == 0).double().flatten()
    assert close(behind, 0.6)


@pytest.mark.parametrize("p", [0.001, 0.999], ids=["wrong", "right"])
def test_by_confidence_a_single_draft_is_taken_back_at_once_right_or_wrong(p, monkeypatch):
    """σ_max is 1 where nothing else is decided: that it goes says nothing of whether the model saw an error."""
    asked, mask_again = [], Canvas.mask_again
    monkeypatch.setattr(Canvas, "mask_again", lambda self, *args: (asked.append(args[-1]), mask_again(self, *args))[-1])
    exact_rows(Remasking(steps=8, schedule="confidence", eta=None), (0,), model=Independent([p, 1 - p], length=5))
    assert bool(asked[0][:, 0].all()) and not bool(asked[0][:, 1:].any())


@pytest.mark.parametrize("block_len", [1, 2, 3, None])
@pytest.mark.parametrize("sampler", REVISING, ids=str)
def test_no_mask_remains_of_a_draft_that_is_taken_back_in_a_blocks_only_step(sampler, block_len):
    """Blocks of few steps, drafts across their edges, and much revision."""
    sampler = dataclasses.replace(sampler, steps="L", **({} if sampler.eta is None else {"eta": 1.0}))
    decoder, model = MaskedDiffusion(sampler=sampler, block_len=block_len), denoiser()
    batch = [request(seed, 3, "_" * 7, range(20, 20 + seed % 7)) for seed in range(14)]
    for tokens in run(decoder, model, batch)[0]:
        assert len(tokens) == 7 and MASK not in tokens


def test_a_block_that_is_all_draft_is_revised_too():
    """Its steps are those of any block, and after them it is final; drafts of later blocks are not, until then."""
    decoder, model = MaskedDiffusion(sampler=Remasking(steps=12, eta=0.5), block_len=4), denoiser()
    one = request(1, 3, "_" * 12, range(20, 27))
    (row,), events, _ = run(decoder, model, [one])
    assert [int(event.final_BK.sum()) for event in events] == [0, 0, 0, 4] * 3
    changed = 0
    for seed in range(10):
        (row,), _, _ = run(decoder, model, [dataclasses.replace(one, seed=seed)])
        changed += sum(said != was for said, was in zip(row, one.draft, strict=False))
    assert changed > 7


# ---------------------------------------------------------------- ends


ENDING = [one for one in SAMPLERS if one in (Random(), Threshold(threshold=0.3))] + [
    Remasking(steps="L", eta=0.0),
    Remasking(steps="L", eta=0.3),
]


@pytest.mark.parametrize("eos", ["free", "early"])
@pytest.mark.parametrize("block_len", [None, 1, 4])
@pytest.mark.parametrize("sampler", ENDING, ids=str)
def test_a_draft_with_an_end_ends_its_row(sampler, block_len, eos):
    """Where the draft says end-of-text, in the first block or a later one, with rows beside it that go on; a sampler
    that revises may take that back.
    """
    ends = [(20, EOS), (20, 21, 22, 23, 24, EOS, 25), (EOS,), (), (20, 21)]
    batch = [request(seed, 2, "_" * 12, draft, ignore_eos=False) for seed, draft in enumerate(ends)]
    decoder, model = MaskedDiffusion(sampler=sampler, block_len=block_len, eos=eos), denoiser()
    rows, _ = check_rows(decoder, model, batch)
    for draft, (tokens, _, reason) in zip(ends, rows, strict=True):
        assert MASK not in tokens
        assert reason == ("eos" if EOS in tokens else "length")
        assert EOS not in tokens[:-1] and (reason == "eos" or len(tokens) == 12)
        if EOS in draft and not (sampler.revises and sampler.eta):
            assert tokens == list(draft[: draft.index(EOS) + 1])


def test_an_end_in_a_later_blocks_draft_is_none_until_that_block_is_decided():
    """It may be taken back: the masks behind it are needed then."""
    decoder = MaskedDiffusion(sampler=Remasking(steps=24, eta=0.6), block_len=4, eos="early")
    one = request(0, 2, "_" * 12, (20, 21, 22, 23, 24, EOS, 25), ignore_eos=False)
    lengths = set()
    for seed in range(12):
        (row,), _, ended = run(decoder, denoiser(), [dataclasses.replace(one, seed=seed)])
        assert MASK not in row and (ended[0] == "eos" or len(row) == 12)
        lengths.add(len(row))
    assert max(lengths) > 6, "some go on behind what was the end of the draft"


@pytest.mark.parametrize("cache", ["state", "none"])
def test_a_causal_row_ends_with_its_draft(cache):
    batch = [request(seed, 2, "_" * 8, draft, ignore_eos=False) for seed, draft in enumerate([(20, EOS, 21), (20,)])]
    rows, events, ended = run(Autoregressive(cache=cache), build(), batch)
    assert rows[0] == [20, EOS] and ended[0] == "eos" and events[1].finished[0] == "eos"
    assert rows[1] == run(Autoregressive(cache=cache), build(), batch[1:])[0][0]


def test_a_stop_string_may_begin_in_a_draft():
    """`stop` is completed by the draft's second token, or by what is written behind the first."""
    stop = Vocabulary.decode([20, 21])
    stops: dict[str, Any] = {"ignore_eos": False, "stop_strings": (stop,)}
    one = dataclasses.replace(request(0, 2, "_" * 8, (19, 20, 21, 22), **stops), canvas=None)
    for decoder, model in [(Autoregressive(), build())] + [
        (MaskedDiffusion(sampler=Random(), block_len=block_len, eos=eos), denoiser())
        for block_len in (None, 2)
        for eos in ("free", "early")
    ]:
        (row,), _, ended = run(decoder, model, [one])
        assert row == [19, 20, 21] and ended[0] == "stop_string"


# ---------------------------------------------------------------- any draft


@given(some.data())
@settings(max_examples=20, deadline=None)
def test_whatever_is_drafted(data):
    """Every position is final once, no mask remains, drafts stand where nothing revises, rows equal rows alone."""
    sampler = data.draw(some.sampled_from([*SAMPLERS, *STEADY]))
    kept = data.draw(some.sampled_from(CACHES))
    blocks = {} if isinstance(kept, BlockCache) else {"block_len": data.draw(some.sampled_from([None, 1, 3, BLOCK]))}
    eos, patterns = data.draw(some.sampled_from(["free", "early"])), some.text("___56", min_size=2, max_size=12)
    batch = []
    for seed in range(data.draw(some.integers(1, 3))):
        pattern = data.draw(patterns.filter(lambda text: text.count("_") > 1))
        tokens = some.lists(some.sampled_from([EOS, 20, 21, 22]), max_size=pattern.count("_") - 1)
        natural = data.draw(some.booleans())
        batch.append(request(seed, data.draw(some.integers(1, 5)), pattern, data.draw(tokens), ignore_eos=not natural))
    rows, _ = check_rows(decoder_of(sampler, kept, **blocks, eos=eos), model_of(kept), batch)
    for one, (tokens, _, reason) in zip(batch, rows, strict=True):
        assert MASK not in tokens
        assert (reason == "length") == (len(tokens) == one.max_new_tokens and (one.ignore_eos or EOS not in tokens))
        if not sampler.revises or getattr(sampler, "eta", None) == 0:
            assert tuple(tokens[: len(one.draft)]) == one.draft[: len(tokens)]
