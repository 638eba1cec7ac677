"""Multi-head, grouped-query and multi-query attention with rotary positions: one class, told apart by `num_kv_heads`.

Dimension letters: B batch, T tokens in, R = B T rows, S slots seen, H query heads, K key-value heads, D head width, E
model width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paradigms.models import operations
from paradigms.models.forward_pass import Looked
from paradigms.models.kernels import product, row_product
from paradigms.models.kv_cache import KV_DTYPES, KVCache, QuantisedKVCache, kv_bytes, new_kv_cache
from paradigms.models.layer_config import LayerConfig
from paradigms.models.layer_state import StateSpec
from paradigms.models.layers import Span, matrix, positive, rms_norm
from paradigms.models.one_token import Place, Step
from paradigms.models.rotary import RopeScaling, Rotary, rotate

if TYPE_CHECKING:
    from paradigms.models.config import ModelConfig
    from paradigms.models.forward_pass import ForwardPass


@dataclass(frozen=True, kw_only=True)
class AttentionConfig(LayerConfig):
    """Attention layer.

    Attributes:
        num_heads, num_kv_heads: query heads, and heads of keys and values that they share in equal groups; None is one
            each (multi-head).
        head_dim: width of a head; None is d_model / num_heads.
        rope_theta: base of the rotary frequencies; None leaves positions out.
        rope_scaling: how they are stretched beyond the length of training; None leaves them.
        qkv_bias: add a bias to queries, keys and values (Qwen2).
        qk_norm: RMS-normalise each head's queries and keys before they are turned (Qwen3).
    """

    num_heads: int = 4
    num_kv_heads: int | None = None
    head_dim: int | None = None
    rope_theta: float | None = 10_000.0
    rope_scaling: RopeScaling | None = None
    qkv_bias: bool = False
    qk_norm: bool = False

    key: ClassVar[str] = "attention"
    kv_dtypes: ClassVar[tuple[str, ...]] = KV_DTYPES
    keeps_slots: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.rope_scaling, Mapping):  # as a model card has it
            object.__setattr__(self, "rope_scaling", RopeScaling(**self.rope_scaling))

    @property
    def kv_heads(self) -> int:
        return self.num_kv_heads or self.num_heads

    def head_width(self, d_model: int) -> int:
        """Width of one head."""
        return self.head_dim or d_model // self.num_heads

    def check(self, model: ModelConfig) -> None:
        """Raise ValueError for sizes that do not go together."""
        key = f"model.{self.key}"
        positive(key, num_heads=self.num_heads, num_kv_heads=self.num_kv_heads, head_dim=self.head_dim)
        if (self.head_dim is None and model.d_model % self.num_heads) or self.head_width(model.d_model) % 2:
            raise ValueError(
                f"model.d_model={model.d_model} does not split into {key}.num_heads={self.num_heads} heads of even "
                f"width; change one of them, or set {key}.head_dim"
            )
        if self.num_heads % self.kv_heads:
            raise ValueError(f"{key}.num_kv_heads={self.num_kv_heads} must divide num_heads={self.num_heads}")
        if self.rope_scaling is not None and self.rope_theta is None:
            raise ValueError(f"{key}.rope_scaling stretches rotary positions; set {key}.rope_theta, or leave it out")

    def num_parameters(self, d_model: int) -> int:
        width = self.head_width(d_model)
        joined = (self.num_heads + 2 * self.kv_heads) * width
        extra = self.qkv_bias * joined + self.qk_norm * 2 * width
        return d_model * (joined + self.num_heads * width) + extra

    def state_bytes(self, d_model: int, *, length: int, itemsize: int, kv_dtype: str | None = None) -> int:
        """2 x kv_heads x head_dim numbers a position, of one row; in 8 bits 2 x kv_heads scales more."""
        return length * kv_bytes(self.kv_heads, self.head_width(d_model), itemsize=itemsize, kv_dtype=kv_dtype)

    def looked(self, run: ForwardPass) -> Looked:
        """What is looked at."""
        return Looked.at_all(run)

    def matmul_flops(self, run: ForwardPass) -> int:
        """Of the projections, and of two products for each pair that is looked at."""
        projections = (2 * self.num_heads + 2 * self.kv_heads) * run.d_model * run.positions
        return 2 * self.head_width(run.d_model) * (projections + 2 * self.num_heads * self.looked(run).pairs)

    def hidden_flops(self, run: ForwardPass) -> int:
        looked = self.looked(run)
        return 4 * self.num_heads * self.head_width(run.d_model) * (looked.pairs - looked.visible)

    def other_flops(self, run: ForwardPass) -> int:
        """Biases, norms and turns of queries and keys; softmax; keys and values to 8 bits and back."""
        H, K, D, looked = self.num_heads, self.kv_heads, self.head_width(run.d_model), self.looked(run)
        token = self.qkv_bias * (H + 2 * K) * D + self.qk_norm * (H + K) * operations.rms_norm(D)
        token += (self.rope_theta is not None) * operations.ROTARY * (H + K) * D
        kept = 2 * K * operations.stored(D, run, looked.slots)
        return run.positions * token + H * operations.attention_weights(looked.queries, looked.pairs) + kept

    def activation_bytes(self, run: ForwardPass) -> int:
        """While queries and keys are turned, or while all heads are projected back."""
        H, K, D = self.num_heads, self.kv_heads, self.head_width(run.d_model)
        qkv, qk = (H + 2 * K) * D, (H + K) * D
        project = qkv + (self.qk_norm + 3 * (self.rope_theta is not None)) * qk
        read = 2 * H * D + run.d_model + (qk if run.has_state else qkv + qk)
        beside = run.mask_bytes + run.itemsize * self.copied(run)
        return max(run.itemsize * run.positions * project, run.itemsize * run.positions * read + beside)

    def copied(self, run: ForwardPass) -> int:
        """Numbers of keys and values that are copied for attention to read: out of 8 bits."""
        quantised = run.kv_dtype is not None and run.has_state
        return quantised * 2 * self.kv_heads * self.head_width(run.d_model) * self.looked(run).slots

    def rotary(self, d_model: int) -> Rotary | None:
        if self.rope_theta is None:
            return None
        return Rotary(dim=self.head_width(d_model), theta=self.rope_theta, scaling=self.rope_scaling)

    def build(self, model: ModelConfig, shared: nn.ModuleDict) -> Attention:
        return Attention(self, model)


class Attention(nn.Module):
    """Multi-head attention with rotary positions; `num_kv_heads` below `num_heads` makes it grouped or multi-query."""

    table = 0  # of the model's rotary tables; the stack sets it

    def __init__(self, config: AttentionConfig, model: ModelConfig) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = config.num_heads, config.kv_heads
        self.head_dim = config.head_width(model.d_model)
        self.rotary = config.rotary(model.d_model)
        joined = (config.num_heads + 2 * config.kv_heads) * self.head_dim
        self.qkv = matrix(model.d_model, joined)
        keys = config.kv_heads * self.head_dim
        self.fused = {"qkv": (joined - 2 * keys, keys, keys)}  # stepped apart, see `training.optimizer`
        self.qkv_bias = nn.Parameter(torch.zeros(joined)) if config.qkv_bias else None
        self.q_norm, self.k_norm = (
            nn.Parameter(torch.ones(self.head_dim)) if config.qk_norm else None for _ in range(2)
        )
        self.norm_eps = model.norm_eps
        self.out = matrix(config.num_heads * self.head_dim, model.d_model)

    def new_state(self, batch_size: int, capacity: int, spec: StateSpec) -> KVCache | QuantisedKVCache:
        return new_kv_cache(batch_size, self.num_kv_heads, capacity, self.head_dim, spec)

    def one_token(self, cache: Any) -> Step | None:
        """See `one_token`."""
        if cache is None or self.q_norm is not None or self.rotary is None:
            return None
        H, K, D = self.num_heads, self.num_kv_heads, self.head_dim
        qkv, bias, out, table, grouped = self.qkv, self.qkv_bias, self.row_out(), self.table, H != K
        mm, addmm, attend, take = torch.mm, torch.addmm, F.scaled_dot_product_attention, cache.take_one

        def step(x_1E: Tensor, place: Place) -> Tensor:
            heads_XD = (mm(x_1E, qkv) if bias is None else addmm(bias, x_1E, qkv)).view(-1, D)
            qk_1X1D = mm(heads_XD.narrow(0, 0, H + K), place.turns[table]).view(1, H + K, 1, D)
            v_1K1D = heads_XD.narrow(0, H + K, K).view(1, K, 1, D)
            keys_1KSD, values_1KSD = take(qk_1X1D.narrow(1, H, K), v_1K1D, place.start)
            y_1H1D = attend(qk_1X1D.narrow(1, 0, H), keys_1KSD, values_1KSD, enable_gqa=grouped)
            return out(y_1H1D.view(1, H * D))

        return step

    def row_out(self) -> Callable[[Tensor], Tensor]:
        """The projection back, of one row."""
        return row_product(self.out)

    def forward(self, x_RE: Tensor, span: Span, cache: KVCache | QuantisedKVCache | None) -> Tensor:
        q_BHTD, k_BKSD, v_BKSD = self.project(x_RE, span)
        if cache is not None:
            k_BKSD, v_BKSD = cache.through(k_BKSD, v_BKSD, span)
        return self.merge(self.attend(q_BHTD, k_BKSD, v_BKSD, span.mask_B1TS, is_causal=span.is_causal))

    def project(self, x_RE: Tensor, span: Span) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B, H, T, D], keys and values [B, K, T, D] of the new tokens, turned by their positions."""
        H, K = self.num_heads, self.num_kv_heads
        qkv_RX = x_RE @ self.qkv if self.qkv_bias is None else torch.addmm(self.qkv_bias, x_RE, self.qkv)
        qkv_BHTD = qkv_RX.view(span.batch_size, -1, H + 2 * K, self.head_dim).transpose(1, 2)
        qk_BHTD, v_BKTD = qkv_BHTD[:, : H + K], qkv_BHTD[:, H + K :]
        if self.q_norm is not None:
            qk_BHTD = self._normed(qk_BHTD)
        if self.rotary is not None:
            qk_BHTD = rotate(qk_BHTD, *span.rotary[self.table])
        return qk_BHTD[:, :H], qk_BHTD[:, H:], v_BKTD

    def attend(
        self, q_BHTD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, mask_B1TS: Tensor | None, *, is_causal: bool = False
    ) -> Tensor:
        """What each query reads from the keys' values, [B, H, T, D]."""
        grouped = self.num_kv_heads != self.num_heads
        return F.scaled_dot_product_attention(
            q_BHTD, k_BKSD, v_BKSD, attn_mask=mask_B1TS, is_causal=is_causal, enable_gqa=grouped
        )

    def merge(self, y_BHTD: Tensor) -> Tensor:
        """All heads, projected back: [R, E]."""
        return product(y_BHTD.transpose(1, 2).reshape(-1, self.num_heads * self.head_dim), self.out)

    def _normed(self, qk_BHTD: Tensor) -> Tensor:
        assert self.q_norm is not None and self.k_norm is not None
        q_BHTD, k_BKTD = qk_BHTD.split((self.num_heads, self.num_kv_heads), 1)
        q_BHTD, k_BKTD = (
            rms_norm(x, norm, self.norm_eps) for x, norm in ((q_BHTD, self.q_norm), (k_BKTD, self.k_norm))
        )
        return torch.cat((q_BHTD, k_BKTD), 1)
