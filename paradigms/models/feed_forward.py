"""Feed-forward layer: SwiGLU.

Dimension letters: R rows, E model width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paradigms.models import operations
from paradigms.models.kernels import product, row_product
from paradigms.models.layer_config import LayerConfig
from paradigms.models.layer_state import StateSpec
from paradigms.models.layers import Span, matrix, positive
from paradigms.models.one_token import Place, Step

if TYPE_CHECKING:
    from paradigms.models.config import ModelConfig
    from paradigms.models.forward_pass import ForwardPass


@dataclass(frozen=True, kw_only=True)
class FeedForwardConfig(LayerConfig):
    """Feed-forward layer.

    Attributes:
        width: inner width.
    """

    width: int = 344

    key: ClassVar[str] = "feed_forward"
    free: ClassVar[tuple[str, int]] = ("width", 8)
    keeps_slots: ClassVar[bool] = True

    def check(self, model: ModelConfig) -> None:
        positive(f"model.{self.key}", width=self.width)

    def num_parameters(self, d_model: int) -> int:
        return 3 * d_model * self.width

    def state_bytes(self, d_model: int, *, length: int, itemsize: int) -> int:
        return 0

    def other_flops(self, run: ForwardPass) -> int:
        return run.positions * (operations.SILU + 1) * self.width

    def activation_bytes(self, run: ForwardPass) -> int:
        """Gate and up with what the two become: before their product is done, or while it is projected back."""
        return run.itemsize * run.positions * max(4 * self.width, 3 * self.width + run.d_model)

    def build(self, model: ModelConfig, shared: nn.ModuleDict) -> FeedForward:
        return FeedForward(model.d_model, self.width)


class FeedForward(nn.Module):
    """SwiGLU (2002.05202): down(silu(gate(x)) x up(x)), gate and up in one matrix."""

    def __init__(self, d_model: int, width: int) -> None:
        super().__init__()
        self.gate_up = matrix(d_model, 2 * width)
        self.fused = {"gate_up": (width, width)}
        self.down = matrix(width, d_model)

    def new_state(self, batch_size: int, capacity: int, spec: StateSpec) -> None:
        return None

    def one_token(self, state: None) -> Step:
        gate_up, down, silu = self.gate_up, row_product(self.down), F.silu

        def step(x_1E: Tensor, place: Place) -> Tensor:
            gate, up = torch.mm(x_1E, gate_up).chunk(2, -1)
            return down(silu(gate).mul_(up))

        return step

    def forward(self, x_RE: Tensor, span: Span, state: None) -> Tensor:
        gate, up = (x_RE @ self.gate_up).chunk(2, -1)
        return product(F.silu(gate) * up, self.down)
