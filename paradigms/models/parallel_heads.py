"""Hymba's hybrid layer (2411.13676): attention heads and Mamba heads side by side, on the same input.

What the two say is normalised, weighed channel by channel and averaged before one projection (equation 3):

    y = (beta_1 norm(attention(x)) + beta_2 norm(mamba(x))) / 2  W_out

Both are therefore equally wide: the attention heads share the Mamba heads' inner width. The weights beta are those of
the norms. Attention sees everything, or the last `window` positions only, except in the layers that are named.

Of the paper's other ideas two are not here: meta tokens (learned tokens before every text) and keys and values that two
layers share. In its published models queries and keys are narrower than values; here they are as wide.

Dimension letters: B batch, T tokens in, R = B T rows, H query heads, D head width, I inner width, E model width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor, nn

from paradigms.models import operations
from paradigms.models.attention import Attention, AttentionConfig
from paradigms.models.kernels import product, row_product
from paradigms.models.kv_cache import KV_DTYPES
from paradigms.models.layer_config import LayerConfig
from paradigms.models.layer_state import PairState, StateSpec
from paradigms.models.layers import Span, matrix, positive, rms_norm
from paradigms.models.mamba import Mamba, MambaConfig, MambaState
from paradigms.models.one_token import Place, Step
from paradigms.models.sliding_attention import SlidingAttention, SlidingAttentionConfig

if TYPE_CHECKING:
    from paradigms.models.config import ModelConfig
    from paradigms.models.forward_pass import ForwardPass


@dataclass(frozen=True, kw_only=True)
class ParallelHeadsConfig(LayerConfig):
    """Layer of attention heads and Mamba heads.

    Attributes:
        num_heads, num_kv_heads: query heads, and heads of keys and values that they share; None is one each. A head is
            as wide as the Mamba heads' inner width allows, inner width / num_heads.
        rope_theta: base of the rotary frequencies; None leaves positions out.
        window: positions that a token's attention sees, itself included; None is all.
        global_layers: which of a block's layers of this kind see all positions nevertheless, counted from 0.
        mamba: the Mamba heads.
    """

    num_heads: int = 4
    num_kv_heads: int | None = None
    rope_theta: float | None = 10_000.0
    window: int | None = None
    global_layers: tuple[int, ...] = ()
    mamba: MambaConfig = field(default_factory=MambaConfig)

    key: ClassVar[str] = "parallel_heads"
    recurrent: ClassVar[bool] = True
    kv_dtypes: ClassVar[tuple[str, ...]] = KV_DTYPES

    def __post_init__(self) -> None:
        object.__setattr__(self, "global_layers", tuple(self.global_layers))  # a YAML file and a model card have lists
        if isinstance(self.mamba, Mapping):  # as a model card has it
            object.__setattr__(self, "mamba", MambaConfig(**self.mamba))

    def at(self, number: int) -> ParallelHeadsConfig:
        """The layer of this number in its block."""
        return dataclasses.replace(self, window=None, global_layers=()) if number in self.global_layers else self

    def heads(self, d_model: int) -> AttentionConfig:
        """The attention heads, as a layer of their own would describe them."""
        fields: dict[str, Any] = {
            "num_heads": self.num_heads,
            "num_kv_heads": self.num_kv_heads,
            "head_dim": self.mamba.inner(d_model) // self.num_heads,
            "rope_theta": self.rope_theta,
        }
        if self.window is None:
            return AttentionConfig(**fields)
        return SlidingAttentionConfig(**fields, window=self.window)

    def check(self, model: ModelConfig) -> None:
        """Raise ValueError for sizes that do not go together."""
        key, inner = f"model.{self.key}", self.mamba.inner(model.d_model)
        positive(key, num_heads=self.num_heads, num_kv_heads=self.num_kv_heads, window=self.window)
        if inner % self.num_heads or (inner // self.num_heads) % 2:
            raise ValueError(
                f"{key}.num_heads={self.num_heads} must split the Mamba heads' inner width {inner} into heads of even "
                "width"
            )
        if self.mamba.proj_bias or self.mamba.num_groups > 1:
            raise ValueError(
                f"{key}.mamba has proj_bias={self.mamba.proj_bias} and num_groups={self.mamba.num_groups}, which heads "
                "beside attention do not have; leave them false and 1"
            )
        self.mamba.check(model)
        self.heads(model.d_model).check(model)
        count = model.block.count("P")
        if self.global_layers and (self.window is None or not set(self.global_layers) <= set(range(count))):
            raise ValueError(
                f"{key}.global_layers={list(self.global_layers)} names layers that see beyond {key}.window="
                f"{self.window}: set a window, and numbers below {count}, the layers of this kind in model.block"
            )

    def num_parameters(self, d_model: int) -> int:
        heads, inner = self.heads(d_model), self.mamba.inner(d_model)
        both = heads.num_parameters(d_model) + self.mamba.num_parameters(d_model)
        return both - inner * d_model + 2 * inner  # one projection for both, and a norm for each

    def matmul_flops(self, run: ForwardPass) -> int:
        """Of both kinds of heads, with one projection out."""
        both = self.heads(run.d_model).matmul_flops(run) + self.mamba.matmul_flops(run)
        return both - 2 * run.positions * self.mamba.inner(run.d_model) * run.d_model

    def hidden_flops(self, run: ForwardPass) -> int:
        return self.heads(run.d_model).hidden_flops(run)

    def other_flops(self, run: ForwardPass) -> int:
        """Of both, with a norm each and their mean."""
        inner = self.mamba.inner(run.d_model)
        joined = 2 * operations.rms_norm(inner) + 2 * inner
        return self.heads(run.d_model).other_flops(run) + self.mamba.other_flops(run) + run.positions * joined

    def state_read_bytes(self, run: ForwardPass) -> int:
        return self.heads(run.d_model).state_read_bytes(run) + self.mamba.state_read_bytes(run)

    def state_written_bytes(self, run: ForwardPass) -> int:
        return self.heads(run.d_model).state_written_bytes(run) + self.mamba.state_written_bytes(run)

    def activation_bytes(self, run: ForwardPass) -> int:
        """While the wider of the two computes; what attention said waits for Mamba."""
        inner = self.mamba.inner(run.d_model)
        scan = self.mamba.activation_bytes(run) + run.itemsize * run.positions * inner
        return max(self.heads(run.d_model).activation_bytes(run), scan)

    def state_bytes(self, d_model: int, *, length: int, itemsize: int, kv_dtype: str | None = None) -> int:
        """Keys and values, of the window if there is one, and the state of the Mamba heads, of one row."""
        seen = self.heads(d_model).state_bytes(d_model, length=length, itemsize=itemsize, kv_dtype=kv_dtype)
        return seen + self.mamba.state_bytes(d_model, length=length, itemsize=itemsize)

    def build(self, model: ModelConfig, shared: nn.ModuleDict) -> ParallelHeads:
        return ParallelHeads(self, model)


class Heads(Attention):
    """Attention without the projection back: what its heads read, side by side."""

    def __init__(self, config: AttentionConfig, model: ModelConfig) -> None:
        super().__init__(config, model)
        del self.out

    def row_out(self) -> Callable[[Tensor], Tensor]:
        return lambda y_1I: y_1I

    def merge(self, y_BHTD: Tensor) -> Tensor:
        """[R, I]."""
        return y_BHTD.transpose(1, 2).reshape(-1, self.num_heads * self.head_dim)


class SlidingHeads(Heads, SlidingAttention):
    """The same over a window."""


class MambaHeads(Mamba):
    """Mamba without the projection back."""

    def __init__(self, config: MambaConfig, model: ModelConfig) -> None:
        super().__init__(config, model)
        del self.out

    def row_out(self) -> Callable[[Tensor], Tensor]:
        return lambda y_1I: y_1I

    def forward(self, x_RE: Tensor, span: Span, state: MambaState | None) -> Tensor:
        """[R, I]."""
        return self.scanned(x_RE, span, state)


class ParallelHeads(nn.Module):
    """One layer."""

    def __init__(self, config: ParallelHeadsConfig, model: ModelConfig) -> None:
        super().__init__()
        heads, inner = config.heads(model.d_model), config.mamba.inner(model.d_model)
        self.attention = (SlidingHeads if isinstance(heads, SlidingAttentionConfig) else Heads)(heads, model)
        self.mamba = MambaHeads(config.mamba, model)
        self.attention_norm = nn.Parameter(torch.ones(inner))
        self.mamba_norm = nn.Parameter(torch.ones(inner))
        self.norm_eps = model.norm_eps
        self.out = matrix(inner, model.d_model)

    def new_state(self, batch_size: int, capacity: int, spec: StateSpec) -> PairState:
        return PairState(
            self.attention.new_state(batch_size, capacity, spec), self.mamba.new_state(batch_size, capacity, spec)
        )

    def one_token(self, state: PairState) -> Step | None:
        """See `one_token`."""
        attend, scan = self.attention.one_token(state.first), self.mamba.one_token(cast(MambaState, state.second))
        if attend is None or scan is None:
            return None
        beta_1, beta_2, eps, out = self.attention_norm, self.mamba_norm, self.norm_eps, row_product(self.out)

        def step(x_1E: Tensor, place: Place) -> Tensor:
            attended_1I = rms_norm(attend(x_1E, place), beta_1, eps)
            return out(attended_1I.add_(rms_norm(scan(x_1E, place), beta_2, eps)).div_(2))

        return step

    def forward(self, x_RE: Tensor, span: Span, state: PairState | None) -> Tensor:
        seen, recurrent = (None, None) if state is None else state.both
        attended_RI = rms_norm(self.attention(x_RE, span, seen), self.attention_norm, self.norm_eps)
        scanned_RI = rms_norm(self.mamba(x_RE, span, recurrent), self.mamba_norm, self.norm_eps)
        return product((attended_RI + scanned_RI) / 2, self.out)
