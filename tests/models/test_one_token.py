"""The plan of a single token is the layers' own forward."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from models.test_exactness import CONFIGS, assert_close, random_model, tokens

from paradigms.models import one_token
from paradigms.models.state import GROWTH


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", [name for name, config in CONFIGS.items() if config.causal])
def test_one_row_by_token_is_the_whole_at_once(name, dtype):
    model = random_model(CONFIGS[name], dtype)
    tokens_1T = tokens(model, 1, 40)
    state = model.new_state(1, 48)
    with torch.inference_mode():
        logits = torch.cat([model(tokens_1T[:, i : i + 1], state) for i in range(40)], 1)
    assert state.plan is not None and state.lengths == [40]
    assert_close(logits, model(tokens_1T))


def test_a_plan_follows_a_state_that_grows_and_rolls_back():
    model = random_model(dataclasses.replace(CONFIGS["hybrid"], max_positions=2 * GROWTH), torch.float64)
    tokens_1T = tokens(model, 1, GROWTH + 10)
    state = model.new_state(1, 2 * GROWTH)
    with torch.inference_mode():
        model(tokens_1T[:, : GROWTH - 3], state)
        for i in range(GROWTH - 3, GROWTH + 2):
            model(tokens_1T[:, i : i + 1], state)
        mark = state.mark()
        for i in range(4):
            model(tokens_1T[:, i : i + 1], state)
        state.rollback(mark, [0])
        logits = model(tokens_1T[:, GROWTH + 2 : GROWTH + 3], state)
    assert_close(logits[0, 0], model(tokens_1T[:, : GROWTH + 3])[0, -1])


@pytest.mark.parametrize("accepted", [0, 4, 7])
@pytest.mark.parametrize("name", [name for name, config in CONFIGS.items() if config.causal])
def test_steps_of_a_plan_can_be_taken_back(name, accepted):
    """As decoding runs them: one row, no gradients."""
    model = random_model(CONFIGS[name], torch.float64)
    text, state = tokens(model, 1, 24), model.new_state(1, 40)
    with torch.inference_mode():
        for i in range(11):
            model(text[:, i : i + 1], state)
        mark = state.mark()
        for i in range(11, 18):
            model(text[:, i : i + 1], state)
        state.rollback(mark, [accepted])
        logits = [model(text[:, i : i + 1], state) for i in range(11 + accepted, 24)]
    assert state.plan is not None
    assert_close(torch.cat(logits, 1), model(text)[:, 11 + accepted :])


def test_a_plan_belongs_to_one_model_and_ends_with_the_state():
    first, second = (random_model(CONFIGS["attention"], torch.float64) for _ in range(2))
    with torch.no_grad():
        second.norm.mul_(2)
        token = tokens(first, 1, 1)
        states = [first.new_state(1, 2), first.new_state(1, 2)]
        assert_close(second(token, states[0]), 2 * first(token, states[1]))
        first(token, states[1])
        with pytest.raises(ValueError, match="3 positions asked for, 2 are available"):
            first(token, states[1])


def test_where_it_applies():
    model = random_model(CONFIGS["attention"], torch.float64)
    token = tokens(model, 1, 1)
    assert not one_token.applies(model, token), "with gradients"
    with torch.no_grad():
        assert one_token.applies(model, token)
        assert not one_token.applies(model, tokens(model, 1, 2))
        assert not one_token.applies(model, tokens(model, 2, 1))
        assert not one_token.applies(model.bfloat16(), token)


@pytest.mark.parametrize("name", ["mamba", "mamba2", "mamba3"])
def test_what_is_derived_of_weights_follows_them(name):
    """Through optimizer steps, and through a narrower dtype and back."""
    model, fresh = (random_model(CONFIGS[name], torch.float64) for _ in range(2))
    text = tokens(model, 1, 9)

    def assert_both_read_alike() -> None:
        fresh.load_state_dict(model.state_dict())
        with torch.no_grad():
            logits = []
            for one in (model, fresh):
                state = one.new_state(1, 9)
                logits.append(
                    torch.cat([one(text[:, :4], state), *(one(text[:, i : i + 1], state) for i in (4, 5))], 1)
                )
        assert_close(*logits)

    assert_both_read_alike()
    model.to(torch.bfloat16).to(torch.float64)
    assert_both_read_alike()
    optimizer = torch.optim.AdamW(model.requires_grad_().parameters(), lr=0.1)
    model(text).square().mean().backward()
    optimizer.step()
    assert_both_read_alike()
