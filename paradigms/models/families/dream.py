"""Dream (2508.15487): Qwen2's network and names without the causal mask.

    Dream-org/Dream-v0-Base-7B, Dream-org/Dream-v0-Instruct-7B, Dream-org/Dream-Coder-v0-Instruct-7B

It was made of an autoregressive model, and still reads the prediction for a position one column to the left.
`transformers` does not have it: config.json is read here, and none of the code beside it is run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from paradigms.models.config import ModelConfig
from paradigms.models.families import common
from paradigms.models.families.family import Entry
from paradigms.models.families.llama import Llama

_DEFAULTS: dict[str, Any] = {  # of settings that config.json may leave out, as their configuration class has them
    "hidden_act": "silu",
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_theta": 10_000.0,
    "rope_scaling": None,
    "use_sliding_window": False,
    "mask_token_id": 151_666,
}
_QWEN2 = Llama()


def filled_in(config: Mapping[str, Any]) -> dict[str, Any]:
    """Contents of config.json with the defaults of what it leaves out.

    Raises:
        ValueError: no sizes.
    """
    needed = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    if missing := [name for name in needed if name not in config]:
        raise ValueError(f"this Dream has no {', '.join(missing)} in its config.json; give it")
    values = {**_DEFAULTS, **config}
    values.setdefault("rope_parameters", {"rope_theta": values["rope_theta"], **(values["rope_scaling"] or {})})
    values["num_key_value_heads"] = values.get("num_key_value_heads") or values["num_attention_heads"]
    return values


class Dream:
    """`DreamModel`."""

    model_types: tuple[str, ...] = ("Dream",)

    def from_transformers(self, config: Mapping[str, Any]) -> ModelConfig:
        if "block_size" in config:  # DreamReasoner: block diffusion without the shift
            raise ValueError(
                f"block_size={config['block_size']} is of a later Dream, which the native stack has not read"
            )
        common.only(config, {"use_sliding_window": False})
        plain = _QWEN2.from_transformers({**config, "model_type": "qwen2", "layer_types": None})
        return dataclasses.replace(plain, causal=False, noise="absorbing", shift_logits=True)

    def to_transformers(self, config: ModelConfig) -> None:
        return None

    def entries(self, config: ModelConfig) -> Iterable[Entry]:
        return _QWEN2.entries(config)
