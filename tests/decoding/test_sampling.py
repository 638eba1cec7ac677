"""Draws follow their distribution (chi-square, with a control that must fail) and depend on nothing but their
purpose."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch

from paradigms.decoding import draws
from paradigms.decoding.sampling import Sampling, invert

LOGITS = torch.tensor([0.5, -1.0, 2.0, 0.0, 1.0, -3.0, 0.7, 1.5])
NUM_DRAWS = 40_000


def p_value(counts: np.ndarray, probabilities: np.ndarray) -> float:
    keep = probabilities > 0
    assert counts[~keep].sum() == 0, "a token of probability 0 was drawn"
    return scipy.stats.chisquare(counts[keep], probabilities[keep] * counts.sum()).pvalue


def draw_counts(sampling: Sampling) -> np.ndarray:
    uniform_R = draws.uniform([3], torch.arange(NUM_DRAWS), 0, "token")[0]
    tokens_R = sampling.draw(LOGITS.expand(NUM_DRAWS, -1), uniform_R)
    return np.bincount(tokens_R.numpy(), minlength=len(LOGITS))


@pytest.mark.parametrize(
    ("sampling", "kept", "temperature"),
    [
        (Sampling(), range(8), 1.0),
        (Sampling(temperature=0.5), range(8), 0.5),
        (Sampling(top_k=3), (2, 7, 4), 1.0),
        (Sampling(top_p=0.7), (2, 7, 4), 1.0),  # 0.41, 0.66, 0.81: the third passes 0.7
        (Sampling(temperature=2.0, top_k=5, top_p=0.5), (2, 7), 2.0),
    ],
    ids=str,
)
def test_draws_follow_the_distribution(sampling, kept, temperature):
    """The expected distribution is worked out here from which tokens must stay, not by the code under test."""
    weights = np.zeros(len(LOGITS))
    index = list(kept)
    weights[index] = np.exp(LOGITS.double().numpy()[index] / temperature)
    expected = weights / weights.sum()
    assert np.allclose(sampling.probabilities(LOGITS[None])[0].numpy(), expected, atol=1e-12)
    assert p_value(draw_counts(sampling), expected) > 1e-3


def test_the_chi_square_sees_a_wrong_distribution():
    wrong = Sampling(temperature=1.05).probabilities(LOGITS[None])[0].numpy()
    assert p_value(draw_counts(Sampling()), wrong) < 1e-6


def test_greedy_takes_the_most_probable():
    assert Sampling(temperature=0).draw(LOGITS[None], torch.tensor([0.99])).item() == 2
    assert Sampling(temperature=0).probabilities(LOGITS[None])[0].tolist() == [0, 0, 1, 0, 0, 0, 0, 0]


def test_a_token_of_probability_zero_is_never_drawn():
    probabilities_RV = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]]).double().expand(3, -1)
    uniform_R = torch.tensor([2.0**-54, 0.5, 1 - 2.0**-54]).double()
    assert invert(probabilities_RV, uniform_R).tolist() == [1, 3, 3]


def test_uniform_numbers_are_uniform_and_independent():
    u_BL = draws.uniform(range(200), torch.arange(200), 5, "token")
    flat = u_BL.flatten().numpy()
    assert flat.min() > 0 and flat.max() < 1
    assert scipy.stats.kstest(flat, "uniform").pvalue > 1e-3
    for other in (
        draws.uniform(range(200), torch.arange(200), 6, "token"),
        draws.uniform(range(200), torch.arange(200), 5, "order"),
        draws.uniform(range(1, 201), torch.arange(200), 5, "token"),
        draws.uniform(range(200), torch.arange(1, 201), 5, "token"),
    ):
        assert abs(np.corrcoef(flat, other.flatten().numpy())[0, 1]) < 4 / np.sqrt(flat.size)


def test_a_draw_depends_on_its_own_seed_position_and_step_only():
    whole = draws.uniform([5, 6, 7], torch.arange(50), 3, "token")
    part = draws.uniform([7], torch.tensor([40, 2]), 3, "token")
    assert part[0].tolist() == [whole[2, 40].item(), whole[2, 2].item()]
    assert len(np.unique(whole.numpy())) == 150


def test_splitmix_against_python_integers():
    """The tensor arithmetic wraps as unsigned 64-bit integers do."""

    def mix(x: int) -> int:
        for shift, multiplier in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = (x ^ (x >> shift)) * multiplier % 2**64
        return x ^ (x >> 31)

    golden, seed, position, step = 0x9E3779B97F4A7C15, 123456789, 37, 11
    key = mix(mix((seed * golden + 1) % 2**64) ^ ((step + 1) * golden % 2**64))
    bits = mix(key ^ mix((position * golden + 1) % 2**64))
    expected = ((bits >> 12) + 0.5) * 2.0**-52
    assert draws.uniform([seed], torch.tensor([position]), step, "token").item() == expected
