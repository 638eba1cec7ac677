"""The optimizer's state as tensors, and which parameters go where."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
import torch

from paradigms.models.attention import AttentionConfig
from paradigms.models.config import ModelConfig
from paradigms.models.feed_forward import FeedForwardConfig
from paradigms.models.stack import Model
from paradigms.training.optimizer import Optimizer


def fresh(name: str) -> tuple[Model, Optimizer]:
    torch.manual_seed(0)
    model = tiny.MODELS[name].build()
    return model, Optimizer(model, weight_decay=0.1)


def steps(model: Model, optimizer: Optimizer, first: int, last: int) -> None:
    """Steps on made-up gradients that depend on the step alone."""
    for step in range(first, last):
        generator = torch.Generator().manual_seed(step)
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step(1e-2)


@pytest.mark.parametrize("name", tiny.MODELS)
def test_a_state_taken_up_again_continues_exactly(name):
    straight, optimizer = fresh(name)
    steps(straight, optimizer, 0, 3)
    kept_weights = {key: tensor.clone() for key, tensor in straight.state_dict().items()}
    kept = {key: tensor.clone() for key, tensor in optimizer.tensors().items()}
    steps(straight, optimizer, 3, 6)

    resumed, optimizer = fresh(name)
    resumed.load_state_dict(kept_weights)
    optimizer.load(kept)
    steps(resumed, optimizer, 3, 6)
    for (key, tensor), other in zip(straight.named_parameters(), resumed.parameters(), strict=True):
        assert torch.equal(tensor, other), key

    forgetful, optimizer = fresh(name)
    forgetful.load_state_dict(kept_weights)
    steps(forgetful, optimizer, 3, 6)
    changed = [not torch.equal(a, b) for a, b in zip(straight.parameters(), forgetful.parameters(), strict=True)]
    assert all(changed), "every parameter has a state that matters"


@pytest.mark.parametrize("name", tiny.MODELS)
def test_every_parameter_moves_and_matrices_are_orthogonalised(name):
    model, optimizer = fresh(name)
    before = {key: parameter.detach().clone() for key, parameter in model.named_parameters()}
    steps(model, optimizer, 0, 1)
    for key, parameter in model.named_parameters():
        assert not torch.equal(parameter, before[key]), key
        assert parameter.grad is None, "cleared"
        if parameter.dim() == 2 and "mixer" in key and "conv" not in key:
            module, _, own = key.rpartition(".")
            widths = getattr(model.get_submodule(module), "fused", {}).get(own, parameter.shape[-1])
            for part in (parameter.detach() - before[key]).split(widths, -1):
                values = torch.linalg.svdvals(part)
                typical = values[int(0.9 * len(values))]  # all but the last few, which a random square one has near 0
                assert typical > 0.5 * values[0], f"{key}: one step of Muon changes all directions alike"


@pytest.mark.parametrize("name", tiny.MODELS)
def test_fused_projections_are_stepped_apart(name):
    """However large the gradient of one of them is, the others move as far: which they do not where they are one."""
    model, optimizer = fresh(name)
    fused = [
        (module, own, widths) for module in model.modules() for own, widths in getattr(module, "fused", {}).items()
    ]
    assert fused
    before = [getattr(module, own).detach().clone() for module, own, _ in fused]
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    for module, own, widths in fused:
        assert sum(widths) == getattr(module, own).shape[-1], "all of its columns are accounted for"
        getattr(module, own).grad[..., -widths[-1] :] *= 1e4
    optimizer.step(1e-2)
    for (module, own, widths), old in zip(fused, before, strict=True):
        moved = [part.square().mean().sqrt().item() for part in (getattr(module, own).detach() - old).split(widths, -1)]
        assert max(moved) < 1.5 * min(moved), (own, moved)


@pytest.mark.slow
@pytest.mark.parametrize("apart", [True, False])
def test_attention_learns_to_look_up_where_queries_and_keys_are_stepped_apart(apart):
    """Two of 16 keys with their values, then one of them: a layer must find what stands before a value, another compare
    it. With the projections in one matrix it answers by luck for as long as one looks.
    """
    torch.manual_seed(0)
    model = ModelConfig(
        vocab_size=33, d_model=64, block="AF", num_blocks=2, attention=AttentionConfig(num_heads=2), max_positions=8,
        feed_forward=FeedForwardConfig(width=128),
    ).build()  # fmt: skip
    if not apart:
        for module in model.modules():
            if hasattr(module, "fused"):
                module.fused = {}
    optimizer, random = Optimizer(model, weight_decay=0.1), np.random.default_rng(0)

    def batch(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = (np.argsort(random.random((rows, 16)), 1)[:, :2] for _ in range(2))
        asked = random.integers(0, 2, rows)
        pairs = np.stack((keys, 16 + values), 2).reshape(rows, 4)
        tokens = np.column_stack((np.full(rows, 32), pairs, keys[np.arange(rows), asked]))
        return torch.from_numpy(tokens), torch.from_numpy(16 + values[np.arange(rows), asked])

    for step in range(1600):
        tokens, answers = batch(256)
        torch.nn.functional.cross_entropy(model(tokens)[:, -1], answers).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step(0.002 * min(1, (step + 1) / 100))
    tokens, answers = batch(1000)
    with torch.no_grad():
        right = (model(tokens)[:, -1].argmax(-1) == answers).float().mean().item()
    assert right > 0.9 if apart else 0.4 < right < 0.65
