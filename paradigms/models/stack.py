"""The network: embedding, residual layers, norm, head tied to the embedding.

One stack serves every paradigm. A causal model predicts the next token; a denoiser predicts the tokens behind the
masks. Both answer `forward`, which looks at a state when it is given one and extends it unless told not to.

Dimension letters: B batch, T tokens in, R = B T rows, S slots, E model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paradigms.models import kernels
from paradigms.models.config import ModelConfig
from paradigms.models.layers import Attention, FeedForward, Span, matrix, rms_norm, rotary_tables
from paradigms.models.mamba2 import Mamba2
from paradigms.models.state import State


class Layer(nn.Module):
    """x + mixer(norm(x))."""

    def __init__(self, letter: str, config: ModelConfig) -> None:
        super().__init__()
        self.norm = nn.Parameter(torch.ones(config.d_model))
        self.mixer = {"A": Attention, "F": FeedForward, "M": Mamba2}[letter](config)
        self.carries_state = letter != "F"

    def forward(self, x_RE: Tensor, span: Span, state: object, write: bool) -> Tensor:
        y_RE = rms_norm(x_RE, self.norm)
        return x_RE + (self.mixer(y_RE, span, state, write) if self.carries_state else self.mixer(y_RE))


class Model(nn.Module):
    """A stack built from its config, with fresh weights."""

    cos_SD: Tensor
    sin_SD: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = matrix(config.d_model, config.vocab_size)  # [E, V]: laid out for the head, its larger use
        self.layers = nn.ModuleList(Layer(letter, config) for letter in config.layers)
        self.norm = nn.Parameter(torch.ones(config.d_model))
        cos, sin = rotary_tables(config.head_dim, config.max_positions, config.rope_theta)
        self.register_buffer("cos_SD", cos.float(), persistent=False)
        self.register_buffer("sin_SD", sin.float(), persistent=False)
        self._initialise()

    def _initialise(self) -> None:
        """Normal with deviation 0.02; projections into the residual stream smaller by the root of their number
        (GPT-2).
        """
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2 and "conv_weight" not in name:
                into_residual = name.endswith((".out", ".down"))
                nn.init.normal_(parameter, std=0.02 / (len(self.layers) ** 0.5 if into_residual else 1))

    def _apply(self, fn, recurse=True):
        """Keep the rotary tables as exact as the dtype allows: recomputed, not converted."""
        super()._apply(fn, recurse)
        c = self.config
        cos, sin = rotary_tables(c.head_dim, c.max_positions, c.rope_theta)
        weight = self.embedding
        self.cos_SD, self.sin_SD = (table.to(device=weight.device, dtype=weight.dtype) for table in (cos, sin))
        return self

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def weight_bytes(self) -> int:
        return sum(parameter.nbytes for parameter in self.parameters())

    def new_state(self, batch_size: int, max_len: int) -> State:
        """An empty state for `batch_size` rows of at most `max_len` positions."""
        if not self.config.causal:
            raise ValueError("this model sees the whole canvas at every step, so it keeps no state; decode it uncached")
        return State(self.config, batch_size, max_len, device=self.device, dtype=self.dtype)

    def forward(
        self,
        tokens_BT: Tensor,
        state: State | None = None,
        *,
        num_tokens: Sequence[int] | None = None,
        write: Literal["append", "none"] = "append",
        logits_at: Tensor | slice | None = None,
    ) -> Tensor:
        """Logits [B, K, V] at the K columns `logits_at` (all T when None).

        Args:
            tokens_BT: new tokens, at the positions that follow `state`; rows are right-aligned.
            state: what the rows have seen; extended by the new tokens unless write="none".
            num_tokens: tokens of each row when rows differ; the columns before them are padding.
            write: "append" keeps the new tokens in the state, "none" only looks.
            logits_at: a slice of columns, or column indices [K] or [B, K].

        Column i of a causal model's logits predicts the token at i + 1. Column i of a denoiser's predicts the token at
        i; with `shift_logits` that is read one column to the left, and column 0 (begin-of-text, always visible) means
        nothing.

        Raises:
            ValueError: more positions than the model or the state was built for.
        """
        hidden_BTE = self._hidden(tokens_BT, state, num_tokens, write)
        return self._head(self._select(hidden_BTE, logits_at))

    def logits_where(self, tokens_BT: Tensor, wanted_BT: Tensor, *, num_tokens: Sequence[int] | None = None) -> Tensor:
        """Logits [number wanted, V] at the True places of a mask, in row-major order, without a state."""
        hidden_BTE = self._select(self._hidden(tokens_BT, None, num_tokens, "none"), None)
        return self._head(hidden_BTE[wanted_BT])

    def _hidden(self, tokens_BT: Tensor, state: State | None, num_tokens: Sequence[int] | None, write: str) -> Tensor:
        """The residual stream [B, T, E] after the last layer."""
        span = self._span(tokens_BT.shape, state, num_tokens)
        x_RE = F.embedding(tokens_BT.flatten(), self.embedding.t())
        states = state.layers if state is not None else [None] * len(self.layers)
        for layer, layer_state in zip(self.layers, states, strict=True):
            x_RE = layer(x_RE, span, layer_state, write == "append")
        if state is not None and write == "append":
            added = num_tokens or [tokens_BT.shape[1]] * tokens_BT.shape[0]
            state.lengths = [length + new for length, new in zip(state.lengths, added, strict=True)]
        return x_RE.view(*tokens_BT.shape, -1)

    def _head(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.norm) @ self.embedding

    def _select(self, x_BTE: Tensor, logits_at: Tensor | slice | None) -> Tensor:
        if self.config.shift_logits:
            if isinstance(logits_at, Tensor):
                logits_at = (logits_at - 1).clamp(min=0)
            else:
                x_BTE = torch.cat((x_BTE[:, :1], x_BTE[:, :-1]), 1)
        if logits_at is None:
            return x_BTE
        if isinstance(logits_at, Tensor) and logits_at.dim() == 2:
            return x_BTE.gather(1, logits_at[..., None].expand(-1, -1, x_BTE.shape[-1]))
        return x_BTE[:, logits_at]

    def _span(self, shape: torch.Size, state: State | None, num_tokens: Sequence[int] | None) -> Span:
        B, T = shape
        lengths = state.lengths if state is not None else [0] * B
        added = list(num_tokens) if num_tokens is not None else [T] * B
        stop = max(length + new for length, new in zip(lengths, added, strict=True))
        limit = self.config.max_positions if state is None else state.max_len
        if stop > limit:
            raise ValueError(f"{stop} positions asked for, {limit} are available (max_positions or the state's length)")
        aligned = num_tokens is None or min(added) == T
        if aligned and min(lengths) == max(lengths):
            return self._uniform_span(B, T, lengths[0], stop)
        return self._ragged_span(T, lengths, added, stop, stored=state is not None)

    def _uniform_span(self, B: int, T: int, start: int, stop: int) -> Span:
        causal = self.config.causal
        mask = None
        if causal and start and T > 1:
            mask = torch.ones(T, stop, dtype=torch.bool, device=self.device).tril(start)[None, None]
        return Span(
            batch_size=B,
            cos_B1TD=self.cos_SD[start:stop],
            sin_B1TD=self.sin_SD[start:stop],
            start=start,
            stop=stop,
            mask_B1TS=mask,
            is_causal=causal and T > 1 and not start,
            pads_B=None,
            scatter=None,
        )

    def _ragged_span(self, T: int, lengths: list[int], added: list[int], stop: int, *, stored: bool) -> Span:
        device = self.device
        lengths_B, added_B = torch.tensor(lengths, device=device), torch.tensor(added, device=device)
        pads_B = T - added_B
        column_T = torch.arange(T, device=device)
        token_BT = column_T >= pads_B[:, None]
        position_BT = (lengths_B - pads_B)[:, None] + column_T  # means nothing in padding
        if stored:  # columns seen are slots, and a slot is a position
            mask_BTS = torch.arange(stop, device=device) <= position_BT[..., None]
        else:  # columns seen are those of this forward, padding excluded
            mask_BTS = token_BT[:, None].expand(-1, T, -1)
            if self.config.causal:
                mask_BTS = mask_BTS & (column_T <= column_T[:, None])
        mask_BTS = mask_BTS | ~token_BT[..., None]  # padding sees anything: an empty row would be 0 / 0
        place_BT = position_BT.clamp(min=0)
        row, column = token_BT.nonzero(as_tuple=True)
        return Span(
            batch_size=len(lengths),
            cos_B1TD=self.cos_SD[place_BT][:, None],
            sin_B1TD=self.sin_SD[place_BT][:, None],
            start=None,
            stop=stop,
            mask_B1TS=mask_BTS[:, None],
            is_causal=False,
            pads_B=pads_B if min(added) < T else None,
            scatter=(row, column, position_BT[row, column]),
        )

    def kernels(self) -> str:
        """What runs the layers here, for the records."""
        return kernels.in_use(self.device, self.config.layers)
