"""Mamba-3 against its paper's equations, one token and one head at a time, with a state that is really complex."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from models.test_exactness import assert_close, random_model, tokens

from paradigms.models.config import ModelConfig
from paradigms.models.mamba3 import Mamba3Config, Mamba3State
from paradigms.models.stack import Model

CONFIGS = {
    "half turned": Mamba3Config(head_dim=16, d_state=8, chunk_len=5),
    "all turned, groups": Mamba3Config(head_dim=16, d_state=12, num_groups=2, rope_fraction=1.0, chunk_len=7),
    "odd state": Mamba3Config(head_dim=32, d_state=7, chunk_len=32),
}


def mixer_of(model: Model) -> Any:
    """Of the first layer."""
    return model.layers[0].mixer


def model_of(name: str, dtype: torch.dtype = torch.float64) -> Model:
    """Random weights, biases and norms included; decay, mixture and angles differ from token to token."""
    config = ModelConfig(vocab_size=50, d_model=64, block="T", num_blocks=2, max_positions=64, mamba3=CONFIGS[name])
    model = random_model(config, torch.float64)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith(("_bias", "_norm", "D")):
                parameter.add_(torch.randn_like(parameter) * 0.3)
            elif parameter_name.endswith("in_proj"):
                parameter[:, -3 * mixer_of(model).num_heads - CONFIGS[name].num_angles :] *= 3
    return model.to(dtype)


def oracle(mixer: Any, input_TE: torch.Tensor) -> torch.Tensor:
    """The layer by the paper's recurrence: exponential-trapezoidal, its state complex where it turns.

    a_t = exp(dt_t (A_t - i theta_t)), y_t = Re(conj(C_t) h_t) + D x_t,
    h_t = a_t h_{t-1} + (1 - lambda_t) dt_t a_t B_{t-1} x_{t-1} + lambda_t dt_t B_t x_t.
    """
    c, H, P, N, S = mixer.config, mixer.num_heads, mixer.config.head_dim, mixer.config.d_state, mixer.config.num_angles
    d_inner, shared = mixer.d_inner, c.num_groups * N
    z, x, B, C, dt, A, trap, theta = (input_TE @ mixer.in_proj).split(
        (d_inner, d_inner, shared, shared, H, H, H, S), -1
    )

    def complex_of(row, norm, bias, h):
        value = row.view(c.num_groups, N)[h * c.num_groups // H]
        value = value / (value.square().mean() + mixer.norm_eps).sqrt() * norm + bias.view(H, N)[h]
        return torch.complex(value[:S], value[S : 2 * S]), value[2 * S :]

    y = torch.zeros(len(input_TE), d_inner, dtype=torch.float64)
    for h in range(H):
        place = slice(h * P, (h + 1) * P)
        turning, plain = torch.zeros(P, S, dtype=torch.complex128), torch.zeros(P, N - 2 * S, dtype=torch.float64)
        before = torch.zeros_like(turning), torch.zeros_like(plain)  # B x of the last token
        for t in range(len(input_TE)):
            step = F.softplus(dt[t, h] + mixer.dt_bias[h])
            rate = min(-F.softplus(A[t, h]).item(), -1e-4)
            mix = torch.sigmoid(trap[t, h])
            real = torch.exp(step * rate)
            a = real * torch.exp(-1j * step * torch.tanh(theta[t]) * math.pi)
            B_turning, B_plain = complex_of(B[t], mixer.B_norm, mixer.B_bias, h)
            C_turning, C_plain = complex_of(C[t], mixer.C_norm, mixer.C_bias, h)
            x_P = x[t, place]
            now = x_P[:, None] * B_turning, x_P[:, None] * B_plain
            turning = a * turning + (1 - mix) * step * a * before[0] + mix * step * now[0]
            plain = real * plain + (1 - mix) * step * real * before[1] + mix * step * now[1]
            before = now
            y[t, place] = (C_turning.conj() * turning).sum(-1).real + plain @ C_plain + mixer.D[h] * x_P
    return (y * F.silu(z)) @ mixer.out


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
@pytest.mark.parametrize("sizes", [[33], [1] * 33, [7, 1, 13, 12]], ids=["whole", "by token", "chunks"])
def test_the_layer_is_the_papers_recurrence(name, dtype, tolerance, sizes):
    model = model_of(name)
    input_TE = torch.randn(33, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    want = oracle(mixer_of(model), input_TE)
    model, start, pieces = model.to(dtype), 0, []
    mixer, state = mixer_of(model), model.new_state(1, 64)
    for size in sizes:
        span = model.span_of(torch.zeros(1, size, dtype=torch.long), state)
        pieces.append(mixer(input_TE[start : start + size].to(dtype), span, state.layers[0]))
        state.advance([size])
        start += size
    error = (torch.cat(pieces) - want).abs().max()
    assert error <= tolerance * max(1.0, want.abs().max().item())
    assert want.abs().max() > 0.1, "hardly anything comes out, so that anything would agree"


@pytest.mark.parametrize("part", ["angles", "mixture"])
def test_what_is_new_matters(part):
    """Without the angles, or with a constant lambda, the layer says something else."""
    model = model_of("half turned")
    mixer, tokens_BT = mixer_of(model), tokens(model, 2, 20)
    before, (H, S) = model(tokens_BT), (mixer.num_heads, mixer.config.num_angles)
    with torch.no_grad():
        mixer.in_proj[:, slice(-S, None) if part == "angles" else slice(-S - H, -S)] = 0
    assert (model(tokens_BT) - before).abs().max() > 1e-3


def test_angles_stay_small_and_exact_over_many_tokens():
    """The sum of angles is kept within one turn, so that float32 does not lose it."""
    model = model_of("all turned, groups", torch.float32)
    tokens_BT = tokens(model, 1, 60)
    state, exact = model.new_state(1, 64), model_of("all turned, groups")
    with torch.no_grad():
        pieces = [model(tokens_BT[:, t : t + 1], state) for t in range(60)]
    for layer in state.layers:
        assert isinstance(layer, Mamba3State)
        assert layer.angle_BHS.min() >= 0
        assert layer.angle_BHS.max() <= 2 * math.pi
    assert (torch.cat(pieces, 1) - exact(tokens_BT)).abs().max() < 1e-4 * exact(tokens_BT).abs().max().clamp(min=1)


@pytest.mark.parametrize("name", CONFIGS)
def test_steps_of_one_row_are_the_whole_and_are_taken_back(name):
    """The plan of a single row, marked and rolled back on the way, against all tokens at once."""
    model = model_of(name)
    tokens_1T = tokens(model, 1, 30)
    want, state, pieces = model(tokens_1T), model.new_state(1, 64), []
    with torch.no_grad():
        for t in range(0, 30, 3):
            mark = state.mark()
            pieces.append(torch.cat([model(tokens_1T[:, t + i : t + i + 1], state) for i in range(3)], 1))
            state.rollback(mark, [1])
            for i in (1, 2):
                model(tokens_1T[:, t + i : t + i + 1], state)
    assert state.plan is not None
    assert_close(torch.cat(pieces, 1), want)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"head_dim": 48}, "head_dim=48 must divide"),
        ({"num_groups": 3}, "num_groups=3 must divide the 2 heads"),
        ({"rope_fraction": 0.3}, "rope_fraction=0.3 is neither 0.5 nor 1"),
        ({"d_state": 3}, "d_state=3 x rope_fraction=0.5 holds no pair"),
        ({"d_state": 0}, "no pair"),
    ],
)
def test_impossible_configs_say_why(changes, words):
    with pytest.raises(ValueError, match=words):
        ModelConfig(vocab_size=50, d_model=64, block="T", mamba3=dataclasses.replace(Mamba3Config(), **changes))
