"""Multi-head latent attention (DeepSeek-V2, 2405.04434): keys and values of all heads come from one small latent.

A token leaves behind a latent of kv_rank numbers and one rotary key that all heads share. The same weights can be
computed in three ways, which differ in what they keep and in what a step reads:

    expanded   keeps every head's keys and values, as multi-head attention does
    latent     keeps the latent, and makes all keys and values of it anew at every step
    absorbed   keeps the latent and attends in its space: the matrix that would make the keys is applied to the query,
               the one that would make the values to the result (2405.04434, section 2.1.2); a long prompt is read by
               expanding it, whenever that takes fewer products

Dimension letters: B batch, T tokens in, R = B T rows, S slots seen, H heads, C = kv_rank, N = nope_dim, P = rope_dim,
V = value_dim, D head width, E model width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paradigms.models import latent_step, operations
from paradigms.models.kernels import product
from paradigms.models.kv_cache import KVCache
from paradigms.models.layer_config import LayerConfig
from paradigms.models.layer_state import SlotState, StateSpec
from paradigms.models.layers import Span, matrix, positive, rms_norm
from paradigms.models.one_token import Step
from paradigms.models.rotary import RopeScaling, Rotary, rotate

if TYPE_CHECKING:
    from paradigms.models.config import ModelConfig
    from paradigms.models.forward_pass import ForwardPass

FORMS = ("expanded", "latent", "absorbed")


@dataclass(frozen=True, kw_only=True)
class LatentAttentionConfig(LayerConfig):
    """Multi-head latent attention layer.

    Attributes:
        num_heads: heads.
        kv_rank: width of the latent that keys and values are made of.
        q_rank: width of a latent that queries are made of; None makes them of the input.
        nope_dim, rope_dim: width of a head's key without positions, and of its rotary part, whose key all heads share.
        value_dim: width of a head's value.
        rope_theta, rope_scaling: as in attention layers.
        scale_factor: what the scale of the scores, (nope_dim + rope_dim)^(-1/2), is multiplied by; other than 1 with
            DeepSeek's YaRN.
        latent_eps: added to the mean square in the norms of the latents.
        form: `expanded`, `latent` or `absorbed`: what is kept, and how it is computed; the function is the same.
    """

    num_heads: int = 4
    kv_rank: int = 32
    q_rank: int | None = None
    nope_dim: int = 32
    rope_dim: int = 16
    value_dim: int = 32
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    scale_factor: float = 1.0
    latent_eps: float = 1e-6
    form: str = "absorbed"

    key: ClassVar[str] = "latent_attention"
    not_weights: ClassVar[tuple[str, ...]] = ("form",)

    def __post_init__(self) -> None:
        if isinstance(self.rope_scaling, Mapping):  # as a model card has it
            object.__setattr__(self, "rope_scaling", RopeScaling(**self.rope_scaling))

    @property
    def key_dim(self) -> int:
        return self.nope_dim + self.rope_dim

    def check(self, model: ModelConfig) -> None:
        """Raise ValueError for sizes that do not go together, or an unknown form."""
        key = f"model.{self.key}"
        positive(key, num_heads=self.num_heads, kv_rank=self.kv_rank, nope_dim=self.nope_dim, rope_dim=self.rope_dim)
        positive(key, value_dim=self.value_dim, q_rank=self.q_rank)
        if self.rope_dim % 2:
            raise ValueError(f"{key}.rope_dim={self.rope_dim} must be even: rotary positions turn pairs")
        if self.form not in FORMS:
            raise ValueError(f"{key}.form={self.form!r} is unknown; it is one of {', '.join(FORMS)}")

    def num_parameters(self, d_model: int) -> int:
        H, queries = self.num_heads, self.num_heads * self.key_dim
        made = d_model * queries if self.q_rank is None else self.q_rank * (d_model + 1 + queries)
        latent = d_model * (self.kv_rank + self.rope_dim) + self.kv_rank
        return made + latent + self.kv_rank * H * (self.nope_dim + self.value_dim) + H * self.value_dim * d_model

    def state_bytes(self, d_model: int, *, length: int, itemsize: int) -> int:
        """kv_rank + rope_dim numbers a position, of one row; heads x (nope + rope + value) when expanded."""
        expanded = self.num_heads * (self.key_dim + self.value_dim)
        return (expanded if self.form == "expanded" else self.kv_rank + self.rope_dim) * length * itemsize

    def absorbs(self, num_tokens: int) -> bool:
        """Whether so many new tokens after some context are attended in the latent space: fewer products a slot."""
        expanding = self.kv_rank * (self.nope_dim + self.value_dim)
        extra = 2 * self.kv_rank - self.nope_dim - self.value_dim
        return self.form == "absorbed" and (num_tokens == 1 or num_tokens * extra <= expanding)

    def _is_absorbed(self, run: ForwardPass) -> bool:
        """Whether this forward attends in the latent space: from a state, unless a causal text begins."""
        begins = run.model.causal and run.tokens > 1 and not run.start
        return run.has_state and not begins and self.absorbs(run.tokens)

    def _score_width(self, run: ForwardPass) -> tuple[int, int]:
        """Multiplications of a score and of what is read by it, for one head; and those of the latter that only pad
        values to the width of keys, for torch's attention.
        """
        if self._is_absorbed(run):
            return 2 * self.kv_rank + self.rope_dim, 0
        padding = max(0, self.key_dim - self.value_dim) if run.tokens > 1 else 0
        return self.key_dim + self.value_dim + padding, padding

    def matmul_flops(self, run: ForwardPass) -> int:
        """Of the projections, of making keys and values or taking their matrices over, and of every pair."""
        H, d_model = self.num_heads, run.d_model
        queries = H * self.key_dim
        projections = d_model * (self.kv_rank + self.rope_dim) + H * self.value_dim * d_model
        projections += d_model * queries if self.q_rank is None else self.q_rank * (d_model + queries)
        up = self.kv_rank * H * (self.nope_dim + self.value_dim)
        of_new = self._is_absorbed(run) or self.form == "expanded" or not run.has_state
        expanded = run.positions if of_new else run.rows * run.seen
        width, _ = self._score_width(run)
        return 2 * (run.positions * projections + expanded * up + run.pairs * H * width)

    def hidden_flops(self, run: ForwardPass) -> int:
        width, padding = self._score_width(run)
        hidden = run.pairs - run.visible_pairs
        return 2 * self.num_heads * (hidden * width + run.visible_pairs * padding)

    def other_flops(self, run: ForwardPass) -> int:
        """Norms of the latents, turns of the rotary parts, softmax."""
        token = operations.rms_norm(self.kv_rank) + operations.ROTARY * (self.num_heads + 1) * self.rope_dim
        token += 0 if self.q_rank is None else operations.rms_norm(self.q_rank)
        weights = operations.attention_weights(run.positions, run.pairs)
        return run.positions * token + self.num_heads * weights

    def activation_bytes(self, run: ForwardPass) -> int:
        """While attention reads: scores where it is computed by plain products, else all heads' keys and values."""
        H, P, C, D = self.num_heads, self.rope_dim, self.kv_rank, self.key_dim
        token = (self.q_rank or H * D) + (2 * H + 1) * P + C + (self.q_rank is not None) * H * (D + P)
        seen = run.rows * run.seen
        looks = run.has_state and not run.shape.written and self.form != "expanded"
        copied = (C + P) * (seen if looks else 0 if run.has_state else run.positions)
        scores = H * run.pairs * (3 + (run.mask_bytes > 0))
        if self._is_absorbed(run):
            wide = H * (2 * C + P) * run.positions + scores
        else:
            expanded = run.positions if self.form == "expanded" or not run.has_state else seen
            kept = self.form == "expanded" and run.has_state
            width, padding = self._score_width(run)
            wide = (0 if kept else expanded * H * (self.nope_dim + self.value_dim + D)) + H * D * run.positions
            wide += scores if run.tokens == 1 else H * (width - D) * run.positions + (padding > 0) * H * D * seen
        return run.itemsize * (token * run.positions + copied + wide) + run.mask_bytes

    def build(self, model: ModelConfig, shared: nn.ModuleDict) -> LatentAttention:
        return LatentAttention(self, model)


class LatentCache(SlotState):
    """Latents and rotary keys of one layer, side by side: [B, S, C + P]."""

    names = ("latents_BSC",)
    slot_dim = 1

    def __init__(self, latents_BSC: Tensor) -> None:
        self.latents_BSC = latents_BSC

    def through(self, latents_BTC: Tensor, span: Span) -> Tensor:
        """Those of all slots up to span.stop; the new ones are stored, or only looked at on a copy."""
        latents = self.latents_BSC if span.write else self.latents_BSC.clone()
        if span.scatter is None:
            latents[:, span.start : span.stop] = latents_BTC
        else:
            row, column, slot = span.scatter
            latents[row, slot] = latents_BTC[row, column]
        return latents[:, : span.stop]


class LatentAttention(nn.Module):
    """One layer. `in_proj` makes, in this order: all heads' queries without positions, their rotary part (or, with
    q_rank, the latent of the queries instead of both), the shared rotary key, the latent.
    """

    table = 0  # of the model's rotary tables; the stack sets it

    def __init__(self, config: LatentAttentionConfig, model: ModelConfig) -> None:
        super().__init__()
        self.config = c = config
        self.rotary = Rotary(dim=c.rope_dim, theta=c.rope_theta, scaling=c.rope_scaling)
        self.scale = c.scale_factor * c.key_dim**-0.5
        queries = c.num_heads * c.key_dim
        self.fused = {"in_proj": (c.q_rank or queries, c.rope_dim, c.kv_rank)}
        self.in_proj = matrix(model.d_model, sum(self.fused["in_proj"]))
        if c.q_rank is not None:
            self.q_norm = nn.Parameter(torch.ones(c.q_rank))
            self.q_up = matrix(c.q_rank, queries)
        self.kv_norm = nn.Parameter(torch.ones(c.kv_rank))
        self.kv_up = matrix(c.kv_rank, c.num_heads * (c.nope_dim + c.value_dim))
        self.out = matrix(c.num_heads * c.value_dim, model.d_model)

    def new_state(self, batch_size: int, capacity: int, spec: StateSpec) -> KVCache | LatentCache:
        c = self.config
        if spec.kv_dtype is not None:
            raise ValueError(f"kv_dtype={spec.kv_dtype!r}: latent attention keeps numbers as computed; leave it out")
        to = {"device": spec.device, "dtype": spec.dtype}
        if c.form == "expanded":
            shape = (batch_size, c.num_heads, capacity)
            return KVCache(torch.zeros(*shape, c.key_dim, **to), torch.zeros(*shape, c.value_dim, **to))
        return LatentCache(torch.zeros(batch_size, capacity, c.kv_rank + c.rope_dim, **to))

    def one_token(self, cache: KVCache | LatentCache) -> Step:
        """See `one_token`."""
        return latent_step.one_token(self, cache)

    def forward(self, x_RE: Tensor, span: Span, cache: KVCache | LatentCache | None) -> Tensor:
        c = self.config
        q_BHTN, q_BHTP, latents_BSC = self._project(x_RE, span)
        if isinstance(cache, LatentCache):
            latents_BSC = cache.through(latents_BSC, span)
        # Without a cache all forms are one computation, so that training does not depend on the form.
        if cache is not None and not span.is_causal and c.absorbs(q_BHTN.shape[2]):
            y_BHTV = self._absorbed(q_BHTN, q_BHTP, latents_BSC, span)
        else:
            k_BHSD, v_BHSV = self.expand(latents_BSC)
            if isinstance(cache, KVCache):
                k_BHSD, v_BHSV = cache.through(k_BHSD, v_BHSV, span)
            y_BHTV = self._attend(torch.cat((q_BHTN, q_BHTP), -1), k_BHSD, v_BHSV, span)
        return product(y_BHTV.transpose(1, 2).reshape(-1, c.num_heads * c.value_dim), self.out)

    def _project(self, x_RE: Tensor, span: Span) -> tuple[Tensor, Tensor, Tensor]:
        """Queries without positions, their turned part, and the new tokens' latents with the turned key behind."""
        c, B = self.config, span.batch_size
        plain, turned = c.num_heads * c.nope_dim, c.num_heads * c.rope_dim
        joined_RX = x_RE @ self.in_proj
        if c.q_rank is None:
            q_RX, turn_RX, latent_RC = joined_RX.split((plain, turned + c.rope_dim, c.kv_rank), -1)
        else:
            q_RX, k_RP, latent_RC = joined_RX.split((c.q_rank, c.rope_dim, c.kv_rank), -1)
            q_RX, q_RP = (rms_norm(q_RX, self.q_norm, c.latent_eps) @ self.q_up).split((plain, turned), -1)
            turn_RX = torch.cat((q_RP, k_RP), -1)
        turn_BHTP = turn_RX.reshape(B, -1, c.num_heads + 1, c.rope_dim).transpose(1, 2)
        turn_BHTP = rotate(turn_BHTP, *span.rotary[self.table])
        latent_BTC = rms_norm(latent_RC, self.kv_norm, c.latent_eps).view(B, -1, c.kv_rank)
        q_BHTN = q_RX.reshape(B, -1, c.num_heads, c.nope_dim).transpose(1, 2)
        return q_BHTN, turn_BHTP[:, :-1], torch.cat((latent_BTC, turn_BHTP[:, -1]), -1)

    def expand(self, latents_BSC: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of every head."""
        c = self.config
        latent_BSC, k_BSP = latents_BSC.split((c.kv_rank, c.rope_dim), -1)
        B, S = k_BSP.shape[:2]
        made = (latent_BSC.reshape(-1, c.kv_rank) @ self.kv_up).view(B, S, c.num_heads, c.nope_dim + c.value_dim)
        made = made.transpose(1, 2)
        k_BHSN, v_BHSV = made.split((c.nope_dim, c.value_dim), -1)
        return torch.cat((k_BHSN, k_BSP[:, None].expand(-1, c.num_heads, -1, -1)), -1), v_BHSV

    def _absorbed(self, q_BHTN: Tensor, q_BHTP: Tensor, latents_BSC: Tensor, span: Span) -> Tensor:
        """Every head's queries against the latents themselves, as the rows of one attention head."""
        c = self.config
        B, H, T, _ = q_BHTN.shape
        up_HCX = self.kv_up.view(c.kv_rank, H, -1).transpose(0, 1)
        q_HRC = q_BHTN.transpose(0, 1).reshape(H, B * T, -1) @ up_HCX[..., : c.nope_dim].transpose(1, 2)
        q_BHTC = torch.cat((q_HRC.view(H, B, T, -1).transpose(0, 1), q_BHTP), -1)
        scores = (q_BHTC.reshape(B, H * T, -1) @ latents_BSC.transpose(1, 2)).view(B, H, T, -1)
        weights_BHTS = self._weights(scores, span)
        y_BXC = weights_BHTS.view(B, H * T, -1) @ latents_BSC[..., : c.kv_rank]
        y_HRC = y_BXC.view(B, H, T, -1).transpose(0, 1).reshape(H, B * T, -1)
        return (y_HRC @ up_HCX[..., c.nope_dim :]).view(H, B, T, -1).transpose(0, 1)

    def _attend(self, q_BHTD: Tensor, k_BHSD: Tensor, v_BHSV: Tensor, span: Span) -> Tensor:
        if q_BHTD.shape[2] == 1:  # torch's attention has no fused form for values of another width than keys
            return self._weights(q_BHTD @ k_BHSD.transpose(-1, -2), span) @ v_BHSV
        missing = q_BHTD.shape[-1] - v_BHSV.shape[-1]
        y_BHTV = F.scaled_dot_product_attention(
            q_BHTD,
            k_BHSD,
            F.pad(v_BHSV, (0, missing)) if missing > 0 else v_BHSV,
            attn_mask=span.mask_B1TS,
            is_causal=span.is_causal,
            scale=self.scale,
        )
        return y_BHTV[..., : self.config.value_dim]

    def _weights(self, scores_BHTS: Tensor, span: Span) -> Tensor:
        if span.mask_B1TS is not None:
            scores_BHTS = scores_BHTS.masked_fill(~span.mask_B1TS, float("-inf"))
        wide = torch.promote_types(scores_BHTS.dtype, torch.float32)
        return (scores_BHTS.to(wide) * self.scale).softmax(-1).to(scores_BHTS.dtype)
