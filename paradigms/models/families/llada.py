"""LLaDA (2502.09992): a Llama without the causal mask, under the names of OLMo.

    GSAI-ML/LLaDA-8B-Base, GSAI-ML/LLaDA-8B-Instruct, GSAI-ML/LLaDA-1.5

`transformers` does not have it: config.json is read here, and none of the code beside it is run. Tensors of block N are
model.transformer.blocks.N.{attn_norm, q_proj, k_proj, v_proj, attn_out, ff_norm, ff_proj, up_proj, ff_out}, where
ff_proj is the gate; the last model.transformer.ff_out is the head. The prediction for a position is read there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from paradigms.models.attention import AttentionConfig
from paradigms.models.config import ModelConfig
from paradigms.models.families import common
from paradigms.models.families.family import Entry
from paradigms.models.feed_forward import FeedForwardConfig

_DEFAULTS: dict[str, Any] = {  # of settings that config.json may leave out, as their configuration class has them
    "n_kv_heads": None,
    "mlp_hidden_size": None,
    "mlp_ratio": 4,
    "embedding_size": None,
    "max_sequence_length": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "include_qkv_bias": False,
    "weight_tying": True,
    "alibi": False,
    "attention_layer_norm": False,
    "block_group_size": 1,
    "include_bias": False,
    "input_emb_norm": False,
    "layer_norm_with_affine": True,
    "multi_query_attention": None,
    "scale_logits": False,
    # These differ from their defaults, which LLaDA's own files never rely on: left out, they are refused.
    "activation_type": None,
    "block_type": None,
    "layer_norm_type": None,
    "rope": None,
}
_ONLY = {
    "alibi": False,
    "attention_layer_norm": False,
    "block_group_size": 1,
    "include_bias": False,
    "input_emb_norm": False,
    "layer_norm_with_affine": True,
    "multi_query_attention": None,
    "scale_logits": False,
    "activation_type": "silu",
    "block_type": "llama",
    "layer_norm_type": "rms",
    "rope": True,
}


def filled_in(config: Mapping[str, Any]) -> dict[str, Any]:
    """Contents of config.json with the defaults of what it leaves out, and the names that all configs share.

    Raises:
        ValueError: another network under the same `model_type`.
    """
    needed = ("d_model", "n_heads", "n_layers", "vocab_size", "mask_token_id")
    if missing := [name for name in needed if name not in config]:
        raise ValueError(
            f"this llada has no {', '.join(missing)} in its config.json; LLaDA-8B and LLaDA-1.5 are read, LLaDA-MoE is "
            "not"
        )
    values = {**_DEFAULTS, **config}
    size = values["embedding_size"] or values["vocab_size"]  # rows of the embedding, and so many logits
    return {**values, "vocab_size": size, "max_position_embeddings": values["max_sequence_length"]}


class LLaDA:
    """`LLaDAModelLM`."""

    model_types: tuple[str, ...] = ("llada",)

    def from_transformers(self, config: Mapping[str, Any]) -> ModelConfig:
        common.only(config, _ONLY)
        d_model, heads = config["d_model"], config["n_heads"]
        return ModelConfig(
            vocab_size=config["vocab_size"],
            d_model=d_model,
            block="AF",
            num_blocks=config["n_layers"],
            causal=False,
            noise="absorbing",
            max_positions=config["max_sequence_length"],
            norm_eps=config["rms_norm_eps"],
            tied_head=config["weight_tying"],
            attention=AttentionConfig(
                num_heads=heads,
                num_kv_heads=config["n_kv_heads"] or heads,
                rope_theta=config["rope_theta"],
                qkv_bias=bool(config["include_qkv_bias"]),
            ),
            feed_forward=FeedForwardConfig(width=config["mlp_hidden_size"] or config["mlp_ratio"] * d_model),
        )

    def to_transformers(self, config: ModelConfig) -> None:
        return None

    def entries(self, config: ModelConfig) -> Iterable[Entry]:
        attention, width = config.part("A"), config.part("F").width
        heads = (attention.num_heads, attention.kv_heads, attention.kv_heads)
        sizes = tuple(count * attention.head_width(config.d_model) for count in heads)
        yield Entry("embedding", ("model.transformer.wte.weight",), transpose=True)
        yield Entry("norm", ("model.transformer.ln_f.weight",))
        if not config.tied_head:
            yield Entry("head", ("model.transformer.ff_out.weight",), transpose=True)
        for i in range(config.num_blocks):
            ours, mlp, theirs = f"layers.{2 * i}", f"layers.{2 * i + 1}", f"model.transformer.blocks.{i}"
            qkv = [f"{theirs}.{name}_proj" for name in "qkv"]
            yield Entry(f"{ours}.norm", (f"{theirs}.attn_norm.weight",))
            yield Entry(f"{ours}.mixer.qkv", tuple(f"{name}.weight" for name in qkv), sizes, transpose=True)
            if attention.qkv_bias:
                yield Entry(f"{ours}.mixer.qkv_bias", tuple(f"{name}.bias" for name in qkv), sizes)
            yield Entry(f"{ours}.mixer.out", (f"{theirs}.attn_out.weight",), transpose=True)
            yield Entry(f"{mlp}.norm", (f"{theirs}.ff_norm.weight",))
            gate_up = (f"{theirs}.ff_proj.weight", f"{theirs}.up_proj.weight")
            yield Entry(f"{mlp}.mixer.gate_up", gate_up, (width, width), transpose=True)
            yield Entry(f"{mlp}.mixer.down", (f"{theirs}.ff_out.weight",), transpose=True)
