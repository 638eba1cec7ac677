"""Mamba-2 against `transformers`, its variants against the equations, its step against the chunked form."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from models.hf import check_equal_logits, check_there_and_back, native_of, random_transformers_model
from models.test_exactness import assert_close, random_model, tokens

from paradigms.models.config import ModelConfig
from paradigms.models.families.mamba2 import Mamba2
from paradigms.models.mamba2 import Mamba2Config

SIZES = {
    "model_type": "mamba2",
    "vocab_size": 60,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_heads": 8,
    "head_dim": 16,
    "state_size": 24,
    "n_groups": 1,
    "chunk_size": 16,
}
THEIRS = {
    "one group": SIZES,
    "groups, each with its own norm": SIZES | {"n_groups": 4},
    "tied, biases": SIZES | {"tie_word_embeddings": True, "use_bias": True, "use_conv_bias": True},
    "no biases, eps": SIZES | {"use_conv_bias": False, "layer_norm_epsilon": 1e-2, "conv_kernel": 3},
    "bounded dt": SIZES | {"time_step_limit": (0.02, 0.05), "expand": 1, "num_heads": 4},
}


@pytest.mark.parametrize("config", THEIRS.values(), ids=THEIRS)
def test_logits_are_those_of_transformers(config):
    theirs = random_transformers_model(config)
    native = native_of(theirs)
    # Theirs lets the bias of a padded column through the convolution into the first tokens of the row.
    check_equal_logits(theirs, native, padded=not config.get("use_bias"))
    check_there_and_back(theirs, native)


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"hidden_act": "gelu"}, "hidden_act='gelu'"), ({"num_heads": 4}, "num_heads=4 x head_dim=16")],
)
def test_what_is_not_computed_is_refused(changes, words):
    config = random_transformers_model(SIZES).config.to_dict()
    with pytest.raises(ValueError, match=words):
        Mamba2().from_transformers(config | changes)


VARIANTS = {
    "bias": Mamba2Config(proj_bias=True, head_dim=16, d_state=8, chunk_len=5),
    "no convolution bias": Mamba2Config(conv_bias=False, head_dim=16, d_state=8, chunk_len=5),
    "norm before the gate": Mamba2Config(norm="before_gate", head_dim=16, d_state=8, num_groups=2, chunk_len=5),
    "no norm": Mamba2Config(norm=None, head_dim=16, d_state=8, chunk_len=5),
    "inner width": Mamba2Config(d_inner=96, head_dim=16, d_state=8, num_groups=3, chunk_len=5),
    "bounded dt": Mamba2Config(dt_min=0.01, dt_max=0.03, head_dim=16, d_state=8, chunk_len=5),
}


def variant(name: str, dtype: torch.dtype = torch.float64):
    model = random_model(ModelConfig(vocab_size=50, d_model=64, block="M", num_blocks=2, mamba2=VARIANTS[name]), dtype)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith(("bias", "inner_norm", "D")) and "dt" not in parameter_name:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def naive(mixer, x_TE: torch.Tensor) -> torch.Tensor:
    """The layer token by token and head by head, from the paper's equations."""
    c, d_inner, heads = mixer.config, mixer.d_inner, mixer.num_heads
    projected = x_TE @ mixer.in_proj + (0 if mixer.in_bias is None else mixer.in_bias)
    z, xBC, dt = projected.split((d_inner, mixer.conv_dim, heads), -1)
    dt = F.softplus(dt + mixer.dt_bias)
    dt = dt.clamp(0 if c.dt_min is None else c.dt_min, torch.inf if c.dt_max is None else c.dt_max)
    padded = F.pad(xBC, (0, 0, c.d_conv - 1, 0))
    state = torch.zeros(heads, c.head_dim, c.d_state, dtype=x_TE.dtype)
    y = torch.zeros_like(z)
    for t in range(len(x_TE)):
        convolved = (padded[t : t + c.d_conv].t() * mixer.conv_weight).sum(-1)
        convolved = F.silu(convolved + (0 if mixer.conv_bias is None else mixer.conv_bias))
        x, B, C = convolved.split((d_inner, c.num_groups * c.d_state, c.num_groups * c.d_state))
        for h in range(heads):
            g, place = h * c.num_groups // heads, slice(h * c.head_dim, (h + 1) * c.head_dim)
            B_N, C_N = B.view(c.num_groups, -1)[g], C.view(c.num_groups, -1)[g]
            decay = torch.exp(-dt[t, h] * mixer.A_log[h].exp())
            state[h] = decay * state[h] + dt[t, h] * torch.outer(x[place], B_N)
            y[t, place] = state[h] @ C_N + mixer.D[h] * x[place]

    def norm(values):
        grouped = values.view(len(x_TE), c.num_groups, -1)
        scaled = grouped / (grouped.square().mean(-1, keepdim=True) + mixer.norm_eps).sqrt()
        return scaled.view_as(values) * mixer.inner_norm

    gate = F.silu(z)
    y = {"after_gate": lambda: norm(y * gate), "before_gate": lambda: norm(y) * gate, None: lambda: y * gate}[c.norm]()
    return y @ mixer.out + (0 if mixer.out_bias is None else mixer.out_bias)


@pytest.mark.parametrize("name", VARIANTS)
def test_the_layer_is_the_papers_equations(name):
    model = variant(name)
    mixer: Any = model.layers[0].mixer
    x_TE = torch.randn(21, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    span = model._span(torch.Size((1, 21)), None, None, None, None, "none", None)
    assert_close(mixer(x_TE, span, None), naive(mixer, x_TE))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", VARIANTS)
def test_cached_and_padded_equal_uncached(name, dtype):
    model = variant(name, dtype)
    tokens_BT = tokens(model, 3, 30)
    want = model(tokens_BT)
    padded = model(torch.cat((torch.zeros_like(tokens_BT[:, :4]), tokens_BT), 1)[:, :30], num_tokens=[26] * 3)
    assert_close(padded[:, 4:], want[:, :26])
    for sizes in ([1] * 30, [7, 1, 13, 9]):
        state, start, pieces = model.new_state(3, 30), 0, []
        for size in sizes:
            pieces.append(model(tokens_BT[:, start : start + size], state))
            start += size
        assert_close(torch.cat(pieces, 1), want)
    assert model.config.num_parameters() == sum(parameter.numel() for parameter in model.parameters())
    assert state.used_bytes == model.config.state_bytes(batch_size=3, length=30, itemsize=dtype.itemsize)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"d_inner": 0}, "d_inner=0 must be at least 1"),
        ({"d_inner": 130}, "head_dim=64 must divide the inner width of 130"),
        ({"norm": "after"}, "after_gate, before_gate"),
        ({"dt_min": 0.2, "dt_max": 0.1}, "dt_min=0.2"),
        ({"num_groups": 3}, "num_groups=3 must divide the 2 heads"),
    ],
)
def test_impossible_configs_say_why(changes, words):
    with pytest.raises(ValueError, match=words):
        ModelConfig(vocab_size=50, d_model=64, block="M", mamba2=dataclasses.replace(Mamba2Config(), **changes))


def written_in_place(model):
    model.layers[0].mixer.A_log.mul_(0.5)


def loaded(model):
    model.load_state_dict({name: value * 1.1 for name, value in model.state_dict().items()})


def assigned(model):
    values = {name: value.clone() * 1.1 for name, value in model.state_dict().items()}
    model.load_state_dict(values, assign=True)
    model.requires_grad_(False)


def replaced(model):
    model.layers[0].mixer.conv_weight = torch.nn.Parameter(model.layers[0].mixer.conv_weight * 2)


def converted(model):
    model.double()


@pytest.mark.parametrize("change", [written_in_place, loaded, assigned, replaced, converted])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_steps_follow_the_weights(change, mode):
    """What a step derives from weights and keeps is never stale."""
    model = variant("bias", torch.float32)
    tokens_BT = tokens(model, 2, 12)

    def by_token():
        state = model.new_state(2, 12)
        return torch.cat([model(tokens_BT[:, t : t + 1], state) for t in range(12)], 1)

    with mode():
        before = by_token()
        assert_close(before, model(tokens_BT))
    with torch.no_grad():
        change(model)
    with mode():
        after = by_token()
        assert_close(after, model(tokens_BT))
    assert change is converted or (after - before).abs().max() > 1e-4
