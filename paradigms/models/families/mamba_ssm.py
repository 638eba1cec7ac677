"""Checkpoints of mamba-ssm itself, as the authors of Mamba and Mamba-2 publish them: a config.json that says no
`model_type`, and weights in pytorch_model.bin or model.safetensors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from paradigms.models.config import ModelConfig
from paradigms.models.families import common, mamba, mamba2
from paradigms.models.families.family import Entry
from paradigms.models.feed_forward import FeedForwardConfig
from paradigms.models.mamba import MambaConfig
from paradigms.models.mamba2 import Mamba2Config

MODEL_TYPE = "mamba_ssm"
WEIGHTS = "pytorch_model.bin"
DEFAULTS: dict[str, Any] = {
    "d_intermediate": 0,
    "ssm_cfg": {},
    "attn_layer_idx": [],
    "attn_cfg": {},
    "rms_norm": True,
    "residual_in_fp32": True,
    "fused_add_norm": True,
    "pad_vocab_size_multiple": 8,
    "tie_embeddings": True,
}
NORM_EPS = 1e-5
MLP_GRAIN = 128
_SHARED = {"d_conv": 4, "expand": 2, "bias": False, "conv_bias": True}
_LAYERS = {
    "Mamba1": _SHARED | {"d_state": 16, "dt_rank": "auto"},
    "Mamba2": _SHARED
    | {
        "d_state": 128,
        "headdim": 64,
        "ngroups": 1,
        "d_ssm": None,
        "D_has_hdim": False,
        "rmsnorm": True,
        "norm_before_gate": False,
        "dt_limit": (0.0, math.inf),
    },
}
_NO_MATTER = {  # initial values and ways of computing the same
    *("dt_min", "dt_max", "dt_init", "dt_scale", "dt_init_floor", "A_init_range", "conv_init"),
    *("use_fast_path", "use_mem_eff_path", "chunk_size"),
}


def recognises(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is one of mamba-ssm's."""
    return "model_type" not in config and {"d_model", "n_layer", "vocab_size"} <= config.keys()


def filled_in(config: Mapping[str, Any]) -> dict[str, Any]:
    """Such a config with its `model_type` and mamba-ssm's defaults."""
    return {"model_type": MODEL_TYPE, **DEFAULTS, **config}


class MambaSSM:
    """`MambaLMHeadModel` of Mamba or Mamba-2 layers, with a feed-forward behind each or without.

    `residual_in_fp32` means nothing in float32, where the two agree. The vocabulary is the padded one: the head has
    outputs for the padding as well.
    """

    model_types: tuple[str, ...] = (MODEL_TYPE,)

    def from_transformers(self, config: Mapping[str, Any]) -> ModelConfig:
        if config["attn_layer_idx"]:
            raise ValueError(
                f"attn_layer_idx={config['attn_layer_idx']!r} is not computed by the native stack; only []"
            )
        if not config["rms_norm"]:
            raise ValueError("rms_norm=False is not computed by the native stack; it has RMS norms")
        ssm = dict(config["ssm_cfg"])
        kind = ssm.pop("layer", "Mamba1")
        if kind not in _LAYERS:
            raise ValueError(f"ssm_cfg.layer={kind!r} is not computed by the native stack; it has {', '.join(_LAYERS)}")
        if unknown := sorted(ssm.keys() - _LAYERS[kind].keys() - _NO_MATTER):
            raise ValueError(f"ssm_cfg.{unknown[0]}={ssm[unknown[0]]!r} is not known for {kind}")
        ssm = _LAYERS[kind] | ssm
        multiple = config["pad_vocab_size_multiple"]
        feed_forward = None
        if config["d_intermediate"]:
            feed_forward = FeedForwardConfig(width=-(-config["d_intermediate"] // MLP_GRAIN) * MLP_GRAIN)
        return ModelConfig(
            vocab_size=-(-config["vocab_size"] // multiple) * multiple,
            d_model=config["d_model"],
            block=("S" if kind == "Mamba1" else "M") + ("F" if feed_forward else ""),
            num_blocks=config["n_layer"],
            max_positions=common.UNLIMITED,
            norm_eps=NORM_EPS,
            tied_head=config["tie_embeddings"],
            mamba=_mamba(ssm) if kind == "Mamba1" else None,
            mamba2=_mamba2(ssm, config["d_model"]) if kind == "Mamba2" else None,
            feed_forward=feed_forward,
        )

    def to_transformers(self, config: ModelConfig) -> dict[str, Any] | None:
        return None  # transformers has these networks under other names

    def entries(self, config: ModelConfig) -> Iterable[Entry]:
        yield from common.ends(config, "backbone.embedding", "backbone.norm_f")
        mixer_entries = mamba.mixer_entries if "S" in config.block else mamba2.mixer_entries
        for i in range(config.num_blocks):
            theirs, ours = f"backbone.layers.{i}", f"layers.{len(config.block) * i}"
            yield Entry(f"{ours}.norm", (f"{theirs}.norm.weight",))
            yield from mixer_entries(f"{ours}.mixer", f"{theirs}.mixer", config)
            if "F" in config.block:
                ours, width = f"layers.{2 * i + 1}", config.part("F").width
                swapped = (*range(width, 2 * width), *range(width))  # theirs has the gate behind
                yield Entry(f"{ours}.norm", (f"{theirs}.norm2.weight",))
                yield Entry(f"{ours}.mixer.gate_up", (f"{theirs}.mlp.fc1.weight",), transpose=True, order=swapped)
                yield Entry(f"{ours}.mixer.down", (f"{theirs}.mlp.fc2.weight",), transpose=True)


def _mamba(ssm: Mapping[str, Any]) -> MambaConfig:
    return MambaConfig(
        expand=ssm["expand"],
        d_state=ssm["d_state"],
        d_conv=ssm["d_conv"],
        dt_rank=None if ssm["dt_rank"] == "auto" else ssm["dt_rank"],
        conv_bias=ssm["conv_bias"],
        proj_bias=ssm["bias"],
    )


def _mamba2(ssm: Mapping[str, Any], d_model: int) -> Mamba2Config:
    if ssm["d_ssm"] not in (None, ssm["expand"] * d_model):
        raise ValueError(f"ssm_cfg.d_ssm={ssm['d_ssm']} is not computed by the native stack, but the whole width")
    if ssm["D_has_hdim"]:
        raise ValueError("ssm_cfg.D_has_hdim=True is not computed by the native stack; it has one D a head")
    dt_min, dt_max = ssm["dt_limit"]
    return Mamba2Config(
        expand=ssm["expand"],
        head_dim=ssm["headdim"],
        d_state=ssm["d_state"],
        num_groups=ssm["ngroups"],
        d_conv=ssm["d_conv"],
        conv_bias=ssm["conv_bias"],
        proj_bias=ssm["bias"],
        norm=("before_gate" if ssm["norm_before_gate"] else "after_gate") if ssm["rmsnorm"] else None,
        dt_min=dt_min or None,
        dt_max=None if dt_max == math.inf else dt_max,
    )
