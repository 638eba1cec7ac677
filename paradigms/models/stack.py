"""The network: embedding, residual layers, norm, head.

One stack serves every paradigm. A causal model predicts the next token; a denoiser predicts the tokens behind the
masks. Both answer `forward`, which looks at a state when it is given one and extends it unless told not to.

Dimension letters: B batch, T tokens in, R = B T rows, S slots, E model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paradigms.models import kernels, one_token
from paradigms.models.conditioning import Conditioning, Modulation
from paradigms.models.config import ModelConfig
from paradigms.models.layer_state import LayerState, StateSpec
from paradigms.models.layers import NORMS, Derived, Span, matrix
from paradigms.models.rotary import Rotary
from paradigms.models.span import host_span
from paradigms.models.state import Form, State, initial_capacity

Write = Literal["append", "none", "overwrite"]

FILLED = (".dt_proj", ".A_log", ".modulation")  # matrices that their layers have initialised


class Layer(nn.Module):
    """x + mixer(norm(x)); of a conditioned stack, x + gate * mixer(norm(x) * (1 + scale) + shift)."""

    def __init__(self, part: Any, config: ModelConfig, shared: nn.ModuleDict) -> None:
        super().__init__()
        self.norm = nn.Parameter(torch.ones(config.d_model))
        self.norm_eps = config.norm_eps
        self.normed = NORMS[config.norm]
        self.mixer: Any = part.build(config, shared)

    def forward(
        self, x_RE: Tensor, span: Span, state: LayerState | None, modulation: Modulation | None = None
    ) -> Tensor:
        y_RE = self.normed(x_RE, self.norm, self.norm_eps)
        if modulation is None:
            return x_RE + self.mixer(y_RE, span, state)
        return x_RE + modulation.gated(self.mixer(modulation.of(y_RE), span, state))

    def one_token(self, state: LayerState | None) -> one_token.Step:
        """See `one_token`."""
        make = getattr(self.mixer, "one_token", None)
        step = make(state) if make is not None else None
        if step is None:
            return lambda x_1E, place: self(x_1E, place.span, state)
        return one_token.residual(self.norm, self.norm_eps, step)


class StreamLayer(nn.Module):
    """x + mixer(x), for a mixer that reads the residual stream as it is and applies its norm further in."""

    def __init__(self, part: Any, config: ModelConfig, shared: nn.ModuleDict) -> None:
        super().__init__()
        self.mixer: Any = part.build(config, shared)

    def forward(self, x_RE: Tensor, span: Span, state: LayerState | None) -> Tensor:
        return x_RE + self.mixer(x_RE, span, state)

    def one_token(self, state: LayerState | None) -> one_token.Step:
        """See `one_token`."""
        return lambda x_1E, place: self(x_1E, place.span, state)


class Model(nn.Module):
    """A stack built from its config, with fresh weights.

    Args:
        initialise: False leaves the matrices as memory was, for weights that are about to be loaded.
    """

    def __init__(self, config: ModelConfig, *, initialise: bool = True) -> None:
        super().__init__()
        self.config = config
        self.embedding = matrix(config.d_model, config.vocab_size)  # [E, V]: laid out for the head, its larger use
        self.shared = nn.ModuleDict()  # what several layers use; they refer to it without owning it
        self.layers = nn.ModuleList(_layer(part, config, self.shared) for part in config.parts)
        self.norm = nn.Parameter(torch.ones(config.d_model))
        if not config.tied_head:
            self.head = matrix(config.d_model, config.vocab_size)
        self.head_bias = nn.Parameter(torch.zeros(config.vocab_size)) if config.head_bias else None
        self.conditioning = None
        if config.conditioning is not None:
            self.conditioning = Conditioning(config.conditioning, config.d_model, len(self.layers))
        self.plain = config.norm == "rms" and not config.head_bias and self.conditioning is None  # see `one_token`
        self._rotaries = self._number_rotaries()
        self.tables: list[tuple[Tensor, Tensor]] = []
        self._make_tables()
        if initialise:
            self._initialise()

    def _initialise(self) -> None:
        """Normal with deviation 0.02; projections into the residual stream smaller by the root of their number
        (GPT-2).
        """
        for name, parameter in self.named_parameters():
            of_experts = parameter.dim() == 3 and name.endswith((".gate_up", ".down"))
            if (parameter.dim() == 2 or of_experts) and "conv_weight" not in name and not name.endswith(FILLED):
                into_residual = name.endswith((".out", ".down"))
                nn.init.normal_(parameter, std=0.02 / (len(self.layers) ** 0.5 if into_residual else 1))

    def _number_rotaries(self) -> list[Rotary]:
        """The different rotary tables that the layers need; each layer learns the number of its own."""
        rotaries: list[Rotary] = []
        for module in self.modules():
            rotary = getattr(module, "rotary", None)
            if isinstance(rotary, Rotary):
                if rotary not in rotaries:
                    rotaries.append(rotary)
                module.table = rotaries.index(rotary)  # type: ignore[assignment]
        return rotaries

    def _make_tables(self) -> None:
        tables = [rotary.tables(self.config.max_positions) for rotary in self._rotaries]
        to = {"device": self.device, "dtype": self.dtype}
        self.tables = [(cos.to(**to), sin.to(**to)) for cos, sin in tables]

    def _apply(self, fn, recurse=True):
        """Keep the rotary tables as exact as the dtype allows: recomputed, not converted. What was derived of the
        weights is forgotten: there and back again, they may lie at the same address with other values.
        """
        super()._apply(fn, recurse)
        self._make_tables()
        for module in self.modules():
            for value in vars(module).values():
                if isinstance(value, Derived):
                    value.forget()
        return self

    @property
    def head_weight(self) -> Tensor:
        """[E, V]."""
        return self.embedding if self.config.tied_head else self.head

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def weight_bytes(self) -> int:
        return sum(parameter.nbytes for parameter in self.parameters())

    def new_state(self, batch_size: int, max_len: int, *, form: Form = "growing", kv_dtype: str | None = None) -> State:
        """An empty state for `batch_size` rows of at most `max_len` positions.

        Args:
            form: "growing", or "static" for compiled and graphed steps; see `State`.
            kv_dtype: None, or "int8"; see `StateSpec`.

        Raises:
            ValueError: more positions than the model was built for, a denoiser whose layers keep no slots, or keys and
                values that cannot be stored so.
        """
        if not self.config.causal and not self.config.keeps_slots:
            raise ValueError(
                f"a denoiser of model.block={self.config.block!r} has layers that keep more, or less, than a slot a "
                "position, and cannot be cached; decode it uncached"
            )
        if max_len > self.config.max_positions:
            raise ValueError(
                f"a state of {max_len} positions was asked for; the model has max_positions={self.config.max_positions}"
            )
        self.config.check_kv_dtype(kv_dtype)
        spec = StateSpec(device=self.device, dtype=self.dtype, kv_dtype=kv_dtype)
        capacity = max_len if form == "static" else initial_capacity(max_len)
        layers = [layer.mixer.new_state(batch_size, capacity, spec) for layer in self.typed_layers()]
        return State(layers, batch_size, max_len, form=form, device=self.device)

    def forward(
        self,
        tokens_BT: Tensor,
        state: State | None = None,
        *,
        num_tokens: Sequence[int] | None = None,
        positions_BT: Tensor | None = None,
        among_BTT: Tensor | None = None,
        write: Write = "append",
        over: Sequence[int] | Tensor | None = None,
        time_B: Tensor | None = None,
        logits_at: Tensor | slice | None = None,
    ) -> Tensor:
        """Logits [B, K, V] at the K columns `logits_at` (all T when None).

        Args:
            tokens_BT: new tokens, at the positions that follow `state`; rows are right-aligned.
            state: what the rows have seen; extended by the new tokens when write="append".
            num_tokens: tokens of each row when rows differ, 0 to T; the columns before them are padding.
            positions_BT: positions of the new tokens, [T] or [B, T], where they do not simply follow: the depth of a
                draft in its tree.
            among_BTT: which new tokens (last dimension) each new token sees, boolean [T, T] or [B, T, T]; None is the
                model's own way (those up to itself, or all). All of them see the whole state.
            write: "append" keeps the new tokens in the state, "none" only looks; "overwrite" puts them into slots that
                the state has, and each of them sees the whole of its row as it is then (a canvas that changes).
            over: the slots, which are positions too, for "overwrite": the first of each row (the others follow), or
                int64 [B, T], ascending in a row.
            time_B: how noisy the canvas is, t in (0, 1], of each row [B] or of each token [B, T]; needed by a model
                with `reads_time` and not looked at by others. See `conditioning`.
            logits_at: a slice of columns, or column indices [K] or [B, K].

        Column i of a causal model's logits predicts the token at i + 1. Column i of a denoiser's predicts the token at
        i; with `shift_logits` that is read one column to the left, and column 0 (begin-of-text, always visible) means
        nothing.

        Raises:
            ValueError: more positions than the model or the state was built for; other rows than the state has; slots
                that it does not have; no columns, or `num_tokens` that do not fit them; `among_BTT` or `positions_BT`
                for a model with recurrent layers, which run along one path; no time for a model that reads it.
        """
        append = write == "append"
        if (
            state is not None
            and append
            and (num_tokens is None or num_tokens[0] == 1)
            and len(state.lengths) == 1
            and positions_BT is None
            and among_BTT is None
            and not isinstance(logits_at, Tensor)
            and one_token.applies(self, tokens_BT)
        ):
            return self._one_token(tokens_BT, state)
        span = self._span(tokens_BT.shape, state, num_tokens, positions_BT, among_BTT, write, over)
        hidden_BTE = self._hidden(tokens_BT, span, state, time_B)
        return self._head(self._select(hidden_BTE, logits_at))

    def logits_where(
        self,
        tokens_BT: Tensor,
        wanted_BT: Tensor,
        state: State | None = None,
        *,
        num_tokens: Sequence[int] | None = None,
        positions_BT: Tensor | None = None,
        among_BTT: Tensor | None = None,
        write: Write = "append",
        over: Sequence[int] | Tensor | None = None,
        time_B: Tensor | None = None,
    ) -> Tensor:
        """Logits [number wanted, V] at the True places of a mask [B, T], in row-major order; see `forward`."""
        span = self._span(tokens_BT.shape, state, num_tokens, positions_BT, among_BTT, write, over)
        hidden_BTE = self._select(self._hidden(tokens_BT, span, state, time_B), None)
        return self._head(hidden_BTE[wanted_BT])

    def hidden(
        self,
        tokens_BT: Tensor,
        *,
        positions_BT: Tensor | None = None,
        among_BTT: Tensor | None = None,
        time_B: Tensor | None = None,
    ) -> Tensor:
        """What `logits_of` reads, [B, T, E], without a state, column by column (`shift_logits` is the reader's); see
        `forward`.
        """
        span = self._span(tokens_BT.shape, None, None, positions_BT, among_BTT, "none", None)
        return self._hidden(tokens_BT, span, None, time_B)

    def logits_of(self, hidden_XE: Tensor) -> Tensor:
        """Logits [..., V] of columns that `hidden` gave."""
        return self._head(hidden_XE)

    def _one_token(self, token_11: Tensor, state: State) -> Tensor:
        if state.plan is None or state.plan.model is not self:
            state.plan = one_token.Plan(self, state)
        if state.lengths[0] >= state.max_len:
            self.span_of(token_11, state)  # says what is wrong
        state.reserve(state.lengths[0] + 1)
        return state.plan.logits(token_11)[None]

    def span_of(self, tokens_BT: Tensor, state: State) -> Span:
        """The span of a forward that appends to a state and leaves everything else as usual."""
        return self._span(tokens_BT.shape, state, None, None, None, "append", None)

    def _hidden(self, tokens_BT: Tensor, span: Span, state: State | None, time_B: Tensor | None) -> Tensor:
        """What the head reads, [B, T, E]; the state has counted the tokens."""
        hidden_BTE = self.through_layers(tokens_BT, span, None if state is None else state.layers, time_B)
        if state is not None and span.write and not span.overwrites:
            state.advance(span.num_tokens)
        return hidden_BTE

    def through_layers(
        self,
        tokens_BT: Tensor,
        span: Span,
        states: Sequence[LayerState | None] | None,
        time_B: Tensor | None = None,
    ) -> Tensor:
        """What the head reads, [B, T, E]: the residual stream after the last layer, and of a conditioned model the last
        norm of it, which differs from row to row. Tensors alone.
        """
        x_RE = F.embedding(tokens_BT.flatten(), self.embedding.t())
        span.embedded_RE = x_RE
        states = states or [None] * len(self.layers)
        if self.conditioning is None:
            for layer, state in zip(self.layers, states, strict=True):
                x_RE = layer(x_RE, span, state)
        else:
            *modulations, last = self.conditioning(time_B, *tokens_BT.shape)
            for layer, state, modulation in zip(self.layers, states, modulations, strict=True):
                x_RE = layer(x_RE, span, state, modulation)
            x_RE = last.of(self._normed(x_RE))
        return x_RE.view(*tokens_BT.shape, -1)

    def typed_layers(self) -> list[Layer | StreamLayer]:
        return list(self.layers)  # type: ignore[arg-type]

    def _normed(self, x: Tensor) -> Tensor:
        return NORMS[self.config.norm](x, self.norm, self.config.norm_eps)

    def _head(self, x: Tensor) -> Tensor:
        logits = (self._normed(x) if self.conditioning is None else x) @ self.head_weight
        return logits if self.head_bias is None else logits + self.head_bias

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

    def _span(
        self,
        shape: torch.Size,
        state: State | None,
        num_tokens: Sequence[int] | None,
        positions_BT: Tensor | None,
        among_BTT: Tensor | None,
        write: Write,
        over: Sequence[int] | Tensor | None,
    ) -> Span:
        B, T = shape
        if not B or not T or (state is not None and len(state.lengths) != B):
            rows = "" if state is None else f" for a state of {len(state.lengths)} rows"
            raise ValueError(f"tokens of shape [{B}, {T}]{rows}; as many rows are needed, and at least one column")
        if num_tokens is not None and (len(num_tokens) != B or any(not 0 <= count <= T for count in num_tokens)):
            raise ValueError(f"num_tokens={list(num_tokens)} must be 0 to {T} (the columns) for each of {B} rows")
        if (over is not None) != (write == "overwrite"):
            raise ValueError("over names the slots for write='overwrite'; give both, or neither")
        if over is not None:
            self._check_over(over, T, state, num_tokens)
        return host_span(
            self.config,
            self.tables,
            self.device,
            shape,
            state,
            num_tokens,
            positions_BT,
            among_BTT,
            write != "none",
            over,
        )

    def _check_over(
        self, over: Sequence[int] | Tensor, T: int, state: State | None, num_tokens: Sequence[int] | None
    ) -> None:
        if state is None or not self.config.keeps_slots:
            raise ValueError("write='overwrite' needs a state of one slot a position (attention without a window)")
        if isinstance(over, Tensor):
            return  # the device would have to be asked
        counts = num_tokens or [T] * len(over)
        for first, count, length in zip(over, counts, state.lengths, strict=True):
            if count and not 0 <= first <= length - count:
                raise ValueError(f"slots {first} to {first + count - 1} are not among the {length} that a row has")

    def kernels(self) -> str:
        """What runs the layers here, for the records."""
        return kernels.in_use(self.device, self.config.layers)


def _layer(part: Any, config: ModelConfig, shared: nn.ModuleDict) -> Layer | StreamLayer:
    return (StreamLayer if part.reads_stream else Layer)(part, config, shared)
