"""On a GPU: the readable torch forms, in the dtypes that are measured there, against the same in float64 on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from paradigms.models import ssd
from paradigms.models.attention import AttentionConfig
from paradigms.models.config import ModelConfig
from paradigms.models.mamba2 import Mamba2Config

pytestmark = pytest.mark.gpu

# Largest difference allowed, over the largest value: of one rounding in bfloat16, and of a float32 product in TF32.
TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 3e-2}
SIZES = {"vocab_size": 64, "d_model": 128, "num_blocks": 2, "max_positions": 512}
MODELS = {
    "attention": ModelConfig(**SIZES, block="AF", attention=AttentionConfig(num_heads=2)),
    "mamba2": ModelConfig(**SIZES, block="M", mamba2=Mamba2Config(head_dim=32, d_state=16, chunk_len=32)),
    "denoiser": ModelConfig(**SIZES, block="AF", causal=False, noise="absorbing", shift_logits=True),
}


def assert_near(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    difference = (actual.double().cpu() - expected).abs().max() / expected.abs().max()
    assert difference < TOLERANCE[dtype], float(difference)


def inputs(T: int) -> list[Tensor]:
    """x, dt, A, B, C of a scan over T tokens, float64, on the CPU."""
    draw = torch.Generator().manual_seed(0)
    B, H, P, G, N = 2, 4, 32, 1, 16
    x, b, c = (torch.randn(*shape, generator=draw).double() for shape in ((B, T, H, P), (B, T, G, N), (B, T, G, N)))
    dt = torch.nn.functional.softplus(torch.randn(B, T, H, generator=draw).double() - 2)
    return [x, dt, -torch.randn(H, generator=draw).double().exp(), b, c]


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_chunked_scan(dtype):
    values = inputs(200)
    state = torch.zeros(2, 4, 32, 16, dtype=torch.float64)
    expected = ssd.ssd_recurrence(*values, state)
    found = ssd.ssd_chunked(*(value.to("cuda", dtype) for value in values), state.to("cuda", dtype), 32)
    for mine, its in zip(found, expected, strict=True):
        assert_near(mine, its, dtype)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_whole_forward(dtype, kind):
    torch.manual_seed(0)
    model = MODELS[kind].build().eval()
    tokens_BT = torch.randint(0, 64, (3, 300))
    with torch.inference_mode():
        expected = model.double()(tokens_BT)
        assert_near(model.to("cuda", dtype)(tokens_BT.cuda()), expected, dtype)


@pytest.mark.parametrize("kind", ["attention", "mamba2"])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_token_by_token_behind_a_prompt(dtype, kind):
    torch.manual_seed(0)
    model = MODELS[kind].build().eval()
    tokens_BT = torch.randint(0, 64, (3, 300))
    with torch.inference_mode():
        expected = model.double()(tokens_BT)[:, 290:]
        model.to("cuda", dtype)
        tokens_BT = tokens_BT.cuda()
        state = model.new_state(3, 300)
        model(tokens_BT[:, :290], state)
        steps = [model(tokens_BT[:, t : t + 1], state) for t in range(290, 300)]
        assert_near(torch.cat(steps, 1), expected, dtype)
