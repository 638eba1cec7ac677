"""One token of one row on a CPU: the function of the layers, with everything looked up once.

At a few million parameters a decode step is a hundred operators of one or two microseconds, and what Python does
between them (module calls, attribute lookups, choices that come out the same every time) costs as much again. So a
state keeps a plan: for every layer one closure that knows its tensors. The layers' own `forward` is the reference; a
layer that has no closure, or whose state is not plain, runs it inside the plan. Under a living state the values of
weights may change, the tensors must stay.

Dimension letters: E model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from paradigms.models.layers import Span
from paradigms.models.rotary import rotate

if TYPE_CHECKING:
    from paradigms.models.stack import Model
    from paradigms.models.state import State


class Place:
    """Where the token stands.

    Attributes:
        start, stop: its slot, and the slots that exist with it.
        turns: for each rotary table of the model the matrix [D, D] that turns a row to this position: one product for
            the heads of a layer, and the same matrix for all layers.
    """

    __slots__ = ("_make_span", "_span", "start", "stop", "turns")

    def __init__(self, start: int, turns: list[Tensor], make_span: Callable[[], Span]) -> None:
        self.start, self.stop, self.turns = start, start + 1, turns
        self._make_span = make_span
        self._span: Span | None = None

    @property
    def span(self) -> Span:
        """The same place for a layer's own forward; made when the first such layer asks."""
        if self._span is None:
            self._span = self._make_span()
        return self._span


Step = Callable[[Tensor, Place], Tensor]  # what a layer or a mixer makes of x [1, E]


def applies(model: Model, tokens_BT: Tensor) -> bool:
    """Whether a forward that appends to a state can take this path."""
    return (
        tokens_BT.numel() == 1
        and model.plain
        and model.embedding.is_cpu
        and model.embedding.dtype in (torch.float32, torch.float64)
        and not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
    )


class Plan:
    """The layers of a model for one state, ready to be called."""

    def __init__(self, model: Model, state: State) -> None:
        self.model, self.state = model, state
        self.layers = [layer.one_token(part) for layer, part in zip(model.typed_layers(), state.layers, strict=True)]
        self.tables = [(torch.eye(cos.shape[-1], dtype=cos.dtype), cos, sin) for cos, sin in model.tables]
        self.embedding_VE = model.embedding.t()
        head = model.head_weight
        self.head = normed(model.norm, model.config.norm_eps, lambda x_1E, place: torch.mm(x_1E, head))

    def logits(self, token_11: Tensor) -> Tensor:
        """Logits [1, V] after this token; the state has taken it up."""
        start = self.state.lengths[0]
        x_1E = F.embedding(token_11.view(1), self.embedding_VE)

        def make_span() -> Span:
            span = self.model.span_of(token_11, self.state)
            span.embedded_RE = embedded_1E
            return span

        embedded_1E = x_1E
        turns = [rotate(eye, cos.narrow(0, start, 1), sin.narrow(0, start, 1)) for eye, cos, sin in self.tables]
        place = Place(start, turns, make_span)
        for layer in self.layers:
            x_1E = layer(x_1E, place)
        self.state.advance((1,))
        return self.head(x_1E, place)


def residual(norm: Tensor, eps: float, mixer: Step) -> Step:
    """x + mixer(norm(x))."""
    inner = normed(norm, eps, mixer)
    return lambda x_1E, place: x_1E + inner(x_1E, place)


def normed(norm: Tensor, eps: float, mixer: Step) -> Step:
    """mixer(norm(x)); the size of one row is read on the host, which costs no wait on a CPU."""
    width, dot, addcmul, zero = norm.shape[0], torch.dot, torch.addcmul, torch.zeros((), dtype=norm.dtype)

    def step(x_1E: Tensor, place: Place) -> Tensor:
        row = x_1E.view(width)
        scale = (dot(row, row).item() / width + eps) ** -0.5
        return mixer(addcmul(zero, x_1E, norm, value=scale), place)

    return step
