"""Samplers that decide an equal share of the canvas at every step, so that the number of forwards is fixed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from paradigms.decoding import draws
from paradigms.decoding.diffusion.contract import Look, Sampler, Step, Stretch
from paradigms.decoding.diffusion.samplers.ranking import highest
from paradigms.decoding.diffusion.schedule import check_blocks, check_steps, num_steps, share_of_block

if TYPE_CHECKING:
    from paradigms.decoding.diffusion.guess import Guess


@dataclass(frozen=True, kw_only=True)
class EqualShares(Sampler):
    """K steps for the canvas.

    Attributes:
        steps: forwards for the canvas: a number, "L" (one position a step) or "L/4" (four positions a step). Blocks get
            theirs by the positions they have to decide, and at least one.
    """

    steps: int | str = "L"

    def __post_init__(self) -> None:
        check_steps(self.steps)

    def check(self, *, canvas_len: int, num_blocks: int) -> None:
        if num_steps(self.steps, canvas_len) > canvas_len:
            raise ValueError(
                f"decoder.sampler.steps={self.steps} is more than workload.output_len={canvas_len}: a step without a "
                f"token to decide computes nothing new; use at most {canvas_len} steps"
            )
        check_blocks(self.steps, canvas_len=canvas_len, num_blocks=num_blocks)

    def num_chosen(self, step: Step) -> list[int]:
        return [
            share_of_block(self.steps, before, opened, total, step.index)
            for before, opened, total in zip(step.before, step.opened, step.total, strict=True)
        ]

    def looks(self, stretch: Stretch) -> Iterator[Look]:
        masked, changed, index = stretch.opened, 0, 0
        while masked:
            chosen = share_of_block(self.steps, stretch.before, stretch.opened, stretch.total, index)
            wanted = chosen if self.chooses_blindly else masked
            yield Look(index=index, masked=masked, changed=changed, wanted=wanted)
            masked, changed, index = masked - chosen, chosen, index + 1


@dataclass(frozen=True, kw_only=True)
class Ranked(EqualShares):
    """The positions that score highest.

    Attributes:
        choice_temperature: None takes the highest scores. A number c draws positions one after another, each with
            probability proportional to exp(score / c) among those left (Dream's alg_temp), by Gumbel noise on the
            scores. The larger c, the more random the order.
    """

    choice_temperature: float | None = None
    reads_confidence: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.choice_temperature is not None and not self.choice_temperature > 0:
            raise ValueError(
                f"decoder.sampler.choice_temperature={self.choice_temperature} must be more than 0, or null for the "
                "highest scores"
            )

    def score(self, guess: Guess) -> Tensor:
        """How sure the model is, float64 [B, W] at the wanted positions of the guess."""
        raise NotImplementedError

    def choose(self, step: Step, guess: Guess) -> Tensor:
        score_BW = self.score(guess)
        if self.choice_temperature is not None:
            uniform_BW = draws.uniform(step.seeds, step.position_BW, step.draw, "choice")
            score_BW = score_BW / self.choice_temperature - torch.log(-torch.log(uniform_BW))
        return highest(score_BW, step.masked_BW, self.num_chosen(step))
