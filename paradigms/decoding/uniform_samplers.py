"""Steps that undo uniform noise: what the next step reads, and which tokens stand if the canvas ends here.

Uniform noise replaces tokens by others, so nothing on a canvas says which tokens are noise, and every step decides
every position anew.

    EntropyBound   DiffusionGemma's, by the rule of 2505.24857: as many drawn tokens are kept as are nearly independent,
                   the others become noise again. What stands at the end are the most probable tokens, not drawn ones.
    Ancestral      2107.03006 and 2412.10193: x_s is drawn from the posterior q(x_s | x_t, x_0) under the model's x_0.
                   With an exact denoiser samples become exact as steps become many; with one position at any number.

Dimension letters: B rows, C positions of a canvas, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from paradigms.decoding.sampling import Sampling, invert

Draw = Callable[[str], Tensor]  # purpose -> uniform numbers in (0, 1), float64 [B, C]


@dataclass(slots=True)
class Denoised:
    """What a step makes of a canvas.

    Attributes:
        canvas_BC: what the next step reads.
        tokens_BC: what stands if the canvas ends here.
        logits_BCV: what was drawn from, which the model is told at the next step.
        entropy_B: mean entropy of a position, in nats.
    """

    canvas_BC: Tensor
    tokens_BC: Tensor
    logits_BCV: Tensor
    entropy_B: Tensor


class UniformSampler(Protocol):
    """A frozen, keyword-only dataclass.

    Attributes:
        num_steps: forwards for a canvas, at most.
    """

    @property
    def num_steps(self) -> int: ...

    @property
    def depends_on_values(self) -> bool:
        """Whether a canvas may end before the last step."""
        ...

    def step(self, canvas_BC: Tensor, logits_BCV: Tensor, steps_left: int, draw: Draw) -> Denoised:
        """One step; `steps_left` counts down from num_steps to 1."""
        ...

    def ended(self, denoised: Denoised, earlier: Sequence[Tensor]) -> Tensor | None:
        """Rows [B] that may end here; None where only the last step ends them.

        Args:
            earlier: tokens_BC of the steps before, oldest first.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class EntropyBound:
    """DiffusionGemma's sampler, with the defaults of its checkpoint.

    Attributes:
        num_steps: K, forwards for a canvas, at most.
        entropy_bound: nats; the m positions of least entropy are kept, for the largest m with
            H_1 + ... + H_m - H_m at most this. The sum bounds what the positions tell about each other.
        t_max, t_min: logits are divided by t_min + (t_max - t_min) k / K, k steps being left.
        stability_threshold: a row ends early when its most probable tokens are those of so many steps before, ...
        confidence_threshold: ... and the mean entropy of its positions is below this, in nats. None: no early end.
    """

    num_steps: int = 48
    entropy_bound: float = 0.1
    t_max: float = 0.8
    t_min: float = 0.4
    stability_threshold: int | None = 1
    confidence_threshold: float | None = 0.005

    def __post_init__(self) -> None:
        _check_steps(self.num_steps)
        if self.entropy_bound <= 0:
            raise ValueError(f"decoder.sampler.entropy_bound={self.entropy_bound} must be above 0 (nats)")
        if not 0 <= self.t_min < self.t_max:
            raise ValueError(
                f"decoder.sampler.t_max={self.t_max} and t_min={self.t_min} are temperatures of the first and the last "
                "step; t_min is at least 0, and t_max above it"
            )
        if (self.stability_threshold is None) != (self.confidence_threshold is None):
            raise ValueError(
                f"decoder.sampler.stability_threshold={self.stability_threshold} and confidence_threshold="
                f"{self.confidence_threshold} end a canvas together; set both, or null for both"
            )
        if self.stability_threshold is not None and self.stability_threshold < 0:
            raise ValueError(f"decoder.sampler.stability_threshold={self.stability_threshold} must be at least 0 steps")
        if self.confidence_threshold is not None and self.confidence_threshold <= 0:
            raise ValueError(
                f"decoder.sampler.confidence_threshold={self.confidence_threshold} must be above 0 (nats); null for it "
                "and for stability_threshold runs all steps"
            )

    @property
    def depends_on_values(self) -> bool:
        return self.stability_threshold is not None

    def step(self, canvas_BC: Tensor, logits_BCV: Tensor, steps_left: int, draw: Draw) -> Denoised:
        logits_BCV = logits_BCV / (self.t_min + (self.t_max - self.t_min) * steps_left / self.num_steps)
        p_BCV = logits_BCV.double().softmax(-1)
        entropy_BC = torch.special.entr(p_BCV).sum(-1)
        drawn_BC = _invert(p_BCV, draw("token"))
        noise_BC = uniform_tokens(draw("noise"), p_BCV.shape[-1])
        return Denoised(
            torch.where(self.kept(entropy_BC), drawn_BC, noise_BC),
            logits_BCV.argmax(-1),
            logits_BCV,
            entropy_BC.mean(-1),
        )

    def kept(self, entropy_BC: Tensor) -> Tensor:
        """Positions whose drawn tokens the next step reads; at least one of each row."""
        sorted_BC, order_BC = entropy_BC.sort(-1)
        kept_BC = sorted_BC.cumsum(-1) - sorted_BC <= self.entropy_bound
        return torch.zeros_like(kept_BC).scatter(-1, order_BC, kept_BC)

    def ended(self, denoised: Denoised, earlier: Sequence[Tensor]) -> Tensor | None:
        if self.stability_threshold is None or self.confidence_threshold is None:
            return None
        ended_B = denoised.entropy_B < self.confidence_threshold
        if len(earlier) < self.stability_threshold:
            return torch.zeros_like(ended_B)
        for tokens_BC in earlier[len(earlier) - self.stability_threshold :]:
            ended_B = ended_B & (tokens_BC == denoised.tokens_BC).all(-1)
        return ended_B


@dataclass(frozen=True, kw_only=True)
class Ancestral(Sampling):
    """The reverse process of uniform noise, in equal steps of its time t, with signal 1 - t.

    Temperature, top-k and top-p shape the model's distribution of x_0.

    Attributes:
        num_steps: K, forwards for a canvas.
    """

    num_steps: int = 48
    depends_on_values: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_steps(self.num_steps)

    def step(self, canvas_BC: Tensor, logits_BCV: Tensor, steps_left: int, draw: Draw) -> Denoised:
        p_BCV = self.probabilities(logits_BCV.flatten(0, 1)).view(logits_BCV.shape)
        entropy_B = torch.special.entr(p_BCV).sum(-1).mean(-1)
        next_BC = _invert(self.posterior(canvas_BC, p_BCV, steps_left), draw("token"))
        return Denoised(next_BC, next_BC, logits_BCV, entropy_B)

    def posterior(self, canvas_BC: Tensor, p_BCV: Tensor, steps_left: int) -> Tensor:
        """Distribution of each position one step further, float64 [B, C, V]: the mean over x_0 of

        q(x_s | x_t, x_0) = q(x_t | x_s) q(x_s | x_0) / q(x_t | x_0), q(x_t | x_0) = a_t [x_t = x_0] + (1 - a_t) / V.

        Args:
            p_BCV: what the model says of x_0.
        """
        V = p_BCV.shape[-1]
        a_t, a_s = 1 - steps_left / self.num_steps, 1 - (steps_left - 1) / self.num_steps
        a_ts = a_t / a_s  # what is left of the signal of s at t
        here_BCV = torch.zeros_like(p_BCV).scatter(-1, canvas_BC[..., None], 1.0)
        weight_BCV = p_BCV / (a_t * here_BCV + (1 - a_t) / V)  # of each x_0
        mixed_BCV = a_s * weight_BCV + (1 - a_s) / V * weight_BCV.sum(-1, keepdim=True)
        return (a_ts * here_BCV + (1 - a_ts) / V) * mixed_BCV

    def ended(self, denoised: Denoised, earlier: Sequence[Tensor]) -> None:
        """Only the last step ends a canvas."""


def uniform_tokens(uniform_BC: Tensor, vocab_size: int) -> Tensor:
    """Noise: token ids int64, each as likely as any other."""
    return (uniform_BC * vocab_size).long().clamp_(max=vocab_size - 1)


def _invert(p_BCV: Tensor, uniform_BC: Tensor) -> Tensor:
    return invert(p_BCV.flatten(0, 1), uniform_BC.flatten()).view(uniform_BC.shape)


def _check_steps(num_steps: int) -> None:
    if isinstance(num_steps, bool) or num_steps < 1:
        raise ValueError(f"decoder.sampler.num_steps={num_steps} must be at least 1 forward for a canvas")
