"""Likelihood of answers after prompts: exact for causal models, the bound of the answer alone for denoisers."""

import math

import enumerated
import numpy as np
import pytest
import tiny
import torch
from test_block_bound import MASK, V, block_losses, config

from paradigms.models.config import ModelConfig
from paradigms.models.mamba2 import Mamba2Config
from paradigms.quality.answers import answer_likelihoods

PAIRS = [  # prompts of different lengths, and answers of 1 to 6 tokens
    ((0, 2, 1), (1, 0, 2, 1, 1)),
    ((0,), (2,)),
    ((0, 1, 1, 2, 0, 0, 2), (1, 2, 1)),
    ((0, 2), (0, 1, 2, 2, 0, 1)),
    ((0, 2, 1), (1, 2)),
]


@pytest.mark.parametrize(
    "parts", [{}, {"block": "M", "mamba2": Mamba2Config(head_dim=16, d_state=8, chunk_len=4)}], ids=["AF", "M"]
)
@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_causal_model_says_it_exactly(parts, batch_size):
    model = tiny.random_model(ModelConfig(vocab_size=V + 1, d_model=16, num_blocks=1, max_positions=16, **parts))
    greedy = list(PAIRS[0][0])
    with torch.no_grad():
        for _ in range(4):
            greedy.append(int(model(torch.tensor([greedy]))[0, -1, :V].argmax()))
    pairs = [*PAIRS, (greedy[:3], greedy[3:]), (greedy[:3], [*greedy[3:6], (greedy[6] + 1) % V])]
    found = answer_likelihoods(model, pairs, mask_id=MASK, batch_size=batch_size)
    for (prompt, answer), got in zip(pairs, found, strict=True):
        with torch.no_grad():
            log_p = model(torch.tensor([[*prompt, *answer]]))[0, :, :V].log_softmax(-1)
        nats = -sum(log_p[len(prompt) + i - 1, token].item() for i, token in enumerate(answer))
        assert got.nats == pytest.approx(nats, rel=1e-10)
        assert (got.nats_se, got.num_tokens, got.is_bound) == (0, len(answer), False)
    assert [got.is_greedy for got in found[-2:]] == [True, False]


def exact_nats(model, prompt, answer) -> float:
    text, columns = (*prompt, *answer), range(len(prompt), len(prompt) + len(answer))
    if model.config.canvas_block is None:
        return enumerated.by_counts(enumerated.losses(model, text, columns, mask_id=MASK))
    return sum(map(enumerated.by_counts, block_losses(model, text, model.config.canvas_block, len(prompt))))


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("W", [None, 1, 3])
@pytest.mark.parametrize("batch_size", [1, 50])
def test_a_denoiser_bounds_it_without_error_when_every_mask_is_read(W, shift, batch_size):
    model = tiny.random_model(config(W, shift=shift))
    found = answer_likelihoods(model, PAIRS, mask_id=MASK, num_masks=63, batch_size=batch_size)
    for (prompt, answer), got in zip(PAIRS, found, strict=True):
        assert got.nats == pytest.approx(exact_nats(model, prompt, answer), rel=1e-10)
        assert got.nats_se == 0 and got.num_tokens == len(answer) and got.is_greedy is None
        assert got.is_bound == (len(answer) > 1 and W != 1)


@pytest.mark.parametrize("W", [None, 5])
def test_drawn_masks_estimate_it_within_an_error_that_is_true(W):
    """Over seeds: no bias, and the standard error that each estimate states is that of the estimates."""
    model = tiny.random_model(config(W, shift=True))
    prompt, answer = (0, 2, 1), (1, 0, 2, 1, 1, 2)
    exact = exact_nats(model, prompt, answer)
    found = [answer_likelihoods(model, [(prompt, answer)], mask_id=MASK, num_masks=12, seed=s)[0] for s in range(150)]
    nats = np.array([got.nats for got in found])
    spread = nats.std(ddof=1)
    assert abs(nats.mean() - exact) < 3 * spread / math.sqrt(len(nats)) < 0.02 * exact
    stated = math.sqrt(np.mean([got.nats_se**2 for got in found]))
    assert 0.85 * spread < stated < 1.5 * spread


@pytest.mark.parametrize("W", [None, 3])
def test_an_answer_costs_the_same_whatever_is_asked_with_it(W):
    model = tiny.random_model(config(W))
    seen = []
    together = answer_likelihoods(
        model, PAIRS, mask_id=MASK, num_masks=3, batch_size=4, progress=lambda *done: seen.append(done)
    )
    for pair, got in zip(PAIRS[::-1], together[::-1], strict=True):
        (alone,) = answer_likelihoods(model, [pair], mask_id=MASK, num_masks=3)
        assert alone.nats == pytest.approx(got.nats, rel=1e-10)
        assert alone.nats_se == pytest.approx(got.nats_se, rel=1e-8, abs=1e-12)
    assert seen[-1] == (len(PAIRS), len(PAIRS))
    other = answer_likelihoods(model, PAIRS, mask_id=MASK, num_masks=3, seed=1)
    assert other[0].nats != together[0].nats


def test_a_prompt_makes_a_difference_and_is_never_masked():
    """The same answer after two prompts; a prompt that held masks would not be the text that was asked about."""
    model = tiny.random_model(config(None))
    one, two = answer_likelihoods(model, [((0, 1), (1, 2)), ((0, 2), (1, 2))], mask_id=MASK)
    assert abs(one.nats - two.nats) > 1e-3


def test_errors_say_what_to_do():
    model = tiny.random_model(config(None))
    assert answer_likelihoods(model, [], mask_id=MASK) == []
    with pytest.raises(ValueError, match="pair 1 has a prompt of 0"):
        answer_likelihoods(model, [((0,), (1,)), ((), (1,))], mask_id=MASK)
    with pytest.raises(ValueError, match="an answer of 0 tokens"):
        answer_likelihoods(model, [((0,), ())], mask_id=MASK)
    with pytest.raises(ValueError, match=r"17 tokens and exceeds model\.max_positions=16"):
        answer_likelihoods(model, [((0,) * 9, (1,) * 8)], mask_id=MASK)
    with pytest.raises(ValueError, match="mask_id=None"):
        answer_likelihoods(model, [((0,), (1,))], mask_id=None)
    with pytest.raises(ValueError, match="num_masks=0"):
        answer_likelihoods(model, [((0,), (1,))], mask_id=MASK, num_masks=0)
