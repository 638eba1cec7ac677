"""Ancestral sampling of the discrete-time chain: T steps, at each of which every mask may become a token (MDLM).

From time t to s = t − 1/T a mask becomes a token with probability (t − s)/t. That is what independent uniform times
give that are looked at in T bins of equal width, so the times are drawn first and each position waits for its bin.
Positions that share a bin do not see each other. With T so large that few do, most bins are empty.

A model that is not told the time says the same again where nothing changed. `reuse` skips such steps, each row its own
(MDLM's cached sampler, there by comparing whole batches): T (1 − (1 − 1/T)^L) forwards are expected for L positions,
and without it, T − Σ_{k<T} (k/T)^L, until the last mask is gone.

`draws=float32` is a control. It draws token or mask at every step as published code did: one Gumbel-argmax over the
vocabulary and the mask, with noise from 24-bit uniform numbers. These end too early to reach the tiny probabilities of
improbable tokens at a short step, which acts like a lower temperature (2409.02908).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from paradigms.decoding import draws
from paradigms.decoding.diffusion.contract import Look, Step, Stretch
from paradigms.decoding.diffusion.guess import Guess
from paradigms.decoding.diffusion.samplers.ranking import position_times
from paradigms.decoding.diffusion.samplers.time_steps import TimeSteps
from paradigms.decoding.diffusion.schedule import steps_of_block

PRECISIONS = ("float64", "float32")


@dataclass(frozen=True, kw_only=True)
class Ancestral(TimeSteps):
    """Positions in T bins of equal width of their times.

    Attributes:
        reuse: whether steps in which nothing changes cost no forward; if not, every step is read until no mask is left.
        draws: "float64", or the control "float32", which needs reuse=false: what changes is not known before it reads.
    """

    reuse: bool = True
    draws: str = "float64"
    exact: ClassVar[bool] = True  # in float64, where no two positions meet in a bin

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.draws not in PRECISIONS:
            raise ValueError(
                f"decoder.sampler.draws={self.draws!r} is unknown; it is float64, or float32 to see its bias"
            )
        if self.draws == "float32" and self.reuse:
            raise ValueError(
                "decoder.sampler.draws=float32 draws token or mask at every step, so that no step can be skipped; "
                "set decoder.sampler.reuse=false"
            )

    @property
    def chooses_blindly(self) -> bool:  # type: ignore[override]
        return self.draws == "float64"

    def looks(self, stretch: Stretch) -> Iterator[Look]:
        L, T = stretch.opened, steps_of_block(self.steps, stretch.before, stretch.opened, stretch.total)
        return _looks_at_full_bins(L, T) if self.reuse else self._looks_at_all_bins(L, T)

    def _looks_at_all_bins(self, L: int, T: int) -> Iterator[Look]:
        for index in range(T):
            working = 1 - (index / T) ** L  # some position is in this bin or a later one
            masked, changed = L * (1 - index / T) / working, self._changed(L, T, index)
            wanted = L / T / working if self.chooses_blindly else masked
            yield Look(index=index, working=working, masked=masked, changed=changed, wanted=wanted, varying=L)

    @staticmethod
    def _changed(L: int, T: int, index: int) -> float:
        """Expected positions of the bin before, given that some position is in this one or a later one."""
        if not index:
            return 0.0
        share = index / T
        return L / T * (1 - share ** (L - 1)) / (1 - share**L)

    def chosen_before(self, step: Step) -> Tensor | None:
        if self.draws == "float32":
            return None
        bin_BW = self._bins(step)
        return step.masked_BW & (bin_BW == self._current(step, bin_BW))

    def choose(self, step: Step, guess: Guess) -> Tensor:
        """The float32 control: token or mask in one draw for every masked position."""
        steps_B = torch.tensor(self.num_steps(step), device=step.masked_BW.device)
        row_M = step.masked_BW.nonzero()[:, 0]
        t_M1 = (1 - step.index / steps_B).float()[row_M, None]
        s_M1 = (1 - (step.index + 1) / steps_B).float()[row_M, None]
        weights_MV = torch.cat([guess.drawn_from_MV.float() * (t_M1 - s_M1), s_M1], -1)  # the mask is the last one
        drawn_M = (weights_MV / _exponential_float32(step, row_M, weights_MV.shape[1])).argmax(-1)
        is_token_M = drawn_M < weights_MV.shape[1] - 1
        guess.tokens_BW = guess.placed(drawn_M * is_token_M, 0)  # instead of its own draws
        return guess.placed(is_token_M, False)

    def times(self, step: Step) -> Tensor:
        """The time at which the step begins."""
        steps_B1 = torch.tensor(self.num_steps(step), device=step.masked_BW.device).double()[:, None]
        return (1 - self._current(step, self._bins(step)) / steps_B1)[:, 0]

    def _bins(self, step: Step) -> Tensor:
        """The step at which each position becomes a token, int64 [B, W]."""
        steps_B1 = torch.tensor(self.num_steps(step), device=step.masked_BW.device)[:, None]
        return torch.minimum(((1 - position_times(step)) * steps_B1).long(), steps_B1 - 1)

    def _current(self, step: Step, bin_BW: Tensor) -> Tensor | int:
        """The step of the chain that each row is at, [B, 1] where rows skip what changes nothing."""
        if not self.reuse:
            return step.index
        return bin_BW.masked_fill(~step.masked_BW, torch.iinfo(bin_BW.dtype).max).amin(-1, keepdim=True)


def _exponential_float32(step: Step, row_M: Tensor, num: int) -> Tensor:
    """Exponential noise float32 [M, num] as torch.rand and the published formula make it: from multiples of 2^-24."""
    seeds, position_M = [step.seeds[row] for row in row_M.tolist()], step.position_BW[step.masked_BW]
    token_N, few = torch.arange(num, device=row_M.device), max(1, (1 << 15) // num)  # few at a time stay in the cache
    noise = [
        draws.uniform(
            seeds[start : start + few], position_M[start : start + few, None] * num + token_N, step.draw, "gumbel"
        )
        for start in range(0, len(seeds), few)
    ]
    return torch.cat([1e-10 - ((u * 2**24).floor() * 2.0**-24).float().add(1e-10).log() for u in noise])


def _looks_at_full_bins(L: int, T: int) -> Iterator[Look]:
    """Of L positions in T bins at random, D bins hold some; a look at each. Those bins are alike, so that each holds
    L / D on average.
    """
    full_D = np.zeros(min(L, T) + 1)  # P(D), position by position
    full_D[0] = 1.0
    number_D = np.arange(len(full_D))
    for _ in range(L):
        full_D = full_D * number_D / T + np.concatenate(([0.0], (full_D * (T - number_D) / T)[:-1]))
    for index in range(len(full_D) - 1):
        working = full_D[index + 1 :].sum()
        if not working:
            return
        chance_D, each_D = full_D[index + 1 :] / working, L / number_D[index + 1 :]
        each = float(chance_D @ each_D)
        done = max(0, index - 1) * each / L  # share decided before the look before; D spreads it, as more varying would
        spread = max(0, index - 1) ** 2 * float(chance_D @ (each_D - each) ** 2)
        yield Look(
            index=index,
            working=float(min(1.0, working)),
            masked=L - index * each,
            changed=each if index else 0.0,
            wanted=each,
            varying=min(L, L - L / each + (spread / (done * (1 - done)) if done else 0)),  # all but one of each bin
        )
