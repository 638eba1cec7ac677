"""Text given within the canvas: causal models read it first, denoisers see it where it stands."""

from __future__ import annotations

import dataclasses

import pytest
import tiny
import torch
from decoding.test_decoders import BOS, EOS, MASK, V, Vocabulary, build, run
from hypothesis import given, settings
from hypothesis import strategies as some

from paradigms import bench
from paradigms.data.stream import token_stream
from paradigms.data.tokenizers import ByteTokenizer
from paradigms.decoding import draws
from paradigms.decoding.autoregressive import Autoregressive
from paradigms.decoding.prompts import append, follow, left_to_right, rearranged
from paradigms.decoding.stopping import never_mask
from paradigms.engines.transformers_generate import TransformersGenerate
from paradigms.paradigm import Request
from paradigms.scores import score, stretches
from paradigms.workload import Workload

__ = None  # an open position


def request(canvas, prompt=(BOS, 9, 8), **more):
    return Request(
        **{"id": "r", "prompt": prompt, "max_new_tokens": canvas.count(None), "canvas": tuple(canvas), "seed": 3} | more
    )


BATCH = [
    request((__, __, 5, 6, 7, __, 4), id="a", seed=1),
    request((11, __, 12, 13, __, __, __, 14, 15), id="b", prompt=(BOS,), seed=2),
    request((__, __, __), id="c", prompt=(BOS, 20, 21, 22, 23), seed=3),
    request((__, 30, __), id="d", seed=4),
]
LAYOUTS = some.lists(some.one_of(some.none(), some.integers(3, V - 1)), min_size=1, max_size=14).filter(
    lambda canvas: None in canvas
)


# ---------------------------------------------------------------- causal models


def test_what_a_causal_model_reads():
    """Written out: given stretches behind the first gap, each closed by the separator, then the prompt as it is."""
    first, second, third, fourth = BATCH
    assert rearranged(first, EOS) == (BOS, 5, 6, 7, EOS, 4, EOS, BOS, 9, 8)
    assert left_to_right(first, rearranged(first, EOS)) == [rearranged(first, EOS), (), (5, 6, 7)]
    assert rearranged(second, EOS) == (BOS, 12, 13, EOS, 14, 15, EOS, BOS)
    assert left_to_right(second, (BOS,)) == [(BOS, 11), (12, 13), (), ()]
    assert rearranged(third, EOS) == third.prompt
    assert rearranged(fourth, EOS) == (BOS, 30, EOS, BOS, 9, 8)
    before = request((7, 7, __))
    assert rearranged(before, EOS) == before.prompt and left_to_right(before, before.prompt) == [(BOS, 9, 8, 7, 7)]


def by_hand(decoder, model, one, separator):
    """One row without state or batch: the list of what was read grows, and every token is drawn from its end."""
    suffix = decoder.infilling == "suffix_first"
    read, written = list(rearranged(one, separator) if suffix else one.prompt), []
    for token in one.layout:
        if token is None:
            logits_1V = never_mask(model(torch.tensor([read]))[:, -1], Vocabulary)
            uniform = draws.uniform([one.seed], torch.tensor([len(written)]), 0, "token")[0]
            token = int(decoder.draw(logits_1V, uniform))
            written.append(token)
        read.append(token)
    return written


@pytest.mark.parametrize("infilling", ["suffix_first", "prefix_only"])
@pytest.mark.parametrize("block", ["AF", "M", "WF"])
def test_causal_models_infill_as_by_hand(block, infilling):
    """With state, without, in a batch and alone; a forward a token; every position read once."""
    model = build(block=block)
    decoder = Autoregressive(infilling=infilling)
    wanted = [by_hand(decoder, model, one, EOS) for one in BATCH]
    for cache in ("state", "none"):
        decoder = Autoregressive(infilling=infilling, cache=cache)
        rows, events, _ = run(decoder, model, BATCH)
        assert rows == wanted
        assert len(events) == max(one.max_new_tokens for one in BATCH)
        for one, row in zip(BATCH, wanted, strict=True):
            (alone,), events, _ = run(decoder, model, [one])
            assert alone == row and len(events) == len(row)
            if cache == "state":
                assert sum(event.positions_computed for event in events) == decoder.num_positions(one) - 1


@pytest.mark.parametrize("cache", ["state", "none"])
def test_questions_are_not_read_ahead(cache):
    """What is given in order is reached, by whatever rule other gaps are filled."""
    model, decoder = build(), Autoregressive(cache=cache)
    asked = [dataclasses.replace(one, in_order=True) for one in BATCH]
    control = Autoregressive(infilling="prefix_only", cache=cache)
    rows = run(decoder, model, asked)[0]
    assert rows == run(control, model, BATCH)[0] != run(decoder, model, BATCH)[0]
    assert [decoder.num_positions(one) for one in asked] == [control.num_positions(one) for one in BATCH]


def test_the_control_does_not_know_what_comes():
    """With the given text exchanged, the first gap stays as it was, and is another one for a model that read ahead."""
    model, one = build(), BATCH[0]
    other = dataclasses.replace(one, canvas=(__, __, 25, 26, 27, __, 24))
    for infilling, knows in (("prefix_only", False), ("suffix_first", True)):
        seeds = [
            (
                run(decoder, model, [dataclasses.replace(one, seed=seed)])[0][0][:2],
                run(decoder, model, [dataclasses.replace(other, seed=seed)])[0][0][:2],
            )
            for seed in range(5)
            for decoder in [Autoregressive(infilling=infilling)]
        ]
        assert any(first != second for first, second in seeds) == knows


@given(some.lists(some.lists(some.integers(3, V - 1), max_size=5), min_size=1, max_size=4), some.data())
@settings(max_examples=40, deadline=None)
def test_rows_grow_by_different_numbers_of_tokens(given_rows, data):
    rows = [data.draw(some.lists(some.integers(3, V - 1), min_size=1, max_size=4)) for _ in given_rows]
    T = max(map(len, rows))
    tokens_BT = torch.tensor([[0] * (T - len(row)) + row for row in rows])
    new_BN, counts = follow(torch.full((len(rows), 1), 2), given_rows)
    both_BT, lengths = append(tokens_BT, [len(row) for row in rows], new_BN, counts)
    for row, old, tail in zip(both_BT.tolist(), rows, given_rows, strict=True):
        assert row[-len(old) - 1 - len(tail) :] == [*old, 2, *tail]
    assert lengths == [len(old) + 1 + len(tail) for old, tail in zip(rows, given_rows, strict=True)]
    assert both_BT.shape[1] == max(lengths)


# ---------------------------------------------------------------- requests and workloads


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: request((__, 4, __), max_new_tokens=3), ["2 open positions", "max_new_tokens=3"]),
        (lambda: request((__, 4), ignore_eos=False, stop_strings=("x",)), ["stop strings", "given text"]),
        (
            lambda: next(TransformersGenerate().decode(None, BATCH, Vocabulary)),
            ["request 'a'", "transformers_generate"],
        ),
        (lambda: Autoregressive(infilling="both"), ["infilling='both'", "suffix_first, prefix_only"]),
        (lambda: Workload(num_gaps=2), ["num_gaps=2", "given_len=0", "both, or neither"]),
        (lambda: Workload(given_len=2), ["num_gaps=0", "given_len=2"]),
        (lambda: Workload(num_gaps=5, given_len=1, output_len=4), ["num_gaps=5", "output_len=4"]),
        (lambda: Workload(num_gaps=1, given_len=1, stop="natural"), ["num_gaps=1", "stop=length"]),
        (lambda: Workload(num_gaps=-1), ["num_gaps=-1"]),
        (lambda: cell(infilling="prefix_only", num_gaps=0, given_len=0).check(), ["prefix_only", "num_gaps=0"]),
        (
            lambda: dataclasses.replace(cell(), decoder=TransformersGenerate()).check(),
            ["num_gaps=2", "go on from a prompt"],
        ),
        (lambda: cell(measure={"quality": False, "extrapolate_over_s": 1.0}).check(), ["num_gaps=2", "extrapolate"]),
    ],
)
def test_impossible_infilling_says_why(make, words):
    with pytest.raises(ValueError) as error:
        make()
    for word in words:
        assert word in str(error.value)


def cell(paradigm="ar", infilling=None, **more):
    made = tiny.cell(paradigm, **{"num_gaps": 2, "given_len": 3, "prompts": "heldout"} | more)
    return made if infilling is None else dataclasses.replace(made, decoder=Autoregressive(infilling=infilling))


def test_a_workload_with_gaps():
    work = Workload(prompt_len=4, output_len=5, num_gaps=2, given_len=3)
    assert (work.canvas_len, work.total_len) == (11, 15)
    assert work.canvas(range(100, 111)) == (__, __, 102, 103, 104, __, __, __, 108, 109, 110)
    assert Workload().canvas(()) is None and Workload().total_len == 192


@pytest.mark.parametrize("prompts", ["heldout", "random"])
def test_given_text_is_the_true_one_and_equal_for_every_paradigm(prompts):
    tokenizer = ByteTokenizer().load(tiny.corpus())
    made = [
        bench.make_requests(
            cell(paradigm, prompts=prompts, batch_size=3), 1, 0, corpus=tiny.corpus(), tokenizer=tokenizer
        )
        for paradigm in ("ar", "ssm", "diffusion")
    ]
    assert made[0] == made[1] == made[2]
    stream = token_stream(tiny.corpus(), tokenizer, "heldout").tolist()
    for one in made[0]:
        assert one.layout == (*[__] * 8, *one.layout[8:11], *[__] * 8, *one.layout[19:])
        if prompts == "heldout":
            text = [*one.prompt[1:], *one.layout]
            places = range(len(stream) - len(text) + 1)
            assert any(all(t is None or t == stream[at + i] for i, t in enumerate(text)) for at in places)


def test_positions_of_a_cell_count_everything():
    """Before the prompt a begin-of-text, and each given stretch with its separator; nothing behind the last gap."""
    assert cell("diffusion").num_positions == 8 + 16 + 6
    assert cell("ar").num_positions == 1 + 2 * (3 + 1) + 8 + 16 + 3
    assert cell("ar", infilling="prefix_only").num_positions == 8 + 16 + 3
    assert tiny.cell("ar").num_positions == tiny.cell("diffusion").num_positions == 24
    long = dataclasses.replace(tiny.MODELS["ar"], max_positions=35)
    with pytest.raises(ValueError, match="behind 2 gaps, is 36 positions"):
        cell("ar", model=long).check()


# ---------------------------------------------------------------- scores


def test_text_is_judged_in_its_place():
    """Bytes of the output with all that stands before them; of given text those for which the judge sees the gap."""
    tokenizer = ByteTokenizer().load(tiny.corpus())
    judge = bench.judge(tiny.corpus())
    text = "the cache keeps every state. a model reads the prompt"
    ids = tokenizer.encode(text)
    prompt, rest = (tokenizer.bos_id, *ids[:10]), ids[10:]
    canvas = (*[__] * 6, *rest[6:20], *[__] * 4, *rest[24:])
    tokens = [*rest[:6], *rest[20:24]]
    one = request(canvas, prompt=prompt)
    found = score(tokenizer, judge, one, tokens)
    nats = judge.nats(text[10:].encode(), context=text[:10].encode())
    written = [*range(6), *range(20, 24)]
    seen = [*range(6, 6 + judge.order - 1), *range(24, 24 + judge.order - 1)]
    ln2 = torch.tensor(2.0, dtype=torch.float64).log().item()
    assert found["judge_bits_per_byte"] == pytest.approx(nats[written].mean() / ln2)
    assert found["judge_given_bits_per_byte"] == pytest.approx(nats[seen].mean() / ln2)
    assert found["output_bytes"] == 10
    assert stretches(one, tokens) == [
        (True, rest[:6]), (False, rest[6:20]), (True, rest[20:24]), (False, rest[24:])
    ]  # fmt: skip
    wrong = score(tokenizer, judge, one, [*rest[:6][::-1], *rest[20:24][::-1]])
    assert wrong["judge_given_bits_per_byte"] > found["judge_given_bits_per_byte"]
    nothing = score(tokenizer, judge, request((__,), prompt=prompt), [tokenizer.eos_id])
    assert nothing["judge_bits_per_byte"] is None and nothing["output_bytes"] == 0


@given(LAYOUTS, some.integers(0, 14))
@settings(max_examples=30, deadline=None)
def test_stretches_put_back_together_are_the_canvas(canvas, cut):
    one = request(canvas)
    tokens = list(range(100, 100 + min(cut, one.max_new_tokens)))
    filled = [token for _, stretch in stretches(one, tokens) for token in stretch]
    rest = iter(tokens)
    whole = [next(rest, None) if token is None else token for token in canvas]
    assert filled == (whole[: whole.index(None)] if None in whole else whole)


@pytest.mark.parametrize("paradigm", ["ar", "ssm", "diffusion"])
def test_a_cell_with_gaps_runs_and_is_scored(paradigm, folders):
    made = dataclasses.replace(cell(paradigm, trained=True, batch_size=2))
    made.check()
    observed, tables = bench.run_unit(made, 0)
    for row, sample in zip(tables["requests"], tables["samples"], strict=True):
        assert len(sample["token_ids"]) == row["committed_tokens"] == 16
        assert MASK not in sample["token_ids"] and sample["canvas_ids"].count(None) == 16
        assert row["judge_given_bits_per_byte"] > 0 and row["judge_bits_per_byte"] > 0
    assert observed["state_formula_bytes"] == observed["state_used_bytes"]
