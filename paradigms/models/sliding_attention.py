"""Sliding-window attention (Longformer, 2004.05150; Mistral, 2310.06825): each token sees the last `window` ones.

The state is a ring of at most `window` slots, so that memory and the cost of a step stop growing there. A long text is
read in blocks of `window` tokens that look at themselves and at the block before, so that reading costs a multiple of
T x window and not T x T.

Dimension letters: B batch, T tokens in, R = B T rows, H query heads, K key-value heads, D head width, N blocks, W
window, E model width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paradigms.models.attention import Attention, AttentionConfig
from paradigms.models.forward_pass import Looked, below_diagonal
from paradigms.models.kv_cache import new_kv_tensors
from paradigms.models.layer_state import StateSpec
from paradigms.models.layers import Span, positive
from paradigms.models.ring import Places, QuantisedRingState, RingState, band, positions
from paradigms.models.state import GROWTH

if TYPE_CHECKING:
    from paradigms.models.config import ModelConfig
    from paradigms.models.forward_pass import ForwardPass


@dataclass(frozen=True, kw_only=True)
class SlidingAttentionConfig(AttentionConfig):
    """Attention layer that looks back a fixed number of positions; the other fields are those of attention.

    Attributes:
        window: positions that a token sees, itself included.
    """

    window: int = 64

    key: ClassVar[str] = "sliding_attention"
    recurrent: ClassVar[bool] = True  # a ring forgets, so no branch of a tree can be looked at beside another

    def check(self, model: ModelConfig) -> None:
        super().check(model)
        positive(f"model.{self.key}", window=self.window)

    def state_bytes(self, d_model: int, *, length: int, itemsize: int, kv_dtype: str | None = None) -> int:
        """As attention, of the last `window` positions."""
        return super().state_bytes(d_model, length=min(length, self.window), itemsize=itemsize, kv_dtype=kv_dtype)

    def looked(self, run: ForwardPass) -> Looked:
        """A step looks at the ring, later tokens at the ring and each other, a text at itself: in blocks of `window`
        queries and twice as many keys where it is at least two of them long.
        """
        B, T, W = run.rows, run.tokens, self.window
        visible = B * below_diagonal(run.start, run.seen, W)
        if not run.start:
            blocks = -(-T // W)
            if blocks < 2 or T < 2 * W:
                return Looked(B * T, B * T * T, visible, B * T)
            return Looked(B * blocks * W, B * blocks * W * 2 * W, visible, B * T)
        slots = min(W, run.seen) if run.is_step else self._slots(run) + T
        return Looked(B * T, B * T * slots, visible, B * slots)

    def _slots(self, run: ForwardPass) -> int:
        """Of the ring of one row: all of them take part when several tokens come to it. It grows as states do."""
        return min(self.window, -(-run.seen // GROWTH) * GROWTH, run.model.max_positions)

    def _replaces(self, run: ForwardPass) -> bool:
        """Whether every slot of the ring is read and written."""
        return run.start > 0 and not run.is_step

    def copied(self, run: ForwardPass) -> int:
        """As attention; blocks, of queries too, or the ring beside the new ones and what it then takes of both."""
        slot = 2 * self.kv_heads * self.head_width(run.d_model)
        looked, copied = self.looked(run), super().copied(run)
        if self._replaces(run) and run.kv_dtype is None:
            copied += slot * looked.slots
        if self._replaces(run) and run.shape.written:
            places = 8 // run.itemsize * slot // 2  # int64, of keys or values at a time
            return copied + (places + slot // 2) * run.rows * self._slots(run)
        if looked.pairs == 2 * self.window * looked.queries and not run.start:  # in blocks
            return copied + (2 * slot + self.num_heads * self.head_width(run.d_model)) * looked.queries
        return copied

    def state_read_bytes(self, run: ForwardPass) -> int:
        if self._replaces(run) and run.has_state:
            return self._bytes_of_state(run, self._slots(run))
        return super().state_read_bytes(run)

    def state_written_bytes(self, run: ForwardPass) -> int:
        if self._replaces(run) and run.shape.written:
            return self._bytes_of_state(run, self._slots(run))
        return super().state_written_bytes(run)

    def build(self, model: ModelConfig, shared: nn.ModuleDict) -> SlidingAttention:
        return SlidingAttention(self, model)


class SlidingAttention(Attention):
    """Attention over the last `window` positions."""

    def __init__(self, config: SlidingAttentionConfig, model: ModelConfig) -> None:
        super().__init__(config, model)
        self.window = config.window

    def new_state(self, batch_size: int, capacity: int, spec: StateSpec) -> RingState:
        kind = RingState if spec.kv_dtype is None else QuantisedRingState
        num_slots = min(self.window, capacity)
        return kind(self.window, *new_kv_tensors(batch_size, self.num_kv_heads, num_slots, self.head_dim, spec))

    def forward(self, x_RE: Tensor, span: Span, ring: RingState | None) -> Tensor:
        q_BHTD, k_BKTD, v_BKTD = self.project(x_RE, span)
        if ring is None:
            return self.merge(self._alone(q_BHTD, k_BKTD, v_BKTD, span))
        new = ring.encode(k_BKTD, v_BKTD)
        if span.write and ring.is_marked:
            position_BT = positions(span, k_BKTD.shape[2], k_BKTD.device)
            ring.remember(new, position_BT.expand(span.batch_size, -1), span.num_tokens)
        if span.start == 0:
            if span.write:
                ring.begin(new)
            return self.merge(self._alone(q_BHTD, *ring.decode(*new), span))
        if k_BKTD.shape[2] == 1 and span.pads_B is None and span.write:
            stored = ring.step(new, span)
            return self.merge(self.attend(q_BHTD, *ring.decode(*stored), self._step_mask(span, ring)))
        places = self._places(span, ring, k_BKTD)
        beside = ring.beside(new)
        if span.write:
            ring.take(beside, places.source_BS)
        return self.merge(self.attend(q_BHTD, *ring.decode(*beside), places.mask_B1TU))

    def _step_mask(self, span: Span, ring: RingState) -> Tensor | None:
        """Slots that rows of different lengths have filled; rows of one length have filled all that they look at."""
        if span.position_BT is None:
            return None
        key = ("slots in use", self.window)
        if key not in span.memo:
            slot_S = torch.arange(min(span.stop, ring.capacity), device=span.position_BT.device)
            span.memo[key] = (slot_S <= span.position_BT)[:, None, None]
        return span.memo[key]  # type: ignore[return-value]

    def _places(self, span: Span, ring: RingState, k_BKTD: Tensor) -> Places:
        key = ("places in a ring", self.window)
        if key not in span.memo:
            position_BT = positions(span, k_BKTD.shape[2], k_BKTD.device)
            span.memo[key] = Places.of(position_BT, span.pads_B, self.window, ring.capacity)
        return span.memo[key]  # type: ignore[return-value]

    def _alone(self, q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, span: Span) -> Tensor:
        """Attention among the new tokens, which nothing precedes: [B, H, T, D]."""
        T = q_BHTD.shape[2]
        if self.window >= T:
            return self.attend(q_BHTD, k_BKTD, v_BKTD, span.mask_B1TS, is_causal=span.is_causal)
        if span.mask_B1TS is None and 2 * self.window <= T:
            return self.blocked(q_BHTD, k_BKTD, v_BKTD)
        key = ("band", self.window)
        if key not in span.memo:
            mask = band(T, self.window, q_BHTD.device)[None, None]
            span.memo[key] = mask if span.mask_B1TS is None else mask & span.mask_B1TS
        return self.attend(q_BHTD, k_BKTD, v_BKTD, span.memo[key])  # type: ignore[arg-type]

    def blocked(self, q_BHTD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor) -> Tensor:
        """Attention with the mask `band`, computed in blocks of `window` queries against the 2 x window keys that end
        with them: [B, H, T, D].
        """
        B, H, T, D = q_BHTD.shape
        W, N = self.window, -(-T // self.window)
        tail = N * W - T
        q_BHTD = F.pad(q_BHTD, (0, 0, 0, tail))
        q_NHWD = q_BHTD.view(B, H, N, W, D).transpose(1, 2).reshape(B * N, H, W, D)

        def blocks(x_BKTD: Tensor) -> Tensor:
            """Each block behind the one before it; zeros before the first."""
            x_BKND2 = F.pad(x_BKTD, (0, 0, W, tail)).unfold(2, 2 * W, W)
            return x_BKND2.permute(0, 2, 1, 4, 3).reshape(B * N, -1, 2 * W, D)

        row_W, column_2W = torch.arange(W, device=q_BHTD.device)[:, None], torch.arange(2 * W, device=q_BHTD.device)
        mask_WX = (column_2W > row_W) & (column_2W <= row_W + W)
        is_there_NX = (column_2W >= W) | (torch.arange(N, device=q_BHTD.device)[:, None] > 0)
        mask_N1WX = (mask_WX & is_there_NX[:, None])[:, None].repeat(B, 1, 1, 1)
        y_NHWD = self.attend(q_NHWD, blocks(k_BKTD), blocks(v_BKTD), mask_N1WX)
        return y_NHWD.view(B, N, H, W, D).transpose(1, 2).reshape(B, H, N * W, D)[:, :, :T]
