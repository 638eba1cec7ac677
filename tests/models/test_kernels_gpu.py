"""On a GPU: fused kernels compute what the readable torch forms do, and models what they compute on the CPU."""

from __future__ import annotations

import pytest
import torch

from paradigms.models import kernels, selective_scan, ssd
from paradigms.models.config import ModelConfig

pytestmark = pytest.mark.gpu


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).cuda()


@pytest.fixture
def fused():
    if not kernels.mamba_ssm_kernels():
        pytest.skip("mamba-ssm is not installed")


@pytest.fixture
def fused_conv():
    if not kernels.causal_conv1d_kernels():
        pytest.skip("causal-conv1d is not installed")


def close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-3) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("from_state", [False, True])
def test_chunked_scan_kernel(fused, from_state):
    B, T, H, P, G, N = 2, 100, 4, 64, 1, 64
    x, b, c = normal(B, T, H, P), normal(B, T, G, N, seed=1), normal(B, T, G, N, seed=2)
    dt, A = torch.nn.functional.softplus(normal(B, T, H, seed=3)), -normal(H, seed=4).exp()
    start = normal(B, H, P, N, seed=5) if from_state else None
    y, state = kernels.ssd_chunked(x, dt, A, b, c, start, 64)
    y_reference, state_reference = ssd.ssd_chunked(x, dt, A, b, c, start, 64)
    torch.testing.assert_close(y, y_reference, rtol=2e-2, atol=2e-2)
    assert (state is None) == (state_reference is None) == (not from_state)
    if from_state:
        torch.testing.assert_close(state, state_reference, rtol=2e-2, atol=2e-2)


def test_step_kernel(fused):
    B, H, P, G, N = 3, 4, 64, 1, 64
    x, b, c = normal(B, H, P), normal(B, G, N, seed=1), normal(B, G, N, seed=2)
    dt, A = torch.nn.functional.softplus(normal(B, H, seed=3)), -normal(H, seed=4).exp()
    state = normal(B, H, P, N, seed=5)
    state_reference = state.clone()
    y = kernels.ssd_step(x, dt, A, b, c, state)
    y_reference = ssd.ssd_step(x, dt, A, b, c, state_reference)
    torch.testing.assert_close(y, y_reference, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(state, state_reference, rtol=1e-3, atol=1e-3)


def scan_inputs(length: int) -> list[torch.Tensor]:
    """x, dt, A, B, C, D of 3 rows, 72 channels and 16 states."""
    width, states = 72, 16
    x, b, c = normal(3, length, width), normal(3, length, states, seed=1), normal(3, length, states, seed=2)
    dt, A = torch.nn.functional.softplus(normal(3, length, width, seed=3)), -normal(states, width, seed=4).exp()
    return [x, dt, A, b, c, normal(width, seed=6)]


@pytest.mark.parametrize("from_state", [False, True])
@pytest.mark.parametrize("length", [2, 100])
def test_selective_scan_kernel(fused, from_state, length):
    inputs = scan_inputs(length)
    start = normal(3, 16, 72, seed=5) if from_state else None
    for ours, reference in zip(
        kernels.selective_scan(*inputs, start, 8), selective_scan.selective_scan(*inputs, start, 8), strict=True
    ):
        close(ours, reference)


def test_selective_scan_kernel_has_the_same_gradients(fused):
    inputs = [value.requires_grad_() for value in scan_inputs(100)]
    weights = normal(3, 100, 72, seed=7)

    def gradients(scan) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad((scan(*inputs, None, 8)[0] * weights).sum(), inputs)

    for ours, reference in zip(
        gradients(kernels.selective_scan), gradients(selective_scan.selective_scan), strict=True
    ):
        close(ours, reference, 1e-2)


def test_selective_step_kernel(fused):
    x, dt, A, b, c, D = scan_inputs(1)
    state = normal(3, 16, 72, seed=5)
    state_reference = state.clone()
    step = (x[:, 0], dt[:, 0], A, b[:, 0], c[:, 0], D)
    close(kernels.selective_step(*step, state), selective_scan.selective_step(*step, state_reference))
    close(state, state_reference)


@pytest.mark.parametrize("has_bias", [False, True])
def test_convolution_kernels(fused_conv, has_bias):
    """Several tokens, their gradients, and one token, against the torch forms on the CPU."""
    seen, weight = normal(3, 23, 72).requires_grad_(), normal(72, 4, seed=1).requires_grad_()
    bias = normal(72, seed=2).requires_grad_() if has_bias else None
    on_cpu = [None if value is None else value.detach().cpu().requires_grad_() for value in (seen, weight, bias)]
    ours, reference = kernels.causal_conv(seen, weight, bias), kernels.causal_conv(*on_cpu)
    close(ours.cpu(), reference)
    for value, other in zip((seen, weight, bias), on_cpu, strict=True):
        if value is not None:
            (found,) = torch.autograd.grad(ours.square().sum(), value, retain_graph=True)
            (expected,) = torch.autograd.grad(reference.square().sum(), other, retain_graph=True)
            close(found.cpu(), expected, 1e-2)
    with torch.no_grad():
        past, token = normal(3, 3, 72, seed=3), normal(3, 1, 144, seed=4)[..., :72]
        past_cpu = past.cpu().clone()
        step = kernels.conv_step(past, token, *kernels.conv_constants(weight, bias))
        close(step.cpu(), kernels.conv_step(past_cpu, token.cpu(), *kernels.conv_constants(*on_cpu[1:])))
        close(past.cpu(), past_cpu)


@pytest.mark.parametrize("block", ["M", "S"])
def test_training_has_the_same_gradients_on_gpu_and_cpu(block):
    torch.manual_seed(0)
    model = ModelConfig(vocab_size=50, d_model=64, block=block, num_blocks=2, max_positions=64).build()
    tokens_BT = torch.randint(0, 50, (2, 40))

    def gradients(device: str) -> list[torch.Tensor]:
        model.to(device).zero_grad()
        model(tokens_BT.to(device)).square().mean().backward()
        return [parameter.grad.cpu() for parameter in model.parameters() if parameter.grad is not None]

    for ours, reference in zip(gradients("cuda"), gradients("cpu"), strict=True):
        close(ours, reference, 1e-2 * max(1e-6, reference.abs().max().item()))


@pytest.mark.parametrize("block", ["AF", "M", "S"])
def test_a_model_computes_the_same_on_gpu_and_cpu(block):
    torch.manual_seed(0)
    model = ModelConfig(vocab_size=50, d_model=64, block=block, num_blocks=2, max_positions=64).build().eval()
    tokens_BT = torch.randint(0, 50, (2, 40))
    with torch.no_grad():
        expected = model(tokens_BT)
        model.cuda()
        state = model.new_state(2, 40)
        cached = torch.cat([model(tokens_BT[:, :30].cuda(), state), model(tokens_BT[:, 30:].cuda(), state)], 1)
    torch.testing.assert_close(model(tokens_BT.cuda()).cpu(), expected, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(cached.cpu(), expected, rtol=1e-2, atol=1e-2)
