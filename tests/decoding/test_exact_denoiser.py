"""Which samplers reproduce a distribution whose conditionals they are given exactly, and what the others make of it."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from decoding.exact_denoiser import Chain, ExactDenoiser, Samples, entropy_loss, p_value, sample

from paradigms.decoding.diffusion.decoder import MaskedDiffusion
from paradigms.decoding.diffusion.samplers.ancestral import Ancestral
from paradigms.decoding.diffusion.samplers.entropy import Entropy
from paradigms.decoding.diffusion.samplers.factor import Factor
from paradigms.decoding.diffusion.samplers.first_hitting import FirstHitting
from paradigms.decoding.diffusion.samplers.low_confidence import LowConfidence
from paradigms.decoding.diffusion.samplers.margin import Margin
from paradigms.decoding.diffusion.samplers.random import Random
from paradigms.decoding.diffusion.samplers.remasking import Remasking
from paradigms.decoding.diffusion.samplers.threshold import Threshold
from paradigms.decoding.diffusion.samplers.top1 import Top1

DRAWS = 20_000
CHAIN = Chain.of([0.6, 0.3, 0.1], [[0.7, 0.2, 0.1], [0.2, 0.5, 0.3], [0.1, 0.3, 0.6]], length=5)
MODEL = ExactDenoiser(CHAIN)

EXACT = {
    "random": MaskedDiffusion(sampler=Random()),
    "first_hitting": MaskedDiffusion(sampler=FirstHitting()),
    "ancestral, T = 1024": MaskedDiffusion(sampler=Ancestral(steps=1024)),
    "top1": MaskedDiffusion(sampler=Top1()),
    "margin": MaskedDiffusion(sampler=Margin()),
    "entropy": MaskedDiffusion(sampler=Entropy()),
    "entropy, choice_temperature 0.1": MaskedDiffusion(sampler=Entropy(choice_temperature=0.1)),
}
BIASED = {
    "low_confidence": MaskedDiffusion(sampler=LowConfidence()),
    "maskgit_plus": MaskedDiffusion(sampler=LowConfidence(), confidence="after"),
    "threshold 0.9": MaskedDiffusion(sampler=Threshold(threshold=0.9)),
    "threshold 1": MaskedDiffusion(sampler=Threshold(threshold=1.0)),
    "factor 1": MaskedDiffusion(sampler=Factor(factor=1.0)),
    "random, K = 1": MaskedDiffusion(sampler=Random(steps=1)),
    "random, K = L/2": MaskedDiffusion(sampler=Random(steps="L/2")),
    "ancestral, T = L": MaskedDiffusion(sampler=Ancestral()),
}
# Further figures of the README's table; nothing is asserted of them here.
FURTHER = {
    "entropy, K = L/2": MaskedDiffusion(sampler=Entropy(steps="L/2")),
    "threshold 0.5": MaskedDiffusion(sampler=Threshold(threshold=0.5)),
    "remasking cap 0.2, T = 32": MaskedDiffusion(sampler=Remasking(steps=32, eta=0.2)),
    "remasking rescale 0.2, T = 32": MaskedDiffusion(sampler=Remasking(steps=32, schedule="rescale", eta=0.2)),
    "remasking confidence, T = 32": MaskedDiffusion(sampler=Remasking(steps=32, schedule="confidence", eta=None)),
    "remasking loop, T = 32": MaskedDiffusion(
        sampler=Remasking(steps=32, schedule="loop", eta=0.2, t_on=0.55, t_off=0.05, alpha_on=0.9)
    ),
}


@cache
def drawn(name: str) -> Samples:
    return sample({**EXACT, **BIASED, **FURTHER}[name], MODEL, DRAWS)


def table(names: list[str]) -> str:
    """Markdown: entropy lost to each sampler, and whether its samples can be told from the chain's."""
    lines = ["| sampler | forwards | entropy lost, nats | p, chi-square |", "|---|---|---|---|"]
    for name in names:
        samples = drawn(name)
        loss, error = entropy_loss(CHAIN, samples.sequences_NL)
        p = p_value(CHAIN.counts(samples.sequences_NL), CHAIN.probabilities)
        steps = float(samples.steps_N.double().mean())
        lines.append(f"| {name} | {steps:.2f} | {loss:+.3f} ± {error:.3f} | {p:.2g} |")
    return "\n".join(lines)


def test_the_denoiser_is_exact():
    """Against enumeration, for a pattern of visible tokens."""
    tokens_BT = torch.tensor([[3, 4, 1, 4, 4, 2], [3, 4, 4, 4, 4, 4]])
    logits_MV = MODEL.logits_where(tokens_BT, tokens_BT == 4)
    assert bool((logits_MV[:, 3:] == float("-inf")).all())
    joint = CHAIN.probabilities.view(3, 3, 3, 3, 3)
    seen = joint[:, 1, :, :, 2] / joint[:, 1, :, :, 2].sum()
    expected = [seen.sum((1, 2)), seen.sum((0, 2)), seen.sum((0, 1))]
    expected += [joint.movedim(place, 0).flatten(1).sum(1) for place in range(5)]
    assert torch.allclose(logits_MV[:, :3].exp(), torch.stack(expected), rtol=0, atol=1e-12)


def test_the_test_has_power():
    """Sequences drawn from the enumerated chain pass; those of a chain that is off by 0.05 in one row do not."""
    generator = torch.Generator().manual_seed(0)
    off = Chain(CHAIN.first_V, CHAIN.next_VV + torch.tensor([[-0.05, 0.05, 0], [0, 0, 0], [0, 0, 0]]), CHAIN.length)
    for chain, passes in ((CHAIN, True), (off, False)):
        drawn = chain.probabilities.multinomial(DRAWS, replacement=True, generator=generator)
        p = p_value(drawn.bincount(minlength=3**5), CHAIN.probabilities)
        assert p > 1e-3 if passes else p < 1e-3


@pytest.mark.parametrize("name", EXACT)
def test_choices_that_do_not_look_at_drawn_values_reproduce_the_chain(name):
    """Chi-square over all sequences; seven tests, so p > 1e-3 fails a true one in 150 choices of seeds."""
    samples = drawn(name)
    assert EXACT[name].sampler.exact
    assert p_value(CHAIN.counts(samples.sequences_NL), CHAIN.probabilities) > 1e-3
    loss, error = entropy_loss(CHAIN, samples.sequences_NL)
    assert abs(loss) < 3.5 * error


@pytest.mark.parametrize("name", BIASED)
def test_others_do_not(name):
    """Ranking by the drawn token, and several positions a step."""
    samples = drawn(name)
    assert p_value(CHAIN.counts(samples.sequences_NL), CHAIN.probabilities) < 1e-6
    loss, error = entropy_loss(CHAIN, samples.sequences_NL)
    if not isinstance(BIASED[name].sampler, Random | Ancestral):
        assert not BIASED[name].sampler.exact
        assert loss > 5 * error, "probable tokens are favoured"


@pytest.mark.parametrize(
    ("sampler", "probability"),
    [
        (LowConfidence(), 0.891),
        (Threshold(threshold=1.0), 0.891),
        (Top1(), 0.81),
        (Random(), 0.81),
        (Random(steps=1), 0.81),
    ],
)
def test_two_independent_bits(sampler, probability):
    """P(00) of bits that are 0 with 0.9: 0.81; where a drawn 0 goes first, 0.99 · 0.9 = 0.891."""
    model = ExactDenoiser(Chain.independent([0.9, 0.1], length=2))
    samples = sample(MaskedDiffusion(sampler=sampler), model, DRAWS)
    share = float((samples.sequences_NL == 0).all(-1).double().mean())
    assert abs(share - probability) < 4 * (probability * (1 - probability) / DRAWS) ** 0.5
