"""Zamba's hybrid layer (2405.16712): one attention block for the whole stack, and a Mamba layer of the place's own.

The shared block reads the residual stream side by side with the embedding: attention, then a feed-forward, nothing
residual inside. A matrix of each place carries its answer to the input of that place's Mamba layer; the stream itself
does not take it up (figure 2):

    a_l = shared(concat(x_l, x_0)) W_l
    x_{l+1} = x_l + mamba_l(norm_l(x_l + a_l))

Its weights exist once, whatever the number of places: they lie in `Model.shared`. Keys and values are kept per place.

Dimension letters: B batch, T tokens in, R = B T rows, H query heads, K key-value heads, D head width, E model width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paradigms.models import operations
from paradigms.models.forward_pass import Looked
from paradigms.models.kernels import product
from paradigms.models.kv_cache import KV_DTYPES, KVCache, kv_bytes, new_kv_cache
from paradigms.models.layer_config import LayerConfig
from paradigms.models.layer_state import PairState, StateSpec
from paradigms.models.layers import Span, matrix, positive, rms_norm
from paradigms.models.mamba import MambaConfig

if TYPE_CHECKING:
    from paradigms.models.config import ModelConfig
    from paradigms.models.forward_pass import ForwardPass


@dataclass(frozen=True, kw_only=True)
class SharedAttentionConfig(LayerConfig):
    """Shared attention block before a Mamba layer.

    Attributes:
        num_heads, num_kv_heads: query heads, and heads of keys and values; None is one each.
        head_dim: width of a head; None is 2 d_model / num_heads, as the block reads twice the model's width.
        width: inner width of the block's feed-forward.
        mamba: the Mamba layers of the places.
    """

    num_heads: int = 4
    num_kv_heads: int | None = None
    head_dim: int | None = None
    width: int = 344
    mamba: MambaConfig = field(default_factory=MambaConfig)

    key: ClassVar[str] = "shared_attention"
    recurrent: ClassVar[bool] = True
    reads_stream: ClassVar[bool] = True
    kv_dtypes: ClassVar[tuple[str, ...]] = KV_DTYPES
    free: ClassVar[tuple[str, int]] = ("width", 8)

    def __post_init__(self) -> None:
        if isinstance(self.mamba, Mapping):  # as a model card has it
            object.__setattr__(self, "mamba", MambaConfig(**self.mamba))

    @property
    def kv_heads(self) -> int:
        return self.num_kv_heads or self.num_heads

    def head_width(self, d_model: int) -> int:
        return self.head_dim or 2 * d_model // self.num_heads

    def check(self, model: ModelConfig) -> None:
        """Raise ValueError for sizes that do not go together."""
        key = f"model.{self.key}"
        positive(key, num_heads=self.num_heads, num_kv_heads=self.num_kv_heads, head_dim=self.head_dim)
        positive(key, width=self.width)
        if self.head_dim is None and 2 * model.d_model % self.num_heads:
            raise ValueError(
                f"{key}.num_heads={self.num_heads} must divide 2 x model.d_model = {2 * model.d_model}; change one of "
                f"them, or set {key}.head_dim"
            )
        if self.num_heads % self.kv_heads:
            raise ValueError(f"{key}.num_kv_heads={self.num_kv_heads} must divide num_heads={self.num_heads}")
        self.mamba.check(model)

    def num_parameters(self, d_model: int) -> int:
        """Of one place: its matrix and its Mamba layer."""
        return d_model * d_model + self.mamba.num_parameters(d_model)

    def shared_parameters(self, d_model: int) -> int:
        """Of the block that all places share."""
        heads, kv_heads, head_dim = self.num_heads, self.kv_heads, self.head_width(d_model)
        attention = 2 * d_model * (heads + 2 * kv_heads) * head_dim + heads * head_dim * d_model
        return 2 * d_model + attention + d_model + 3 * d_model * self.width

    def matmul_flops(self, run: ForwardPass) -> int:
        """Of one place: the shared block is computed at each."""
        attention = 2 * self.num_heads * self.head_width(run.d_model) * run.pairs
        weights = self.shared_parameters(run.d_model) - 3 * run.d_model + run.d_model**2  # without its norms
        return 2 * (run.positions * weights + attention) + self.mamba.matmul_flops(run)

    def hidden_flops(self, run: ForwardPass) -> int:
        hidden = run.pairs - run.visible_pairs
        return 4 * self.num_heads * self.head_width(run.d_model) * hidden + self.mamba.hidden_flops(run)

    def other_flops(self, run: ForwardPass) -> int:
        """Three norms, softmax, the gated GELU, the sum with the stream; and of Mamba."""
        d_model, looked = run.d_model, Looked.at_all(run)
        norms = operations.rms_norm(2 * d_model) + 2 * operations.rms_norm(d_model)
        token = norms + (operations.GELU + 1) * self.width + d_model
        weights = self.num_heads * operations.attention_weights(looked.queries, looked.pairs)
        kept = 2 * self.kv_heads * operations.stored(self.head_width(d_model), run, looked.slots)
        return run.positions * token + weights + kept + self.mamba.other_flops(run)

    def activation_bytes(self, run: ForwardPass) -> int:
        """While the feed-forward computes, all before it still at hand; or Mamba, beside what was added for it."""
        heads, kv_heads, head_dim = self.num_heads, self.kv_heads, self.head_width(run.d_model)
        block = 3 * run.d_model + 2 * (heads + kv_heads) * head_dim + 4 * self.width
        quantised = run.kv_dtype is not None and run.has_state
        read = quantised * 2 * kv_heads * head_dim * run.rows * run.seen + run.positions * block
        mamba = self.mamba.activation_bytes(run) + 2 * run.itemsize * run.positions * run.d_model
        return max(run.itemsize * read, mamba)

    def state_bytes(self, d_model: int, *, length: int, itemsize: int, kv_dtype: str | None = None) -> int:
        """Keys and values of one place, and the state of its Mamba layer, of one row."""
        slot = kv_bytes(self.kv_heads, self.head_width(d_model), itemsize=itemsize, kv_dtype=kv_dtype)
        return length * slot + self.mamba.state_bytes(d_model, length=length, itemsize=itemsize)

    def build(self, model: ModelConfig, shared: nn.ModuleDict) -> SharedAttention:
        if self.key not in shared:
            shared[self.key] = SharedBlock(self, model)
        return SharedAttention(self, model, shared)


class SharedBlock(nn.Module):
    """Attention without positions and a GELU feed-forward over concat(stream, embedding); its weights exist once."""

    def __init__(self, config: SharedAttentionConfig, model: ModelConfig) -> None:
        super().__init__()
        E = model.d_model
        self.num_heads, self.num_kv_heads, self.head_dim = config.num_heads, config.kv_heads, config.head_width(E)
        self.norm_eps = model.norm_eps
        self.norm = nn.Parameter(torch.ones(2 * E))
        queries, keys = config.num_heads * self.head_dim, config.kv_heads * self.head_dim
        self.fused = {"qkv": (queries, keys, keys), "gate_up": (config.width, config.width)}
        self.qkv = matrix(2 * E, queries + 2 * keys)
        self.out = matrix(config.num_heads * self.head_dim, E)
        self.inner_norm = nn.Parameter(torch.ones(E))
        self.gate_up = matrix(E, 2 * config.width)
        self.down = matrix(config.width, E)

    def forward(self, x_RE: Tensor, span: Span, cache: KVCache | None) -> Tensor:
        H, K = self.num_heads, self.num_kv_heads
        assert span.embedded_RE is not None
        both = rms_norm(torch.cat((x_RE, span.embedded_RE), -1), self.norm, self.norm_eps)
        qkv_BHTD = (both @ self.qkv).view(span.batch_size, -1, H + 2 * K, self.head_dim).transpose(1, 2)
        q_BHTD, k_BKSD, v_BKSD = qkv_BHTD.split((H, K, K), 1)
        if cache is not None:
            k_BKSD, v_BKSD = cache.through(k_BKSD, v_BKSD, span)
        y_BHTD = F.scaled_dot_product_attention(
            q_BHTD,
            k_BKSD,
            v_BKSD,
            attn_mask=span.mask_B1TS,
            is_causal=span.is_causal,
            scale=(self.head_dim / 2) ** -0.5,  # half of what a head reads is the embedding
            enable_gqa=K != H,
        )
        y_RE = product(y_BHTD.transpose(1, 2).reshape(-1, H * self.head_dim), self.out)
        gate, up = (rms_norm(y_RE, self.inner_norm, self.norm_eps) @ self.gate_up).chunk(2, -1)
        return product(F.gelu(gate) * up, self.down)


class SharedAttention(nn.Module):
    """One place: the shared block, its matrix to this place, and the Mamba layer whose input it is added to."""

    def __init__(self, config: SharedAttentionConfig, model: ModelConfig, shared: nn.ModuleDict) -> None:
        super().__init__()
        self._shared = (cast(SharedBlock, shared[config.key]),)  # in a tuple: referred to, not owned a second time
        self.out = matrix(model.d_model, model.d_model)
        self.norm = nn.Parameter(torch.ones(model.d_model))
        self.norm_eps = model.norm_eps
        self.mamba = config.mamba.build(model, shared)

    def new_state(self, batch_size: int, capacity: int, spec: StateSpec) -> PairState:
        block = self._shared[0]
        cache = new_kv_cache(batch_size, block.num_kv_heads, capacity, block.head_dim, spec)
        return PairState(cache, self.mamba.new_state(batch_size, capacity, spec))

    def forward(self, x_RE: Tensor, span: Span, state: PairState | None) -> Tensor:
        cache, recurrent = (None, None) if state is None else state.both
        added_RE = product(self._shared[0](x_RE, span, cache), self.out)
        return self.mamba(rms_norm(x_RE + added_RE, self.norm, self.norm_eps), span, recurrent)
