"""MDLM (2406.07524) and BD3-LM (2503.09573): a DiT over tokens, and the same one block after another.

    kuleshov-group/mdlm-owt; kuleshov-group/bd3lm-owt-block_size4, 8 and 16

A Transformer of LayerNorms without a bias, GELU and adaLN (`conditioning`), an untied head with a bias. Both files hold
no mask token: it is the id behind GPT-2's last, and the text is GPT-2's. `transformers` has neither: config.json is
read here, and none of the code beside it is run. The originals compute in bfloat16 on a GPU; here it is what
`device.dtype` says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from paradigms.models.attention import AttentionConfig
from paradigms.models.conditioning import ConditioningConfig
from paradigms.models.config import ModelConfig
from paradigms.models.families import common
from paradigms.models.families.family import Entry
from paradigms.models.mlp import MLPConfig

FREQUENCIES, RATIO = 256, 4  # of sigma; inner width of the feed-forward per width: not in their configs
_DEFAULTS: dict[str, dict[str, Any]] = {  # of settings that config.json may leave out, as their classes have them
    "mdlm": {"time_conditioning": False},
    "bd3lm": {"time_conditioning": False, "cross_attn": True, "adaln": True, "causal": False},
}
_ONLY: dict[str, dict[str, Any]] = {"mdlm": {}, "bd3lm": {"causal": False, "time_conditioning": False}}
_GPT2_END = 50_256  # <|endoftext|>, which begins a text too


def filled_in(config: Mapping[str, Any]) -> dict[str, Any]:
    """Contents of config.json with the defaults of what it leaves out, and the ids of GPT-2's text.

    Raises:
        ValueError: no sizes.
    """
    kind = config["model_type"]
    needed = ["vocab_size", "model_length", "hidden_dim", "cond_dim", "n_blocks", "n_heads"]
    needed += ["block_size"] if kind == "bd3lm" else []
    if missing := [name for name in needed if name not in config]:
        raise ValueError(f"this {kind} has no {', '.join(missing)} in its config.json; give it")
    size = config["vocab_size"]
    end = min(_GPT2_END, size - 2)
    ids = {"bos_token_id": end, "eos_token_id": end, "mask_token_id": size - 1}
    given = {name: value for name, value in config.items() if name not in ids or value is not None}
    return {**_DEFAULTS[kind], **ids, "max_position_embeddings": config["model_length"], **given}


class MDLM:
    """`MDLM` and `BD3LM`."""

    model_types: tuple[str, ...] = ("mdlm", "bd3lm")
    ignored: tuple[str, ...] = ("sampling_eps_min", "sampling_eps_max")  # of BD3-LM's training

    def from_transformers(self, config: Mapping[str, Any]) -> ModelConfig:
        kind, d_model = config["model_type"], config["hidden_dim"]
        common.only(config, _ONLY[kind])
        in_blocks = kind == "bd3lm" and config["cross_attn"]
        told = ConditioningConfig(
            width=config["cond_dim"], frequency_dim=FREQUENCIES, reads_time=config["time_conditioning"]
        )
        return ModelConfig(
            vocab_size=config["vocab_size"],
            d_model=d_model,
            block="AG",
            num_blocks=config["n_blocks"],
            causal=False,
            noise="absorbing",
            canvas_block=config["block_size"] if in_blocks else None,
            max_positions=config["model_length"],
            norm="layer",
            norm_eps=1e-5,
            tied_head=False,
            head_bias=True,
            conditioning=told if config.get("adaln", True) else None,
            attention=AttentionConfig(num_heads=config["n_heads"], num_kv_heads=config["n_heads"]),
            mlp=MLPConfig(width=RATIO * d_model),
        )

    def to_transformers(self, config: ModelConfig) -> None:
        return None

    def entries(self, config: ModelConfig) -> Iterable[Entry]:
        blocks = [f"backbone.blocks.{i}" for i in range(config.num_blocks)]
        yield Entry("embedding", ("backbone.vocab_embed.embedding",), transpose=True)
        yield Entry("norm", ("backbone.output_layer.norm_final.weight",))
        yield from _linear("head", "head_bias", "backbone.output_layer.linear")
        for i, theirs in enumerate(blocks):
            ours, mlp = f"layers.{2 * i}", f"layers.{2 * i + 1}"
            yield Entry(f"{ours}.norm", (f"{theirs}.norm1.weight",))
            yield Entry(f"{ours}.mixer.qkv", (f"{theirs}.attn_qkv.weight",), transpose=True)
            yield Entry(f"{ours}.mixer.out", (f"{theirs}.attn_out.weight",), transpose=True)
            yield Entry(f"{mlp}.norm", (f"{theirs}.norm2.weight",))
            yield from _linear(f"{mlp}.mixer.up", f"{mlp}.mixer.up_bias", f"{theirs}.mlp.0")
            yield from _linear(f"{mlp}.mixer.down", f"{mlp}.mixer.down_bias", f"{theirs}.mlp.2")
        if config.conditioning is not None:
            yield from _linear("conditioning.embed", "conditioning.embed_bias", "backbone.sigma_map.mlp.0")
            yield from _linear("conditioning.mix", "conditioning.mix_bias", "backbone.sigma_map.mlp.2")
            places = [f"{place}.adaLN_modulation" for place in (*blocks, "backbone.output_layer")]
            sizes = (*[6 * config.d_model] * config.num_blocks, 2 * config.d_model)
            yield Entry("conditioning.modulation", tuple(f"{place}.weight" for place in places), sizes, transpose=True)
            yield Entry("conditioning.modulation_bias", tuple(f"{place}.bias" for place in places), sizes)


def _linear(weight: str, bias: str, theirs: str) -> Iterable[Entry]:
    yield Entry(weight, (f"{theirs}.weight",), transpose=True)
    yield Entry(bias, (f"{theirs}.bias",))
