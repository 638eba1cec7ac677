"""Time conditioning of a denoiser: every norm is shifted and scaled, and every layer gated, by how noisy the canvas is.

This is adaLN-zero as in DiT (2212.09748) and MDLM (2406.07524): x + gate * mixer(norm(x) * (1 + scale) + shift), and
the last norm with a shift and a scale of its own. All of them are one linear function of an embedding of the noise, so
the modulations of the whole stack come out of one product a forward. They start at zero: a fresh stack passes the
embedding through.

What is embedded is the total noise of MDLM's log-linear schedule, sigma = -log(1 - (1 - eps) t), for a time t in (0, 1]
that is the probability of a mask up to eps. A network that was trained without reading the time (MDLM's and BD3-LM's
published ones) is fed sigma = 0: then the modulations are constants, computed once.

Dimension letters: B batch, T tokens (1 where all of a row share it), E model width, C conditioning width, F
frequencies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from paradigms.models import operations
from paradigms.models.layers import Derived, matrix, positive

if TYPE_CHECKING:
    from paradigms.models.forward_pass import ForwardPass

SLOWEST = 1e-4  # frequency that the ladder of frequencies, from 1 down, does not quite reach


@dataclass(frozen=True, kw_only=True)
class ConditioningConfig:
    """Time conditioning.

    Attributes:
        width: of the embedding that the modulations are made of.
        frequency_dim: sines and cosines of sigma that it is made of; even.
        reads_time: whether forwards are told the time; False feeds sigma = 0.
        eps: of the schedule: at t = 1 this share is still visible.
    """

    width: int = 128
    frequency_dim: int = 256
    reads_time: bool = True
    eps: float = 1e-3

    key: ClassVar[str] = "conditioning"
    not_weights: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        positive("model.conditioning", width=self.width, frequency_dim=self.frequency_dim)
        if self.frequency_dim % 2:
            raise ValueError(
                f"model.conditioning.frequency_dim={self.frequency_dim} must be even: a sine and a cosine each"
            )
        if not 0 < self.eps < 1:
            raise ValueError(f"model.conditioning.eps={self.eps} must lie between 0 and 1, both excluded")

    def num_parameters(self, d_model: int, num_layers: int) -> int:
        """Of the embedding and the modulations of all layers and the last norm."""
        return (self.frequency_dim + self.width + 2) * self.width + (self.width + 1) * numbers(d_model, num_layers)

    def matmul_flops(self, run: ForwardPass) -> int:
        """Operations of a forward whose rows have a time each; none where the modulations are constants."""
        if not self.reads_time:
            return 0
        made = numbers(run.d_model, len(run.model.layers))
        return 2 * run.rows * self.width * (self.frequency_dim + self.width + made)

    def activation_bytes(self, run: ForwardPass) -> int:
        """Of the modulations, which live as long as the forward."""
        rows = run.rows if self.reads_time else 1
        return rows * numbers(run.d_model, len(run.model.layers)) * run.itemsize

    def other_flops(self, run: ForwardPass) -> int:
        """sigma, the frequencies, sines and cosines, biases and SiLU of two layers; of every token a scale, a shift and
        a gate.
        """
        num_layers, half = len(run.model.layers), self.frequency_dim // 2
        applied = run.positions * (3 * num_layers + 2) * run.d_model
        if not self.reads_time:
            return applied + (num_layers + 1) * run.d_model  # 1 + scale
        made = 2 + 3 * half + 2 * self.width * (1 + operations.SILU) + numbers(run.d_model, num_layers)
        return applied + 2 * half + run.rows * (made + (num_layers + 1) * run.d_model)


def numbers(d_model: int, num_layers: int) -> int:
    """Shift, scale and gate of each layer, shift and scale of the last norm."""
    return (3 * num_layers + 2) * d_model


class Modulation(NamedTuple):
    """What one norm and its mixer are changed by, each [B or 1, T or 1, E]; the last norm has no gate."""

    shift: Tensor
    scale: Tensor
    gate: Tensor | None = None

    def of(self, x_RE: Tensor) -> Tensor:
        """x (1 + scale) + shift."""
        rows = x_RE.view(self._rows(x_RE), -1, x_RE.shape[-1])
        return torch.addcmul(self.shift, rows, 1 + self.scale).view_as(x_RE)

    def gated(self, y_RE: Tensor) -> Tensor:
        """gate x y."""
        assert self.gate is not None
        return (y_RE.view(self._rows(y_RE), -1, y_RE.shape[-1]) * self.gate).view_as(y_RE)

    def _rows(self, x_RE: Tensor) -> int:
        B, T, _ = self.shift.shape
        return x_RE.shape[0] // T if B == 1 and T > 1 else B


class Conditioning(nn.Module):
    """sigma -> sines and cosines -> two layers -> SiLU -> the modulations of the stack.

    Args:
        num_layers: of the stack.
    """

    def __init__(self, config: ConditioningConfig, d_model: int, num_layers: int) -> None:
        super().__init__()
        self.config, self.d_model = config, d_model
        self.embed = matrix(config.frequency_dim, config.width)
        self.embed_bias = nn.Parameter(torch.zeros(config.width))
        self.mix = matrix(config.width, config.width)
        self.mix_bias = nn.Parameter(torch.zeros(config.width))
        self.modulation = nn.Parameter(torch.zeros(config.width, numbers(d_model, num_layers)))
        self.modulation_bias = nn.Parameter(torch.zeros(numbers(d_model, num_layers)))
        self._constant = Derived(partial(_constant, config.frequency_dim, d_model))

    def forward(self, time_B: Tensor | None, batch_size: int, num_columns: int) -> list[Modulation]:
        """One modulation a layer, and that of the last norm.

        Args:
            time_B: t in [0, 1], of each row [B] or of each token [B, T]; not looked at unless the network reads it.

        Raises:
            ValueError: no time for a network that reads it, or of another shape.
        """
        if not self.config.reads_time:
            return self._constant(*self.parameters())
        if time_B is None:
            raise ValueError(
                "this model reads the time (model.conditioning.reads_time); give time_B, t in (0, 1] for each row"
            )
        if time_B.shape not in ((batch_size,), (batch_size, num_columns)):
            raise ValueError(f"time_B of shape {list(time_B.shape)} for tokens [{batch_size}, {num_columns}]")
        exact = torch.promote_types(self.modulation.dtype, torch.float32)
        sigma = -torch.log1p((self.config.eps - 1) * time_B.to(exact))
        sigma_BT = sigma if sigma.dim() == 2 else sigma[:, None]
        return _modulations(sigma_BT, self.config.frequency_dim, self.d_model, *self.parameters())


def _constant(frequency_dim: int, d_model: int, *weights: Tensor) -> list[Modulation]:
    """Without noise: one for all rows and tokens."""
    exact = torch.promote_types(weights[0].dtype, torch.float32)
    return _modulations(weights[0].new_zeros(1, 1, dtype=exact), frequency_dim, d_model, *weights)


def _modulations(sigma_BT: Tensor, frequency_dim: int, d_model: int, *weights: Tensor) -> list[Modulation]:
    """Of the parameters in their order."""
    embed, embed_bias, mix, mix_bias, modulation, modulation_bias = weights
    half = frequency_dim // 2
    steps_F = torch.arange(half, device=sigma_BT.device, dtype=sigma_BT.dtype)
    angle_BTF = sigma_BT[..., None] * torch.exp(steps_F * (math.log(SLOWEST) / half))
    waves_BTF = torch.cat((angle_BTF.cos(), angle_BTF.sin()), -1).to(embed.dtype)
    embedded_BTC = F.silu(F.silu(waves_BTF @ embed + embed_bias) @ mix + mix_bias)
    parts = (embedded_BTC @ modulation + modulation_bias).split(d_model, -1)
    return [Modulation(*parts[start : start + 3]) for start in range(0, len(parts), 3)]
