"""The bound of block-causal denoisers: a sum over blocks, from an autoregressive likelihood (blocks of 1) to the bound
of the whole canvas.
"""

import dataclasses
import itertools
import math

import enumerated
import numpy as np
import pytest
import tiny
import torch

from paradigms.data.stream import EvaluationWindows
from paradigms.models.conditioning import ConditioningConfig
from paradigms.models.config import ModelConfig
from paradigms.models.stack import Model
from paradigms.quality.likelihood import evaluate
from paradigms.quality.masks import draw_masks

V, MASK, T = 3, 3, 7
TEXT = (0, 2, 1, 1, 0, 2, 1)
BYTES = [b"a"] * (V + 1)


def config(W: int | None, *, shift: bool = False, **changes) -> ModelConfig:
    return ModelConfig(
        vocab_size=V + 1,
        d_model=16,
        num_blocks=2,
        max_positions=16,
        causal=False,
        noise="absorbing",
        canvas_block=W,
        shift_logits=shift,
        **changes,
    )


def block_losses(model: Model, text, W: int, first: int = 1) -> list[enumerated.Losses]:
    """Of each block with scored columns, block after block."""
    found = []
    for start in range(0, len(text), W):
        stop = min(start + W, len(text))
        columns = range(max(start, first), stop)
        if columns:
            found.append(enumerated.losses(model, text, columns, mask_id=MASK, stop=stop))
    return found


def windows_of(texts, lengths=None, first_scored=None) -> EvaluationWindows:
    N = len(texts)
    return EvaluationWindows(
        tokens_NT=np.array(texts),
        lengths_N=np.full(N, len(texts[0])) if lengths is None else np.array(lengths),
        first_scored_N=np.ones(N, dtype=np.int64) if first_scored is None else np.array(first_scored),
    )


@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("W", [1, 2, 3, 4, 7])
def test_it_is_the_sum_of_the_blocks_bounds(W, shift):
    model = tiny.random_model(config(W, shift=shift))
    exact = sum(enumerated.by_counts(found) for found in block_losses(model, TEXT, W))
    got = evaluate(model, windows_of([TEXT]), BYTES, mask_id=MASK, num_masks=64)
    assert got.nats == pytest.approx(exact, rel=1e-10)
    assert got.is_bound == (W > 1) and got.bits_per_byte_mask_se == 0
    if W > 1:
        few = evaluate(model, windows_of([TEXT] * 300), BYTES, mask_id=MASK, num_masks=2, batch_size=600)
        error = few.bits_per_byte_se * math.log(2) * few.num_bytes / 300
        assert abs(few.nats / 300 - exact) < 3 * error + 1e-9 * exact
        assert error < 0.02 * exact


def test_a_time_conditioned_model_is_told_the_share_of_each_block():
    """Blocks {1, 2}, {3, 4, 5}, {6}, each told its own l / L; what is clean is told 0."""
    model = enumerated.network(config(3, conditioning=ConditioningConfig(width=8, frequency_dim=8)))
    masks = draw_masks(np.arange(T)[None] > 0, 7, block=3)
    counts = np.add.reduceat(masks.masked_RT, [0, 3, 6], axis=1)
    np.testing.assert_array_equal(masks.share_RK, counts / [2, 3, 1])
    got = evaluate(model, windows_of([TEXT]), BYTES, mask_id=MASK, num_masks=7)
    loop = 0.0
    for start, columns in ((0, (1, 2)), (3, (3, 4, 5)), (6, (6,))):
        for masked in (chosen for size in range(1, 4) for chosen in enumerated.subsets(columns, size)):
            loop += _nats_told(model, start, columns, masked) / (len(masked) * math.comb(len(columns), len(masked)))
    assert got.nats == pytest.approx(loop, rel=1e-10)


def _nats_told(model: Model, start: int, columns, masked) -> float:
    stop = columns[-1] + 1
    row = torch.tensor([[MASK if i in masked else token for i, token in enumerate(TEXT[:stop])]])
    time = torch.zeros(1, stop, dtype=torch.float64)
    time[0, start:] = len(masked) / len(columns)
    with torch.no_grad():
        log_p = model(row, time_B=time)[0, :, :V].log_softmax(-1)
    return -sum(log_p[i, TEXT[i]].item() for i in masked)


@pytest.mark.parametrize("shift", [False, True])
def test_blocks_of_one_are_autoregressive(shift):
    """Σ −log p(x_i | x_<i, mask at i); read one column to the left, that is the causal model of the same weights."""
    model = tiny.random_model(config(1, shift=shift))
    texts = [TEXT, (0, 1, 1, 2, 0, 0, 2)]
    got = evaluate(model, windows_of(texts), BYTES, mask_id=MASK)
    one_by_one = 0.0
    for text, i in itertools.product(texts, range(1, T)):
        one_by_one += enumerated.losses(model, text, [i], mask_id=MASK, stop=i + 1)[frozenset([i])][i]
    assert got.nats == pytest.approx(one_by_one, rel=1e-10) and not got.is_bound
    if shift:
        causal = dataclasses.replace(
            model.config, causal=True, noise=None, canvas_block=None, shift_logits=False
        ).build()
        causal.double().load_state_dict(model.state_dict())
        assert evaluate(causal, windows_of(texts), BYTES, mask_id=MASK).nats == pytest.approx(got.nats, rel=1e-10)


def test_one_block_is_the_whole_canvas():
    one, whole = (tiny.random_model(config(W)) for W in (16, None))
    found = [evaluate(model, windows_of([TEXT] * 20), BYTES, mask_id=MASK, num_masks=4) for model in (one, whole)]
    assert found[0].nats == pytest.approx(found[1].nats, rel=1e-10)
    assert found[0].bits_per_byte_mask_se == pytest.approx(found[1].bits_per_byte_mask_se, rel=1e-8)


def test_it_bounds_the_sampler_that_decides_block_after_block():
    model, gaps, total = tiny.random_model(config(3)), [], 0.0
    for text in ((0, *tokens) for tokens in itertools.product(range(V), repeat=4)):  # blocks {1, 2} and {3, 4}
        found = block_losses(model, text, 3)
        probability = math.prod(np.mean(np.exp(np.negative(enumerated.order_nlls(block)))) for block in found)
        gaps.append(sum(map(enumerated.by_counts, found)) + math.log(probability))
        total += probability
    assert total == pytest.approx(1, abs=1e-12)
    assert min(gaps) >= 0 and max(gaps) > 1e-3


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_given_context_and_short_windows(batch_size):
    """A block of which a part is given, and a last window that ends within a block; alike in any batch."""
    model = tiny.random_model(config(3, shift=True))
    texts = [TEXT, (0, 1, 1, 2, 0, 0, 2), (0, 2, 2, 1, 1, MASK, MASK)]
    windows = windows_of(texts, lengths=[7, 7, 5], first_scored=[1, 5, 4])
    got = evaluate(model, windows, BYTES, mask_id=MASK, num_masks=7, batch_size=batch_size)
    exact = [
        sum(map(enumerated.by_counts, block_losses(model, text[:length], 3, first)))
        for text, length, first in zip(texts, windows.lengths_N, windows.first_scored_N, strict=True)
    ]
    assert got.nats == pytest.approx(sum(exact), rel=1e-10)
    assert got.num_tokens == 6 + 2 + 1


def test_the_counts_of_every_block_are_stratified():
    masks = draw_masks(np.arange(17)[None].repeat(40, 0) > 0, 8, block=4, seed=2)  # blocks of 3, 4, 4, 4 and 1
    counts = np.add.reduceat(masks.masked_RT, np.arange(0, 17, 4), axis=1).reshape(40, 8, 5)
    assert (np.sort(counts[..., 1:4], axis=1) == np.array([1, 1, 2, 2, 3, 3, 4, 4])[:, None]).all()
    assert (counts[..., 4] == 1).all() and counts[..., 0].min() == 1 and counts[..., 0].max() == 3
    assert not masks.masked_RT[:, 0].any() and masks.drawn_N.all()
    np.testing.assert_allclose(masks.weight_RK.reshape(40, 8, 5) * counts, np.array([3, 4, 4, 4, 1]) / 8 + 0 * counts)


def test_the_error_of_drawing_masks_is_that_of_redrawn_masks():
    """Over seeds, with few masks, so that neighbouring strata differ in l."""
    model, rng = tiny.random_model(config(5, shift=True)), np.random.default_rng(0)
    windows = windows_of(np.concatenate([np.zeros((12, 1), int), rng.integers(0, V, (12, 13))], axis=1).tolist())
    found = [evaluate(model, windows, BYTES, mask_id=MASK, num_masks=4, batch_size=48, seed=s) for s in range(60)]
    spread = np.std([got.nats for got in found], ddof=1) / math.log(2) / found[0].num_bytes
    stated = math.sqrt(np.mean([got.bits_per_byte_mask_se**2 for got in found]))
    assert 0.8 * spread < stated < 1.4 * spread
    assert stated < np.mean([got.bits_per_byte_se for got in found]), "the windows differ too"
