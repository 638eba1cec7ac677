"""On a GPU: fused kernels compute what the readable torch forms do, and models what they compute on the CPU."""

from __future__ import annotations

import pytest
import torch

from paradigms.models import kernels, ssd
from paradigms.models.config import ModelConfig

pytestmark = pytest.mark.gpu


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).cuda()


@pytest.fixture
def fused():
    if not kernels.mamba_ssm_kernels():
        pytest.skip("mamba-ssm is not installed")


@pytest.mark.parametrize("from_state", [False, True])
def test_chunked_scan_kernel(fused, from_state):
    B, T, H, P, G, N = 2, 100, 4, 64, 1, 64
    x, b, c = normal(B, T, H, P), normal(B, T, G, N, seed=1), normal(B, T, G, N, seed=2)
    dt, A = torch.nn.functional.softplus(normal(B, T, H, seed=3)), -normal(H, seed=4).exp()
    start = normal(B, H, P, N, seed=5) if from_state else None
    y, state = kernels.ssd_chunked(x, dt, A, b, c, start, 64)
    y_reference, state_reference = ssd.ssd_chunked(x, dt, A, b, c, start, 64)
    torch.testing.assert_close(y, y_reference, rtol=2e-2, atol=2e-2)
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


@pytest.mark.parametrize("block", ["AF", "M"])
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
