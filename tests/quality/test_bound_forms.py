"""The bound of a denoiser has one value, whichever way it is written, and bounds what the one-token sampler says."""

import dataclasses
import itertools
import math

import enumerated
import numpy as np
import pytest
import torch

from paradigms.data.stream import EvaluationWindows
from paradigms.models.conditioning import ConditioningConfig
from paradigms.models.config import ModelConfig
from paradigms.quality.likelihood import evaluate
from paradigms.training.objectives import MIN_TIME, MaskedObjective, masked_loss

V, L, MASK = 3, 4, 3
COLUMNS = range(1, 1 + L)
TEXTS = [(0, *tokens) for tokens in itertools.product(range(V), repeat=L)]
PLAIN = ModelConfig(vocab_size=V + 1, d_model=16, num_blocks=2, max_positions=1 + L, causal=False, noise="absorbing")
CONFIGS = {
    "plain": PLAIN,
    "shifted": dataclasses.replace(PLAIN, shift_logits=True),
    "timed": dataclasses.replace(PLAIN, conditioning=ConditioningConfig(width=8, frequency_dim=8)),
}


@pytest.fixture(scope="module", params=CONFIGS)
def case(request):
    model = enumerated.network(CONFIGS[request.param])
    return model, {text: enumerated.losses(model, text, COLUMNS, mask_id=MASK) for text in TEXTS}


def windows_of(text, count: int) -> EvaluationWindows:
    tokens_NT = np.array([text] * count)
    return EvaluationWindows(
        tokens_NT=tokens_NT, lengths_N=np.full(count, 1 + L), first_scored_N=np.ones(count, dtype=np.int64)
    )


def bits(nats: float) -> float:
    return nats / (L * math.log(2))


def test_quadrature_over_time_exact_counts_and_orders_agree(case):
    model, losses = case
    for found in losses.values():
        assert np.mean(enumerated.order_nlls(found)) == pytest.approx(enumerated.by_counts(found), rel=1e-12)
        if not model.config.reads_time:  # where it does, a mask of l tokens is read at many times, not at l / L
            assert enumerated.by_time(found) == pytest.approx(enumerated.by_counts(found), rel=1e-12)


def test_the_bound_bounds_the_one_token_sampler_whose_probabilities_sum_to_one(case):
    probability = {text: np.mean(np.exp(np.negative(enumerated.order_nlls(f)))) for text, f in case[1].items()}
    assert sum(probability.values()) == pytest.approx(1, abs=1e-12)
    gaps = [enumerated.by_counts(found) + math.log(probability[text]) for text, found in case[1].items()]
    assert min(gaps) >= 0
    assert max(gaps) > 1e-3, "the orders agree, and this test could not fail"


def test_all_masks_give_the_bound_without_error(case):
    model, losses = case
    for text in TEXTS[4::16]:
        got = evaluate(model, windows_of(text, 1), [b"a"] * 4, mask_id=MASK, num_masks=2**L - 1)
        assert got.bits_per_byte == pytest.approx(bits(enumerated.by_counts(losses[text])), rel=1e-10)
        assert got.bits_per_byte_mask_se == 0 and got.bits_per_byte_se is None and got.is_bound


@pytest.mark.parametrize("num_masks", [1, 6])
def test_drawn_masks_give_the_bound_within_their_error(case, num_masks):
    model, losses = case
    for text in TEXTS[4::32]:
        got = evaluate(model, windows_of(text, 240), [b"a"] * 4, mask_id=MASK, num_masks=num_masks, batch_size=720)
        exact = bits(enumerated.by_counts(losses[text]))
        assert abs(got.bits_per_byte - exact) < 3 * got.bits_per_byte_se < 0.06 * exact
        if num_masks > 1:  # the windows are alike, so that masks are all that is drawn
            assert got.bits_per_byte_mask_se == pytest.approx(got.bits_per_byte_se, rel=0.25)


def test_independent_times_give_it_too_but_for_the_least_time(case):
    """MDLM's (1/t) Σ with independent masks; every mask's cost is looked up. A time near 0 is left out, or the variance
    would be infinite; what that omits is known exactly.
    """
    model, losses = case
    rng = np.random.default_rng(0)
    found = losses[TEXTS[20]]
    place = 1 << np.arange(L)
    total = np.zeros(1 << L)
    for masked, loss in found.items():
        total[sum(place[i - 1] for i in masked)] = sum(loss.values())
    t = MIN_TIME + (1 - MIN_TIME) * rng.random(200_000)
    draws = total[(rng.random((len(t), L)) < t[:, None]) @ place] / t
    error = draws.std() / math.sqrt(len(t))
    assert abs(draws.mean() - enumerated.by_time(found, MIN_TIME)) < 3 * error < 0.02 * draws.mean()
    if not model.config.reads_time:
        assert enumerated.by_time(found, MIN_TIME) == pytest.approx(enumerated.by_counts(found), rel=3e-4)


@pytest.mark.parametrize(("kind", "bias"), [("mdlm", (-1.4e-3, -0.6e-3)), ("llada", (-3e-4, 3e-4))])
def test_training_losses_estimate_it_with_their_small_bias(kind, bias):
    model, text = enumerated.network(CONFIGS["shifted"]), TEXTS[20]
    found = enumerated.losses(model, text, COLUMNS, mask_id=MASK)
    expected = enumerated.by_time(found, MIN_TIME, 1 - MIN_TIME if kind == "mdlm" else 1.0)
    assert bias[0] < expected / enumerated.by_counts(found) - 1 < bias[1]
    generator = torch.Generator().manual_seed(0)
    tokens_BT, objective = torch.tensor([text] * 128), MaskedObjective(kind=kind)
    draws = torch.stack(
        [masked_loss(model, tokens_BT, mask_id=MASK, generator=generator, objective=objective) for _ in range(60)]
    )
    error = draws.std().item() / math.sqrt(len(draws))
    assert abs(draws.mean().item() - expected / L) < 3 * error < 0.06 * expected / L


def test_exact_counts_err_least(case):
    """Of 128 draws: counts against times, each stratified and independent. Stratified times gain next to nothing: what
    varies is whether a token is masked at a small time.
    """
    for found in list(case[1].values())[::20]:
        deviation = {name: math.sqrt(value) for name, value in enumerated.variances(found, MIN_TIME).items()}
        assert deviation["counts, stratified"] <= deviation["counts, independent"]
        assert 2 * deviation["counts, independent"] < deviation["times, stratified"]
        assert deviation["times, stratified"] <= deviation["times, independent"]
