"""Feed-forward layer without a gate: GELU between two matrices, as in GPT-2, DiT and MDLM.

Dimension letters: R rows, E model width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paradigms.models import operations
from paradigms.models.kernels import product
from paradigms.models.layer_config import LayerConfig
from paradigms.models.layer_state import StateSpec
from paradigms.models.layers import Span, matrix, positive

if TYPE_CHECKING:
    from paradigms.models.config import ModelConfig
    from paradigms.models.forward_pass import ForwardPass


@dataclass(frozen=True, kw_only=True)
class MLPConfig(LayerConfig):
    """Feed-forward layer without a gate.

    Attributes:
        width: inner width.
        bias: add a bias behind both matrices.
    """

    width: int = 512
    bias: bool = True

    key: ClassVar[str] = "mlp"
    free: ClassVar[tuple[str, int]] = ("width", 8)
    keeps_slots: ClassVar[bool] = True

    def check(self, model: ModelConfig) -> None:
        positive(f"model.{self.key}", width=self.width)

    def num_parameters(self, d_model: int) -> int:
        return 2 * d_model * self.width + self.bias * (d_model + self.width)

    def state_bytes(self, d_model: int, *, length: int, itemsize: int) -> int:
        return 0

    def matmul_flops(self, run: ForwardPass) -> int:
        return 4 * run.positions * run.d_model * self.width

    def other_flops(self, run: ForwardPass) -> int:
        return run.positions * (operations.GELU_TANH * self.width + self.bias * (self.width + run.d_model))

    def activation_bytes(self, run: ForwardPass) -> int:
        """The inner width before and after its GELU, and what is projected back, with and without its bias."""
        back = run.d_model if not self.bias else max(run.d_model, 2 * run.d_model - self.width)
        return run.itemsize * run.positions * (2 * self.width + back)

    def build(self, model: ModelConfig, shared: nn.ModuleDict) -> MLP:
        return MLP(model.d_model, self)


class MLP(nn.Module):
    """down(gelu(up(x))), GELU by its tanh approximation (1606.08415)."""

    def __init__(self, d_model: int, config: MLPConfig) -> None:
        super().__init__()
        self.up = matrix(d_model, config.width)
        self.up_bias = nn.Parameter(torch.zeros(config.width)) if config.bias else None
        self.down = matrix(config.width, d_model)
        self.down_bias = nn.Parameter(torch.zeros(d_model)) if config.bias else None

    def new_state(self, batch_size: int, capacity: int, spec: StateSpec) -> None:
        return None

    def forward(self, x_RE: Tensor, span: Span, state: None) -> Tensor:
        up = x_RE @ self.up if self.up_bias is None else torch.addmm(self.up_bias, x_RE, self.up)
        y_RE = product(F.gelu(up, approximate="tanh"), self.down)
        return y_RE if self.down_bias is None else y_RE + self.down_bias
