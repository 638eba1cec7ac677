"""What all mixers share: weight matrices, the norm, the span of positions that a forward covers.

Dimension letters: B batch, T tokens in, R = B T rows, S slots seen, H heads, D head width, E model width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def matrix(num_inputs: int, num_outputs: int) -> nn.Parameter:
    """Weights [in, out], used as x @ weights; the stack initialises them.

    This order, not torch's [out, in]: with one or a few rows on a CPU the product then runs along the outputs and is up
    to 1.6 times faster; on many rows and on a GPU nothing changes.
    """
    return nn.Parameter(torch.empty(num_inputs, num_outputs))


NORM_EPS = 1e-5


def rms_norm(x: Tensor, weight: Tensor, eps: float = NORM_EPS) -> Tensor:
    """x / rms(x) x weight (1910.07467): torch's `rms_norm`, which on a CPU is many small operators; without gradients,
    the same in five, and one row (whose size costs no wait on a CPU) in four.
    """
    if torch.is_grad_enabled() or x.is_cuda or x.dtype == torch.bfloat16 or torch.compiler.is_compiling():
        return F.rms_norm(x, weight.shape, weight, eps)
    if x.dim() == 2 and x.shape[0] == 1:
        row = x.view(-1)
        scale = (torch.dot(row, row).item() / row.shape[0] + eps) ** -0.5
        return torch.addcmul(_scalar(0.0, x.dtype), x, weight, value=scale)
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return (x * torch.addcmul(_scalar(eps, x.dtype), norm, norm, value=1 / x.shape[-1]).rsqrt_()).mul_(weight)


def layer_norm(x: Tensor, weight: Tensor, eps: float = NORM_EPS) -> Tensor:
    """(x - mean(x)) / deviation(x) x weight (1607.06450), without a bias."""
    return F.layer_norm(x, weight.shape, weight, None, eps)


NORMS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {"rms": rms_norm, "layer": layer_norm}


@cache
def _scalar(value: float, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor(value, dtype=dtype)


class Derived:
    """What depends on weights alone, kept from one forward without gradients to the next.

    It is computed again once a weight was written to, moved or replaced. With gradients on, or while compiling, nothing
    is kept. Torch counts the writes, except those through `.data` and of its fused optimizers: `forget` after these.
    """

    def __init__(self, compute: Callable[..., Any]) -> None:
        self._compute = compute
        self._seen: list[tuple[Tensor | None, int, int]] = []
        self._value: Any = None

    def __call__(self, *weights: Tensor | None) -> Any:
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return self._compute(*weights)
        if len(weights) == len(self._seen):
            for weight, (seen, version, address) in zip(weights, self._seen, strict=True):
                if weight is not seen:
                    break
                if weight is not None and (weight._version != version or weight.data_ptr() != address):
                    break
            else:
                return self._value
        value = self._compute(*weights)
        if not any(weight is not None and weight.is_inference() for weight in weights):  # whose writes are not counted
            self._seen = [(w, 0, 0) if w is None else (w, w._version, w.data_ptr()) for w in weights]
            self._value = value
        return value

    def forget(self) -> None:
        """Compute anew next time."""
        self._seen, self._value = [], None


@dataclass(slots=True)
class Span:
    """Where the new tokens of one forward stand; made once, read by every layer.

    Rows are right-aligned: row b's last num_tokens[b] columns are tokens, the columns before are padding that is
    neither seen nor stored.

    Attributes:
        batch_size: B.
        num_tokens: tokens of each row.
        write: whether states take the new tokens up, or only look.
        overwrites: the new tokens take slots that are taken already, and every slot of a row is seen.
        rotary: cos and sin [B or 1, 1, T, D] (or [T, D]) at the tokens' positions, one pair a table of the model.
        start: first slot that is written when every row writes the same slots, else None.
        stop: slots that exist after this forward, of the longest row.
        mask_B1TS: who sees whom, or None when `is_causal` or everybody says it.
        is_causal: the plain lower triangle.
        pads_B: padding columns of each row, or None.
        position_BT: positions [B, T] of the columns, meaningless in padding; None when every row starts at `start`.
        scatter: (row index, column index, slot index) of every token, when rows write different slots.
        embedded_RE: what the embedding said, for layers that read it again.
        on_device: one token a row, in a step that is compiled or captured once and run at every length. Then `start`
            and `pads_B` are None, `stop` is fixed for many steps, and position_BT (= the length of each row), mask_B1TS
            and `scatter` are computed on the device. A mixer may use no other number that changes from step to step
            (no Python int, no `.item()`), takes the token up by changing the tensors of its state in place, and
            makes no copy for a mark: a marked state is stepped eagerly.
    """

    batch_size: int
    num_tokens: list[int]
    write: bool
    rotary: list[tuple[Tensor, Tensor]]
    start: int | None
    stop: int
    mask_B1TS: Tensor | None
    is_causal: bool
    pads_B: Tensor | None
    position_BT: Tensor | None
    scatter: tuple[Tensor, Tensor, Tensor] | None
    embedded_RE: Tensor | None = None
    overwrites: bool = False
    on_device: bool = False
    memo: dict[object, object] = field(default_factory=dict)  # what one layer worked out and others of its kind reuse

    @property
    def needs_no_state(self) -> bool:
        """A look from the beginning: nothing comes from a recurrent layer's state, and nothing goes there."""
        return self.start == 0 and not self.write


def positive(owner: str, **values: float | None) -> None:
    """Raise ValueError for the first value below 1 (None is not given); `owner` is the dotted key of their config."""
    for name, value in values.items():
        if value is not None and value < 1:
            raise ValueError(f"{owner}.{name}={value} must be at least 1")
