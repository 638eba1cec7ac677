"""Mixtral, Qwen2-MoE and Qwen3-MoE: attention as in Llama's relatives, with routed experts for its feed-forward."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from paradigms.models.attention import AttentionConfig
from paradigms.models.config import ModelConfig
from paradigms.models.experts import ExpertsConfig
from paradigms.models.families import common
from paradigms.models.families.family import Entry
from paradigms.models.families.rope import rope_from, rope_to
from paradigms.models.feed_forward import FeedForwardConfig

KINDS: dict[str, dict[str, bool]] = {  # model_type -> fields of our attention
    "mixtral": {"qkv_bias": False, "qk_norm": False},
    "qwen2_moe": {"qkv_bias": True, "qk_norm": False},
    "qwen3_moe": {"qkv_bias": False, "qk_norm": True},
}
_ONLY = {"hidden_act": "silu", "attention_bias": False}  # settings that are computed


class Mixtral:
    """`MixtralForCausalLM`, `Qwen2MoeForCausalLM` and `Qwen3MoeForCausalLM`, without sliding windows."""

    model_types: tuple[str, ...] = tuple(KINDS)

    def from_transformers(self, config: Mapping[str, Any]) -> ModelConfig:
        kind = config["model_type"]
        common.only(config, {**_ONLY, **({"qkv_bias": True} if kind == "qwen2_moe" else {})})
        if config.get("sliding_window") and config.get("use_sliding_window", True):
            raise ValueError(f"sliding_window={config['sliding_window']} of a {kind} is not computed here; it has null")
        theta, scaling = rope_from(config["rope_parameters"])
        letters = _feed_forwards(config)
        block, num_blocks = common.shortest_block("".join(f"A{letter}" for letter in letters))
        return ModelConfig(
            vocab_size=config["vocab_size"],
            d_model=config["hidden_size"],
            block=block,
            num_blocks=num_blocks,
            max_positions=config["max_position_embeddings"],
            norm_eps=config["rms_norm_eps"],
            tied_head=config["tie_word_embeddings"],
            attention=AttentionConfig(
                num_heads=config["num_attention_heads"],
                num_kv_heads=config["num_key_value_heads"],
                head_dim=config.get("head_dim"),
                rope_theta=theta,
                rope_scaling=scaling,
                **KINDS[kind],
            ),
            feed_forward=FeedForwardConfig(width=config["intermediate_size"]) if "F" in letters else None,
            experts=_experts(config) if "E" in letters else None,
        )

    def to_transformers(self, config: ModelConfig) -> dict[str, Any] | None:
        letters, attention = config.layers[1::2], config.attention
        if set(config.layers[::2]) != {"A"} or not set(letters) <= set("FE") or "E" not in letters:
            return None
        if attention is None or attention.rope_theta is None or not config.causal:
            return None
        experts, extras = config.part("E"), {"qkv_bias": attention.qkv_bias, "qk_norm": attention.qk_norm}
        kind = next((kind for kind, has in KINDS.items() if has == extras), None)
        if kind is None or not _computes(kind, experts) or ("F" in letters and kind == "mixtral"):
            return None
        if kind == "qwen2_moe" and attention.head_width(config.d_model) * attention.num_heads != config.d_model:
            return None
        width = experts.width
        sizes: dict[str, Any] = {"intermediate_size": width, "num_local_experts": experts.num_experts}
        if kind != "mixtral":
            sizes = {
                "intermediate_size": config.part("F").width if "F" in letters else width,
                "moe_intermediate_size": width,
                "num_experts": experts.num_experts,
                "norm_topk_prob": experts.normalise_top_k,
                "mlp_only_layers": [i for i, letter in enumerate(letters) if letter == "F"],
            }
        if kind == "qwen2_moe":
            sizes |= {"shared_expert_intermediate_size": experts.num_shared * experts.shared_width}
        else:
            sizes |= {"head_dim": attention.head_width(config.d_model)}
        return {
            "model_type": kind,
            "vocab_size": config.vocab_size,
            "hidden_size": config.d_model,
            "num_hidden_layers": len(letters),
            "num_attention_heads": attention.num_heads,
            "num_key_value_heads": attention.kv_heads,
            "num_experts_per_tok": experts.top_k,
            "router_aux_loss_coef": experts.balance_loss,
            "max_position_embeddings": config.max_positions,
            "rms_norm_eps": config.norm_eps,
            "rope_parameters": rope_to(attention.rope_theta, attention.rope_scaling),
            "tie_word_embeddings": config.tied_head,
            **sizes,
        }

    def entries(self, config: ModelConfig) -> Iterable[Entry]:
        yield from common.ends(config, "model.embed_tokens", "model.norm")
        for i, letter in enumerate(config.layers[1::2]):
            ours, mlp, theirs = f"layers.{2 * i}", f"layers.{2 * i + 1}", f"model.layers.{i}"
            yield Entry(f"{ours}.norm", (f"{theirs}.input_layernorm.weight",))
            yield from common.attention(f"{ours}.mixer", f"{theirs}.self_attn", config.part("A"), config.d_model)
            yield Entry(f"{mlp}.norm", (f"{theirs}.post_attention_layernorm.weight",))
            if letter == "F":
                yield from common.swiglu(f"{mlp}.mixer", f"{theirs}.mlp", config.part("F").width)
                continue
            experts = config.part("E")
            yield from common.experts(f"{mlp}.mixer", f"{theirs}.mlp")
            if experts.num_shared:
                shared = experts.num_shared * experts.shared_width
                yield from common.swiglu(f"{mlp}.mixer.shared", f"{theirs}.mlp.shared_expert", shared)
                gate = (f"{theirs}.mlp.shared_expert_gate.weight",)
                yield Entry(f"{mlp}.mixer.shared_gate", gate, transpose=True)


def _feed_forwards(config: Mapping[str, Any]) -> str:
    """F or E for each layer."""
    step, dense = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers") or []
    layers = range(config["num_hidden_layers"])
    return "".join("E" if i not in dense and (i + 1) % step == 0 else "F" for i in layers)


def _experts(config: Mapping[str, Any]) -> ExpertsConfig:
    mixtral, shared = config["model_type"] == "mixtral", config["model_type"] == "qwen2_moe"
    return ExpertsConfig(
        num_experts=config["num_local_experts"] if "num_local_experts" in config else config["num_experts"],
        top_k=config["num_experts_per_tok"],
        width=config["intermediate_size" if mixtral else "moe_intermediate_size"],
        num_shared=int(shared),
        shared_width=config["shared_expert_intermediate_size"] if shared else None,
        shared_gate=shared,
        normalise_top_k=mixtral or config["norm_topk_prob"],
        balance_loss=config["router_aux_loss_coef"],
    )


def _computes(kind: str, c: ExpertsConfig) -> bool:
    """Whether this class of theirs computes these experts."""
    plain = c.scoring == "softmax" and c.num_groups == 1 and c.routed_scale == 1 and not c.routing_bias
    has_shared = (c.num_shared > 0 and c.shared_gate) if kind == "qwen2_moe" else not c.num_shared
    return plain and has_shared and (c.normalise_top_k or kind != "mixtral")
