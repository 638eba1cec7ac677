"""Uniform noise on canvases: the library's generate and the native decoder over its forwards, and what both report.

A tiny random DiffusionGemma stands in, written as config.json and safetensors. Both sides are given the same draws, so
that texts agree token by token; what samplers do to a distribution is tested on a toy.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import theirs
import tiny
import torch
from scipy.stats import chisquare

from paradigms.data.pretrained_tokenizer import PretrainedTokenizer
from paradigms.decoding import draws
from paradigms.decoding.autoregressive import Autoregressive
from paradigms.decoding.native import NativeParadigm
from paradigms.decoding.sampling import invert
from paradigms.decoding.uniform_diffusion import UniformDiffusion
from paradigms.decoding.uniform_samplers import Ancestral, EntropyBound
from paradigms.engines.canvas_generate import CanvasGenerate
from paradigms.engines.transformers_generate import TransformersGenerate
from paradigms.measure.clock import HostClock
from paradigms.measure.timeline import record
from paradigms.models.transformers_cache import tensors_of
from paradigms.models.transformers_model import transformers_config
from paradigms.paradigm import Request
from paradigms.weights import Pretrained

C, V = theirs.CANVAS_LEN, 300
# Longer than the window of 6, shorter than it, and of two lengths; texts of one canvas to three.
PROMPTS = ([1, 7, 9, 11, 30, 60, 61, 62, 63, 64], [1, 8, 22], [1, 40, 41, 42])
LENGTHS = (20, 8, 13)
EARLY = EntropyBound(
    num_steps=8, entropy_bound=5.0, t_max=0.8, t_min=0.4, stability_threshold=1, confidence_threshold=1.5
)
GREEDY = dataclasses.replace(EARLY, t_max=1e-6, t_min=0.0)
FIXED = EntropyBound(num_steps=3, stability_threshold=None, confidence_threshold=None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return theirs.write_canvas_folder(tmp_path_factory.mktemp("canvas") / "model")


@pytest.fixture(scope="module")
def model(folder):
    return transformers_config(str(folder)).load().requires_grad_(False)


def requests(**options) -> list[Request]:
    return [
        Request(id=str(seed), prompt=tuple(prompt), max_new_tokens=length, seed=seed, **options)
        for seed, (prompt, length) in enumerate(zip(PROMPTS, LENGTHS, strict=True))
    ]


def run(model, decoder, batch):
    return record(NativeParadigm(model, decoder, theirs.Vocabulary()), batch, clock=HostClock())


# ---------------------------------------------------------------- the model


def test_a_folder_is_read_as_the_library_reads_it(folder, model):
    from transformers import DiffusionGemmaForBlockDiffusion

    config = model.config
    assert (config.causal, config.noise, config.canvas_len, config.vocab_size) == (False, "uniform", C, V)
    assert (config.max_positions, config.experts, config.has_state) == (576, 4, True)
    library = DiffusionGemmaForBlockDiffusion.from_pretrained(folder, dtype=torch.float32)
    text = {id(p): p for name, p in library.named_parameters() if "vision" not in name}
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in text.values())
    prompt, canvas, second = (torch.randint(1, V, (2, size)) for size in (9, C, C))
    state = model.new_state(2, 9 + C)
    with torch.inference_mode():
        model.read(prompt, state)
        first = model.denoiser(state)(canvas, None)
        again = model.denoiser(state)(canvas, first)
        model.read(canvas, state)
        behind = model.denoiser(state)(second, None)
        expected = library(input_ids=prompt, decoder_input_ids=canvas)
        torch.testing.assert_close(first, expected.logits, rtol=0, atol=1e-4)
        told = library(input_ids=prompt, decoder_input_ids=canvas, self_conditioning_logits=first)
        torch.testing.assert_close(again, told.logits, rtol=0, atol=1e-4)
        whole = library(input_ids=torch.cat((prompt, canvas), 1), decoder_input_ids=second)
        torch.testing.assert_close(behind, whole.logits, rtol=0, atol=1e-4)
    assert (first - again).abs().max() > 0.1, "self-conditioning must matter"


def test_a_config_alone_is_enough_for_random_weights(tmp_path):
    config = transformers_config(str(theirs.write_canvas_folder(tmp_path, tokenizer=None, weights=False)))
    run(config.build(), CanvasGenerate(sampler=FIXED), requests())
    with pytest.raises(ValueError, match=r"lacks model\.safetensors.*train=random"):
        config.load()


# ---------------------------------------------------------------- the two decoders


@contextmanager
def same_draws(model, batch, monkeypatch):
    """The library's generate with the native decoder's draws: those of a canvas, and of each step on it."""
    seeds, at = [request.seed for request in batch], {"canvas": -1, "step": 0}

    def uniform(purpose):
        position_C = at["canvas"] * C + torch.arange(C)
        return draws.uniform(seeds, position_C, at["step"], purpose)

    def randint(*, low, high, size, device):
        noise = (uniform("noise") * high).long()
        at["step"] += 1
        return noise

    def multinomial(probs, num_samples):
        return invert(probs.double(), uniform("token").flatten())[:, None]

    def another_canvas(*_):
        at["canvas"] += 1
        at["step"] = 0

    hook = model.theirs.model.encoder.register_forward_hook(another_canvas)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "randint", randint)
        patch.setattr(torch, "multinomial", multinomial)
        yield
    hook.remove()


@pytest.mark.parametrize("sampler", [EARLY, GREEDY, FIXED], ids=["early", "greedy", "fixed"])
def test_the_native_decoder_says_what_generate_says(model, sampler, monkeypatch):
    batch = requests()
    native = run(model, UniformDiffusion(sampler=sampler), batch)
    with same_draws(model, batch, monkeypatch):
        peer = run(model, CanvasGenerate(sampler=sampler), batch)
    for ours, other, length in zip(native.rows, peer.rows, LENGTHS, strict=True):
        assert (ours.token_ids, len(ours.token_ids)) == (other.token_ids, length)
        assert len(set(ours.token_ids)) > 3, "texts that repeat one token tell nothing"
        assert (ours.nfe, ours.steps, ours.finish_reason) == (other.nfe, other.steps, "length")
    if sampler is FIXED:
        assert native.nfe == {"encoder": 3, "decoder": 9}
        assert native.positions_computed == 17 + C * (3 * (3 + 2 + 1) + 2 + 1)
        assert peer.positions_computed == 3 * (10 + 2 * C) + 3 * C * 9
    else:
        assert len({row.steps[0] for row in native.rows}) > 1, "rows must end at steps of their own"
        assert native.nfe["decoder"] <= 24 and native.positions_computed < peer.positions_computed


@pytest.mark.parametrize("sampler", [EARLY, Ancestral(num_steps=4)], ids=["entropy bound", "ancestral"])
def test_batched_is_one_by_one(model, sampler):
    decoder = UniformDiffusion(sampler=sampler)
    for row, request in zip(run(model, decoder, requests()).rows, requests(), strict=True):
        (alone,) = run(model, decoder, [request]).rows
        assert row.token_ids == alone.token_ids


@pytest.mark.parametrize("kind", [UniformDiffusion, CanvasGenerate])
def test_events_are_what_happened(model, kind):
    """Every forward is counted, and a token that was called final stays; other drafts change."""
    ran: Counter[str] = Counter()
    hooks = [
        module.register_forward_hook(lambda *_, name=name: ran.update([name]))
        for name, module in (
            ("encoder", model.theirs.model.encoder.language_model),
            ("decoder", model.theirs.model.decoder),
        )
    ]
    final: dict[tuple[int, int], int] = {}
    drafts: dict[int, set] = {}
    changed = 0
    for event in kind(sampler=EARLY).decode(model, requests(), theirs.Vocabulary()):
        assert event.forwards == dict(ran) and sum(ran.values()) == 1
        ran.clear()
        state = event.state()
        assert state.allocated >= state.used > 0
        if event.phase == "prefill":
            continue
        assert event.token_ids_BK.shape == event.final_BK.shape == (3, len(event.positions_K))
        for row, ids in enumerate(event.token_ids_BK.tolist()):
            for position, token, is_final in zip(event.positions_K, ids, event.final_BK[row].tolist(), strict=True):
                if (row, position) in final and kind is CanvasGenerate:
                    assert token == final[row, position]
                if is_final:
                    final[row, position] = token
                changed += position in drafts and token not in drafts[position]
                drafts.setdefault(position, set()).add(token)
    for hook in hooks:
        hook.remove()
    assert set(final) == {(row, position) for row, length in enumerate(LENGTHS) for position in range(length)}
    assert changed > 20


def test_the_state_is_what_the_encoder_keeps(model):
    """Used bytes of an unpadded row, against the tensors of the library's cache after the same text."""
    from transformers import DynamicCache

    (request,) = [dataclasses.replace(one, max_new_tokens=C) for one in requests()[:1]]
    for kind in (UniformDiffusion, CanvasGenerate):
        *_, last = kind(sampler=FIXED).decode(model, [request], theirs.Vocabulary())
        cache = DynamicCache(config=model.theirs.config.get_text_config())
        with torch.inference_mode():
            model.theirs.model.encoder(
                input_ids=torch.tensor([request.prompt]), attention_mask=None, **{model.cache_name: cache}
            )
        held = sum(tensor.nbytes for layer in cache.layers for tensor in tensors_of(layer))
        assert last.state().used == last.state().allocated == held


@pytest.mark.parametrize("kind", [UniformDiffusion, CanvasGenerate])
def test_a_natural_stop_ends_rows_where_they_say_so(model, kind, monkeypatch):
    full = run(model, kind(sampler=FIXED), requests()).rows
    eos = full[0].token_ids[C + 2]
    expected = [list(row.token_ids).index(eos) + 1 if eos in row.token_ids else len(row.token_ids) for row in full]
    monkeypatch.setattr(theirs.Vocabulary, "eos_id", eos)
    rows = run(model, kind(sampler=FIXED), requests(ignore_eos=False)).rows
    assert C < expected[0] <= C + 3
    for row, whole, length in zip(rows, full, expected, strict=True):
        assert row.token_ids == whole.token_ids[:length]
        assert row.finish_reason == ("eos" if row.token_ids[-1] == eos else "length")


def test_the_mask_token_is_never_said(model, monkeypatch):
    for kind in (UniformDiffusion, CanvasGenerate):
        with monkeypatch.context() as patch:
            said = run(model, kind(sampler=FIXED), requests()).rows[0].token_ids[0]
            patch.setattr(theirs.Vocabulary, "mask_id", said)
            assert all(said not in row.token_ids for row in run(model, kind(sampler=FIXED), requests()).rows)


def test_closing_early_leaves_nothing_behind(model):
    decoder, encoder = CanvasGenerate(sampler=FIXED), model.theirs.model.encoder
    events = decoder.decode(model, requests(), theirs.Vocabulary())
    first = [next(events) for _ in range(3)][-1].token_ids_BK
    assert len(encoder._forward_hooks) == 1
    events.close()
    assert not encoder._forward_hooks and "_prepare_diffusion_stopping_criteria" not in vars(model.theirs)
    again = list(decoder.decode(model, requests(), theirs.Vocabulary()))
    assert torch.equal(again[2].token_ids_BK, first) and not encoder._forward_hooks


# ---------------------------------------------------------------- what is refused


def test_what_cannot_be_done_is_said(model):
    config = model.config
    for decoder, words in (
        (Autoregressive(), "needs a causal model"),
        (TransformersGenerate(), r"writes left to right.*model\.noise=uniform.*canvas_generate"),
        (tiny.DECODERS["diffusion"][1], r"model\.noise=absorbing\), not model\.noise=uniform"),
    ):
        with pytest.raises(ValueError, match=words):
            decoder.check(config, output_len=8)
    for decoder in (UniformDiffusion(), CanvasGenerate()):
        decoder.check(config, output_len=568)
        with pytest.raises(ValueError, match="in whole canvases of 8, are 577 positions"):
            decoder.check(config, output_len=569)
        with pytest.raises(ValueError, match=r"undoes uniform noise.*model\.noise=absorbing"):
            decoder.check(tiny.MODELS["diffusion"], output_len=8)
        infilling = Request(id="gap", prompt=(1,), max_new_tokens=1, canvas=(None, 5))
        with pytest.raises(ValueError, match="request 'gap' gives text behind gaps"):
            next(iter(decoder.decode(model, [infilling], theirs.Vocabulary())))
        long = Request(id="long", prompt=(1,) * 570, max_new_tokens=2)
        with pytest.raises(ValueError, match=r"prompt of 570 tokens.*578 positions"):
            next(iter(decoder.decode(model, [long], theirs.Vocabulary())))
    with pytest.raises(ValueError, match="all requests ignore end-of-text"):
        mixed = [requests()[0], dataclasses.replace(requests()[1], ignore_eos=False)]
        next(iter(CanvasGenerate().decode(model, mixed, theirs.Vocabulary())))
    with pytest.raises(ValueError, match="no logits of a plain text"):
        model(torch.tensor([[1, 2]]))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_steps": 0}, "num_steps=0"),
        ({"entropy_bound": 0.0}, r"entropy_bound=0\.0"),
        ({"t_max": 0.2, "t_min": 0.2}, "t_max=0.2 and t_min=0.2"),
        ({"confidence_threshold": None}, "set both, or null for both"),
        ({"confidence_threshold": 0.0}, r"confidence_threshold=0\.0"),
        ({"stability_threshold": -1}, "stability_threshold=-1"),
    ],
)
def test_settings_that_mean_nothing_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        EntropyBound(**changes)


def test_work_depends_on_values_where_canvases_end_early():
    for kind in (UniformDiffusion, CanvasGenerate):
        assert kind().depends_on_values and not kind(sampler=FIXED).depends_on_values
    assert not UniformDiffusion(sampler=Ancestral()).depends_on_values


def test_cells_that_would_mislead_are_refused(folder, model):
    whole = dataclasses.replace(
        tiny.cell("ar"),
        model=model.config,
        decoder=CanvasGenerate(sampler=FIXED),
        tokenizer=PretrainedTokenizer(path=str(folder)),
    )
    whole.check()
    early = dataclasses.replace(whole, decoder=UniformDiffusion())
    with pytest.raises(ValueError, match="this decoder's work depends on the tokens that come out"):
        early.check()
    heldout = dataclasses.replace(whole, workload=dataclasses.replace(whole.workload, prompts="heldout"))
    with pytest.raises(ValueError, match="a router that has learnt nothing"):
        heldout.check()
    pretrained = dataclasses.replace(early, train=Pretrained(path=str(folder)))
    pretrained.check()
    scored = dataclasses.replace(pretrained, measure=dataclasses.replace(whole.measure, quality=True))
    with pytest.raises(ValueError, match=r"not computed under uniform noise.*measure\.quality=false"):
        scored.check()
    compiled = dataclasses.replace(whole, device=dataclasses.replace(whole.device, execution="compile"))
    with pytest.raises(ValueError, match=r"device\.execution=compile is not possible.*it can run eager"):
        compiled.check()
    gaps = dataclasses.replace(whole, workload=dataclasses.replace(whole.workload, num_gaps=2, given_len=4))
    with pytest.raises(ValueError, match=r"workload\.num_gaps=2 gives text behind gaps"):
        gaps.check()


# ---------------------------------------------------------------- samplers on a toy


class Toy:
    """The exact denoiser of a canvas of independent pairs: p(x_0 | x_t) of each position, at the time of the step."""

    device = torch.device("cpu")

    def __init__(self, prior_XX: torch.Tensor, num_steps: int, num_pairs: int) -> None:
        self.prior_XX, self.num_steps = prior_XX, num_steps
        self.config = SimpleNamespace(canvas_len=2 * num_pairs, vocab_size=len(prior_XX), max_positions=100)

    def new_state(self, batch_size, max_len):
        return SimpleNamespace(cache=None, lengths=[], num_columns=0)

    def read(self, tokens_BT, state, *, num_tokens=None):
        self.step = self.num_steps

    def denoiser(self, state):
        def denoise(canvas_BC, before_BCV):
            size, signal = self.config.vocab_size, 1 - self.step / self.num_steps
            self.step -= 1
            here_BCV = torch.nn.functional.one_hot(canvas_BC, size).double()
            likelihood_PCV = (signal * here_BCV + (1 - signal) / size).view(-1, 2, size)  # of x_0
            joint_PXX = self.prior_XX * likelihood_PCV[:, 0, :, None] * likelihood_PCV[:, 1, None, :]
            return torch.stack((joint_PXX.sum(2), joint_PXX.sum(1)), 1).log().view(here_BCV.shape)

        return denoise


PRIOR = torch.tensor([[0.20, 0.10, 0.05], [0.08, 0.20, 0.07], [0.06, 0.09, 0.15]], dtype=torch.float64)


def sample(sampler, prior_XX=PRIOR, *, num_pairs: int = 40) -> torch.Tensor:
    """Counts of the nine pairs among 20,000, so many of them on a canvas."""
    length, num_rows = 2 * num_pairs, 20_000 // num_pairs
    batch = [Request(id=str(seed), prompt=(0,), max_new_tokens=length, seed=seed) for seed in range(num_rows)]
    toy, vocabulary = Toy(prior_XX, sampler.num_steps, num_pairs), SimpleNamespace(mask_id=None, eos_id=0)
    *_, last = UniformDiffusion(sampler=sampler).decode(toy, batch, vocabulary)
    first, second = last.token_ids_BK.view(-1, 2).unbind(-1)
    return torch.bincount(first * 3 + second, minlength=9)


def p_value(counts: torch.Tensor, prior_XX=PRIOR) -> float:
    return chisquare(counts.numpy(), (prior_XX.flatten() * counts.sum()).numpy()).pvalue


def test_ancestral_steps_follow_the_distribution_when_there_are_many():
    """Few steps draw the positions too independently, and must fail."""
    assert p_value(sample(Ancestral(num_steps=64))) > 0.001
    assert p_value(sample(Ancestral(num_steps=4))) < 1e-9


@pytest.mark.parametrize("num_steps", [1, 5])
def test_ancestral_steps_are_exact_at_any_number_where_positions_are_independent(num_steps):
    first_X1, second_X = PRIOR.new_tensor([[0.7], [0.2], [0.1]]), PRIOR.new_tensor([0.1, 0.3, 0.6])
    independent_XX = first_X1 * second_X
    assert p_value(sample(Ancestral(num_steps=num_steps), independent_XX), independent_XX) > 0.001
    cold = Ancestral(num_steps=num_steps, temperature=0.8)
    assert p_value(sample(cold, independent_XX), independent_XX) < 1e-9


def test_the_entropy_bound_sharpens_what_it_samples():
    """Its text is the most probable one at the last step, so even behind the exact denoiser it loses entropy."""
    options = {"t_max": 1.0, "t_min": 0.999, "stability_threshold": None, "confidence_threshold": None}
    counts = sample(EntropyBound(num_steps=32, **options), num_pairs=1)
    entropy = torch.special.entr(counts / counts.sum()).sum()
    assert p_value(counts) < 1e-9 and entropy < torch.special.entr(PRIOR).sum() - 0.1


def test_the_entropy_bound_keeps_the_surest_positions():
    sampler = dataclasses.replace(FIXED, entropy_bound=1.0)
    entropy_BC = torch.tensor([[0.5, 0.1, 3.0, 0.6], [2.0, 2.0, 2.0, 2.0], [0.0, 0.0, 0.9, 0.9]])
    kept_BC = sampler.kept(entropy_BC)
    assert kept_BC.tolist() == [[True, True, False, True], [*kept_BC[1].tolist()], [True, True, True, True]]
    assert kept_BC[1].sum() == 1
