"""Tiny cells: a text of some kilobytes, models of some thousand parameters, trainings of some steps; all in seconds."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch

from paradigms.cell import Cell
from paradigms.data.splits import Corpus, build_corpus
from paradigms.data.stream import token_stream
from paradigms.data.tokenizers import ByteTokenizer, Tokenizer
from paradigms.decoding.autoregressive import Autoregressive
from paradigms.decoding.diffusion.decoder import MaskedDiffusion
from paradigms.decoding.diffusion.samplers.random import Random
from paradigms.decoding.diffusion.samplers.threshold import Threshold
from paradigms.models.attention import AttentionConfig
from paradigms.models.config import ModelConfig
from paradigms.models.feed_forward import FeedForwardConfig
from paradigms.models.mamba2 import Mamba2Config
from paradigms.models.stack import Model
from paradigms.weights import RandomWeights, TrainedHere
from paradigms.workload import Device, Measure, Workload

_SUBJECTS = ("the cache", "a model", "the reader", "one request", "the clock", "a token", "the canvas", "each step")
_VERBS = ("keeps", "reads", "returns", "waits for", "commits", "measures", "forgets", "repeats")
_OBJECTS = ("every state", "the prompt", "its mask", "a long text", "no byte", "the next one", "two rows", "the result")


def texts(num_documents: int = 400) -> list[str]:
    """Short documents of a small grammar, the same each time."""
    draw = random.Random(0)
    return [
        f"{number}: "
        + ". ".join(f"{draw.choice(_SUBJECTS)} {draw.choice(_VERBS)} {draw.choice(_OBJECTS)}" for _ in range(4))
        for number in range(num_documents)
    ]


@lru_cache(maxsize=1)
def corpus() -> Corpus:
    return build_corpus("tiny", texts())


@dataclass(frozen=True, kw_only=True)
class TinyText:
    """A corpus config that reads no file."""

    def load(self) -> Corpus:
        return corpus()


def streams(tokenizer: Tokenizer) -> dict[str, Any]:
    """Token streams of the tiny text by split."""
    return {split: token_stream(corpus(), tokenizer, split) for split in ("train", "validation", "heldout")}


VOCAB_SIZE = 259  # of the byte tokenizer
_SIZES: dict[str, Any] = {"vocab_size": VOCAB_SIZE, "d_model": 32}
_TRANSFORMER = {"attention": AttentionConfig(num_heads=2), "feed_forward": FeedForwardConfig(width=64)}
MODELS: dict[str, ModelConfig] = {
    "ar": ModelConfig(**_SIZES, **_TRANSFORMER, num_blocks=1),
    "ssm": ModelConfig(**_SIZES, block="M", num_blocks=2, mamba2=Mamba2Config(head_dim=16, d_state=8, chunk_len=8)),
    "diffusion": ModelConfig(
        **_SIZES, **_TRANSFORMER, num_blocks=1, causal=False, noise="absorbing", shift_logits=True
    ),
}
RECIPE: dict[str, Any] = {
    "num_tokens": 2400,
    "batch_tokens": 520,
    "lengths": (32, 520),
    "learning_rates": (4e-3,),
    "probe_tokens": 1000,
    "warmup_steps": 2,
    "num_validations": 2,
    "validation_windows": 2,
    "validation_len": 32,
}
DECODERS: dict[str, tuple[str, Any]] = {  # paradigm -> (model, decoder)
    "ar": ("ar", Autoregressive()),
    "ar_uncached": ("ar", Autoregressive(cache="none")),
    "ssm": ("ssm", Autoregressive()),
    "diffusion": ("diffusion", MaskedDiffusion()),
    "diffusion_quarter": ("diffusion", MaskedDiffusion(sampler=Random(steps="L/4"))),
    "diffusion_threshold": ("diffusion", MaskedDiffusion(sampler=Threshold(threshold=0.9))),
}
MEASURE: dict[str, Any] = {
    **{"min_repeats": 2, "max_repeats": 2, "min_time_s": 0.0, "contended_retries": 0},
    **{"warmup_events": 2, "max_warmups": 1},
}


def random_model(config: ModelConfig, *, dtype: torch.dtype = torch.float64) -> Model:
    """A model of fixed random weights, large enough that what it says depends on what it sees."""
    torch.manual_seed(0)
    model = config.build()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(4)
    return model.to(dtype)


def cell(
    paradigm: str,
    *,
    trained: bool = False,
    model: ModelConfig | None = None,
    measure: dict[str, Any] | None = None,
    **work: Any,
) -> Cell:
    """A cell of one of `DECODERS`, with 8 tokens of prompt and 16 of output unless `work` says otherwise."""
    name, decoder = DECODERS[paradigm]
    prompts = "heldout" if trained else "random"
    return Cell(
        paradigm={"name": paradigm, "label": paradigm},
        model=model or MODELS[name],
        decoder=decoder,
        train=TrainedHere(**RECIPE) if trained else RandomWeights(),
        workload=Workload(**{"prompt_len": 8, "output_len": 16, "prompts": prompts, **work}),
        measure=Measure(**{**MEASURE, "quality": trained, **(measure or {})}),
        device=Device(name="cpu"),
        corpus=TinyText(),
        tokenizer=ByteTokenizer(),
    )


@dataclass
class Reports:
    """A progress report that remembers, and interrupts once at a given step."""

    interrupt_at: int | None = None
    seen: list[int] = field(default_factory=list)

    def __call__(self, what: str, done: int, total: int) -> None:
        self.seen.append(done)
        if done == self.interrupt_at:
            self.interrupt_at = None
            raise KeyboardInterrupt
