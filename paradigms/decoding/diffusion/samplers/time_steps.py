"""Samplers that take T steps of equal length in time, which falls from 1 to 0 while a block is decided."""

from __future__ import annotations

from dataclasses import dataclass

from paradigms.decoding.diffusion.contract import Sampler, Step
from paradigms.decoding.diffusion.schedule import check_blocks, check_steps, steps_of_block


@dataclass(frozen=True, kw_only=True)
class TimeSteps(Sampler):
    """T steps for the canvas.

    Attributes:
        steps: T: a number, which may be larger than the canvas, "L", or "L/n". Blocks get theirs by the positions they
            have to decide, and at least one.
    """

    steps: int | str = "L"

    def __post_init__(self) -> None:
        check_steps(self.steps)

    def check(self, *, canvas_len: int, num_blocks: int) -> None:
        check_blocks(self.steps, canvas_len=canvas_len, num_blocks=num_blocks)

    def num_steps(self, step: Step) -> list[int]:
        return [
            steps_of_block(self.steps, before, opened, total)
            for before, opened, total in zip(step.before, step.opened, step.total, strict=True)
        ]
