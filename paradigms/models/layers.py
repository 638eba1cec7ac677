"""Attention, feed-forward and the span of positions that one forward covers.

Dimension letters: B batch, T tokens in, R = B T rows, S slots seen, H query heads, K key-value heads, D head width, E
model width.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paradigms.models.config import ModelConfig
from paradigms.models.kernels import product
from paradigms.models.state import KVCache


def matrix(num_inputs: int, num_outputs: int) -> nn.Parameter:
    """Weights [in, out], used as x @ weights; the stack initialises them.

    This order, not torch's [out, in]: with one or a few rows on a CPU the product then runs along the outputs and is up
    to 1.6 times faster; on many rows and on a GPU nothing changes.
    """
    return nn.Parameter(torch.empty(num_inputs, num_outputs))


NORM_EPS = 1e-5


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """x / rms(x) x weight (1910.07467): torch's `rms_norm`, which on a CPU is many small operators; without gradients,
    the same in five.
    """
    if torch.is_grad_enabled() or x.is_cuda or x.dtype == torch.bfloat16:
        return F.rms_norm(x, weight.shape, weight, NORM_EPS)
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return (x * torch.addcmul(_scalar(NORM_EPS, x.dtype), norm, norm, value=1 / x.shape[-1]).rsqrt_()).mul_(weight)


@cache
def _scalar(value: float, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(value, dtype=dtype)


@dataclass(slots=True)
class Span:
    """Where the new tokens of one forward stand; made once, read by every layer.

    Rows are right-aligned: row b's last num_tokens[b] columns are tokens, the columns before are padding that is
    neither seen nor stored.

    Attributes:
        batch_size: B.
        cos_B1TD, sin_B1TD: rotary tables at the tokens' positions; B is 1 when rows stand at the same positions.
        start: first slot that is written when every row writes the same slots, else None.
        stop: slots that exist after this forward, of the longest row.
        mask_B1TS: who sees whom, or None when `is_causal` or everybody says it.
        is_causal: the plain lower triangle.
        pads_B: padding columns of each row, or None.
        scatter: (row index, column index, slot index) of every token, when rows write different slots.
    """

    batch_size: int
    cos_B1TD: Tensor
    sin_B1TD: Tensor
    start: int | None
    stop: int
    mask_B1TS: Tensor | None
    is_causal: bool
    pads_B: Tensor | None
    scatter: tuple[Tensor, Tensor, Tensor] | None


def rotary_tables(head_dim: int, num_positions: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos and sin [positions, head_dim] of rotary embeddings (2104.09864), halves side by side, first sin half
    negated.
    """
    frequency = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angle = torch.arange(num_positions, dtype=torch.float64)[:, None] * frequency
    return torch.cat((angle.cos(), angle.cos()), -1), torch.cat((-angle.sin(), angle.sin()), -1)


def rotate(x_BHTD: Tensor, cos_B1TD: Tensor, sin_B1TD: Tensor) -> Tensor:
    """Queries or keys, turned by the angles of their positions."""
    return torch.addcmul(x_BHTD * cos_B1TD, x_BHTD.roll(x_BHTD.shape[-1] // 2, -1), sin_B1TD)


class Attention(nn.Module):
    """Multi-head attention with rotary positions; `num_kv_heads` below `num_heads` makes it grouped or multi-query."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = config.num_heads, config.num_kv_heads, config.head_dim
        width = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        self.qkv = matrix(config.d_model, width)
        self.out = matrix(config.num_heads * config.head_dim, config.d_model)

    def forward(self, x_RE: Tensor, span: Span, cache: KVCache | None, write: bool) -> Tensor:
        H, K = self.num_heads, self.num_kv_heads
        qkv_BHTD = (x_RE @ self.qkv).view(span.batch_size, -1, H + 2 * K, self.head_dim).transpose(1, 2)
        qk_BHTD = rotate(qkv_BHTD[:, : H + K], span.cos_B1TD, span.sin_B1TD)
        q_BHTD, k_BKSD, v_BKSD = qk_BHTD[:, :H], qk_BHTD[:, H:], qkv_BHTD[:, H + K :]
        if cache is not None:
            k_BKSD, v_BKSD = self._through(cache, k_BKSD, v_BKSD, span, write)
        y_BHTD = F.scaled_dot_product_attention(
            q_BHTD, k_BKSD, v_BKSD, attn_mask=span.mask_B1TS, is_causal=span.is_causal, enable_gqa=K != H
        )
        return product(y_BHTD.transpose(1, 2).reshape(-1, H * self.head_dim), self.out)

    @staticmethod
    def _through(cache: KVCache, k_BKTD: Tensor, v_BKTD: Tensor, span: Span, write: bool) -> tuple[Tensor, Tensor]:
        """Keys and values of all slots up to span.stop; the new ones are stored, or only looked at on a copy."""
        keys, values = cache.keys_BHSD, cache.values_BHSD
        if not write:
            keys, values = keys.clone(), values.clone()
        if span.scatter is None:
            keys[:, :, span.start : span.stop] = k_BKTD
            values[:, :, span.start : span.stop] = v_BKTD
        else:
            row, column, slot = span.scatter
            keys[row, :, slot] = k_BKTD[row, :, column]
            values[row, :, slot] = v_BKTD[row, :, column]
        return keys[:, :, : span.stop], values[:, :, : span.stop]


class FeedForward(nn.Module):
    """SwiGLU (2002.05202): down(silu(gate(x)) x up(x)), gate and up in one matrix."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_up = matrix(config.d_model, 2 * config.ff_width)
        self.down = matrix(config.ff_width, config.d_model)

    def forward(self, x_RE: Tensor) -> Tensor:
        gate, up = (x_RE @ self.gate_up).chunk(2, -1)
        return product(F.silu(gate) * up, self.down)
