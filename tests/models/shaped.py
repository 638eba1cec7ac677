"""Real forwards of native models with the shapes that describe them, and the networks that conf/ names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import their_denoisers
import theirs
import torch
from torch import Tensor

from paradigms.build import build
from paradigms.cli import CONF, compose
from paradigms.models.config import ModelConfig
from paradigms.models.pretrained import native_config
from paradigms.models.stack import Model
from paradigms.work import ForwardShape

FOREIGN = ("transformers", "diffusion_gemma", "diffusion_gemma_generate")  # computed by transformers alone
LLAMA = {"model_type": "llama", **theirs.SIZES}
FETCHED: dict[str, dict[str, Any]] = {  # what a checkpoint describes -> the same kind of network, small
    **dict.fromkeys(("smollm2", "smollm2_generate", "smollm2_135m", "pretrained"), LLAMA),
    "llada": {"model_type": "llada", **their_denoisers.CONFIGS["llada"]},
    "dream": {"model_type": "Dream", **their_denoisers.CONFIGS["Dream"]},
    "mdlm": {"model_type": "mdlm", **their_denoisers.CONFIGS["mdlm"], "time_conditioning": True},
    "bd3lm": {"model_type": "bd3lm", **their_denoisers.CONFIGS["bd3lm"]},
}


def _named() -> Iterator[str]:
    for folder in ("model", "paradigm", "sized"):
        for file in sorted((CONF / folder).glob("*.yaml")):
            if file.stem not in FOREIGN:
                yield f"{folder}/{file.stem}"


NAMES = tuple(_named())


def network(name: str, folder: Path) -> ModelConfig:
    """The network of a file of conf/; a checkpoint that it names is replaced by a small one of its kind in `folder`."""
    kind, stem = name.split("/")
    if stem in FETCHED:
        (folder / "config.json").write_text(json.dumps(FETCHED[stem]))
        return native_config(str(folder))
    model, _, size = stem.rpartition("_")
    overrides = [f"model={model}", f"size={size}"] if kind == "sized" else [f"{kind}={stem}"]
    config = build(compose(overrides)["model"])
    assert isinstance(config, ModelConfig)
    return config


class Forward(NamedTuple):
    """What to call, and what it is."""

    call: Callable[[], Tensor]
    shape: ForwardShape


def forwards(model: Model, rows: int, pieces: Sequence[int], *, room: int | None = None) -> Iterator[Forward]:
    """A text without a state, with one logit and with all; then piece after piece behind a state, each only looked at
    before it is taken up; of a canvas at last two tokens that are written over others. Each must be called before the
    next is asked for.

    Args:
        room: positions that the state is made for; None is those of the pieces.
    """
    config = model.config
    told = {"time_B": torch.full((rows,), 0.5, device=model.device)} if config.reads_time else {}

    def tokens(length: int) -> Tensor:
        return torch.arange(rows * length, device=model.device).view(rows, length) % 40

    def forward(length: int, num_logits: int, *, seen: int, kept: int = 0, written: int = 0, **how: Any) -> Forward:
        text, last = tokens(length), slice(-num_logits, None)
        shape = ForwardShape(
            phase="decode",
            rows=rows,
            tokens=length,
            seen=seen,
            kept=kept,
            written=written,
            logits=rows * num_logits,
        )
        return Forward(lambda: model(text, logits_at=last, **told, **how), shape)

    yield forward(pieces[0], 1, seen=pieces[0])
    yield forward(pieces[0], pieces[0], seen=pieces[0])
    yield forward(1, 1, seen=1)
    if not config.causal and not config.keeps_slots:
        return
    state, start = model.new_state(rows, room or sum(pieces)), 0
    for length in pieces:
        seen = start + length
        yield forward(length, length, seen=seen, kept=start, state=state, write="none")
        yield forward(length, 1, seen=seen, kept=start, written=length, state=state)
        start = seen
    if not config.causal:
        over = {"state": state, "write": "overwrite", "over": [1] * rows}
        yield forward(2, 2, seen=start, kept=start - 2, written=2, **over)
