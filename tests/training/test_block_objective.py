"""The loss of block diffusion, against all masks of all blocks; its limits; times of blocks."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import pytest
import tiny
import torch

from paradigms.models.block_diffusion import block_logits_where
from paradigms.models.config import ModelConfig
from paradigms.models.stack import Model
from paradigms.training import objectives
from paradigms.training.objectives import MIN_TIME, MaskedObjective, masked_loss, next_token_loss

V, MASK, W = 7, 2, 3
TEXT = torch.tensor([[0, 3, 5, 3, 6, 1, 4, 4]])  # blocks of columns 0-2, 3-5, 6-7; column 0 is begin-of-text
BLOCKS = ((1, 2), (3, 4, 5), (6, 7))
L = 7


def denoiser(block: int | None, *, shift: bool = True) -> Model:
    sizes: dict[str, Any] = {"vocab_size": V, "d_model": 32, "num_blocks": 1, "max_positions": 64}
    config = ModelConfig(**sizes, causal=False, noise="absorbing", canvas_block=block, shift_logits=shift)
    return tiny.random_model(config).requires_grad_(False)


def nats(model: Model, masked: tuple[int, ...]) -> float:
    """What the masked tokens of one block cost."""
    masked_BT = torch.zeros_like(TEXT, dtype=torch.bool)
    masked_BT[0, list(masked)] = True
    logits_MV = block_logits_where(model, TEXT.masked_fill(masked_BT, MASK), TEXT, masked_BT)
    logits_MV[:, MASK] = -math.inf
    return torch.nn.functional.cross_entropy(logits_MV, TEXT[masked_BT], reduction="sum").item()


def subsets(columns: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [chosen for size in range(1, len(columns) + 1) for chosen in itertools.combinations(columns, size)]


def expected(model: Model, objective: MaskedObjective) -> float:
    """Mean over times between low and high, on a fine grid, of all masks of each block; a token."""
    points = 20_000
    time = objective.low + (objective.high - objective.low) * (torch.arange(points, dtype=torch.float64) + 0.5) / points
    p = objective.rate(time)
    total = 0.0
    for columns in BLOCKS:
        for masked in subsets(columns):
            probability = p ** len(masked) * (1 - p) ** (len(columns) - len(masked))
            total += (probability / time).mean().item() * nats(model, masked)
    return total / L


def bound(model: Model) -> float:
    """Of each block: l uniform on its sizes, weight size / l, mean over masks of l tokens; a token."""
    return (
        sum(
            nats(model, masked) / math.comb(len(columns), len(masked)) / len(masked)
            for columns in BLOCKS
            for masked in subsets(columns)
        )
        / L
    )


@pytest.mark.parametrize(
    ("objective", "shift"),
    [
        (MaskedObjective(), True),
        (MaskedObjective(kind="llada"), False),
        (MaskedObjective(kind="llada", low=0.3, high=0.8), True),
    ],
    ids=str,
)
def test_the_loss_has_the_enumerated_expectation(objective: MaskedObjective, shift: bool) -> None:
    model, generator = denoiser(W, shift=shift), torch.Generator().manual_seed(0)
    rows = TEXT.expand(64, -1)
    draws = [masked_loss(model, rows, mask_id=MASK, generator=generator, objective=objective) for _ in range(40)]
    mean, error = torch.stack(draws).mean().item(), torch.stack(draws).std().item() / len(draws) ** 0.5
    exact = expected(model, objective)
    assert error < 0.03 * exact, "or the comparison says little"
    assert abs(mean - exact) < 3 * error


def test_how_far_each_kind_is_from_the_bound_of_the_blocks() -> None:
    model = denoiser(W)
    exact = bound(model)
    assert -0.002 < expected(model, MaskedObjective()) / exact - 1 < -0.0004
    assert abs(expected(model, MaskedObjective(kind="llada")) / exact - 1) < 0.0004
    clipped = expected(model, MaskedObjective(kind="llada", low=0.9, high=1.0))  # weighs what is nearly all masked
    assert abs(clipped / exact - 1) > 0.003


def test_a_block_as_long_as_the_text_is_the_whole_canvas() -> None:
    whole, one = denoiser(None), denoiser(8)
    for seed in range(3):
        losses = [
            masked_loss(model, TEXT.expand(5, -1), mask_id=MASK, generator=torch.Generator().manual_seed(seed)).item()
            for model in (whole, one)
        ]
        assert losses[0] == pytest.approx(losses[1], rel=1e-12)


def test_shifted_blocks_of_one_token_always_masked_are_the_next_token_loss() -> None:
    model = denoiser(1)
    causal = dataclasses.replace(model.config, causal=True, noise=None, canvas_block=None, shift_logits=False)
    autoregressive = tiny.random_model(causal)
    autoregressive.load_state_dict(model.state_dict())
    always = MaskedObjective(kind="llada", low=1.0, high=1.0)
    autoregressive.embedding.data[:, MASK] = model.embedding.data[:, MASK]
    found = masked_loss(model, TEXT, mask_id=MASK, generator=torch.Generator().manual_seed(0), objective=always)
    logits_TV = autoregressive(TEXT[:, :-1])[0]
    logits_TV[:, MASK] = -math.inf  # a denoiser never says the mask; an autoregressive model must learn not to
    assert found.item() == pytest.approx(torch.nn.functional.cross_entropy(logits_TV, TEXT[0, 1:]).item(), rel=1e-10)
    assert found.item() == pytest.approx(next_token_loss(autoregressive, TEXT).item(), rel=0.2)


def test_each_block_has_a_time_of_its_own_in_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def spy(model, noisy_BT, clean_BT, wanted_BT, *, time_BT):
        assert time_BT is None
        seen.append((noisy_BT, clean_BT, wanted_BT))
        return torch.zeros(int(wanted_BT.sum()), V)

    monkeypatch.setattr(objectives, "block_logits_where", spy)
    rows = torch.full((400, 25), 3)
    for low, high in ((0.3, 0.8), (0.45, 0.95), (MIN_TIME, 1.0)):
        objective = MaskedObjective(kind="llada", low=low, high=high)
        masked_loss(denoiser(12), rows, mask_id=MASK, generator=torch.Generator().manual_seed(1), objective=objective)
        noisy_BT, clean_BT, wanted_BT = seen.pop()
        assert torch.equal(wanted_BT, noisy_BT == MASK) and not wanted_BT[:, 0].any() and torch.equal(clean_BT, rows)
        share_BN = (
            wanted_BT[:, 1:].view(400, 2, 12).double().mean(-1)
        )  # columns 12 and 24 begin the next: nearly blocks
        spread = (high - low) / 12**0.5
        assert share_BN.mean().item() == pytest.approx((low + high) / 2, abs=0.02)
        assert share_BN.var().item() > 0.9 * spread**2, "times differ"
        both = torch.corrcoef(share_BN.T)[0, 1].item()
        assert abs(both) < 0.2, "of the blocks of a row independently"
        times = objective.times(1000, torch.Generator().manual_seed(0))
        assert low <= times.min() < low + 0.01 and high - 0.01 < times.max() <= high


def test_gradients_flow_into_both_halves() -> None:
    model = denoiser(W).requires_grad_(True)
    masked_loss(model, TEXT, mask_id=MASK, generator=torch.Generator().manual_seed(0)).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name
    touched = model.embedding.grad.abs().sum(0) > 0  # type: ignore[union-attr]
    assert touched.all(), "tied to the head, so all tokens"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "cosine"}, "train.objective.kind='cosine' is unknown; it is one of mdlm, llada, any_order"),
        ({"low": 0.0}, "only kind=any_order, which rounds up, takes low=0"),
        ({"low": 0.0, "high": 0.0, "kind": "any_order"}, "low=0.0 and high=0.0"),
        ({"low": -0.1}, "train.objective.low=-0.1 and high=1.0 must be times, 0 < low <= high <= 1"),
        ({"low": 0.9, "high": 0.5}, "low=0.9 and high=0.5"),
        ({"high": 1.5}, "high=1.5"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_refused(changes: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("(", r"\(")):
        MaskedObjective(**changes)
