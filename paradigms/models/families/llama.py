"""Llama and its relatives: attention and SwiGLU in turn."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from paradigms.models.attention import AttentionConfig
from paradigms.models.config import ModelConfig
from paradigms.models.families.family import Entry
from paradigms.models.feed_forward import FeedForwardConfig


class Llama:
    """`LlamaForCausalLM`, SmolLM2 included."""

    model_types: tuple[str, ...] = ("llama",)

    def from_transformers(self, config: Mapping[str, Any]) -> ModelConfig:
        rope = config.get("rope_parameters") or {"rope_type": "default", "rope_theta": config.get("rope_theta", 1e4)}
        if rope.get("rope_type", "default") != "default":
            raise ValueError(f"rope_type={rope['rope_type']!r} is not computed by the native stack")
        if config.get("hidden_act", "silu") != "silu":
            raise ValueError(f"hidden_act={config['hidden_act']!r} is not computed by the native stack; it has silu")
        return ModelConfig(
            vocab_size=config["vocab_size"],
            d_model=config["hidden_size"],
            block="AF",
            num_blocks=config["num_hidden_layers"],
            max_positions=config["max_position_embeddings"],
            norm_eps=config["rms_norm_eps"],
            tied_head=config["tie_word_embeddings"],
            attention=AttentionConfig(
                num_heads=config["num_attention_heads"],
                num_kv_heads=config["num_key_value_heads"],
                head_dim=config.get("head_dim"),
                rope_theta=rope["rope_theta"],
            ),
            feed_forward=FeedForwardConfig(width=config["intermediate_size"]),
        )

    def to_transformers(self, config: ModelConfig) -> dict[str, Any] | None:
        if config.block.replace("AF", "") or not config.causal or config.part("A").rope_theta is None:
            return None
        attention = config.part("A")
        return {
            "model_type": "llama",
            "vocab_size": config.vocab_size,
            "hidden_size": config.d_model,
            "intermediate_size": config.part("F").width,
            "num_hidden_layers": len(config.layers) // 2,
            "num_attention_heads": attention.num_heads,
            "num_key_value_heads": attention.kv_heads,
            "head_dim": attention.width(config.d_model),
            "max_position_embeddings": config.max_positions,
            "rms_norm_eps": config.norm_eps,
            "rope_parameters": {"rope_type": "default", "rope_theta": attention.rope_theta},
            "tie_word_embeddings": config.tied_head,
        }

    def entries(self, config: ModelConfig) -> Iterable[Entry]:
        yield Entry("embedding", ("model.embed_tokens.weight",), transpose=True)
        yield Entry("norm", ("model.norm.weight",))
        if not config.tied_head:
            yield Entry("head", ("lm_head.weight",), transpose=True)
        attention = config.part("A")
        width = attention.width(config.d_model)
        heads = tuple(count * width for count in (attention.num_heads, attention.kv_heads, attention.kv_heads))
        ff_width = config.part("F").width
        for i in range(len(config.layers) // 2):
            ours, mlp, theirs = f"layers.{2 * i}", f"layers.{2 * i + 1}", f"model.layers.{i}"
            yield Entry(f"{ours}.norm", (f"{theirs}.input_layernorm.weight",))
            qkv = tuple(f"{theirs}.self_attn.{name}_proj.weight" for name in "qkv")
            yield Entry(f"{ours}.mixer.qkv", qkv, heads, transpose=True)
            yield Entry(f"{ours}.mixer.out", (f"{theirs}.self_attn.o_proj.weight",), transpose=True)
            yield Entry(f"{mlp}.norm", (f"{theirs}.post_attention_layernorm.weight",))
            gate_up = tuple(f"{theirs}.mlp.{name}_proj.weight" for name in ("gate", "up"))
            yield Entry(f"{mlp}.mixer.gate_up", gate_up, (ff_width, ff_width), transpose=True)
            yield Entry(f"{mlp}.mixer.down", (f"{theirs}.mlp.down_proj.weight",), transpose=True)
