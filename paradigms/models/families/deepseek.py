"""DeepSeek-V2 and V3: latent attention, some dense layers, then shared and routed experts.

Theirs keeps a head's plain and rotary part side by side and turns neighbouring pairs; ours keeps the rotary parts of
all heads together and turns halves. That is an order of columns, so it costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from paradigms.models.config import ModelConfig
from paradigms.models.experts import ExpertsConfig
from paradigms.models.families import common
from paradigms.models.families.family import Entry
from paradigms.models.families.rope import rope_from, rope_to
from paradigms.models.feed_forward import FeedForwardConfig
from paradigms.models.latent_attention import LatentAttentionConfig

_ONLY = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "rope_interleave": True}  # is computed
LATENT_EPS = 1e-6  # of their norms of latents, whatever rms_norm_eps says


class DeepSeek:
    """`DeepseekV2ForCausalLM` and `DeepseekV3ForCausalLM`."""

    model_types: tuple[str, ...] = ("deepseek_v2", "deepseek_v3")

    def from_transformers(self, config: Mapping[str, Any]) -> ModelConfig:
        kv_heads = {"num_key_value_heads": config["num_attention_heads"]}
        never = {"norm_topk_prob": False} if config["model_type"] == "deepseek_v2" else {}  # theirs ignores it in V2
        common.only(config, {**_ONLY, **kv_heads, **never})
        theta, scaling = rope_from(config["rope_parameters"])
        layers, dense = config["num_hidden_layers"], min(config["first_k_dense_replace"], config["num_hidden_layers"])
        block, num_blocks = common.shortest_block("LF" * dense + "LE" * (layers - dense))
        return ModelConfig(
            vocab_size=config["vocab_size"],
            d_model=config["hidden_size"],
            block=block,
            num_blocks=num_blocks,
            max_positions=config["max_position_embeddings"],
            norm_eps=config["rms_norm_eps"],
            tied_head=config["tie_word_embeddings"],
            latent_attention=LatentAttentionConfig(
                num_heads=config["num_attention_heads"],
                kv_rank=config["kv_lora_rank"],
                q_rank=config["q_lora_rank"],
                nope_dim=config["qk_nope_head_dim"],
                rope_dim=config["qk_rope_head_dim"],
                value_dim=config["v_head_dim"],
                rope_theta=theta,
                rope_scaling=scaling,
                scale_factor=_score_scale(config["rope_parameters"]),
                latent_eps=LATENT_EPS,
            ),
            feed_forward=FeedForwardConfig(width=config["intermediate_size"]) if dense else None,
            experts=_experts(config) if dense < layers else None,
        )

    def to_transformers(self, config: ModelConfig) -> dict[str, Any] | None:
        layers = len(config.layers) // 2
        dense = config.layers.count("F")
        latent, experts = config.latent_attention, config.experts
        if config.layers != "LF" * dense + "LE" * (layers - dense) or latent is None or not config.causal:
            return None
        if latent.latent_eps != LATENT_EPS or (latent.scale_factor != 1 and latent.rope_scaling is None):
            return None
        rope = rope_to(latent.rope_theta, latent.rope_scaling)
        if latent.rope_scaling is not None and latent.scale_factor != 1:
            factor = latent.rope_scaling.factor
            rope |= {"attention_factor": latent.rope_scaling.amplitude}
            rope |= {"mscale_all_dim": (math.sqrt(latent.scale_factor) - 1) / (0.1 * math.log(factor))}
        routed = {"model_type": "deepseek_v3"}
        if experts is not None and (routed := _routing(config.part("E"))) is None:
            return None
        return {
            **routed,
            "vocab_size": config.vocab_size,
            "hidden_size": config.d_model,
            "intermediate_size": config.part("F").width if dense else config.part("E").width,
            "num_hidden_layers": layers,
            "first_k_dense_replace": dense,
            "num_attention_heads": latent.num_heads,
            "num_key_value_heads": latent.num_heads,
            "kv_lora_rank": latent.kv_rank,
            "q_lora_rank": latent.q_rank,
            "qk_nope_head_dim": latent.nope_dim,
            "qk_rope_head_dim": latent.rope_dim,
            "v_head_dim": latent.value_dim,
            "max_position_embeddings": config.max_positions,
            "rms_norm_eps": config.norm_eps,
            "rope_parameters": rope,
            "tie_word_embeddings": config.tied_head,
        }

    def entries(self, config: ModelConfig) -> Iterable[Entry]:
        yield from common.ends(config, "model.embed_tokens", "model.norm")
        for i, letter in enumerate(config.layers[1::2]):
            ours, mlp, theirs = f"layers.{2 * i}", f"layers.{2 * i + 1}", f"model.layers.{i}"
            yield Entry(f"{ours}.norm", (f"{theirs}.input_layernorm.weight",))
            yield from _attention(f"{ours}.mixer", f"{theirs}.self_attn", config.part("L"))
            yield Entry(f"{mlp}.norm", (f"{theirs}.post_attention_layernorm.weight",))
            if letter == "F":
                yield from common.swiglu(f"{mlp}.mixer", f"{theirs}.mlp", config.part("F").width)
                continue
            experts = config.part("E")
            yield from common.experts(f"{mlp}.mixer", f"{theirs}.mlp")
            if experts.routing_bias:
                yield Entry(f"{mlp}.mixer.routing_bias", (f"{theirs}.mlp.gate.e_score_correction_bias",))
            shared = experts.num_shared * experts.shared_width
            yield from common.swiglu(f"{mlp}.mixer.shared", f"{theirs}.mlp.shared_experts", shared)


def _attention(ours: str, theirs: str, c: LatentAttentionConfig) -> Iterable[Entry]:
    turned = [*range(0, c.rope_dim, 2), *range(1, c.rope_dim, 2)]  # neighbours to halves
    heads = [head * c.key_dim for head in range(c.num_heads)]
    queries = [first + column for first in heads for column in range(c.nope_dim)]
    queries += [first + c.nope_dim + column for first in heads for column in turned]
    made = len(queries) if c.q_rank is None else c.q_rank  # columns before those of the latent
    latent = [made + c.kv_rank + column for column in turned] + [made + column for column in range(c.kv_rank)]
    first = queries if c.q_rank is None else list(range(c.q_rank))
    names = (f"{theirs}.q{'' if c.q_rank is None else '_a'}_proj.weight", f"{theirs}.kv_a_proj_with_mqa.weight")
    yield Entry(f"{ours}.in_proj", names, (made, len(latent)), transpose=True, order=(*first, *latent))
    if c.q_rank is not None:
        yield Entry(f"{ours}.q_norm", (f"{theirs}.q_a_layernorm.weight",))
        yield Entry(f"{ours}.q_up", (f"{theirs}.q_b_proj.weight",), transpose=True, order=tuple(queries))
    yield Entry(f"{ours}.kv_norm", (f"{theirs}.kv_a_layernorm.weight",))
    yield Entry(f"{ours}.kv_up", (f"{theirs}.kv_b_proj.weight",), transpose=True)
    yield Entry(f"{ours}.out", (f"{theirs}.o_proj.weight",), transpose=True)


def _experts(config: Mapping[str, Any]) -> ExpertsConfig:
    v3 = config["model_type"] == "deepseek_v3"
    limited = v3 or config["topk_method"] == "group_limited_greedy"
    groups = (config["n_group"] or 1) if limited else 1
    return ExpertsConfig(
        num_experts=config["n_routed_experts"],
        top_k=config["num_experts_per_tok"],
        width=config["moe_intermediate_size"],
        num_shared=config["n_shared_experts"],
        shared_width=config["moe_intermediate_size"],
        scoring="sigmoid" if v3 else "softmax",
        normalise_top_k=bool(config["norm_topk_prob"]),
        routing_bias=v3,
        num_groups=groups,
        top_groups=config["topk_group"] if groups > 1 else 1,
        group_best=2 if v3 and groups > 1 else 1,
        routed_scale=config["routed_scaling_factor"],
        balance_loss=0.0,  # theirs balances by the bias (V3), or has losses of its own (V2)
    )


def _routing(c: ExpertsConfig) -> dict[str, Any] | None:
    """Their model type and settings for these experts, or None."""
    v3 = c.scoring == "sigmoid"
    own = c.routing_bias and c.group_best == (2 if c.num_groups > 1 else 1)
    fits = own if v3 else not (c.routing_bias or c.normalise_top_k) and c.group_best == 1
    if not fits or not c.num_shared or c.shared_gate or c.shared_width != c.width:
        return None
    found = {"model_type": "deepseek_v3" if v3 else "deepseek_v2"}
    if not v3:
        found |= {"topk_method": "group_limited_greedy" if c.num_groups > 1 else "greedy"}
    return {
        **found,
        "n_routed_experts": c.num_experts,
        "num_experts_per_tok": c.top_k,
        "moe_intermediate_size": c.width,
        "n_shared_experts": c.num_shared,
        "norm_topk_prob": c.normalise_top_k,
        "n_group": c.num_groups,
        "topk_group": c.top_groups,
        "routed_scaling_factor": c.routed_scale,
    }


def _score_scale(rope: Mapping[str, Any]) -> float:
    """What theirs multiplies the scale of the scores by."""
    all_dim = rope.get("mscale_all_dim") or 0
    if rope.get("rope_type", "default") == "default" or not all_dim or rope["factor"] <= 1:
        return 1.0
    return (0.1 * all_dim * math.log(rope["factor"]) + 1) ** 2
