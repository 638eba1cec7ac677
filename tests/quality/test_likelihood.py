"""Likelihood and its bound on models small enough to enumerate, and on the real network.

The toy has a table of its own for every partly masked sequence: no structure, so that nothing agrees by accident.
"""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from enumerated import by_counts, by_time, losses, order_nlls, subsets

from paradigms.data.stream import EvaluationWindows
from paradigms.models.config import ModelConfig
from paradigms.quality.likelihood import evaluate
from paradigms.quality.masks import draw_masks

V, L, MASK = 3, 4, 3  # token ids 0..2, the mask is 3; column 0 is begin-of-text (id 0)
ONE_BYTE = (b"a", b"b", b"c", b"")
SEQUENCES = list(itertools.product(range(V), repeat=L))


class Toy(torch.nn.Module):
    def logits_where(self, tokens_BT, wanted_BT):
        return self(tokens_BT)[wanted_BT]


class TableDenoiser(Toy):
    """Logits looked up by the whole visible sequence; the mask token's own logit is the largest, to be ruled out."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.config = SimpleNamespace(causal=False, canvas_block=None, reads_time=False, max_positions=1 + L)
        generator = torch.Generator().manual_seed(seed)
        table = 1.5 * torch.randn((V + 1) ** L, 1 + L, V + 1, generator=generator, dtype=torch.float64)
        table[..., MASK] = 10
        self.table = torch.nn.Parameter(table)

    def forward(self, tokens_BT):
        place_T = (V + 1) ** torch.arange(L)
        return self.table[(tokens_BT[:, 1:] * place_T).sum(1)]


@pytest.fixture(scope="module")
def toy():
    model = TableDenoiser(seed=0)
    return model, {x: losses(model, (0, *x), range(1, 1 + L), mask_id=MASK) for x in SEQUENCES}


def windows_of(sequences) -> EvaluationWindows:
    tokens_NT = np.array([(0, *sequence) for sequence in sequences])
    return EvaluationWindows(
        tokens_NT=tokens_NT,
        lengths_N=np.full(len(tokens_NT), tokens_NT.shape[1]),
        first_scored_N=np.ones(len(tokens_NT), int),
    )


def test_three_forms_of_the_bound_agree(toy):
    for found in toy[1].values():
        assert by_time(found) == pytest.approx(by_counts(found), rel=1e-12)
        assert np.mean(order_nlls(found)) == pytest.approx(by_counts(found), rel=1e-12)


def test_the_bound_bounds_the_sampler(toy):
    probability = {x: np.mean(np.exp(np.negative(order_nlls(found)))) for x, found in toy[1].items()}
    assert sum(probability.values()) == pytest.approx(1, rel=1e-12)
    gaps = [by_counts(found) + math.log(probability[x]) for x, found in toy[1].items()]
    assert min(gaps) >= 0
    assert max(gaps) > 0.1  # the toy is inconsistent between orders, or this test could not fail


@pytest.mark.parametrize("num_masks", [1, 3, 8])
def test_estimate_is_unbiased(toy, num_masks):
    model, found = toy
    for x in SEQUENCES[5::25]:
        got = evaluate(model, windows_of([x] * 600), ONE_BYTE, mask_id=MASK, num_masks=num_masks, batch_size=500)
        exact = by_counts(found[x]) / (L * math.log(2))
        assert abs(got.bits_per_byte - exact) < 3 * got.bits_per_byte_se
        assert got.bits_per_byte_se < 0.05 * exact
        assert got.is_bound and got.num_tokens == got.num_bytes == 600 * L


def test_standard_error_is_that_of_stratified_counts(toy):
    """With L dividing the masks of a window every l comes equally often: only the variance within each l is left."""
    model, found = toy
    for x in (SEQUENCES[0], SEQUENCES[-3]):
        costs = {n: [L / n * sum(found[x][m].values()) for m in subsets(range(1, 1 + L), n)] for n in range(1, L + 1)}
        exact = math.sqrt(np.mean([np.var(cost) for cost in costs.values()]) / (8 * 4000)) / (L * math.log(2))
        got = evaluate(model, windows_of([x] * 4000), ONE_BYTE, mask_id=MASK, num_masks=8, batch_size=2000)
        assert got.bits_per_byte_se == pytest.approx(exact, rel=0.04)
        assert got.bits_per_byte_mask_se == pytest.approx(exact, rel=0.04), "the windows are alike"


def test_masks_have_every_count_once_and_stay_within_what_is_scored():
    scored = np.zeros((5, 12), bool)
    scored[:, 3:9] = True  # L = 6
    masks = draw_masks(scored, 6, seed=1)
    counts = masks.masked_RT.sum(1)
    assert (np.sort(counts.reshape(5, 6), axis=1) == np.arange(1, 7)).all()
    assert not masks.masked_RT[:, ~scored[0]].any()
    np.testing.assert_allclose(masks.weight_RK[:, 0], 6 / (counts * 6))
    np.testing.assert_allclose(masks.share_RK[:, 0], counts / 6)
    covered = draw_masks(np.ones((400, 8), bool), 1, seed=0).masked_RT.sum(1)
    assert (np.bincount(covered, minlength=9)[1:] == 50).all()  # stratified over windows too


def test_a_uniform_denoiser_costs_the_log_of_what_it_may_say():
    """Σ (L / l) l ln V = L ln V for every mask; the mask token is not among the V."""
    model = TableDenoiser(seed=1)
    model.table.data[..., :V] = 0
    got = evaluate(model, windows_of(SEQUENCES[:7]), ONE_BYTE, mask_id=MASK, num_masks=3)
    assert got.bits_per_byte == pytest.approx(math.log2(V), rel=1e-12)
    assert got.bits_per_byte_se == pytest.approx(0, abs=1e-12)


class TableCausal(Toy):
    """Logits depend on the last token only: a Markov chain."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(causal=True, max_positions=64)
        self.table = torch.nn.Parameter(
            torch.randn(V, V + 1, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
        )

    def forward(self, tokens_BT):
        return self.table[tokens_BT]


def ragged_windows() -> EvaluationWindows:
    """Overlapping windows and a short last one, whose padding must not count."""
    return EvaluationWindows(
        tokens_NT=np.array([[0, 1, 2, 0, 1], [0, 2, 0, 1, 1], [0, 1, 2, 2, 2]]),
        lengths_N=np.array([5, 5, 3]),
        first_scored_N=np.array([1, 3, 1]),
    )


@pytest.mark.parametrize("batch_size", [1, 2, 16])
def test_causal_likelihood_is_exact(batch_size):
    model = TableCausal()
    log_p = model.table.detach()[:, :V].log_softmax(-1)
    pairs = [[(0, 1), (1, 2), (2, 0), (0, 1)], [(0, 1), (1, 1)], [(0, 1), (1, 2)]]
    got = evaluate(model, ragged_windows(), (b"xy", b"z", b"", b""), mask_id=MASK, batch_size=batch_size)
    nats = [-sum(log_p[pair].item() for pair in window) for window in pairs]
    assert got.nats == pytest.approx(sum(nats), rel=1e-12)
    assert (got.num_tokens, got.num_bytes, got.is_bound) == (8, 1 + 0 + 2 + 1 + 1 + 1 + 1 + 0, False)
    assert got.bits_per_byte == pytest.approx(sum(nats) / math.log(2) / got.num_bytes, rel=1e-12)
    residuals = [n - sum(nats) / 7 * b for n, b in zip(nats, (4, 2, 1), strict=True)]
    assert got.bits_per_byte_se == pytest.approx(math.sqrt(1.5 * sum(r * r for r in residuals)) / 7 / math.log(2))


def small(**changes) -> torch.nn.Module:
    torch.manual_seed(0)
    config = ModelConfig(vocab_size=12, d_model=16, num_blocks=1, max_positions=16, **changes)
    return config.build().double()


@pytest.mark.parametrize("changes", [{}, {"causal": False, "noise": "absorbing", "shift_logits": True}])
def test_the_network_scores_alike_in_any_batch(changes):
    rng = np.random.default_rng(0)
    windows = EvaluationWindows(
        tokens_NT=rng.integers(0, 11, (5, 10)),
        lengths_N=np.array([10, 10, 10, 10, 6]),
        first_scored_N=np.array([1, 4, 4, 4, 4]),
    )
    model = small(**changes).train()
    seen = []
    one, many = (
        evaluate(model, windows, [b"ab"] * 12, mask_id=11, batch_size=size, progress=lambda *call: seen.append(call))
        for size in (1, 16)
    )
    assert model.training
    assert one.nats == pytest.approx(many.nats, rel=1e-10)
    assert one.bits_per_byte == pytest.approx(
        math.log2(11 if changes else 12) / 2, rel=0.05
    )  # untrained: nearly uniform
    assert seen[-1][0] == seen[-1][1]


def test_a_leaking_denoiser_would_be_noticed():
    """Masked positions must not be visible: a model that copies its input earns nothing by it."""

    class Copier(TableDenoiser):
        def forward(self, tokens_BT):
            return 50.0 * torch.nn.functional.one_hot(tokens_BT, V + 1).double()

    got = evaluate(Copier(seed=0), windows_of(SEQUENCES), ONE_BYTE, mask_id=MASK)
    assert got.bits_per_byte == pytest.approx(math.log2(V))


def test_errors_say_what_to_do(toy):
    with pytest.raises(ValueError, match="max_positions=5"):
        evaluate(toy[0], windows_of([(0,) * 9]), ONE_BYTE, mask_id=MASK)
    with pytest.raises(ValueError, match="no text"):
        evaluate(TableCausal(), windows_of(SEQUENCES[:2]), (b"",) * 4, mask_id=MASK)
