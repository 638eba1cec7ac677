"""Positions in a random order, in equal shares over K steps.

The order does not look at the model, so at one position a step the samples follow the model's own one-position
conditionals exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from paradigms.decoding import draws
from paradigms.decoding.diffusion.contract import Sampler, Step
from paradigms.decoding.diffusion.schedule import check_steps, num_steps, share, steps_of_block
from paradigms.paradigm import Outline


@dataclass(frozen=True, kw_only=True)
class Random(Sampler):
    """Equal shares in a random order.

    Attributes:
        steps: forwards for the canvas: a number, "L" (one position a step) or "L/4" (four positions a step).
    """

    steps: int | str = "L"
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_steps(self.steps)

    def check(self, *, canvas_len: int, num_blocks: int) -> None:
        if num_steps(self.steps, canvas_len) > canvas_len:
            raise ValueError(
                f"decoder.sampler.steps={self.steps} is more than workload.output_len={canvas_len}: a step without a "
                f"token to decide computes nothing new; use at most {canvas_len} steps"
            )

    def num_chosen(self, step: Step) -> list[int]:
        return [
            share(opened, steps_of_block(self.steps, before=before, opened=opened, total=total), step.index)
            for opened, before, total in zip(step.opened, step.before, step.total, strict=True)
        ]

    def chosen_before(self, step: Step) -> Tensor:
        order_BW = draws.uniform(step.seeds, step.position_BW, 0, "order").masked_fill(~step.masked_BW, 2.0)
        rank_BW = order_BW.argsort(-1).argsort(-1)
        return step.masked_BW & (rank_BW < torch.tensor(self.num_chosen(step), device=rank_BW.device)[:, None])

    def outline(self, output_len: int) -> Outline:
        return Outline(num_events=num_steps(self.steps, output_len), grows=False)
