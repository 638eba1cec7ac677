"""Llama and its relatives: attention and SwiGLU in turn.

They differ in a bias on queries, keys and values, in a norm of each head's queries and keys, and in which layers see a
window only. `KINDS` says who has what.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from paradigms.models.attention import AttentionConfig
from paradigms.models.config import ModelConfig
from paradigms.models.families import common
from paradigms.models.families.family import Entry
from paradigms.models.families.rope import rope_from, rope_to
from paradigms.models.feed_forward import FeedForwardConfig
from paradigms.models.sliding_attention import SlidingAttentionConfig

KINDS: dict[str, dict[str, bool]] = {  # model_type -> fields of our attention
    "llama": {"qkv_bias": False, "qk_norm": False},
    "mistral": {"qkv_bias": False, "qk_norm": False},
    "qwen2": {"qkv_bias": True, "qk_norm": False},
    "qwen3": {"qkv_bias": False, "qk_norm": True},
}
_LETTERS = {"full_attention": "A", "sliding_attention": "W"}
_ONLY = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False}  # settings that are computed


class Llama:
    """`LlamaForCausalLM` (SmolLM2 included), `MistralForCausalLM`, `Qwen2ForCausalLM` and `Qwen3ForCausalLM`."""

    model_types: tuple[str, ...] = tuple(KINDS)

    def from_transformers(self, config: Mapping[str, Any]) -> ModelConfig:
        common.only(config, _ONLY)
        theta, scaling = rope_from(config["rope_parameters"])
        fields = {
            "num_heads": config["num_attention_heads"],
            "num_kv_heads": config["num_key_value_heads"],
            "head_dim": config.get("head_dim"),
            "rope_theta": theta,
            "rope_scaling": scaling,
            **KINDS[config["model_type"]],
        }
        letters = _letters(config)
        block, num_blocks = common.shortest_block("".join(f"{letter}F" for letter in letters))
        return ModelConfig(
            vocab_size=config["vocab_size"],
            d_model=config["hidden_size"],
            block=block,
            num_blocks=num_blocks,
            max_positions=config["max_position_embeddings"],
            norm_eps=config["rms_norm_eps"],
            tied_head=config["tie_word_embeddings"],
            attention=AttentionConfig(**fields) if "A" in letters else None,
            sliding_attention=(
                SlidingAttentionConfig(window=config["sliding_window"], **fields) if "W" in letters else None
            ),
            feed_forward=FeedForwardConfig(width=config["intermediate_size"]),
        )

    def to_transformers(self, config: ModelConfig) -> dict[str, Any] | None:
        letters = config.layers[::2]
        attention = _attention(config)
        if attention is None or attention.rope_theta is None or not config.causal:
            return None
        model_type = _model_type(config, attention, set(letters))
        if model_type is None:
            return None
        windows: dict[str, Any] = {}
        window = config.sliding_attention.window if config.sliding_attention is not None else None
        if model_type == "mistral":
            windows = {"sliding_window": window}
        elif window is not None:
            names = {letter: name for name, letter in _LETTERS.items()}
            types = [names[letter] for letter in letters]
            windows = {"use_sliding_window": True, "sliding_window": window, "layer_types": types}
        return {
            "model_type": model_type,
            "vocab_size": config.vocab_size,
            "hidden_size": config.d_model,
            "intermediate_size": config.part("F").width,
            "num_hidden_layers": len(letters),
            "num_attention_heads": attention.num_heads,
            "num_key_value_heads": attention.kv_heads,
            "head_dim": attention.head_width(config.d_model),
            "max_position_embeddings": config.max_positions,
            "rms_norm_eps": config.norm_eps,
            "rope_parameters": rope_to(attention.rope_theta, attention.rope_scaling),
            "tie_word_embeddings": config.tied_head,
            **windows,
        }

    def entries(self, config: ModelConfig) -> Iterable[Entry]:
        yield from common.ends(config, "model.embed_tokens", "model.norm")
        for i, attention in enumerate(config.parts[::2]):
            ours, mlp, theirs = f"layers.{2 * i}", f"layers.{2 * i + 1}", f"model.layers.{i}"
            yield Entry(f"{ours}.norm", (f"{theirs}.input_layernorm.weight",))
            yield from common.attention(f"{ours}.mixer", f"{theirs}.self_attn", attention, config.d_model)
            yield Entry(f"{mlp}.norm", (f"{theirs}.post_attention_layernorm.weight",))
            yield from common.swiglu(f"{mlp}.mixer", f"{theirs}.mlp", config.part("F").width)


def _letters(config: Mapping[str, Any]) -> str:
    """A or W for each layer of theirs."""
    types = config.get("layer_types")
    if config["model_type"] == "mistral":  # `transformers` gives all its layers one window, whatever layer_types says
        every = "full_attention" if config.get("sliding_window") is None else "sliding_attention"
        if types and set(types) != {every}:
            raise ValueError(f"layer_types of a mistral mean nothing to transformers; leave them out, or all {every}")
        types = [every] * config["num_hidden_layers"]
    types = types or ["full_attention"] * config["num_hidden_layers"]
    if unknown := sorted(set(types) - _LETTERS.keys()):
        raise ValueError(f"layer_types has {', '.join(unknown)}, which the native stack does not compute")
    return "".join(_LETTERS[name] for name in types)


def _attention(config: ModelConfig) -> AttentionConfig | None:
    """What all attention layers have in common; None when they differ, or when there are other layers."""
    letters, others = set(config.layers[::2]), set(config.layers[1::2])
    if not letters <= set(_LETTERS.values()) or others != {"F"} or len(config.layers) % 2:
        return None
    fields = [field.name for field in dataclasses.fields(AttentionConfig)]
    parts = [config.part(letter) for letter in letters]
    found = [AttentionConfig(**{name: getattr(part, name) for name in fields}) for part in parts]
    return found[0] if all(one == found[0] for one in found) else None


def _model_type(config: ModelConfig, attention: AttentionConfig, letters: set[str]) -> str | None:
    """The class of theirs that has this bias, norm and mixture of layers."""
    extras = {"qkv_bias": attention.qkv_bias, "qk_norm": attention.qk_norm}
    candidates = [name for name, has in KINDS.items() if has == extras]
    if "llama" not in candidates:
        return candidates[0] if candidates else None
    if letters == {"A"} and config.d_model % attention.num_heads == 0:  # LlamaConfig refuses other widths
        return "llama"
    return "mistral" if len(letters) == 1 else None
