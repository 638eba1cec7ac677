"""Each decoder on random weights: batched = one by one, counts of forwards and positions, prompts kept, masks gone,
stops."""

from __future__ import annotations

import dataclasses

import pytest
import tiny
import torch

from paradigms.decoding.autoregressive import Autoregressive
from paradigms.decoding.diffusion.decoder import MaskedDiffusion
from paradigms.decoding.diffusion.samplers.ancestral import Ancestral
from paradigms.decoding.diffusion.samplers.low_confidence import LowConfidence
from paradigms.decoding.diffusion.samplers.random import Random
from paradigms.decoding.diffusion.samplers.threshold import Threshold
from paradigms.models.config import ModelConfig
from paradigms.models.mamba2 import Mamba2Config
from paradigms.models.sliding_attention import SlidingAttentionConfig
from paradigms.paradigm import Request

V, BOS, EOS, MASK = 40, 0, 1, 2


class Vocabulary:
    eos_id, mask_id, vocab_size = EOS, MASK, V

    @staticmethod
    def decode(ids):
        return "".join(chr(ord("A") + token) for token in ids)


def build(*, noise=None, block="AF", dtype=torch.float64):
    torch.manual_seed(0)
    config = ModelConfig(
        vocab_size=V, d_model=64, block=block, num_blocks=2, max_positions=64,
        mamba2=Mamba2Config(chunk_len=8) if "M" in block else None,
        sliding_attention=SlidingAttentionConfig(window=5) if "W" in block else None,
        causal=noise is None, noise=noise, shift_logits=noise is not None,
    )  # fmt: skip
    model = config.build()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(4)
    return model.to(dtype).eval().requires_grad_(False)


def requests(shapes=((3, 12), (7, 12), (1, 9)), **more):
    return [
        Request(id=str(i), prompt=(BOS, *[3 + i] * (prompt - 1)), max_new_tokens=new, seed=i, **more)
        for i, (prompt, new) in enumerate(shapes)
    ]


def run(decoder, model, batch):
    """Committed tokens of each row, the events, and the finish reasons."""
    rows: list[dict[int, int]] = [{} for _ in batch]
    ended: dict[int, str] = {}
    events = []
    for event in decoder.decode(model, batch, Vocabulary):
        events.append(event)
        for row in set(range(len(batch))) - ended.keys():
            for k, position in enumerate(event.positions_K):
                if event.final_BK is None or event.final_BK[row, k]:
                    assert position not in rows[row], f"position {position} of row {row} became final twice"
                    rows[row][position] = int(event.token_ids_BK[row, k])
        ended |= event.finished
        for row, num_tokens in event.num_committed.items():
            rows[row] = {position: token for position, token in rows[row].items() if position < num_tokens}
    assert all(sorted(row) == list(range(len(row))) for row in rows)
    return [[row[position] for position in sorted(row)] for row in rows], events, ended


AUTOREGRESSIVE = [
    Autoregressive(),
    Autoregressive(cache="none"),
    Autoregressive(temperature=0),
    Autoregressive(temperature=0.7, top_k=5, top_p=0.8),
]
DIFFUSION = [
    MaskedDiffusion(),
    MaskedDiffusion(sampler=LowConfidence(steps=3), temperature=0.7, confidence="after"),
    MaskedDiffusion(sampler=Threshold(threshold=0.9), temperature=0),
    MaskedDiffusion(sampler=Random(steps="L/3"), top_k=5, top_p=0.8, block_len=5, eos="suppressed"),
]
MODELS = {
    "A": build,
    "M": lambda: build(block="M"),
    "W": lambda: build(block="WF"),
    "denoiser": lambda: build(noise="absorbing"),
}
CASES = [(kind, decoder) for kind in "AM" for decoder in AUTOREGRESSIVE] + [
    ("denoiser", decoder) for decoder in DIFFUSION
]
CASES += [("W", Autoregressive()), ("A", Autoregressive(kv_dtype="int8")), ("W", Autoregressive(kv_dtype="int8"))]


@pytest.mark.parametrize(("kind", "decoder"), CASES, ids=str)
def test_batched_equals_one_by_one(kind, decoder):
    """Rows of different prompts and lengths, in a batch, in another order, and alone."""
    model, batch = MODELS[kind](), requests()
    together = run(decoder, model, batch)[0]
    assert together == [run(decoder, model, [request])[0][0] for request in batch]
    assert together[::-1] == run(decoder, model, batch[::-1])[0]
    assert [len(row) for row in together] == [12, 12, 9]


@pytest.mark.parametrize(("kind", "decoder"), CASES, ids=str)
def test_no_mask_remains(kind, decoder):
    for row in run(decoder, MODELS[kind](), requests())[0]:
        assert MASK not in row


@pytest.mark.parametrize("kind", ["A", "M", "W"])
def test_cached_and_uncached_write_the_same(kind):
    model = MODELS[kind]()
    assert run(Autoregressive(), model, requests())[0] == run(Autoregressive(cache="none"), model, requests())[0]


@pytest.mark.parametrize(("prompt", "new"), [(1, 1), (5, 1), (5, 17)])
def test_autoregressive_forwards_and_positions(prompt, new):
    """N forwards for N tokens; with the state prompt + N - 1 positions, without it the sum over the growing text."""
    model, batch = build(), requests([(prompt, new)])
    _, cached, _ = run(Autoregressive(), model, batch)
    _, uncached, _ = run(Autoregressive(cache="none"), model, batch)
    assert len(cached) == len(uncached) == new
    assert [event.phase for event in cached] == ["prefill"] + ["decode"] * (new - 1)
    assert sum(event.positions_computed for event in cached) == prompt + new - 1
    assert sum(event.positions_computed for event in uncached) == sum(prompt + n for n in range(new))
    used = cached[-1].state()
    assert used.used == used.allocated == model.config.state_bytes(batch_size=1, length=prompt + new - 1, itemsize=8)
    assert uncached[-1].state is None


@pytest.mark.parametrize(
    ("steps", "length", "forwards"),
    [("L", 16, 16), ("L/4", 16, 4), ("L/3", 16, 5), ("L/4", 3, 1), (7, 16, 7), (16, 16, 16), (1, 16, 1)],
)
@pytest.mark.parametrize("sampler", [Random, LowConfidence])
def test_diffusion_forwards_are_its_steps(steps, length, forwards, sampler):
    _, events, _ = run(MaskedDiffusion(sampler=sampler(steps=steps)), build(noise="absorbing"), requests([(4, length)]))
    assert len(events) == forwards
    shares = [int(event.final_BK.sum()) for event in events]
    assert sum(shares) == length and max(shares) - min(shares) <= 1
    assert all(event.positions_computed == 4 + length for event in events)


@pytest.mark.parametrize("sampler", [Random(), LowConfidence()], ids=str)
def test_as_many_steps_as_tokens_decide_one_a_step(sampler):
    _, events, _ = run(MaskedDiffusion(sampler=sampler), build(noise="absorbing"), requests([(4, 20)]))
    assert [int(event.final_BK.sum()) for event in events] == [1] * 20


@pytest.mark.parametrize("threshold", [1e-6, 0.3, 1.0])
def test_threshold_takes_between_one_and_all_forwards(threshold):
    decoder = MaskedDiffusion(sampler=Threshold(threshold=threshold))
    _, events, _ = run(decoder, build(noise="absorbing"), requests([(4, 20)]))
    assert 1 <= len(events) <= 20
    assert all(event.final_BK.any() for event in events)
    assert len(events) == {1e-6: 1, 1.0: 20}.get(threshold, len(events))


@pytest.mark.parametrize("decoder", DIFFUSION, ids=str)
def test_prompt_and_decided_tokens_never_change(decoder):
    """Watched in what the model is given."""
    model = build(noise="absorbing")
    seen: list[torch.Tensor] = []
    plain = model.logits_where

    def watch(tokens_BT, wanted_BT, **more):
        seen.append(tokens_BT.clone())
        return plain(tokens_BT, wanted_BT, **more)

    model.logits_where = watch
    rows, _, _ = run(decoder, model, batch := requests([(5, 12)]))
    for before, after in zip(seen, [*seen[1:], torch.tensor([[*batch[0].prompt, *rows[0]]])], strict=True):
        decided = before != MASK
        assert torch.equal(before[decided], after[decided])
        assert tuple(before[0, :5].tolist()) == batch[0].prompt


def test_the_random_order_does_not_look_at_the_model():
    first, second = build(noise="absorbing"), build(noise="absorbing")
    with torch.no_grad():
        second.embedding.mul_(-1)
    orders = [
        [event.final_BK.nonzero().tolist() for event in run(MaskedDiffusion(), model, requests([(4, 12)]))[1]]
        for model in (first, second)
    ]
    assert orders[0] == orders[1]
    other = dataclasses.replace(requests([(4, 12)])[0], seed=99)
    assert orders[0] != [event.final_BK.nonzero().tolist() for event in run(MaskedDiffusion(), first, [other])[1]]


@pytest.mark.parametrize("decoder", [Autoregressive(), MaskedDiffusion()], ids=["ar", "diffusion"])
def test_natural_stops(decoder):
    """Over many seeds some texts end by end-of-text, some by a stop string, some by length; each ends where it says."""
    model = build(noise="absorbing" if isinstance(decoder, MaskedDiffusion) else None)
    stop = Vocabulary.decode([7])
    batch = [
        Request(id=str(seed), prompt=(BOS, 5), max_new_tokens=24, seed=seed, ignore_eos=False, stop_strings=(stop,))
        for seed in range(40)
    ]
    rows, _, ended = run(decoder, model, batch)
    assert set(ended.values()) == {"eos", "stop_string", "length"}
    for index, row in enumerate(rows):
        match ended[index]:
            case "eos":
                assert row.index(EOS) == len(row) - 1 and 7 not in row
            case "stop_string":
                assert row.index(7) == len(row) - 1 and EOS not in row
            case "length":
                assert len(row) == 24 and 7 not in row and EOS not in row


def sampling(sampler, **more):
    return MaskedDiffusion(sampler=sampler, **more)


def early(eos="early", **work):
    """A cell of masked diffusion whose texts may end before their length."""
    made = tiny.cell("diffusion", trained=True, **{"stop": "natural"} | work)
    return dataclasses.replace(made, decoder=MaskedDiffusion(eos=eos))


def test_ends_that_a_workload_allows():
    assert early().decoder.depends_on_values
    early().check()
    early(eos="suppressed", stop_strings=("x",)).check()
    early(eos="suppressed", stop="length").check()


CAUSAL = ModelConfig(vocab_size=V, d_model=64)
RECURRENT = ModelConfig(vocab_size=V, d_model=64, block="M")
DENOISER = ModelConfig(vocab_size=V, d_model=64, causal=False, noise="absorbing")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Autoregressive(cache="paged"), ["cache='paged'", "state, none"]),
        (lambda: Autoregressive(kv_dtype="int4"), ["kv_dtype='int4'", "int8"]),
        (lambda: Autoregressive(kv_dtype="int8", cache="none"), ["kv_dtype=int8", "cache=state"]),
        (lambda: Autoregressive(kv_dtype="int8").check(RECURRENT, output_len=16), ["kv_dtype=int8", "block='M'"]),
        (lambda: Autoregressive(temperature=-1), ["temperature=-1"]),
        (lambda: Autoregressive(top_k=0), ["top_k=0"]),
        (lambda: Autoregressive(top_p=1.5), ["top_p=1.5"]),
        (lambda: Autoregressive(temperature=0, top_k=3), ["temperature 0"]),
        (lambda: MaskedDiffusion(block_len=0), ["block_len=0", "null"]),
        (lambda: MaskedDiffusion(confidence="never"), ["confidence='never'", "before or after"]),
        (lambda: MaskedDiffusion(eos="late"), ["eos='late'", "free, suppressed, early"]),
        (lambda: Random(steps="half"), ["steps='half'", "L/n"]),
        (lambda: Random(steps=0), ["steps=0"]),
        (lambda: Ancestral(steps=10**30), ["steps=1000000", "at most"]),
        (lambda: Threshold(threshold=1.5), ["threshold=1.5"]),
        (lambda: sampling(Random(steps=32)).check(DENOISER, output_len=16), ["steps=32", "output_len=16"]),
        (lambda: sampling(Random(steps=3), block_len=4).check(DENOISER, output_len=16), ["steps=3", "4 blocks"]),
        (lambda: MaskedDiffusion(block_len=8).check(dataclasses.replace(DENOISER, canvas_block=4), output_len=16),
         ["block_len=8", "canvas_block=4"]),
        (lambda: early(stop="length").check(), ["eos=early", "stop=length"]),
        (lambda: early(eos="suppressed").check(), ["eos=suppressed", "stop=natural"]),
        (lambda: MaskedDiffusion().check(CAUSAL, output_len=16), ["noise=None"]),
        (lambda: Autoregressive().check(DENOISER, output_len=16), ["KV cache"]),
    ],
)  # fmt: skip
def test_impossible_decoders_say_why(make, words):
    with pytest.raises(ValueError) as error:
        make()
    for word in words:
        assert word in str(error.value)
