"""Rotary positions (2104.09864), and how their frequencies are stretched for texts longer than a model was trained on.

Everything happens when the table of angles is made: a forward only reads rows of it.

Dimension letters: B batch, T tokens, H heads, D head width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_NEEDED = {  # kind -> (fields that it needs, fields that it may have)
    "linear": ((), ()),
    "llama3": (("original_max_positions", "low_freq_factor", "high_freq_factor"), ()),
    "yarn": (("original_max_positions",), ("beta_fast", "beta_slow", "attention_factor")),
}


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """Frequencies divided by `factor`, all of them or the slow ones only. A field of another kind must be left out.

    Attributes:
        kind: `linear` divides all (position interpolation, 2306.15595); `llama3` those that turn less than
            low_freq_factor times within original_max_positions, not those that turn more than high_freq_factor times,
            and blends between (Llama 3.1); `yarn` blends along the dimensions between beta_fast and beta_slow turns,
            and scales cos and sin (2309.00071).
        factor: how many times longer texts may be.
        original_max_positions: positions the model was trained on before.
        low_freq_factor, high_freq_factor: of llama3.
        beta_fast, beta_slow: of yarn; None is 32 and 1.
        attention_factor: of yarn; None is the paper's 0.1 ln(factor) + 1.
    """

    kind: str
    factor: float
    original_max_positions: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    attention_factor: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in _NEEDED:
            raise ValueError(f"rope_scaling.kind={self.kind!r} is unknown; it is one of {', '.join(_NEEDED)}")
        if self.factor < 1:
            raise ValueError(f"rope_scaling.factor={self.factor} must be at least 1")
        needed, optional = _NEEDED[self.kind]
        for name in self.__dataclass_fields__.keys() - {"kind", "factor"}:
            given = getattr(self, name) is not None
            if given and name not in needed + optional:
                raise ValueError(f"rope_scaling.{name} means nothing for kind={self.kind}; leave it out (null)")
            if name in needed and not given:
                raise ValueError(f"rope_scaling.kind={self.kind} needs rope_scaling.{name}")

    def frequencies(self, frequency_D: Tensor, theta: float) -> Tensor:
        """Frequencies [D / 2] in radians a position, from the unscaled ones."""
        if self.kind == "linear":
            return frequency_D / self.factor
        blend_D = self._llama3(frequency_D) if self.kind == "llama3" else self._yarn(len(frequency_D), theta)
        return (1 - blend_D) * frequency_D / self.factor + blend_D * frequency_D

    @property
    def amplitude(self) -> float:
        """What cos and sin are multiplied by."""
        if self.kind != "yarn":
            return 1.0
        return 0.1 * math.log(self.factor) + 1 if self.attention_factor is None else self.attention_factor

    def _llama3(self, frequency_D: Tensor) -> Tensor:
        """Part of each frequency that stays, by the turns it makes in the original length."""
        assert self.original_max_positions and self.low_freq_factor is not None and self.high_freq_factor is not None
        turns_D = self.original_max_positions * frequency_D / (2 * math.pi)
        return ((turns_D - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)).clamp(0, 1)

    def _yarn(self, num_frequencies: int, theta: float) -> Tensor:
        """The same by a ramp over the dimensions, between those of beta_fast and of beta_slow turns (equation 23)."""
        dim, length = 2 * num_frequencies, self.original_max_positions
        assert length

        def dimension(turns: float) -> float:
            return dim * math.log(length / (2 * math.pi * turns)) / (2 * math.log(theta))

        low = max(math.floor(dimension(self.beta_fast or 32)), 0)
        high = min(math.ceil(dimension(self.beta_slow or 1)), dim - 1)
        ramp_D = (torch.arange(num_frequencies, dtype=torch.float64) - low) / max(high - low, 1e-3)
        return 1 - ramp_D.clamp(0, 1)


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """Which angles.

    Attributes:
        dim: width that is turned.
        theta: base of the frequencies.
        scaling: how they are stretched, if at all.
    """

    dim: int
    theta: float = 10_000.0
    scaling: RopeScaling | None = None

    def tables(self, num_positions: int) -> tuple[Tensor, Tensor]:
        """cos and sin [positions, dim], float64, halves side by side, first sin half negated."""
        frequency = self.theta ** (-torch.arange(0, self.dim, 2, dtype=torch.float64) / self.dim)
        if self.scaling is not None:
            frequency = self.scaling.frequencies(frequency, self.theta)
        angle = torch.arange(num_positions, dtype=torch.float64)[:, None] * frequency
        cos, sin = torch.cat((angle.cos(), angle.cos()), -1), torch.cat((-angle.sin(), angle.sin()), -1)
        return (cos, sin) if self.scaling is None else (cos * self.scaling.amplitude, sin * self.scaling.amplitude)


def rotate(x_BHTD: Tensor, cos_B1TD: Tensor, sin_B1TD: Tensor) -> Tensor:
    """Queries or keys, turned by the angles of their positions."""
    return torch.addcmul(x_BHTD * cos_B1TD, x_BHTD.roll(x_BHTD.shape[-1] // 2, -1), sin_B1TD)
