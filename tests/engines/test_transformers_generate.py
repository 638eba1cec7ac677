"""The peer runs the same function: same logits, same greedy tokens, same counts as the native decoder."""

import math

import pytest
import theirs
import torch

from paradigms.decoding.autoregressive import Autoregressive
from paradigms.decoding.native import NativeParadigm
from paradigms.engines.theirs import as_theirs
from paradigms.engines.transformers_generate import TransformersGenerate
from paradigms.measure.clock import HostClock
from paradigms.measure.memory import peak_memory
from paradigms.measure.timeline import record
from paradigms.models.attention import AttentionConfig
from paradigms.models.config import ModelConfig
from paradigms.models.execution import execute
from paradigms.models.families import FAMILIES
from paradigms.models.feed_forward import FeedForwardConfig
from paradigms.models.pretrained import load_native, native_config
from paradigms.models.programs import num_compiled
from paradigms.models.transformers_cache import cache_argument, new_cache, tensors_of
from paradigms.paradigm import Request

V, MASK, EOS = 50, 2, 1


class Vocabulary:
    eos_id, mask_id, vocab_size = EOS, MASK, V

    def decode(self, ids):
        return "".join(chr(ord("0") + i) for i in ids)


def build(**changes) -> torch.nn.Module:
    torch.manual_seed(0)
    sizes = {
        "vocab_size": V,
        "d_model": 32,
        "num_blocks": 2,
        "feed_forward": FeedForwardConfig(width=48),
        "max_positions": 64,
    }
    model = ModelConfig(**sizes | changes).build()
    with torch.no_grad():  # strong layers, or a tied head repeats the last token and greedy texts tell nothing
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(std=1.0 if parameter is model.embedding else 0.3)
    return model


@pytest.fixture(scope="module")
def model():
    return build(attention=AttentionConfig(num_kv_heads=2))


def requests(*prompts, max_new_tokens=12, **options) -> list[Request]:
    return [
        Request(id=str(i), prompt=tuple(prompt), max_new_tokens=max_new_tokens, seed=i, **options)
        for i, prompt in enumerate(prompts)
    ]


PROMPTS = ([0, 7, 9, 11, 30], [0, 3, 4, 5, 6], [0, 40, 41, 42, 43])
RAGGED = ([0, 7, 9, 11, 30], [0, 8], [0, 40, 41])


def run(model, decoder, batch):
    return record(NativeParadigm(model, decoder, Vocabulary()), batch, clock=HostClock())


@pytest.mark.parametrize(
    "changes", [{}, {"attention": AttentionConfig(num_kv_heads=1, rope_theta=500.0)}, {"tied_head": False}]
)
def test_logits_are_those_of_the_native_model(changes):
    native = build(**changes)
    tokens = torch.randint(0, V, (3, 20), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = native(tokens)
        torch.testing.assert_close(
            as_theirs(native)(tokens).logits, expected, rtol=0, atol=1e-5 * expected.abs().max().item()
        )


def test_weights_are_converted_once_and_laid_out_as_transformers_does(model):
    llama = as_theirs(model)
    assert as_theirs(model) is llama
    assert sum(parameter.numel() for parameter in llama.parameters()) == model.config.num_parameters()
    assert llama.lm_head.weight.data_ptr() == llama.model.embed_tokens.weight.data_ptr()
    assert all(parameter.is_contiguous() for parameter in llama.parameters())


@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS, RAGGED], ids=["one", "batch", "ragged"])
@pytest.mark.parametrize("cached", [True, False])
def test_greedy_tokens_and_counts_are_those_of_the_native_decoder(model, prompts, cached):
    batch = requests(*prompts)
    native = run(model, Autoregressive(temperature=0.0, cache="state" if cached else "none"), batch)
    peer = run(model, TransformersGenerate(temperature=0.0, use_cache=cached), batch)
    for ours, other in zip(native.rows, peer.rows, strict=True):
        assert other.token_ids == ours.token_ids
    assert len({token for row in peer.rows for token in row.token_ids}) > 2, "texts that repeat one token tell nothing"
    assert peer.nfe == native.nfe
    if prompts is not RAGGED:
        assert peer.positions_computed == native.positions_computed


def test_mask_token_is_never_said():
    native = build()
    with torch.no_grad():
        native.embedding[:, MASK] = 5 * native.embedding[:, 7]  # as likely as can be
    peer = run(native, TransformersGenerate(temperature=0.0), requests(*PROMPTS))
    assert all(MASK not in row.token_ids for row in peer.rows)


def test_sampling_is_seeded_and_follows_top_k(model):
    decoder = TransformersGenerate(temperature=1.5, top_k=3)
    first, again = (run(model, decoder, requests(*PROMPTS)).rows for _ in range(2))
    assert [row.token_ids for row in first] == [row.token_ids for row in again]
    greedy = run(model, TransformersGenerate(temperature=1.0, top_k=1), requests(*PROMPTS)).rows
    expected = run(model, Autoregressive(temperature=0.0), requests(*PROMPTS)).rows
    assert [row.token_ids for row in greedy] == [row.token_ids for row in expected]


def test_sampling_follows_the_models_distribution(model):
    """No hidden default (top_k = 50, the library's own end-of-text) narrows it: first tokens pass a chi-square test."""
    num_rows = 4000
    peer = run(model, TransformersGenerate(temperature=4.0), requests(*[PROMPTS[0]] * num_rows, max_new_tokens=1))
    with torch.no_grad():
        logits = model(torch.tensor([PROMPTS[0]]))[0, -1].double() / 4
    logits[MASK] = -math.inf
    expected = num_rows * logits.softmax(-1)
    counts = torch.bincount(torch.tensor([row.token_ids[0] for row in peer.rows]), minlength=V)
    seen = expected > 5
    chi_square = ((counts - expected)[seen] ** 2 / expected[seen]).sum().item()
    assert seen.sum() > 20
    assert chi_square < seen.sum() + 4 * math.sqrt(2 * seen.sum())


def ends(model, prompt):
    """A token that greedy decoding of `prompt` says first at step 4 or later, and what it says."""
    said = run(model, TransformersGenerate(temperature=0.0), requests(prompt, max_new_tokens=30)).rows[0].token_ids
    return next((token, n + 1) for n, token in enumerate(said) if n >= 3 and token not in said[:n])


def test_natural_stop_is_that_of_the_native_decoder(model, monkeypatch):
    eos, num_tokens = ends(model, PROMPTS[0])
    monkeypatch.setattr(Vocabulary, "eos_id", eos)
    batch = requests(*PROMPTS, max_new_tokens=30, ignore_eos=False)
    native, peer = (run(model, kind(temperature=0.0), batch) for kind in (Autoregressive, TransformersGenerate))
    assert [(row.token_ids, row.finish_reason) for row in peer.rows] == [
        (row.token_ids, row.finish_reason) for row in native.rows
    ]
    assert peer.rows[0].finish_reason == "eos" and len(peer.rows[0].token_ids) == num_tokens


def test_stop_string_ends_the_row(model):
    token, num_tokens = ends(model, PROMPTS[0])
    batch = requests(PROMPTS[0], max_new_tokens=30, ignore_eos=False, stop_strings=(Vocabulary().decode([token]),))
    (row,) = run(model, TransformersGenerate(temperature=0.0), batch).rows
    assert (row.finish_reason, len(row.token_ids)) == ("stop_string", num_tokens)


def test_closing_early_ends_generate(model, monkeypatch):
    """It stops where it stands, cleans up, and the next run is not disturbed."""
    llama, ended = as_theirs(model), []
    plain = llama.generate

    def watched(**arguments):
        try:
            return plain(**arguments)
        finally:
            ended.append(True)

    monkeypatch.setattr(llama, "generate", watched)
    decoder, batch = TransformersGenerate(temperature=0.0), requests(PROMPTS[0], max_new_tokens=50)
    events = decoder.decode(model, batch, Vocabulary())
    first = [next(events).token_ids_BK.item() for _ in range(3)]
    assert not ended
    events.close()
    assert ended == [True]
    assert [event.token_ids_BK.item() for event in decoder.decode(model, batch, Vocabulary())][:3] == first
    assert len(ended) == 2


def test_an_error_inside_generate_reaches_the_caller(model, monkeypatch):
    def fail(**_):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(as_theirs(model), "generate", fail)
    with pytest.raises(RuntimeError, match="out of luck"):
        list(TransformersGenerate().decode(model, requests(PROMPTS[0]), Vocabulary()))


@pytest.mark.parametrize("prompts", [PROMPTS, RAGGED], ids=["batch", "ragged"])
def test_state_bytes_are_the_formula(model, prompts):
    events = list(TransformersGenerate(temperature=0.0).decode(model, requests(*prompts), Vocabulary()))
    column = model.config.state_bytes(batch_size=1, length=1, itemsize=4)
    for n, event in enumerate(events):
        state = event.state()
        assert state.used == sum(len(prompt) + n for prompt in prompts) * column
        assert state.allocated == len(prompts) * (max(map(len, prompts)) + n) * column
    assert (
        next(iter(TransformersGenerate(use_cache=False).decode(model, requests(*prompts), Vocabulary()))).state is None
    )


NATIVE = [name for name in theirs.ARCHITECTURES if any(name in family.model_types for family in FAMILIES)]


@pytest.mark.parametrize("model_type", NATIVE)
@pytest.mark.parametrize("prompts", [PROMPTS, RAGGED], ids=["batch", "ragged"])
def test_every_family_says_what_the_native_decoder_says(tmp_path, model_type, prompts):
    """Greedy texts and state bytes of a native network that `generate` runs on the same weights."""
    folder = theirs.write_folder(tmp_path, model_type)
    native = load_native(str(folder), native_config(str(folder))).eval().requires_grad_(False)
    batch = requests(*prompts, max_new_tokens=10)
    rows, peers = (run(native, kind(temperature=0.0), batch).rows for kind in (Autoregressive, TransformersGenerate))
    assert [row.token_ids for row in peers] == [row.token_ids for row in rows]
    assert len({token for row in peers for token in row.token_ids}) > 5, "texts that repeat one token tell nothing"
    event = list(TransformersGenerate(temperature=0.0).decode(native, batch, Vocabulary()))[-1]
    used = event.state().used
    with torch.inference_mode():  # what the library itself keeps, one row at a time, without padding
        held = 0
        for prompt, row in zip(prompts, peers, strict=True):
            cache = new_cache(as_theirs(native))
            read = torch.tensor([[*prompt, *row.token_ids[:-1]]])
            as_theirs(native)(read, use_cache=True, **{cache_argument(as_theirs(native)): cache})
            held += sum(tensor.nbytes for layer in cache.layers for tensor in tensors_of(layer))
    assert used == held


def test_memory_probe_sees_the_engine(model):
    """The peak is that of the same generate called directly."""
    decoder, batch = TransformersGenerate(temperature=0.0), requests(*PROMPTS)
    list(decoder.decode(model, batch, Vocabulary()))
    with peak_memory("cpu") as streamed:
        list(decoder.decode(model, batch, Vocabulary()))
    with peak_memory("cpu") as direct, torch.inference_mode():
        as_theirs(model).generate(
            torch.tensor(PROMPTS), max_new_tokens=12, do_sample=False, suppress_tokens=[MASK], pad_token_id=EOS
        )
    assert streamed.tensor_bytes == pytest.approx(direct.tensor_bytes, rel=0.02)
    assert streamed.tensor_bytes > model.weight_bytes


def test_what_cannot_run_is_said(model):
    with pytest.raises(ValueError, match=r"model\.causal=False"):
        TransformersGenerate().check(
            ModelConfig(vocab_size=V, d_model=32, causal=False, noise="absorbing"), output_len=8
        )
    with pytest.raises(ValueError, match="no model of transformers computes this network"):
        as_theirs(ModelConfig(vocab_size=V, d_model=32, block="AFF", num_blocks=1).build())
    mixed = [*requests(PROMPTS[0]), *requests(PROMPTS[1], ignore_eos=False)]
    with pytest.raises(ValueError, match="all requests ignore end-of-text"):
        next(iter(TransformersGenerate().decode(model, mixed, Vocabulary())))


@pytest.mark.slow
def test_compiled_steps_give_the_same_tokens_and_compile_once(model):
    """Behind one static cache, emptied for each text; a second text of the size compiles nothing."""
    with torch.inference_mode():
        prepared = execute(model, "compile")
        for text, prompts in enumerate(([[3, 4, 5, 6]], [[9, 8, 7, 3]], [[4, 4, 5, 3]])):
            batch = requests(*prompts)
            decode = TransformersGenerate(temperature=0.0).decode
            eager, compiled = (
                torch.cat([event.token_ids_BK for event in decode(one, batch, Vocabulary())], 1)
                for one in (model, prepared)
            )
            assert torch.equal(eager, compiled)
            if text == 0:
                once = num_compiled(), prepared.compile_s
    assert once[1] > 0 and once == (num_compiled(), prepared.compile_s)


def test_only_steps_behind_a_cache_compile():
    assert TransformersGenerate().executions == ("eager", "compile")
    assert TransformersGenerate(use_cache=False).executions == ("eager",)
