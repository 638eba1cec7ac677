"""Random numbers that are a function of what they are for, not of when, where or beside whom they are drawn.

A draw is u(request seed, position, step, purpose): a 64-bit mix of the four (the finaliser of SplitMix64, Steele et al.
2014) in integer arithmetic, equal on every device. So a request generates the same text alone, in a batch, or in
another order.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

PURPOSES = {"token": 1, "order": 2, "choice": 3, "gumbel": 4, "revision": 5, "noise": 6}
_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIERS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


def uniform(seed_B: Sequence[int], position_L: Tensor, step: int, purpose: str) -> Tensor:
    """Uniform numbers in (0, 1), float64 [B, L], on the device of `position_L` (int64 [L])."""
    device = position_L.device
    seed_B1 = torch.tensor([_signed(seed * _GOLDEN + PURPOSES[purpose]) for seed in seed_B], device=device)[:, None]
    key_B1 = _mix(_mix(seed_B1) ^ _signed((step + 1) * _GOLDEN))
    bits_BL = _mix(key_B1 ^ _mix(position_L * _signed(_GOLDEN) + 1))
    return (_shift(bits_BL, 12).double() + 0.5) * 2.0**-52  # 53 bits: neither 0 nor 1 after rounding


def _mix(x: Tensor) -> Tensor:
    for shift, multiplier in _MULTIPLIERS:
        x = (x ^ _shift(x, shift)) * _signed(multiplier)
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    """The int64 with the same 64 bits."""
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value
