"""Ancestral draws in float32, as published code makes them: equal to float64 at long steps, dull at short ones."""

from __future__ import annotations

import pytest
import torch
from decoding.exact_denoiser import Independent, close, forwards, sample

from paradigms.decoding.diffusion.decoder import MaskedDiffusion
from paradigms.decoding.diffusion.samplers.ancestral import Ancestral


def zipf(vocab_size):
    weights = [1 / rank for rank in range(1, vocab_size + 1)]
    return [weight / sum(weights) for weight in weights]


def surprise(sampler, model, number):
    """Mean −log p of the tokens written, and its standard error."""
    tokens = sample(MaskedDiffusion(sampler=sampler), model, number).sequences_NL.flatten()
    values = -model.logits_V[tokens]
    return float(values.mean()), float(values.std()) / len(values) ** 0.5


def test_the_float32_control_draws_what_float64_draws_where_steps_are_long():
    """Nothing is lost at T = 16 and V = 20; the number of forwards is that of T steps."""
    probabilities = zipf(20)
    model = Independent(probabilities, length=8)
    entropy = -sum(p * torch.tensor(p).log().item() for p in probabilities)
    control = Ancestral(steps=16, reuse=False, draws="float32")
    for sampler in (control, Ancestral(steps=16)):
        mean, error = surprise(sampler, model, 1000)
        assert abs(mean - entropy) < 3.5 * error
    steps_N, _ = forwards(control, model)
    assert close(steps_N, 16 - sum((k / 16) ** 8 for k in range(1, 16)))


def reached(probabilities_V, steps):
    """What tokens 24-bit noise draws: near 0 it is j 2^-24, so P(noise < x) is ⌊2^24 x⌋ 2^-24 where it should be x.

    With R steps to go a token of probability p beats the mask with 2^-24 / (e^a − 1), a = 2^-24 R / p, not with p / R.
    """
    masked, reached_V = 1.0, torch.zeros_like(probabilities_V)
    for left in reversed(range(steps)):
        a_V = left * 2.0**-24 / probabilities_V
        rate_V = probabilities_V / (left + 1) * (a_V / torch.expm1(a_V) if left else 1)
        reached_V += masked * rate_V
        masked *= 1 - float(rate_V.sum())
    return reached_V


@pytest.mark.slow
def test_float32_draws_lose_entropy_at_short_steps():
    """V = 2000: improbable tokens are out of reach, as predicted: −0.09 nats at T = 1024, −0.50 at 8192."""
    model = Independent(zipf(2000), length=64)
    probabilities_V = torch.tensor(zipf(2000), dtype=torch.float64)
    entropy, at_1024, at_8192 = (
        -float((drawn_V * probabilities_V.log()).sum())
        for drawn_V in (probabilities_V, reached(probabilities_V, 1024), reached(probabilities_V, 8192))
    )
    assert (entropy, at_1024, at_8192) == pytest.approx((5.625, 5.535, 5.125), abs=1e-3)
    single, single_error = surprise(Ancestral(steps=8192, reuse=False, draws="float32"), model, 4)
    double, double_error = surprise(Ancestral(steps=8192), model, 80)
    print(
        f"\nfloat32 {single:.3f} ± {single_error:.3f}, float64 {double:.3f} ± {double_error:.3f}, exact {entropy:.3f}"
    )
    assert abs(single - at_8192) < 3 * single_error < entropy - single
    assert abs(double - entropy) < 3 * double_error
