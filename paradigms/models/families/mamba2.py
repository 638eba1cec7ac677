"""Mamba-2 as `transformers` has it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from paradigms.models.config import ModelConfig
from paradigms.models.families import common
from paradigms.models.families.family import Entry
from paradigms.models.mamba2 import Mamba2Config


class Mamba2:
    """`Mamba2ForCausalLM`.

    Theirs bounds dt (`time_step_limit`) when it reads several tokens and not when it reads one; ours always does.
    `residual_in_fp32` means nothing in float32, where the two agree; in less, ours keeps the residual in the dtype of
    the weights.
    """

    model_types: tuple[str, ...] = ("mamba2",)

    def from_transformers(self, config: Mapping[str, Any]) -> ModelConfig:
        if config["hidden_act"] not in ("silu", "swish"):
            raise ValueError(f"hidden_act={config['hidden_act']!r} is not computed by the native stack; it has silu")
        inner = config["num_heads"] * config["head_dim"]
        if inner != config["expand"] * config["hidden_size"]:
            raise ValueError(
                f"num_heads={config['num_heads']} x head_dim={config['head_dim']} is not expand={config['expand']} x "
                f"hidden_size={config['hidden_size']}"
            )
        dt_min, dt_max = config["time_step_limit"]
        return ModelConfig(
            vocab_size=config["vocab_size"],
            d_model=config["hidden_size"],
            block="M",
            num_blocks=config["num_hidden_layers"],
            max_positions=common.UNLIMITED,
            norm_eps=config["layer_norm_epsilon"],
            tied_head=config["tie_word_embeddings"],
            mamba2=Mamba2Config(
                expand=config["expand"],
                head_dim=config["head_dim"],
                d_state=config["state_size"],
                num_groups=config["n_groups"],
                d_conv=config["conv_kernel"],
                conv_bias=config["use_conv_bias"],
                proj_bias=config["use_bias"],
                dt_min=dt_min or None,
                dt_max=None if dt_max == math.inf else dt_max,
            ),
        )

    def to_transformers(self, config: ModelConfig) -> dict[str, Any] | None:
        if set(config.block) != {"M"} or config.part("M").norm != "after_gate":
            return None
        mamba = config.part("M")
        expand, rest = divmod(mamba.inner(config.d_model), config.d_model)
        if rest:  # their inner width is a multiple of the model's
            return None
        return {
            "model_type": "mamba2",
            "vocab_size": config.vocab_size,
            "hidden_size": config.d_model,
            "num_hidden_layers": len(config.layers),
            "expand": expand,
            "num_heads": mamba.num_heads(config.d_model),
            "head_dim": mamba.head_dim,
            "state_size": mamba.d_state,
            "n_groups": mamba.num_groups,
            "conv_kernel": mamba.d_conv,
            "use_conv_bias": mamba.conv_bias,
            "use_bias": mamba.proj_bias,
            "time_step_limit": (mamba.dt_min or 0.0, math.inf if mamba.dt_max is None else mamba.dt_max),
            "layer_norm_epsilon": config.norm_eps,
            "tie_word_embeddings": config.tied_head,
        }

    def entries(self, config: ModelConfig) -> Iterable[Entry]:
        yield from common.ends(config, "backbone.embeddings", "backbone.norm_f")
        for i in range(len(config.layers)):
            ours, theirs = f"layers.{i}", f"backbone.layers.{i}"
            yield Entry(f"{ours}.norm", (f"{theirs}.norm.weight",))
            yield from mixer_entries(f"{ours}.mixer", f"{theirs}.mixer", config)


def mixer_entries(ours: str, theirs: str, config: ModelConfig) -> Iterable[Entry]:
    """Tensors of one Mamba-2 mixer; every model that has one names them alike."""
    mamba = config.part("M")
    channels = mamba.conv_dim(config.d_model)
    yield Entry(f"{ours}.in_proj", (f"{theirs}.in_proj.weight",), transpose=True)
    yield Entry(f"{ours}.conv_weight", (f"{theirs}.conv1d.weight",), shape=(channels, 1, mamba.d_conv))
    for name in ("dt_bias", "A_log", "D"):
        yield Entry(f"{ours}.{name}", (f"{theirs}.{name}",))
    if mamba.conv_bias:
        yield Entry(f"{ours}.conv_bias", (f"{theirs}.conv1d.bias",))
    if mamba.norm is not None:
        yield Entry(f"{ours}.inner_norm", (f"{theirs}.norm.weight",))
    yield Entry(f"{ours}.out", (f"{theirs}.out_proj.weight",), transpose=True)
    if mamba.proj_bias:
        yield Entry(f"{ours}.in_bias", (f"{theirs}.in_proj.bias",))
        yield Entry(f"{ours}.out_bias", (f"{theirs}.out_proj.bias",))
