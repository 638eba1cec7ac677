"""The optimizer's state as tensors, and which parameters go where."""

from __future__ import annotations

import pytest
import tiny
import torch

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
            values = torch.linalg.svdvals(parameter.detach() - before[key])
            typical = values[int(0.9 * len(values))]  # all but the last few, which a random square matrix has near 0
            assert typical > 0.5 * values[0], f"{key}: one step of Muon changes all directions alike"
