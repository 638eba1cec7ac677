"""One position a forward, at the times at which a continuous-time reversal would decide it (2409.02908).

In continuous time the masked positions of a canvas become tokens at independent uniform times. In falling order, the
next one after time t with n masks left is distributed as t u^(1/n). So L forwards simulate the chain in the limit of
ever finer time steps, and a time-conditioned model is told the very time of each change. For other models this is the
random order at one position a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from paradigms.decoding.diffusion.contract import Look, Sampler, Step, Stretch
from paradigms.decoding.diffusion.samplers.ranking import one_highest, position_times
from paradigms.paradigm import Outline


@dataclass(frozen=True, kw_only=True)
class FirstHitting(Sampler):
    """The masked position with the largest time."""

    exact: ClassVar[bool] = True
    chooses_blindly: ClassVar[bool] = True

    def num_chosen(self, step: Step) -> list[int]:
        return [1] * len(step.seeds)

    def chosen_before(self, step: Step) -> Tensor:
        return one_highest(position_times(step), step.masked_BW)

    def times(self, step: Step) -> Tensor:
        return position_times(step).masked_fill(~step.masked_BW, 0.0).amax(-1)

    def looks(self, stretch: Stretch) -> Iterator[Look]:
        for index in range(stretch.opened):
            yield Look(index=index, masked=stretch.opened - index, changed=int(index > 0), wanted=1)

    def outline(self, output_len: int) -> Outline:
        return Outline(num_events=output_len, grows=False)
