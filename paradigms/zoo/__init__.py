"""The small trained models that ship with the package: an autoregressive Transformer, a Mamba-2 decoder and a masked
denoiser.

Equal parameters, text, tokens, tokenizer and optimizer, so that a comparison needs no training first. Each is a
checkpoint folder with weights in bfloat16 and a card that tells how it came about; `make train` makes them again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paradigms.models.config import ModelConfig
from paradigms.training import checkpoint

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Names of the models in the zoo."""
    return sorted(path.parent.name for path in FOLDER.glob(f"*/{checkpoint.CARD}"))


def folder(name: str) -> Path:
    """Folder of a model. Raises ValueError for a name that the zoo does not have."""
    if name not in names():
        raise ValueError(f"the zoo has no model {name!r}; it has {', '.join(names()) or 'none'}")
    return FOLDER / name


def find(config: ModelConfig) -> tuple[Path, dict[str, Any]]:
    """Folder and card of the zoo's model with exactly this config.

    Raises:
        ValueError: the zoo has no such model; names the nearest one and what differs.
    """
    near: list[tuple[int, str]] = []
    for name in names():
        card = checkpoint.read_card(FOLDER / name)
        difference = differences(config, checkpoint.model_config(card))
        if not difference:
            return FOLDER / name, card
        if checkpoint.model_config(card).block == config.block:
            near.append((difference.count(","), f"{name} ({difference})"))
    lacks = f"it has {', '.join(names())}, none with model.block={config.block}" if names() else "it is empty"
    raise ValueError(
        "the zoo has no model of this config: train it here with train=quick or train=full, or measure latency alone "
        "with train=random measure=latency workload=random_prompts; "
        + (f"the nearest is {min(near)[1]}" if near else lacks)
    )


def differences(wanted: ModelConfig, found: ModelConfig) -> str:
    """Fields in which two configs differ, as `d_model is 128 there, not 256`; empty when they are the same network."""
    left, right = (_flat(checkpoint.network_dict(config)) for config in (wanted, found))
    return ", ".join(
        f"{name} is {right.get(name)} there, not {left.get(name)}"
        for name in {**left, **right}
        if left.get(name) != right.get(name)
    )


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested fields as `attention.num_heads`."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def publish(folder: Path, name: str, additions: dict[str, Any]) -> Path:
    """Put a trained checkpoint into the zoo, its weights rounded to bfloat16."""
    card = {**checkpoint.read_card(folder), **additions}
    tensors, _ = checkpoint.read_tensors(folder / checkpoint.WEIGHTS)
    tokenizer = checkpoint.load_tokenizer(folder)
    checkpoint.write_checkpoint(FOLDER / name, checkpoint.to_bfloat16(tensors), tokenizer, card)
    return FOLDER / name
