"""Time conditioning: the stack against its formula, what it is told, and what it costs."""

from __future__ import annotations

import copy
import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F

from paradigms.models.attention import AttentionConfig
from paradigms.models.conditioning import ConditioningConfig
from paradigms.models.config import ModelConfig
from paradigms.models.execution import PreparedModel
from paradigms.models.mlp import MLPConfig
from paradigms.models.programs import Inductor
from paradigms.models.stack import Model

V, E = 30, 32
CLOSE = {"atol": 1e-10, "rtol": 0}


def build(conditioning: ConditioningConfig | None = None, **more) -> Model:
    torch.manual_seed(0)
    values = {"vocab_size": V, "d_model": E, "block": "AG", "num_blocks": 2, "max_positions": 64} | more
    denoiser = {"causal": False, "noise": "absorbing", "attention": AttentionConfig(num_heads=2)} | values
    model = ModelConfig(**denoiser, conditioning=conditioning).build().double().eval().requires_grad_(False)
    for parameter in model.parameters():  # modulations and biases start at 0
        parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


def tokens(B, T):
    return torch.randint(0, V, (B, T), generator=torch.Generator().manual_seed(1))


def by_formula(model: Model, tokens_BT, sigma_B):
    """The same network written down once more, row by row, layer by layer, from the paper's equations."""
    told, rows = model.conditioning, []
    assert told is not None
    for tokens_T, sigma in zip(tokens_BT, sigma_B.tolist(), strict=True):
        half = told.config.frequency_dim // 2
        angles = [sigma / 10_000 ** (i / half) for i in range(half)]
        waves = torch.tensor([math.cos(a) for a in angles] + [math.sin(a) for a in angles], dtype=torch.float64)
        embedded = F.silu(F.silu(waves @ told.embed + told.embed_bias) @ told.mix + told.mix_bias)
        numbers = list((embedded @ told.modulation + told.modulation_bias).split(E))

        def normed(x, weight, shift, scale):
            centred = x - x.mean(-1, keepdim=True)
            y = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight
            return y * (1 + scale) + shift

        span = model._span(tokens_T[None].shape, None, None, None, None, "none", None)
        x = model.embedding.t()[tokens_T]
        for layer in model.typed_layers():
            shift, scale, gate = numbers[:3]
            numbers = numbers[3:]
            x = x + gate * layer.mixer(normed(x, layer.norm, shift, scale), span, None)
        logits = normed(x, model.norm, *numbers) @ model.head_weight
        rows.append(logits if model.head_bias is None else logits + model.head_bias)
    return torch.stack(rows)


@pytest.mark.parametrize("reads_time", [True, False])
def test_the_stack_is_the_papers_formula(reads_time):
    told = ConditioningConfig(width=12, frequency_dim=10, reads_time=reads_time)
    model = build(told, norm="layer", head_bias=True, tied_head=False)
    x, time_B = tokens(3, 7), torch.tensor([0.05, 0.6, 1.0], dtype=torch.float64)
    sigma_B = -torch.log(1 - (1 - 1e-3) * time_B) if reads_time else torch.zeros(3)
    torch.testing.assert_close(model(x, time_B=time_B), by_formula(model, x, sigma_B), **CLOSE)
    other = model(x, time_B=1 - 0.9 * time_B)
    assert torch.equal(other, model(x, time_B=time_B)) == (not reads_time)
    if not reads_time:
        assert torch.equal(model(x), other)


def test_every_way_of_asking_says_the_same():
    """Rows alone, chosen columns, a time a token, a state of blocks, padded rows, one token behind a state."""
    model = build(ConditioningConfig(width=12, frequency_dim=10), canvas_block=4, norm="layer", head_bias=True)
    x, time_B = tokens(3, 9), torch.tensor([0.2, 0.5, 1.0], dtype=torch.float64)
    whole = model(x, time_B=time_B)
    for row in range(3):
        torch.testing.assert_close(model(x[row, None], time_B=time_B[row, None])[0], whole[row], **CLOSE)
    wanted = torch.rand(3, 9, generator=torch.Generator().manual_seed(2)) < 0.5
    torch.testing.assert_close(model.logits_where(x, wanted, time_B=time_B), whole[wanted], **CLOSE)
    torch.testing.assert_close(model.logits_of(model.hidden(x, time_B=time_B)), whole, **CLOSE)
    torch.testing.assert_close(model(x, time_B=time_B[:, None].expand(3, 9)), whole, **CLOSE)
    state, parts = model.new_state(3, 9), []
    for start in (0, 4, 8):  # the last is one token
        parts.append(model(x[:, start : start + 4], state, time_B=time_B))
    torch.testing.assert_close(torch.cat(parts, 1), whole, **CLOSE)
    lengths = [9, 4, 1]
    ragged = torch.stack([F.pad(row[:length], (9 - length, 0)) for row, length in zip(x, lengths, strict=True)])
    padded = model(ragged, num_tokens=lengths, time_B=time_B)
    for row, length in enumerate(lengths):
        alone = model(x[row, None, :length], time_B=time_B[row, None])
        torch.testing.assert_close(padded[row, 9 - length :], alone[0], **CLOSE)


def test_blocks_of_a_time_each():
    """A time a token: what a block-causal stack says of a block depends on the times of blocks up to it."""
    model = build(ConditioningConfig(width=12, frequency_dim=10), canvas_block=3)
    x, time_BT = tokens(1, 9), torch.tensor([[0.1, 0.5, 0.9]]).double().repeat_interleave(3, 1)
    later_BT = time_BT.clone()
    later_BT[:, 3:6] = 0.7
    changed = (model(x, time_B=time_BT) - model(x, time_B=later_BT)).abs().amax((0, 2)) > 0
    assert changed.tolist() == [False] * 3 + [True] * 6


@torch.no_grad()
def test_a_constant_is_computed_once_and_follows_the_weights():
    model = build(ConditioningConfig(reads_time=False))
    assert model.conditioning is not None
    first = model.conditioning(None, 2, 5)
    assert model.conditioning(None, 3, 4) is first
    before = model(tokens(1, 5))
    model.conditioning.modulation.mul_(2)
    assert not torch.equal(model(tokens(1, 5)), before)
    cloned, kept = copy.deepcopy(model), model(tokens(1, 5))
    model.conditioning.modulation.mul_(2)
    torch.testing.assert_close(cloned(tokens(1, 5)), kept, **CLOSE)


def test_a_fresh_conditioned_stack_passes_the_embedding_through():
    """adaLN-zero; and gradients reach every parameter once the modulations have moved."""
    told = ConditioningConfig(width=12, frequency_dim=10)
    config = dataclasses.replace(build(told).config, norm="layer", head_bias=True)
    model = config.build()
    x, time_B = tokens(2, 5), torch.tensor([0.1, 0.8])
    passed = F.layer_norm(model.embedding.t()[x], (E,)) @ model.head_weight
    torch.testing.assert_close(model(x, time_B=time_B), passed)
    assert model.conditioning is not None
    torch.nn.init.normal_(model.conditioning.modulation, std=0.1)
    model(x, time_B=time_B).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in model.parameters())


@pytest.mark.parametrize("reads_time", [True, False])
def test_prepared_forwards_say_the_same(reads_time):
    """A model that reads the time runs eagerly and is counted; a constant one is prepared (see `test_execution`)."""
    model = build(ConditioningConfig(width=12, frequency_dim=10, reads_time=reads_time))
    prepared = PreparedModel(model, Inductor(model.device))
    prepared._alone = lambda tokens_BT: None  # compiling is tested elsewhere
    x, time_B = tokens(2, 5), torch.tensor([0.2, 0.9], dtype=torch.float64)
    wanted = x % 2 == 0
    torch.testing.assert_close(prepared(x, time_B=time_B), model(x, time_B=time_B), **CLOSE)
    torch.testing.assert_close(
        prepared.logits_where(x, wanted, time_B=time_B), model.logits_where(x, wanted, time_B=time_B), **CLOSE
    )
    assert (prepared.num_forwards, prepared.num_eager) == (2, 2)


@pytest.mark.slow
def test_a_constant_is_compiled_with_the_rest():
    model = build(ConditioningConfig(width=12, frequency_dim=10, reads_time=False), norm="layer", head_bias=True)
    prepared = PreparedModel(model, Inductor(model.device))
    with torch.inference_mode():
        torch.testing.assert_close(prepared(tokens(2, 5)), model(tokens(2, 5)), **CLOSE)
    assert (prepared.num_forwards, prepared.num_eager) == (1, 0)


@pytest.mark.parametrize("more", [{}, {"norm": "layer"}, {"head_bias": True}], ids=str)
@torch.inference_mode()
def test_one_token_behind_a_state_is_the_whole(more):
    """The plan of one token knows RMS norms and no bias of the head; others take the layers' own forward."""
    model = build(block="AG", causal=True, noise=None, **more)
    x, state = tokens(1, 6), model.new_state(1, 6)
    steps = [model(x[:, i : i + 1], state) for i in range(6)]
    torch.testing.assert_close(torch.cat(steps, 1), model(x), **CLOSE)


@pytest.mark.parametrize(
    "more",
    [
        {"conditioning": ConditioningConfig(width=12, frequency_dim=10)},
        {"conditioning": ConditioningConfig(reads_time=False), "head_bias": True, "tied_head": False},
        {"block": "AGF", "mlp": MLPConfig(width=24, bias=False), "norm": "layer"},
    ],
    ids=str,
)
def test_counts_by_formula_are_the_tensors(more):
    config = build(**more).config
    model = config.build()
    assert config.num_parameters() == sum(parameter.numel() for parameter in model.parameters())
    assert ModelConfig.from_dict(dataclasses.asdict(config)) == config
    plain = dataclasses.replace(config, conditioning=None)
    extra = config.matmul_flops(num_tokens=5, context=5) - plain.matmul_flops(num_tokens=5, context=5)
    if config.reads_time:
        assert model.conditioning is not None
        assert extra == sum(2 * p.numel() for p in model.conditioning.parameters() if p.dim() == 2)
    else:
        assert extra == 0


def test_a_width_is_solved_for():
    config = build(ConditioningConfig(reads_time=False)).config
    solved = dataclasses.replace(config, target_parameters=150_000)
    assert abs(solved.num_parameters() - 150_000) <= 1500


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"norm": "batch"}, r"norm='batch' is unknown; it is one of rms, layer"),
        ({"causal": True, "noise": None, "conditioning": ConditioningConfig()}, "conditioning is for denoisers"),
        ({"block": "SZ", "causal": True, "noise": None, "attention": None, "norm": "layer"}, "RMS norms only"),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_refused(more, words):
    with pytest.raises(ValueError, match=words):
        build(**more)


def test_times_that_do_not_fit_are_refused():
    model = build(ConditioningConfig(width=12))
    with pytest.raises(ValueError, match=r"reads the time .*; give time_B"):
        model(tokens(2, 5))
    with pytest.raises(ValueError, match=r"time_B of shape \[3\] for tokens \[2, 5\]"):
        model(tokens(2, 5), time_B=torch.ones(3))
    with pytest.raises(ValueError, match="frequency_dim=7 must be even"):
        ConditioningConfig(frequency_dim=7)
    with pytest.raises(ValueError, match="eps=0"):
        ConditioningConfig(eps=0.0)
