"""Mamba as `transformers` has it, and FalconMamba (arXiv 2410.05355): Mamba whose dt, B and C are normed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from paradigms.models.config import ModelConfig
from paradigms.models.families import common
from paradigms.models.families.family import Entry
from paradigms.models.mamba import MambaConfig


class Mamba:
    """`MambaForCausalLM` and `FalconMambaForCausalLM`.

    Only their forward over a whole text is a reference: given several tokens and a state, theirs zeroes the state.
    `residual_in_fp32` means nothing in float32, where the two agree; in less, ours keeps the residual in the dtype of
    the weights.
    """

    model_types: tuple[str, ...] = ("mamba", "falcon_mamba")

    def from_transformers(self, config: Mapping[str, Any]) -> ModelConfig:
        if config["hidden_act"] not in ("silu", "swish"):
            raise ValueError(f"hidden_act={config['hidden_act']!r} is not computed by the native stack; it has silu")
        is_falcon = config["model_type"] == "falcon_mamba"
        rank = config["time_step_rank"]
        return ModelConfig(
            vocab_size=config["vocab_size"],
            d_model=config["hidden_size"],
            block="S",
            num_blocks=config["num_hidden_layers"],
            max_positions=common.UNLIMITED,
            norm_eps=config["layer_norm_epsilon"],
            tied_head=config["tie_word_embeddings"],
            mamba=MambaConfig(
                expand=config["expand"],
                d_state=config["state_size"],
                d_conv=config["conv_kernel"],
                dt_rank=None if rank == "auto" else rank,
                conv_bias=config["use_conv_bias"],
                proj_bias=config["use_bias"],
                inner_norms="plain" if is_falcon else None,
                inner_norm_eps=config["mixer_rms_eps"] if is_falcon else None,
            ),
        )

    def to_transformers(self, config: ModelConfig) -> dict[str, Any] | None:
        if set(config.block) != {"S"} or config.part("S").inner_norms == "weighted":
            return None
        mamba = config.part("S")
        expand, rest = divmod(mamba.inner(config.d_model), config.d_model)
        if rest or mamba.num_groups > 1:  # their inner width is a multiple of the model's, in one group
            return None
        values = {
            "model_type": "mamba",
            "vocab_size": config.vocab_size,
            "hidden_size": config.d_model,
            "num_hidden_layers": len(config.layers),
            "expand": expand,
            "state_size": mamba.d_state,
            "conv_kernel": mamba.d_conv,
            "time_step_rank": mamba.rank(config.d_model),
            "use_conv_bias": mamba.conv_bias,
            "use_bias": mamba.proj_bias,
            "layer_norm_epsilon": config.norm_eps,
            "tie_word_embeddings": config.tied_head,
        }
        if mamba.inner_norms == "plain":
            eps = config.norm_eps if mamba.inner_norm_eps is None else mamba.inner_norm_eps
            values |= {"model_type": "falcon_mamba", "mixer_rms_eps": eps}
        return values

    def entries(self, config: ModelConfig) -> Iterable[Entry]:
        yield from common.ends(config, "backbone.embeddings", "backbone.norm_f")
        for i in range(len(config.layers)):
            ours, theirs = f"layers.{i}", f"backbone.layers.{i}"
            yield Entry(f"{ours}.norm", (f"{theirs}.norm.weight",))
            yield from mixer_entries(f"{ours}.mixer", f"{theirs}.mixer", config)


def mixer_entries(ours: str, theirs: str, config: ModelConfig) -> Iterable[Entry]:
    """Tensors of one Mamba mixer; every model that has one names them alike."""
    mamba = config.part("S")
    for name in ("in_proj", "x_proj", "dt_proj"):
        yield Entry(f"{ours}.{name}", (f"{theirs}.{name}.weight",), transpose=True)
    yield Entry(f"{ours}.dt_bias", (f"{theirs}.dt_proj.bias",))
    yield Entry(
        f"{ours}.conv_weight", (f"{theirs}.conv1d.weight",), shape=(mamba.inner(config.d_model), 1, mamba.d_conv)
    )
    if mamba.conv_bias:
        yield Entry(f"{ours}.conv_bias", (f"{theirs}.conv1d.bias",))
    for name in ("A_log", "D"):
        yield Entry(f"{ours}.{name}", (f"{theirs}.{name}",))
    yield Entry(f"{ours}.out", (f"{theirs}.out_proj.weight",), transpose=True)
    if mamba.proj_bias:
        yield Entry(f"{ours}.in_bias", (f"{theirs}.in_proj.bias",))
        yield Entry(f"{ours}.out_bias", (f"{theirs}.out_proj.bias",))
    if mamba.inner_norms == "weighted":
        for name in ("dt", "B", "C"):
            yield Entry(f"{ours}.{name}_norm", (f"{theirs}.{name.lower()}_layernorm.weight",))
