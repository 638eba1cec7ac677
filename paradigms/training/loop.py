"""The training loop: one model, one recipe, from any step to the end.

Everything a step does is a function of (recipe, step): the batch, the masks, the learning rate. So a training that was
interrupted goes on from its last saved step and ends with the same weights, bit for bit, as one that was not.
"""

from __future__ import annotations

import dataclasses
import json
import math
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paradigms.data.stream import EvaluationWindows, Rows, evaluation_windows, training_batch
from paradigms.data.tokenizers import Tokenizer
from paradigms.models.config import ModelConfig
from paradigms.models.stack import Model
from paradigms.quality.likelihood import Likelihood, evaluate
from paradigms.training import checkpoint
from paradigms.training.objectives import anneal, balance_loss, denoising_loss, next_token_loss, noised
from paradigms.training.optimizer import Optimizer
from paradigms.training.recipe import Recipe

VALIDATION_MASKS = 4
SAVE_EVERY_S = 20.0

Report = Callable[[str, int, int], None]  # (what happens, steps done, steps in all)
Text = np.ndarray | Rows  # a token stream, or prompts with answers


class Diverged(ValueError):
    """A loss that is no number any more."""


@dataclass
class Span:
    """Sums over the steps since the last validation."""

    nats: float = 0.0
    num_steps: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def add(self, nats: float, tokens: int, seconds: float) -> None:
        self.nats, self.num_steps = self.nats + nats, self.num_steps + 1
        self.tokens, self.seconds = self.tokens + tokens, self.seconds + seconds

    @property
    def mean_nats(self) -> float:
        return self.nats / self.num_steps

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


@dataclass
class Trained:
    """What a training leaves behind.

    Attributes:
        best: weights at the best validation.
        best_step, best_bits_per_byte: when that was, and how good.
        curve: one record a validation: step, tokens, train_nats, val_bits_per_byte, lr, tokens_per_s.
        seconds: spent in training steps, interruptions left out.
        peak_bytes: peak memory of the process (CPU) or of the allocator (CUDA).
        since_validation: what has happened since the last one.
    """

    best: dict[str, Tensor] = field(default_factory=dict)
    best_step: int = 0
    best_bits_per_byte: float = math.inf
    curve: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    peak_bytes: int = 0
    since_validation: Span = field(default_factory=Span)


def train(
    config: ModelConfig,
    recipe: Recipe,
    streams: Mapping[str, Text],
    tokenizer: Tokenizer,
    *,
    num_tokens: int,
    learning_rate: float,
    device: torch.device,
    start: Mapping[str, Tensor] | None = None,
    resume_from: Path | None = None,
    keep_in: Path | None = None,
    report: Report = lambda what, done, total: None,
) -> Trained:
    """Train a model for `num_tokens`, or finish a training that `resume_from` holds.

    Args:
        streams: text of the splits "train" and "validation".
        start: weights to start from; fresh ones when None.
        resume_from: file for the state of an unfinished training; removed at the end by the caller, who has the result.
        keep_in: folder for the weights of every validation, where the recipe keeps them.
        report: told after every step.
    """
    torch.manual_seed(recipe.seed)
    model = config.build()
    if start is not None:
        model.load_state_dict(start)
    model = model.to(device)
    if recipe.compile:
        model.through_layers = torch.compile(model.through_layers, dynamic=False)  # type: ignore[method-assign]
    optimizer = Optimizer(model, weight_decay=recipe.weight_decay)
    num_steps = recipe.num_steps(num_tokens)
    validate_at = {num_steps * (i + 1) // recipe.num_validations for i in range(recipe.num_validations)}
    windows = validation_windows(streams["validation"], recipe)
    trained, first_step = Trained(), 0
    if resume_from is not None and resume_from.exists():
        first_step = _load(resume_from, model, optimizer, trained)

    last_save = time.monotonic()
    for step in range(first_step, num_steps):
        started = time.perf_counter()
        tokens_BT, scored_BT = _batch(streams["train"], recipe, step, device)
        nats = _backward(model, tokens_BT, scored_BT, tokenizer.mask_id, recipe, step)
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_norm)
        rate = recipe.rate_at(step, num_steps, learning_rate)
        optimizer.step(rate)
        span = trained.since_validation
        span.add(nats, tokens_BT.numel(), time.perf_counter() - started)
        if step + 1 in validate_at:
            bits_per_byte = validate(model, windows, tokenizer, num_masks=VALIDATION_MASKS).bits_per_byte
            if not math.isfinite(bits_per_byte):
                raise Diverged(f"training diverged at step {step + 1} with learning rate {learning_rate}; lower it")
            if bits_per_byte < trained.best_bits_per_byte:
                trained.best_bits_per_byte, trained.best_step = bits_per_byte, step + 1
                trained.best = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
            if recipe.keep_checkpoints and keep_in is not None:
                keep_in.mkdir(parents=True, exist_ok=True)
                checkpoint.write_tensors(keep_in / f"{step + 1}.safetensors", model.state_dict(), {})
            trained.curve.append(
                {
                    "step": step + 1,
                    "tokens": recipe.tokens_until(step + 1),
                    "train_nats": span.mean_nats,
                    "val_bits_per_byte": bits_per_byte,
                    "lr": rate,
                    "tokens_per_s": span.tokens_per_s,
                }
            )
            trained.seconds += span.seconds
            trained.since_validation = Span()
        if resume_from is not None and (step + 1 in validate_at or time.monotonic() - last_save > SAVE_EVERY_S):
            _save(resume_from, step + 1, model, optimizer, trained)
            last_save = time.monotonic()
        report(f"loss {nats:.2f} nats", step + 1, num_steps)
    trained.peak_bytes = _peak_bytes(device)
    return trained


def validation_windows(stream: Text, recipe: Recipe) -> EvaluationWindows:
    """A fixed selection of full windows, evenly spread over the validation text; of pairs, rows as long as the longest
    of training.
    """
    if not isinstance(stream, np.ndarray):
        return stream.windows(recipe.longest, count=recipe.validation_windows)
    windows = evaluation_windows(stream, window=min(recipe.validation_len, recipe.longest - 1, len(stream)))
    full = np.flatnonzero(windows.lengths_N == windows.lengths_N.max())
    return windows.spread(recipe.validation_windows, among=full)


def validate(model: Model, windows: EvaluationWindows, tokenizer: Tokenizer, *, num_masks: int) -> Likelihood:
    """Likelihood of a causal model; for a denoiser its bound, by `num_masks` masks a window."""
    return evaluate(model, windows, tokenizer.token_bytes, mask_id=tokenizer.mask_id, num_masks=num_masks)


def _batch(text: Text, recipe: Recipe, step: int, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Tokens [B, T], and which of them are scored; None is all after column 0."""
    rows, length = recipe.batch_shape(step)
    if not isinstance(text, np.ndarray):
        tokens, scored = text.batch(seed=recipe.seed, step=step, length=length, num_rows=rows)
        return torch.from_numpy(tokens).to(device), torch.from_numpy(scored).to(device)
    tokens = training_batch(text, seed=recipe.seed, step=step, length=length, num_rows=rows)
    return torch.from_numpy(tokens).to(device), None


def _backward(
    model: Model, tokens_BT: Tensor, scored_BT: Tensor | None, mask_id: int | None, recipe: Recipe, step: int
) -> float:
    """Add the gradient of a step's loss, part by part; the loss in nats a scored token."""
    B = len(tokens_BT)
    of_part = _losses(model, tokens_BT, scored_BT, mask_id, recipe, step)
    size = -(-B // recipe.micro_batches)
    nats = 0.0
    for start in range(0, B, size):
        part = slice(start, min(start + size, B))
        with torch.autocast(tokens_BT.device.type, torch.bfloat16, enabled=recipe.dtype == "bfloat16"):
            loss = of_part(part)
            total = loss + balance_loss(model) * ((part.stop - part.start) / B)
        total.backward()
        nats += float(loss.detach())
    return nats


def _losses(
    model: Model, tokens_BT: Tensor, scored_BT: Tensor | None, mask_id: int | None, recipe: Recipe, step: int
) -> Callable[[slice], Tensor]:
    """What some rows of a batch add to its mean loss; masks are drawn for the whole batch, so parts change nothing."""
    if model.config.noise is None:
        num_scored = None  # of one part, whose mean is the loss
        if recipe.micro_batches > 1:
            num_scored = tokens_BT[:, 1:].numel() if scored_BT is None else int(scored_BT.sum())

        def next_token(part: slice) -> Tensor:
            scored = None if scored_BT is None else scored_BT[part]
            return next_token_loss(model, tokens_BT[part], scored_BT=scored, num_scored=num_scored)

        return next_token
    if mask_id is None:
        raise ValueError("a denoiser is trained with a mask token, and this tokenizer has none")
    seed, of_mask = recipe.seed * 1_000_003 + step, 1 << 48  # the text is masked alike, annealed or not
    opened_TT = anneal(tokens_BT.shape[1], recipe.opened_at(step), torch.Generator().manual_seed(seed + of_mask))
    among_TT = None if opened_TT is None else opened_TT.to(tokens_BT.device)
    batch = noised(
        model.config,
        tokens_BT,
        mask_id=mask_id,
        generator=torch.Generator().manual_seed(seed),
        objective=recipe.objective,
        scored_BT=scored_BT,
    )
    return lambda part: denoising_loss(model, batch.rows(part), mask_id=mask_id, among_TT=among_TT)


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _save(path: Path, step: int, model: Model, optimizer: Optimizer, trained: Trained) -> None:
    tensors = {f"model:{name}": tensor for name, tensor in model.state_dict().items()}
    tensors |= {f"optimizer:{name}": tensor for name, tensor in optimizer.tensors().items()}
    tensors |= {f"best:{name}": tensor for name, tensor in trained.best.items()}
    progress = {
        "step": step,
        "best_step": trained.best_step,
        "best_bits_per_byte": trained.best_bits_per_byte if trained.best else None,
        "curve": trained.curve,
        "seconds": trained.seconds,
        "since_validation": dataclasses.asdict(trained.since_validation),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.write_tensors(path, tensors, {"progress": json.dumps(progress)})


def _load(path: Path, model: Model, optimizer: Optimizer, trained: Trained) -> int:
    tensors, metadata = checkpoint.read_tensors(path)
    parts: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}, "best": {}}
    for name, tensor in tensors.items():
        part, rest = name.split(":", 1)
        parts[part][rest] = tensor
    model.load_state_dict(parts["model"])
    optimizer.load(parts["optimizer"])
    progress = json.loads(metadata["progress"])
    trained.best = parts["best"]
    trained.best_step = progress["best_step"]
    trained.best_bits_per_byte = math.inf if progress["best_bits_per_byte"] is None else progress["best_bits_per_byte"]
    trained.curve, trained.seconds = progress["curve"], progress["seconds"]
    trained.since_validation = Span(**progress["since_validation"])
    return progress["step"]
