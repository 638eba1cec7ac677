"""Losses of answers alone, and of models that are told the time, against all masks enumerated."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.stats
import tiny
import torch

from paradigms.models.block_diffusion import block_logits_where
from paradigms.models.conditioning import ConditioningConfig
from paradigms.models.config import ModelConfig
from paradigms.models.stack import Model
from paradigms.training.objectives import MaskedObjective, masked_loss, next_token_loss, noised

V, MASK = 7, 2
SIZES: dict[str, Any] = {"vocab_size": V, "d_model": 32, "num_blocks": 1, "max_positions": 64}
TEXT = torch.tensor([[0, 3, 5, 3, 6, 1, 1]])  # begin-of-text, a prompt of 2, an answer of 2, end-of-text twice
SCORED = torch.tensor([[False, False, False, True, True, True, True]])
ANSWER = (3, 4, 5, 6)


def denoiser(*, told: bool = False, block: int | None = None) -> Model:
    conditioning = ConditioningConfig(width=16, frequency_dim=8) if told else None
    config = ModelConfig(
        **SIZES, causal=False, noise="absorbing", shift_logits=True, canvas_block=block, conditioning=conditioning
    )
    model = tiny.random_model(config).requires_grad_(False)
    if told:  # modulations start at zero, where the time changes nothing
        generator = torch.Generator().manual_seed(1)
        for name, parameter in model.named_parameters():
            if "modulation" in name:
                parameter += 0.5 * torch.randn(parameter.shape, generator=generator)
    return model


def nats(model: Model, masked: tuple[int, ...], time: float) -> float:
    """What these masked tokens cost when the model is told this time (of one block: the others are not asked)."""
    masked_BT = torch.zeros_like(TEXT, dtype=torch.bool)
    masked_BT[0, list(masked)] = True
    noisy_BT = TEXT.masked_fill(masked_BT, MASK)
    time_BT = torch.full(TEXT.shape, time, dtype=torch.float64)
    if model.config.canvas_block is None:
        logits_MV = model.logits_where(noisy_BT, masked_BT, time_B=time_BT[:, 0])
    else:
        logits_MV = block_logits_where(model, noisy_BT, TEXT, masked_BT, time_BT=time_BT)
    logits_MV[:, MASK] = -math.inf
    return torch.nn.functional.cross_entropy(logits_MV, TEXT[masked_BT], reduction="sum").item()


def integral(function: Callable[[float], float], low: float, high: float) -> float:
    """By Gauss and Legendre; the mean over the interval."""
    node, weight = np.polynomial.legendre.leggauss(24)
    return sum(w / 2 * function(low + (high - low) * (x + 1) / 2) for x, w in zip(node, weight, strict=True))


def expected(model: Model, objective: MaskedObjective, blocks: tuple[tuple[int, ...], ...]) -> float:
    """Over times and all masks of the scored columns of each block, a scored token."""

    def of_block(columns: tuple[int, ...], time: float) -> float:
        p, total = float(objective.rate(torch.tensor(time, dtype=torch.float64))), 0.0
        for size in range(1, len(columns) + 1):
            for masked in itertools.combinations(columns, size):
                probability = p**size * (1 - p) ** (len(columns) - size)
                total += probability / time * nats(model, masked, time)
        return total

    return sum(
        integral(lambda time, columns=columns: of_block(columns, time), objective.low, objective.high)
        for columns in blocks
    ) / len(ANSWER)


@pytest.mark.parametrize(
    ("model", "blocks"),
    [
        (denoiser(), (ANSWER,)),
        (denoiser(told=True), (ANSWER,)),
        (denoiser(told=True, block=4), ((3,), (4, 5, 6))),
    ],
    ids=["canvas", "canvas, told the time", "blocks, told the time"],
)
def test_the_loss_of_an_answer_has_the_enumerated_expectation(model: Model, blocks: Any) -> None:
    objective = MaskedObjective(kind="llada", low=0.05)  # nothing is as steep as 1 / t near 0
    generator = torch.Generator().manual_seed(1)
    rows, scored = TEXT.expand(128, -1), SCORED.expand(128, -1)
    draws = torch.stack(
        [
            masked_loss(model, rows, mask_id=MASK, generator=generator, objective=objective, scored_BT=scored)
            for _ in range(40)
        ]
    )
    error, exact = draws.std().item() / len(draws) ** 0.5, expected(model, objective, blocks)
    assert error < 0.03 * exact, "or the comparison says little"
    assert abs(draws.mean().item() - exact) < 3 * error


def exact_bound(model: Model, blocks: tuple[tuple[int, ...], ...]) -> float:
    """Of each block: l uniform on its sizes, weight size / l, mean over masks of l tokens, each told l / size."""
    return sum(
        nats(model, masked, size / len(columns)) / math.comb(len(columns), size) / size
        for columns in blocks
        for size in range(1, len(columns) + 1)
        for masked in itertools.combinations(columns, size)
    ) / len(ANSWER)


@pytest.mark.parametrize(
    ("model", "blocks"),
    [(denoiser(told=True), (ANSWER,)), (denoiser(told=True, block=4), ((3,), (4, 5, 6)))],
    ids=["canvas", "blocks"],
)
def test_numbers_of_masks_give_the_bound_itself_with_less_noise(model: Model, blocks: Any) -> None:
    rows, scored = TEXT.expand(128, -1), SCORED.expand(128, -1)

    def draws(**objective: Any) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1)
        more = {"generator": generator, "objective": MaskedObjective(**objective), "scored_BT": scored}
        return torch.stack([masked_loss(model, rows, mask_id=MASK, **more) for _ in range(40)])

    by_number, by_time = draws(kind="any_order", low=0.0), draws(kind="llada")
    error, exact = by_number.std().item() / 40**0.5, exact_bound(model, blocks)
    assert abs(by_number.mean().item() - exact) < 3 * error < 0.02 * exact
    assert 3 * by_number.std() < by_time.std()
    one = draws(kind="any_order", low=0.0, high=0.25)  # of four: another loss, which the same comparison tells apart
    assert abs(one.mean().item() - exact) > 3 * error


@pytest.mark.parametrize("block", [None, 4])
def test_any_order_masks_each_number_of_tokens_equally_often_and_any_of_them(block: int | None) -> None:
    B, sizes = 1200, (4,) if block is None else (1, 3)
    units = [list(ANSWER)] if block is None else [[3], [4, 5, 6]]
    batch = noised(
        denoiser(block=block).config,
        TEXT.expand(B, -1),
        mask_id=MASK,
        generator=torch.Generator().manual_seed(0),
        objective=MaskedObjective(kind="any_order", low=0.0),
        scored_BT=SCORED.expand(B, -1),
    )
    assert not batch.masked_BT[:, :3].any() and batch.num_scored == 4 * B
    for size, columns in zip(sizes, units, strict=True):
        masked_BL = batch.masked_BT[:, columns]
        number_B = masked_BL.sum(1)
        counts = torch.bincount(number_B, minlength=size + 1)
        assert counts[0] == 0 and torch.equal(batch.time_BT[:, columns[0]], number_B / size)
        if size > 1:
            assert scipy.stats.chisquare(counts[1:].numpy()).pvalue > 0.01
            assert scipy.stats.chisquare(masked_BL[number_B == 1].sum(0).numpy()).pvalue > 0.01


def test_what_is_told_matters() -> None:
    """Or the tests above would pass without it."""
    model = denoiser(told=True)
    assert abs(nats(model, ANSWER, 0.9) - nats(model, ANSWER, 0.1)) > 0.05


def test_the_prompt_is_never_masked_and_a_causal_model_is_scored_on_the_same_tokens(monkeypatch) -> None:
    seen: list[torch.Tensor] = []
    logits_where = Model.logits_where
    monkeypatch.setattr(
        Model, "logits_where", lambda self, *args, **more: seen.append(args[0]) or logits_where(self, *args, **more)
    )
    rows, scored = TEXT.expand(50, -1), SCORED.expand(50, -1)
    masked_loss(denoiser(), rows, mask_id=MASK, generator=torch.Generator().manual_seed(0), scored_BT=scored)
    masked = seen[0] == MASK
    assert masked.any(0).tolist() == SCORED[0].tolist()

    causal = tiny.random_model(ModelConfig(**SIZES))
    logits_TV = causal(TEXT)[0].log_softmax(-1)
    by_hand = -sum(logits_TV[column - 1, TEXT[0, column]].item() for column in ANSWER) / len(ANSWER)
    assert next_token_loss(causal, TEXT, scored_BT=SCORED).item() == pytest.approx(by_hand, rel=1e-12)
    every = torch.ones_like(SCORED)
    assert next_token_loss(causal, TEXT, scored_BT=every).item() == pytest.approx(next_token_loss(causal, TEXT).item())


def test_rows_weigh_by_their_scored_tokens() -> None:
    """A row of one scored token counts a fourth of one of four, in every paradigm."""
    rows = TEXT.expand(2, -1)
    scored = SCORED.repeat(2, 1)
    scored[1, :6] = False
    always = MaskedObjective(kind="llada", low=1.0, high=1.0)
    generator = torch.Generator().manual_seed(0)
    model = denoiser()
    found = masked_loss(model, rows, mask_id=MASK, generator=generator, objective=always, scored_BT=scored).item()
    assert found == pytest.approx((nats(model, ANSWER, 1.0) + nats(model, (6,), 1.0)) / 5, rel=1e-6)
