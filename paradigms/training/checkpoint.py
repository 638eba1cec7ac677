"""Checkpoints on disk: a folder with weights, the tokenizer, and a card that says how they came about.

    model.safetensors   the best weights by validation
    tokenizer.json      the tokenizer they were trained with
    card.json           config, recipe, corpus hash, tokens, epochs, loss curve, ...

A folder counts only when its card is there, and the card is written last. Files are written beside their place and
moved there, so an interruption leaves the old or the new one, never half of one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from paradigms.data.symbols import FORMAT, SymbolTokenizer
from paradigms.data.tokenizers import Tokenizer
from paradigms.models.config import PARTS, ModelConfig
from paradigms.models.stack import Model

WEIGHTS, TOKENIZER, CARD = "model.safetensors", "tokenizer.json", "card.json"
NEEDED = ("model", "recipe", "weights_sha256")  # of a card, to load and check a model


def write_checkpoint(
    folder: Path, tensors: Mapping[str, Tensor], tokenizer: Tokenizer, card: Mapping[str, Any]
) -> None:
    """Write a whole checkpoint; the weights' own hash goes into the card."""
    folder.mkdir(parents=True, exist_ok=True)
    data = save({name: tensor.contiguous() for name, tensor in tensors.items()})
    replace_file(folder / WEIGHTS, data)
    tokenizer.save(folder / TOKENIZER)
    card = {**card, "weights_sha256": hashlib.sha256(data).hexdigest()}
    replace_file(folder / CARD, (json.dumps(card, indent=1) + "\n").encode())


def read_card(folder: Path) -> dict[str, Any]:
    """The card of a checkpoint.

    Raises:
        ValueError: no checkpoint there, or a damaged card.
    """
    path = folder / CARD
    try:
        card = json.loads(path.read_bytes())
        lacking = [name for name in NEEDED if name not in card] if isinstance(card, dict) else ["everything"]
        if lacking:
            raise ValueError(f"it lacks {', '.join(lacking)}")
        model_config(card)
        return card
    except FileNotFoundError:
        raise ValueError(f"no checkpoint in {folder}: {CARD} is missing; train one or give another folder") from None
    except (ValueError, TypeError) as error:  # a TypeError speaks of fields that the model does not have
        raise ValueError(f"{path} is damaged ({error}); delete the folder {folder} and train again") from None


def load_model(folder: Path, card: Mapping[str, Any], config: ModelConfig | None = None) -> Model:
    """The model of a checkpoint, in float32.

    Args:
        config: the card's network with options of its own that do not change weights (`network_dict`); None is the
            card's.

    Raises:
        ValueError: weights that are missing, damaged, or not those that the card speaks of.
    """
    path = folder / WEIGHTS
    advice = f"delete the folder {folder} and train again, or fetch it anew"
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        raise ValueError(f"{path} is missing; {advice}") from None
    if found != card["weights_sha256"]:
        raise ValueError(
            f"{path} is damaged: its SHA-256 is {found[:12]}…, not {card['weights_sha256'][:12]}…; {advice}"
        )
    tensors, _ = read_tensors(path)
    model = (config or model_config(card)).build()
    try:
        model.load_state_dict(tensors)
    except RuntimeError:
        raise ValueError(f"{path} does not hold the model of its card; {advice}") from None
    return model.float()


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a checkpoint.

    Raises:
        ValueError: it is missing or damaged.
    """
    try:
        of_symbols = FORMAT.encode() in (folder / TOKENIZER).read_bytes()[:100]
        return (SymbolTokenizer if of_symbols else Tokenizer).from_file(folder / TOKENIZER)
    except FileNotFoundError:
        raise ValueError(
            f"{folder / TOKENIZER} is missing; delete the folder {folder} and train again, or fetch it anew"
        ) from None


def model_config(card: Mapping[str, Any]) -> ModelConfig:
    """The config a card describes; fields that did not exist when it was written keep their defaults."""
    return ModelConfig.from_dict(card["model"])


def config_dict(config: ModelConfig) -> dict[str, Any]:
    """A config as a card stores it: solved widths, no target."""
    return {**dataclasses.asdict(config), "target_parameters": None}


def network_dict(config: ModelConfig) -> dict[str, Any]:
    """What decides the weights: a config without the options that its parts declare `not_weights`, which change how
    the same function is computed.
    """
    values = config_dict(config)
    for key, kind in PARTS.items():
        if values[key] is not None:
            values[key] = {name: value for name, value in values[key].items() if name not in kind.not_weights}
    return values


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata of a safetensors file. Raises ValueError when it is damaged."""
    try:
        with safe_open(str(path), framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} cannot be read ({error}); delete it and run again") from None


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file in one move."""
    replace_file(
        path, save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, dict(metadata))
    )


def replace_file(path: Path, data: bytes) -> None:
    """Put `data` at `path` in one move."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(beside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def to_bfloat16(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights as the zoo stores them: half the bytes, the same exponents."""
    return {name: tensor.to(torch.bfloat16) for name, tensor in tensors.items()}
