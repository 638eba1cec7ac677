"""Positions in a random order, in equal shares over K steps.

The order does not look at the model, so at one position a step the samples follow the model's own one-position
conditionals exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from paradigms.decoding.diffusion.contract import Step
from paradigms.decoding.diffusion.samplers.equal_shares import EqualShares
from paradigms.decoding.diffusion.samplers.ranking import highest, position_times
from paradigms.decoding.diffusion.schedule import num_steps
from paradigms.paradigm import Outline


@dataclass(frozen=True, kw_only=True)
class Random(EqualShares):
    """Equal shares in the order of falling times."""

    exact: ClassVar[bool] = True
    chooses_blindly: ClassVar[bool] = True

    def chosen_before(self, step: Step) -> Tensor:
        return highest(position_times(step), step.masked_BW, self.num_chosen(step))

    def outline(self, output_len: int) -> Outline:
        return Outline(num_events=num_steps(self.steps, output_len), grows=False)
