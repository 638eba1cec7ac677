"""Jamba (2403.19887): Mamba layers, attention once in a while, and experts in place of every other feed-forward."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from paradigms.models.attention import AttentionConfig
from paradigms.models.config import ModelConfig
from paradigms.models.experts import ExpertsConfig
from paradigms.models.families import common
from paradigms.models.families.family import Entry
from paradigms.models.families.mamba import mixer_entries
from paradigms.models.feed_forward import FeedForwardConfig
from paradigms.models.mamba import MambaConfig


class Jamba:
    """`JambaForCausalLM`. A layer of theirs is two of ours: what mixes tokens (A, S), then a feed-forward (F, E)."""

    model_types: tuple[str, ...] = ("jamba",)

    def from_transformers(self, config: Mapping[str, Any]) -> ModelConfig:
        common.only(config, {"hidden_act": "silu", "mamba_proj_bias": False})
        layers = ""
        for i in range(config["num_hidden_layers"]):
            has_attention = i % config["attn_layer_period"] == config["attn_layer_offset"]
            has_experts = i % config["expert_layer_period"] == config["expert_layer_offset"]
            layers += "A" if has_attention else "S"
            layers += "E" if has_experts and config["num_experts"] > 1 else "F"
        block, num_blocks = common.shortest_block(layers)
        parts = {
            "A": AttentionConfig(
                num_heads=config["num_attention_heads"],
                num_kv_heads=config["num_key_value_heads"],
                head_dim=config.get("head_dim"),
                rope_theta=None,
            ),
            "S": MambaConfig(
                expand=config["mamba_expand"],
                d_state=config["mamba_d_state"],
                d_conv=config["mamba_d_conv"],
                dt_rank=config["mamba_dt_rank"],
                conv_bias=config["mamba_conv_bias"],
                inner_norms="weighted",
            ),
            "F": FeedForwardConfig(width=config["intermediate_size"]),
            "E": ExpertsConfig(
                num_experts=config["num_experts"],
                top_k=config["num_experts_per_tok"],
                width=config["intermediate_size"],
                normalise_top_k=False,
                balance_loss=config["router_aux_loss_coef"],
            ),
        }
        return ModelConfig(
            vocab_size=config["vocab_size"],
            d_model=config["hidden_size"],
            block=block,
            num_blocks=num_blocks,
            max_positions=config["max_position_embeddings"],
            norm_eps=config["rms_norm_eps"],
            tied_head=config["tie_word_embeddings"],
            **{part.key: part for letter, part in parts.items() if letter in block},
        )

    def to_transformers(self, config: ModelConfig) -> dict[str, Any] | None:
        mixers, feed_forwards = config.layers[::2], config.layers[1::2]
        if len(mixers) != len(feed_forwards) or set(mixers) - set("AS") or set(feed_forwards) - set("FE"):
            return None
        attention, experts = _every(mixers, "A"), _every(feed_forwards, "E")
        if "S" not in mixers or attention is None or experts is None or not self._computes(config):
            return None
        mamba = config.part("S")
        widths = {config.part(letter).width for letter in "FE" if letter in feed_forwards}
        found = {
            "model_type": "jamba",
            "vocab_size": config.vocab_size,
            "hidden_size": config.d_model,
            "intermediate_size": widths.pop(),
            "num_hidden_layers": len(mixers),
            "attn_layer_period": attention[0],
            "attn_layer_offset": attention[1],
            "expert_layer_period": experts[0],
            "expert_layer_offset": experts[1],
            "num_experts": config.part("E").num_experts if "E" in feed_forwards else 1,
            "num_experts_per_tok": config.part("E").top_k if "E" in feed_forwards else 1,
            "mamba_expand": mamba.expand,
            "mamba_d_state": mamba.d_state,
            "mamba_d_conv": mamba.d_conv,
            "mamba_dt_rank": mamba.rank(config.d_model),
            "mamba_conv_bias": mamba.conv_bias,
            "max_position_embeddings": config.max_positions,
            "rms_norm_eps": config.norm_eps,
            "tie_word_embeddings": config.tied_head,
        }
        if "A" in mixers:
            part = config.part("A")
            found |= {"num_attention_heads": part.num_heads, "num_key_value_heads": part.kv_heads}
            found |= {"head_dim": part.head_width(config.d_model)} if part.head_dim is not None else {}
        return found

    def entries(self, config: ModelConfig) -> Iterable[Entry]:
        yield from common.ends(config, "model.embed_tokens", "model.final_layernorm")
        for i, letter in enumerate(config.layers):
            ours, theirs = f"layers.{i}", f"model.layers.{i // 2}"
            yield Entry(f"{ours}.norm", (f"{theirs}.{'pre_ff' if i % 2 else 'input'}_layernorm.weight",))
            match letter:
                case "A":
                    yield from common.attention(
                        f"{ours}.mixer", f"{theirs}.self_attn", config.part("A"), config.d_model
                    )
                case "S":
                    yield from mixer_entries(f"{ours}.mixer", f"{theirs}.mamba", config)
                case "F":
                    yield from common.swiglu(f"{ours}.mixer", f"{theirs}.feed_forward", config.part("F").width)
                case "E":
                    yield from common.experts(f"{ours}.mixer", f"{theirs}.feed_forward", router="router")

    @staticmethod
    def _computes(config: ModelConfig) -> bool:
        """Whether theirs has no choice that would make it another function."""
        parts = {letter: config.part(letter) for letter in set(config.block)}
        mamba = parts["S"]
        plain = mamba.inner_norms == "weighted" and mamba.inner_norm_eps in (None, config.norm_eps)
        plain &= mamba.inner(config.d_model) == mamba.expand * config.d_model
        plain &= mamba.num_groups == 1 and not mamba.proj_bias
        if "A" in parts:
            a = parts["A"]
            plain &= a.rope_theta is None and not a.qkv_bias and not a.qk_norm
        if "E" in parts:
            e = parts["E"]
            plain &= e.scoring == "softmax" and not (e.normalise_top_k or e.routing_bias or e.num_shared)
            plain &= e.num_groups == 1 and e.routed_scale == 1 and e.num_experts > 1
            plain &= "F" not in parts or parts["F"].width == e.width
        return plain


def _every(layers: str, letter: str) -> tuple[int, int] | None:
    """(period, offset) with which a letter stands in a string, or None; beyond its end when it has none."""
    places = {i for i, one in enumerate(layers) if one == letter}
    for period in range(1, len(layers) + 2):
        for offset in range(period):
            if places == set(range(offset, len(layers), period)):
                return period, offset
    return None
