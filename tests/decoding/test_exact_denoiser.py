"""Which samplers reproduce a distribution whose conditionals they are given exactly, and what the others make of it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from itertools import pairwise

import pytest
import torch
from decoding.exact_denoiser import (
    Chain,
    ExactDenoiser,
    Rule,
    Samples,
    entropy,
    entropy_loss,
    enumerated,
    enumerated_remasking,
    p_value,
    sample,
)

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
CHAIN = Chain.of([0.5, 0.3, 0.2], [[0.48, 0.47, 0.05], [0.55, 0.25, 0.2], [0.1, 0.15, 0.75]], length=5)
MODEL = ExactDenoiser(CHAIN)


def highest(confidences: list[float]) -> set[int]:
    return {max(range(len(confidences)), key=confidences.__getitem__)}


def over(threshold: float) -> Rule:
    return lambda confidences: highest(confidences) | {n for n, c in enumerate(confidences) if c >= threshold}


def by_factor(factor: float) -> Rule:
    def rule(confidences: list[float]) -> set[int]:
        order = sorted(range(len(confidences)), key=lambda n: -confidences[n])
        fitting = [n for n in range(1, len(order) + 1) if (n + 1) * (1 - confidences[order[n - 1]]) < factor]
        return set(order[: max(fitting, default=1)])

    return rule


EXACT = {
    "random": MaskedDiffusion(sampler=Random()),
    "first_hitting": MaskedDiffusion(sampler=FirstHitting()),
    "ancestral, T = 1024": MaskedDiffusion(sampler=Ancestral(steps=1024)),
    "top1": MaskedDiffusion(sampler=Top1()),
    "margin": MaskedDiffusion(sampler=Margin()),
    "entropy": MaskedDiffusion(sampler=Entropy()),
    "entropy, choice_temperature 0.1": MaskedDiffusion(sampler=Entropy(choice_temperature=0.1)),
}
# With the rule by which drawn tokens stay, where there is one.
BIASED: dict[str, tuple[MaskedDiffusion, Rule | None]] = {
    "low_confidence": (MaskedDiffusion(sampler=LowConfidence()), highest),
    "maskgit_plus": (MaskedDiffusion(sampler=LowConfidence(), confidence="after"), highest),
    "threshold 0.9": (MaskedDiffusion(sampler=Threshold(threshold=0.9)), over(0.9)),
    "threshold 0.5": (MaskedDiffusion(sampler=Threshold(threshold=0.5)), over(0.5)),
    "factor 1": (MaskedDiffusion(sampler=Factor(factor=1.0)), by_factor(1.0)),
    "random, K = 1": (MaskedDiffusion(sampler=Random(steps=1)), lambda confidences: set(range(len(confidences)))),
    "random, K = 2": (MaskedDiffusion(sampler=Random(steps=2)), None),
    "ancestral, T = L": (MaskedDiffusion(sampler=Ancestral()), None),
}
# Further figures of the README's table.
FURTHER = {
    "entropy, K = 2": MaskedDiffusion(sampler=Entropy(steps=2)),
    "remasking cap, η = 0.2, T = 32": MaskedDiffusion(sampler=Remasking(steps=32, eta=0.2)),
    "remasking confidence, T = 32": MaskedDiffusion(sampler=Remasking(steps=32, schedule="confidence", eta=None)),
}
DECODERS = {**EXACT, **{name: decoder for name, (decoder, _) in BIASED.items()}, **FURTHER}


@cache
def drawn(name: str) -> Samples:
    return sample(DECODERS[name], MODEL, DRAWS)


def table(names: Iterable[str] = DECODERS) -> str:
    """Markdown: entropy lost to each sampler, and whether its samples can be told from the chain's."""
    lines = ["| sampler | forwards | entropy lost, nats | p of chi-square |", "|---|---|---|---|"]
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
    assert torch.allclose(logits_MV[:, :3].exp(), torch.stack(expected), rtol=0, atol=1e-11)


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
    """Ranking by the drawn token, and several positions a step; what they write instead is what enumeration says."""
    decoder, rule = BIASED[name]
    sequences_NL = drawn(name).sequences_NL
    counts = CHAIN.counts(sequences_NL)
    assert p_value(counts, CHAIN.probabilities) < 1e-6
    if rule is not None:
        theirs = enumerated(CHAIN, rule)
        assert p_value(counts, theirs) > 1e-3
        loss, error = entropy_loss(CHAIN, sequences_NL)
        assert abs(loss - (entropy(CHAIN.probabilities) - entropy(theirs))) < 3.5 * error
    if not isinstance(decoder.sampler, Random | Ancestral):
        assert not decoder.sampler.exact
        assert loss > 1, "probable tokens are favoured"


def test_random_first_hitting_and_ancestral_share_their_times():
    """One by one they are the same; bins of equal width keep the order, and without reuse nothing else changes."""
    random, hitting, fine = (drawn(name) for name in ("random", "first_hitting", "ancestral, T = 1024"))
    assert torch.equal(random.decided_SNL, hitting.decided_SNL)
    assert torch.equal(random.sequences_NL, hitting.sequences_NL)
    apart = fine.steps_N == CHAIN.length  # no two positions in one bin
    assert 0.985 < float(apart.double().mean()) < 0.995  # 1023/1024 · 1022/1024 · … = 0.9903
    assert torch.equal(fine.decided_SNL[:, apart], random.decided_SNL[:, apart])
    greedy = [
        sample(MaskedDiffusion(sampler=Ancestral(steps=16, reuse=reuse), temperature=0), MODEL, 500)
        for reuse in (True, False)
    ]
    assert torch.equal(greedy[0].sequences_NL, greedy[1].sequences_NL)
    assert bool((greedy[0].steps_N <= greedy[1].steps_N).all())


TOY = Chain.of([0.7, 0.3], [[0.8, 0.2], [0.4, 0.6]], length=3)
QUARTERS = [0, 0.25, 0.5, 0.75, 1]
REMASKING = {  # sampler, α at each time, σ of each step, both worked out by hand
    "cap": (Remasking(steps=4, eta=0.6), QUARTERS, [0.6, 0.6, 0.5, 0]),
    "rescale": (Remasking(steps=4, schedule="rescale", eta=0.6), QUARTERS, [0.6, 0.6, 0.3, 0]),
    "confidence": (Remasking(steps=4, schedule="confidence", eta=None), QUARTERS, [1, 1, 0.5, 0]),
    "loop": (
        Remasking(steps=5, schedule="loop", eta=0.2, t_on=0.6, t_off=0.25, alpha_on=0.8),
        [0, 0.4, 0.8, 0.8, 0.84, 1],
        [0, 0, 0.2, 0.2, 0],
    ),
}


@pytest.mark.parametrize("schedule", REMASKING)
def test_remasking_follows_its_posterior(schedule):
    """Samples against the enumerated Markov chain over canvases; the share that is decided is α at each time."""
    sampler, alphas, sigmas = REMASKING[schedule]
    theirs, shares = enumerated_remasking(TOY, alphas, sigmas, by_doubt=schedule == "confidence")
    if schedule != "confidence":
        assert shares == pytest.approx(alphas[1:], abs=1e-9)
    samples = sample(MaskedDiffusion(sampler=sampler), ExactDenoiser(TOY), 5000)
    assert p_value(TOY.counts(samples.sequences_NL), theirs) > 1e-3
    assert p_value(TOY.counts(samples.sequences_NL), TOY.probabilities) < 1e-6
    assert bool((samples.decided_SNL[-1]).all()), "nothing is final before the last step"


def test_remasking_comes_close_to_the_chain_with_many_steps():
    """By enumeration, with as many revisions in fewer a step: the error falls as 1/T."""
    errors = []
    for steps in (8, 64):
        alphas = [step / steps for step in range(steps + 1)]
        sigmas = [Remasking(steps=steps, eta=1.6 / steps).rates(1 - t, 1 - s)[1] for t, s in pairwise(alphas)]
        errors.append(float((enumerated_remasking(TOY, alphas, sigmas)[0] - TOY.probabilities).abs().sum()))
    assert errors[1] < errors[0] / 6


@pytest.mark.parametrize(
    ("sampler", "probability"),
    [
        (LowConfidence(), 0.891),
        (Top1(), 0.81),
        (Random(), 0.81),
    ],
)
def test_two_independent_bits(sampler, probability):
    """P(00) of bits that are 0 with 0.9: 0.81; where a drawn 0 goes first, 0.99 · 0.9 = 0.891."""
    model = ExactDenoiser(Chain.independent([0.9, 0.1], length=2))
    samples = sample(MaskedDiffusion(sampler=sampler), model, DRAWS)
    share = float((samples.sequences_NL == 0).all(-1).double().mean())
    assert abs(share - probability) < 4 * (probability * (1 - probability) / DRAWS) ** 0.5
