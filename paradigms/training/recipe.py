"""How a model is trained: everything that decides the result, in one frozen description.

The same recipe serves every paradigm: same tokens in the same order, same optimizer, same budget, same small grid of
learning rates. Only the objective differs, and the model decides that.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from paradigms.training.objectives import MaskedObjective

DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A training run.

    Attributes:
        num_tokens: budget of training tokens, repetitions counted.
        batch_tokens: tokens of a step.
        lengths: sequence lengths (begin-of-text included), one a step in turn, so that short and long texts are both
            learnt.
        learning_rates: the grid; with more than one, each is tried for `probe_tokens` and the best on validation text
            is taken.
        probe_tokens: budget of one trial.
        warmup_steps: linear warm-up, a tenth of the steps at most; after it the rate falls linearly to zero.
        weight_decay: of matrices.
        clip_norm: gradient norm at most.
        num_validations: evenly spaced over the run; the best checkpoint among them is kept.
        validation_windows, validation_len: windows of validation text, and their length in tokens.
        seed: initial weights, batches and masks follow from it.
        objective: how text is noised for a denoiser.
        start_from: where training starts: None is fresh weights, `zoo:<name>` or a checkpoint folder those of a model
            of the same shapes. It may be of the other kind: a denoiser can start from an autoregressive model.
        anneal_tokens: over so many tokens a denoiser's attention opens from causal to seeing everything, each later
            column with a probability that rises from 0 to 1 (2410.17891); 0 is open from the first step.
        trial_seed: None tries each rate for `probe_tokens`, by the run's own seed. A seed trains every rate in full by
            that one, and the best on validation text is taken for all seeds: short trials mislead where models learn
            late. Trials are checkpoints of their own, made once for all seeds.
        micro_batches: parts in which a step's rows go through the model, one after the other, for batches that do not
            fit in memory; the gradient is that of the whole (experts' balance, no sum over rows, is refused).
        dtype: in which matrix products and attention are computed (torch's autocast): float32 or bfloat16. Weights and
            the optimizer stay in float32.
        compile: run the layers through torch.compile.
        keep_checkpoints: keep the weights of every validation beside the best ones, in `steps/<step>.safetensors`.
    """

    num_tokens: int
    batch_tokens: int = 2048
    lengths: tuple[int, ...] = (128, 128, 256, 576)
    learning_rates: tuple[float, ...] = (4e-3,)
    probe_tokens: int = 400_000
    warmup_steps: int = 50
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    num_validations: int = 25
    validation_windows: int = 24
    validation_len: int = 512
    seed: int = 0
    objective: MaskedObjective = field(default_factory=MaskedObjective)
    start_from: str | None = None
    anneal_tokens: int = 0
    trial_seed: int | None = None
    micro_batches: int = 1
    dtype: str = "float32"
    compile: bool = False
    keep_checkpoints: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", tuple(self.lengths))
        object.__setattr__(self, "learning_rates", tuple(self.learning_rates))
        for name in (
            "num_tokens",
            "batch_tokens",
            "probe_tokens",
            "num_validations",
            "validation_windows",
            "validation_len",
            "micro_batches",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"train.{name}={getattr(self, name)} must be at least 1")
        for name in ("warmup_steps", "weight_decay", "seed", "anneal_tokens"):
            if getattr(self, name) < 0:
                raise ValueError(f"train.{name}={getattr(self, name)} must be at least 0")
        if self.anneal_tokens > self.num_tokens:
            raise ValueError(
                f"train.anneal_tokens={self.anneal_tokens} is more than train.num_tokens={self.num_tokens}, so "
                "attention would never be open; make it less"
            )
        if self.dtype not in DTYPES:
            raise ValueError(f"train.dtype={self.dtype!r} is unknown; it is one of {', '.join(DTYPES)}")
        if self.trial_seed is not None and self.trial_seed < 0:
            raise ValueError(f"train.trial_seed={self.trial_seed} must be at least 0, or null")
        if self.clip_norm <= 0:
            raise ValueError(f"train.clip_norm={self.clip_norm} must be above 0; a large one clips nothing")
        if not self.learning_rates or min(self.learning_rates) <= 0:
            raise ValueError(f"train.learning_rates={list(self.learning_rates)} must be a list of positive numbers")
        if not self.lengths or min(self.lengths) < 2:
            raise ValueError(f"train.lengths={list(self.lengths)} must be a list of lengths of at least 2")
        if max(self.lengths) > self.batch_tokens:
            raise ValueError(
                f"train.batch_tokens={self.batch_tokens} is less than one row of {max(self.lengths)} tokens, "
                "the longest of train.lengths"
            )
        if self.micro_batches > self.batch_tokens // max(self.lengths):
            raise ValueError(
                f"train.micro_batches={self.micro_batches} is more than the {self.batch_tokens // max(self.lengths)} "
                f"rows of a step of {max(self.lengths)} tokens; make it less, or train.batch_tokens more"
            )

    @property
    def longest(self) -> int:
        """Positions that the model has seen in training."""
        return max(self.lengths)

    def batch_shape(self, step: int) -> tuple[int, int]:
        """(rows, length) of a step."""
        length = self.lengths[step % len(self.lengths)]
        return self.batch_tokens // length, length

    def num_steps(self, num_tokens: int) -> int:
        """Steps whose batches together have at least `num_tokens` tokens."""
        cycle = [rows * length for rows, length in map(self.batch_shape, range(len(self.lengths)))]
        steps, left = divmod(num_tokens, sum(cycle))
        steps *= len(cycle)
        for tokens in cycle:
            if left <= 0:
                break
            steps, left = steps + 1, left - tokens
        return steps

    def tokens_until(self, num_steps: int) -> int:
        """Tokens of the first steps."""
        whole, rest = divmod(num_steps, len(self.lengths))
        cycle = [rows * length for rows, length in map(self.batch_shape, range(len(self.lengths)))]
        return whole * sum(cycle) + sum(cycle[:rest])

    def rows_until(self, num_steps: int) -> int:
        """Rows of the first steps."""
        whole, rest = divmod(num_steps, len(self.lengths))
        cycle = [rows for rows, _ in map(self.batch_shape, range(len(self.lengths)))]
        return whole * sum(cycle) + sum(cycle[:rest])

    def opened_at(self, step: int) -> float:
        """Share of the later columns that a denoiser sees at a step; see `anneal_tokens`."""
        return 1.0 if not self.anneal_tokens else min(1.0, self.tokens_until(step) / self.anneal_tokens)

    def rate_at(self, step: int, num_steps: int, peak: float) -> float:
        """Learning rate of a step: linear up to `peak`, then linear down to zero."""
        warmup = max(1, min(self.warmup_steps, num_steps // 10))
        return peak * min((step + 1) / warmup, (num_steps - step) / max(1, num_steps - warmup))
