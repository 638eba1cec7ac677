"""Weights that a training starts from: a checkpoint of the same shapes, which may be of a model of another kind.

An autoregressive Transformer and a denoiser have the same tensors; they differ in who sees whom and in where
predictions are read. So a denoiser can start from what an autoregressive model has learnt (DiffuLLaMA, 2410.17891),
best with `model.shift_logits`, which reads predictions where that model gives them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paradigms.data.tokenizers import Tokenizer
from paradigms.models.config import ModelConfig
from paradigms.models.stack import Model
from paradigms.records import content_hash
from paradigms.training import checkpoint


@dataclass(frozen=True, kw_only=True)
class Start:
    """A checkpoint whose tensors fit a model.

    Attributes:
        folder, card: the checkpoint.
    """

    folder: Path
    card: dict[str, Any]

    @classmethod
    def find(cls, folder: Path, config: ModelConfig) -> Start:
        """Look at a checkpoint, without loading its weights.

        Raises:
            ValueError: no checkpoint there, or one whose tensors do not fit the model; says which.
        """
        card = checkpoint.read_card(folder)
        theirs, ours = (_shapes(one) for one in (checkpoint.model_config(card), config))
        differing = [
            f"{name} is {theirs.get(name, 'missing')} there, {ours.get(name, 'missing')} here"
            for name in sorted({*theirs, *ours})
            if theirs.get(name) != ours.get(name)
        ]
        if differing:
            more = f", and {len(differing) - 3} more" if len(differing) > 3 else ""
            raise ValueError(
                f"the weights in {folder} do not fit the model: {'; '.join(differing[:3])}{more}; "
                "give a model of the same sizes, or train.start_from=null"
            )
        return cls(folder=folder, card=card)

    @property
    def identity(self) -> dict[str, str]:
        """What enters the hash of what is trained from it."""
        return {"weights_sha256": self.card["weights_sha256"], "card": content_hash(self.card)}

    @property
    def summary(self) -> dict[str, Any]:
        """For the card of what is trained from it."""
        known = ("parameters", "tokens_seen", "seconds", "learning_rate")
        return {**self.identity, **{name: self.card[name] for name in known if name in self.card}}

    def load(self, tokenizer: Tokenizer) -> dict[str, Tensor]:
        """The weights, in float32.

        Raises:
            ValueError: damaged weights, or those of another tokenizer.
        """
        theirs = checkpoint.load_tokenizer(self.folder).sha256
        if theirs != tokenizer.sha256:
            raise ValueError(
                f"train.start_from: the weights in {self.folder} know another tokenizer ({theirs[:12]}…) than this "
                f"training ({tokenizer.sha256[:12]}…); use the corpus and the tokenizer that they were trained with"
            )
        return checkpoint.load_model(self.folder, self.card).state_dict()


def _shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        model = Model(config, initialise=False)
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
