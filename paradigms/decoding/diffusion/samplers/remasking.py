"""ReMDM: decided tokens may become masks again, so that early mistakes can be taken back (2503.00307).

From time t to s a decided token becomes a mask again with probability σ, and a mask becomes a token with probability
(α_s − (1 − σ) α_t)/(1 − α_t), where α is the share that is decided, 1 − t. So the expected share is α_s whatever σ
is, up to the largest one possible, σ_max = min(1, (1 − α_s)/α_t); σ = 0 is ancestral sampling. The paper's schedules:

    cap         σ = min(η, σ_max)
    rescale     σ = η σ_max
    confidence  σ_max shared out among the decided positions of a row, exp(−ψ) to each, normalised, where ψ is the
                probability its token had when it was decided; masks become tokens as with σ = 0, as the authors'
                code has it, so that here the share is not kept
    loop        time falls in three parts: without remasking until the share α_on is reached at t_on; then the share is
                held and tokens are revised with σ = min(η, σ_max) until t_off; then the rest without remasking

A block takes exactly its T forwards, and nothing in it is final before the last. There is no run at one position a
step, so none is marked as exact; with an exact denoiser cap, rescale and loop approach its distribution as T grows, if
η falls with it so that few positions change in one step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import comb
from typing import ClassVar

import torch
from torch import Tensor

from paradigms.decoding import draws
from paradigms.decoding.diffusion.contract import Look, Step, Stretch
from paradigms.decoding.diffusion.guess import Guess
from paradigms.decoding.diffusion.samplers.time_steps import TimeSteps
from paradigms.decoding.diffusion.schedule import num_steps, steps_of_block
from paradigms.paradigm import Outline

FEW = 8  # decided positions of which it still matters, to a plan, whether they all become masks again
SCHEDULES = ("cap", "rescale", "confidence", "loop")


@dataclass(frozen=True, kw_only=True)
class Remasking(TimeSteps):
    """T steps that decide and revise.

    Attributes:
        schedule: "cap", "rescale", "confidence" or "loop".
        eta: η in [0, 1], how much is revised; None with confidence, which has its own.
        t_on, t_off, alpha_on: of the loop, times 1 > t_on > t_off > 0 and the share held between; None otherwise.
    """

    schedule: str = "cap"
    eta: float | None = 0.02
    t_on: float | None = None
    t_off: float | None = None
    alpha_on: float | None = None
    revises: ClassVar[bool] = True
    chooses_blindly: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.schedule not in SCHEDULES:
            raise ValueError(
                f"decoder.sampler.schedule={self.schedule!r} is unknown; it is one of {', '.join(SCHEDULES)}"
            )
        if self.schedule == "confidence":
            if self.eta is not None:
                raise ValueError(
                    f"decoder.sampler.eta={self.eta} has no effect with decoder.sampler.schedule=confidence; leave it "
                    "out (null)"
                )
        elif self.eta is None or not 0 <= self.eta <= 1:
            raise ValueError(f"decoder.sampler.eta={self.eta} must lie in [0, 1] with schedule={self.schedule}")
        loop = (self.t_on, self.t_off, self.alpha_on)
        if self.schedule != "loop":
            if loop != (None, None, None):
                raise ValueError(
                    f"decoder.sampler.t_on, t_off and alpha_on have no effect with schedule={self.schedule}; "
                    "leave them out (null)"
                )
        elif self.t_on is None or self.t_off is None or self.alpha_on is None:
            raise ValueError(
                f"decoder.sampler.schedule=loop needs t_on, t_off and alpha_on, not {loop}; the authors' are "
                "0.55, 0.05 and 0.9"
            )
        elif not (1 > self.t_on > self.t_off > 0 and 0 < self.alpha_on < 1):
            raise ValueError(
                f"decoder.sampler.t_on={self.t_on}, t_off={self.t_off}, alpha_on={self.alpha_on}: needed are "
                "1 > t_on > t_off > 0 and 0 < alpha_on < 1"
            )

    @property
    def keeps_drawn(self) -> bool:
        return self.schedule == "confidence"

    @property
    def reads_confidence(self) -> bool:  # type: ignore[override]
        return self.schedule == "confidence"

    def decided_share(self, t: float) -> float:
        """α_t, the expected share that is decided at time t."""
        if self.schedule != "loop":
            return 1 - t
        assert self.t_on is not None and self.t_off is not None and self.alpha_on is not None
        if t > self.t_on:
            return self.alpha_on * (1 - t) / (1 - self.t_on)
        return self.alpha_on if t > self.t_off else 1 - t * (1 - self.alpha_on) / self.t_off

    def rates(self, t: float, s: float) -> tuple[float, float]:
        """Probabilities from time t to s: that a mask becomes a token, and (σ) that a token becomes a mask again.

        With confidence the second is what the decided positions of a row share.
        """
        alpha_t, alpha_s = self.decided_share(t), self.decided_share(s)
        most = min(1.0, (1 - alpha_s) / alpha_t) if alpha_t > 0 else 1.0
        if self.schedule == "confidence":
            return (alpha_s - alpha_t) / (1 - alpha_t), most
        assert self.eta is not None
        if self.schedule == "rescale":
            sigma = self.eta * most
        else:
            sigma = min(self.eta, most) if self.schedule == "cap" or self._in_loop(t, s) else 0.0
        return (alpha_s - (1 - sigma) * alpha_t) / (1 - alpha_t), sigma

    def _in_loop(self, t: float, s: float) -> bool:
        assert self.t_on is not None and self.t_off is not None
        return self.t_off < (t + s) / 2 < self.t_on

    def chosen_before(self, step: Step) -> Tensor:
        return step.masked_BW & (_uniform(step) < self._rates(step)[0])

    def remask(self, step: Step, guess: Guess) -> Tensor:
        decided_BW = step.open_BW & ~step.masked_BW
        sigma_BW = self._rates(step)[1]
        if self.schedule == "confidence":
            assert step.drawn_BW is not None
            doubt_BW = torch.exp(-step.drawn_BW).masked_fill(~decided_BW, 0)
            sigma_BW = sigma_BW * doubt_BW / doubt_BW.sum(-1, keepdim=True)
        return decided_BW & (_uniform(step) < sigma_BW)

    def times(self, step: Step) -> Tensor:
        """1 − α_t, the share that masks are expected to have, which is what the model has seen with that time."""
        shares = [1 - self.decided_share(1 - step.index / steps) for steps in self.num_steps(step)]
        return torch.tensor(shares, dtype=torch.float64, device=step.masked_BW.device)

    def looks(self, stretch: Stretch) -> Iterator[Look]:
        L, steps = stretch.opened, steps_of_block(self.steps, stretch.before, stretch.opened, stretch.total)
        masked, changed, few_D = float(L), 0.0, [1.0]
        for index in range(steps):
            rate, sigma = self.rates(1 - index / steps, 1 - (index + 1) / steps)
            chosen, idle = masked * rate, max(0.0, 1 - (masked + changed) / L) ** L
            yield Look(index=index, masked=masked, changed=changed, wanted=chosen, idle=idle, varying=L)
            if self.schedule == "confidence":  # decided positions share sigma among them, as long as there are some
                again, few_D = sigma * (1 - few_D[0]), _few_decided(few_D, L, rate, sigma)
            else:
                again = sigma * (L - masked)
            masked, changed = masked - chosen + again, chosen

    def outline(self, output_len: int) -> Outline:
        return Outline(num_events=num_steps(self.steps, output_len), grows=False)

    def _rates(self, step: Step) -> tuple[Tensor, Tensor]:
        """`rates` of every row, float64 [B, 1]."""
        steps_B = self.num_steps(step)
        rates = {steps: self.rates(1 - step.index / steps, 1 - (step.index + 1) / steps) for steps in set(steps_B)}
        rates_B2 = [rates[steps] for steps in steps_B]
        rates_2B1 = torch.tensor(rates_B2, dtype=torch.float64, device=step.masked_BW.device).T[..., None]
        return rates_2B1[0], rates_2B1[1]


def _few_decided(before_D: Sequence[float], L: int, rate: float, sigma: float) -> list[float]:
    """Probabilities that 0, 1, ... of L positions are decided one step later, while there are few; more than that are
    taken never to go again, and those that there are to share sigma alike.
    """
    after_D = [0.0] * (FEW + 1)
    for before, chance in enumerate(before_D):
        if chance < 1e-12:
            continue
        gone_D = _binomial(before, min(1.0, sigma / before) if before else 0.0, before)
        for new, of_new in enumerate(_binomial(L - before, rate, min(FEW, L - before))):
            for gone, of_gone in enumerate(gone_D):
                if before + new - gone <= FEW:
                    after_D[before + new - gone] += chance * of_new * of_gone
    return after_D


def _binomial(number: int, p: float, most: int) -> list[float]:
    """Probabilities of 0 to `most` successes."""
    return [comb(number, k) * p**k * (1 - p) ** (number - k) for k in range(most + 1)]


def _uniform(step: Step) -> Tensor:
    return draws.uniform(step.seeds, step.position_BW, step.draw, "revision")
