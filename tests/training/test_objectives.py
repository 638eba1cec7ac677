"""Both losses against what they are defined as, token by token and mask by mask."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from paradigms.data.stream import EvaluationWindows
from paradigms.models.config import ModelConfig
from paradigms.models.mamba2 import Mamba2Config
from paradigms.models.stack import Model
from paradigms.quality.likelihood import evaluate
from paradigms.training.objectives import MIN_TIME, masked_loss, next_token_loss, stratified_times

V, MASK, L = 7, 2, 5
SIZES: dict[str, Any] = {"vocab_size": V, "d_model": 32, "num_blocks": 2, "max_positions": 64}
TEXT = (0, 3, 5, 3, 6, 1)  # begin-of-text and L tokens


@pytest.mark.parametrize(
    "parts", [{}, {"block": "M", "mamba2": Mamba2Config(head_dim=16, d_state=8, chunk_len=4)}], ids=["AF", "M"]
)
def test_next_token_loss_is_the_mean_over_tokens_of_what_each_costs(parts):
    model = tiny.random_model(ModelConfig(**SIZES, **parts))
    tokens_BT = torch.randint(3, V, (3, 9), generator=torch.Generator().manual_seed(0))
    nats = [
        -model(tokens_BT[row : row + 1, :column])[0, -1].log_softmax(-1)[tokens_BT[row, column]].item()
        for row in range(3)
        for column in range(1, 9)
    ]
    assert next_token_loss(model, tokens_BT).item() == pytest.approx(sum(nats) / len(nats), rel=1e-12)


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "shifted"])
def denoiser(request: pytest.FixtureRequest) -> Model:
    config = ModelConfig(**SIZES, causal=False, noise="absorbing", shift_logits=request.param)
    return tiny.random_model(config).requires_grad_(False)


@pytest.fixture(scope="module")
def nats_by_count(denoiser: Model) -> list[float]:
    """Index l: what the masked tokens cost, summed over all masks of exactly l of the L tokens."""
    sums = [0.0] * (L + 1)
    for chosen in itertools.product([False, True], repeat=L):
        masked = [column + 1 for column in range(L) if chosen[column]]
        noisy = torch.tensor([TEXT])
        noisy[0, masked] = MASK
        logits_TV = denoiser(noisy)[0]
        logits_TV[:, MASK] = -math.inf
        log_p_TV = logits_TV.log_softmax(-1)
        sums[len(masked)] -= sum(log_p_TV[column, TEXT[column]].item() for column in masked)
    return sums


def integral(function: Callable[[np.ndarray], np.ndarray], low: float, high: float) -> float:
    """By Gauss and Legendre, exact for the polynomials here."""
    node, weight = np.polynomial.legendre.leggauss(20)
    return float((weight * function(low + (high - low) * (node + 1) / 2)).sum() * (high - low) / 2)


@pytest.fixture(scope="module")
def expected_nats(nats_by_count: list[float]) -> float:
    """The loss in expectation: all masks enumerated, the time integrated."""

    def weighted(time: np.ndarray) -> np.ndarray:
        p = (1 - MIN_TIME) * time
        return sum(p**count * (1 - p) ** (L - count) * nats_by_count[count] for count in range(L + 1)) / time

    return integral(weighted, MIN_TIME, 1.0) / (1 - MIN_TIME) / L


@pytest.fixture(scope="module")
def bound_nats(nats_by_count: list[float]) -> float:
    """The bound itself: l uniform on 1..L, weight L / l, mean over masks of l tokens; a token."""
    return sum(nats_by_count[count] / math.comb(L, count) / count for count in range(1, L + 1)) / L


def test_masked_loss_has_the_enumerated_expectation(denoiser: Model, expected_nats: float) -> None:
    tokens_BT = torch.tensor([TEXT] * 32)
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack([masked_loss(denoiser, tokens_BT, mask_id=MASK, generator=generator) for _ in range(150)])
    error = draws.std().item() / len(draws) ** 0.5
    assert error < 0.02 * expected_nats, "or the comparison says little"
    assert abs(draws.mean().item() - expected_nats) < 3 * error


def test_the_first_time_biases_the_loss_by_a_tenth_of_a_percent(expected_nats: float, bound_nats: float) -> None:
    assert -0.002 < expected_nats / bound_nats - 1 < -0.0005


def test_the_bound_is_what_likelihood_estimates(denoiser: Model, bound_nats: float) -> None:
    windows = EvaluationWindows(
        tokens_NT=np.array([TEXT] * 200), lengths_N=np.full(200, L + 1), first_scored_N=np.ones(200, dtype=np.int64)
    )
    found = evaluate(denoiser, windows, [b"x"] * V, mask_id=MASK, num_masks=8)
    assert found.bits_per_byte_se is not None and found.is_bound
    assert abs(found.bits_per_byte - bound_nats / math.log(2)) < 3 * found.bits_per_byte_se < 0.05


def test_the_mask_itself_and_begin_of_text_cost_nothing(denoiser: Model) -> None:
    """Weights that want to say <mask> lose nothing by it; column 0 is never masked, so its token must not matter."""
    seen = []

    class Spy:
        config = denoiser.config

        def logits_where(self, tokens_BT: torch.Tensor, wanted_BT: torch.Tensor, **more: None) -> torch.Tensor:
            assert not any(more.values())
            seen.append((tokens_BT, wanted_BT))
            logits_MV = torch.zeros(int(wanted_BT.sum()), V)
            logits_MV[:, MASK] = 50.0
            return logits_MV

    tokens_BT = torch.tensor([TEXT] * 32)
    loss = masked_loss(Spy(), tokens_BT, mask_id=MASK, generator=torch.Generator().manual_seed(3))  # type: ignore[arg-type]
    ((noisy_BT, wanted_BT),) = seen
    assert torch.equal(wanted_BT, noisy_BT == MASK) and not wanted_BT[:, 0].any()
    assert torch.equal(noisy_BT[~wanted_BT], tokens_BT[~wanted_BT])
    times_B = stratified_times(32, torch.Generator().manual_seed(3))
    by_hand = sum(math.log(V - 1) * int(wanted_BT[row].sum()) / times_B[row].item() for row in range(32)) / (32 * L)
    assert loss.item() == pytest.approx(by_hand, rel=1e-5)


@pytest.mark.parametrize("num_rows", [1, 4, 17])
def test_one_time_in_every_stratum_in_random_order(num_rows: int) -> None:
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack([stratified_times(num_rows, generator).double() for _ in range(400)])
    strata = ((draws - MIN_TIME) / (1 - MIN_TIME) * num_rows).floor().long()
    assert torch.equal(strata.sort(-1).values, torch.arange(num_rows).expand(400, -1))
    assert draws.min() >= MIN_TIME and draws.max() < 1
    spread = 1 / (12**0.5 * num_rows * (400 * num_rows) ** 0.5)  # of the mean, when every stratum is uniform
    assert abs(draws.mean().item() - (1 + MIN_TIME) / 2) < 4 * spread
    if num_rows > 1:
        first = strata[:, 0].double()
        assert first.unique().numel() == num_rows, "a row is not tied to a stratum"
