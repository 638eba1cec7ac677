"""Zamba (2405.16712): Mamba layers, and before some of them one shared attention block."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from paradigms.models.config import ModelConfig
from paradigms.models.families import common
from paradigms.models.families.family import Entry
from paradigms.models.mamba import MambaConfig
from paradigms.models.shared_attention import SharedAttentionConfig


class Zamba:
    """`ZambaForCausalLM`. Their `linear_attention` layer is our S, their `hybrid` layer our Z.

    Layers that share weights repeat them under the name of each; the first is read.
    """

    model_types: tuple[str, ...] = ("zamba",)

    def from_transformers(self, config: Mapping[str, Any]) -> ModelConfig:
        d_model = config["hidden_size"]
        wanted = {
            "hidden_act": "gelu",
            "hidden_mamba_act": "silu",
            "mamba_proj_bias": False,
            "attention_hidden_size": 2 * d_model,
        }
        common.only(config, wanted)
        mamba = MambaConfig(
            expand=config["mamba_expand"],
            d_state=config["mamba_d_state"],
            d_conv=config["mamba_d_conv"],
            dt_rank=config["mamba_dt_rank"],
            num_groups=config["n_mamba_heads"],
            conv_bias=config["mamba_conv_bias"],
        )
        shared = SharedAttentionConfig(
            num_heads=config["num_attention_heads"],
            num_kv_heads=config["num_key_value_heads"],
            head_dim=config["attention_head_dim"],
            width=config["intermediate_size"],
            mamba=mamba,
        )
        kinds = config["layers_block_type"]
        block, num_blocks = common.shortest_block("".join("Z" if kind == "hybrid" else "S" for kind in kinds))
        return ModelConfig(
            vocab_size=config["vocab_size"],
            d_model=d_model,
            block=block,
            num_blocks=num_blocks,
            max_positions=config["max_position_embeddings"],
            norm_eps=config["rms_norm_eps"],
            tied_head=config["tie_word_embeddings"],
            mamba=mamba if "S" in block else None,
            shared_attention=shared if "Z" in block else None,
        )

    def to_transformers(self, config: ModelConfig) -> dict[str, Any] | None:
        if "Z" not in config.block or set(config.block) - set("SZ"):
            return None
        shared = config.part("Z")
        mamba = shared.mamba
        inner = mamba.inner(config.d_model)
        if mamba.inner_norms is not None or mamba.proj_bias or inner != mamba.expand * config.d_model:
            return None
        if "S" in config.block and config.part("S") != mamba:
            return None
        return {
            "model_type": "zamba",
            "vocab_size": config.vocab_size,
            "hidden_size": config.d_model,
            "intermediate_size": shared.width,
            "num_hidden_layers": len(config.layers),
            "layers_block_type": ["hybrid" if letter == "Z" else "linear_attention" for letter in config.layers],
            "num_attention_heads": shared.num_heads,
            "num_key_value_heads": shared.kv_heads,
            "attention_head_dim": shared.head_width(config.d_model),
            "n_mamba_heads": mamba.num_groups,
            "mamba_expand": mamba.expand,
            "mamba_d_state": mamba.d_state,
            "mamba_d_conv": mamba.d_conv,
            "mamba_dt_rank": mamba.rank(config.d_model),
            "mamba_conv_bias": mamba.conv_bias,
            "max_position_embeddings": config.max_positions,
            "rms_norm_eps": config.norm_eps,
            "tie_word_embeddings": config.tied_head,
        }

    def entries(self, config: ModelConfig) -> Iterable[Entry]:
        yield from common.ends(config, "model.embed_tokens", "model.final_layernorm")
        for i, letter in enumerate(config.layers):
            ours, theirs = f"layers.{i}", f"model.layers.{i}"
            if letter == "S":
                yield Entry(f"{ours}.norm", (f"{theirs}.input_layernorm.weight",))
                yield from _mamba(f"{ours}.mixer", f"{theirs}.mamba", config.part("S"), config.d_model)
            else:
                yield Entry(f"{ours}.mixer.out", (f"{theirs}.linear.weight",), transpose=True)
                yield Entry(f"{ours}.mixer.norm", (f"{theirs}.mamba_decoder.input_layernorm.weight",))
                mamba = config.part("Z").mamba
                yield from _mamba(f"{ours}.mixer.mamba", f"{theirs}.mamba_decoder.mamba", mamba, config.d_model)
        if "Z" in config.block:
            yield from _shared(config)


def _shared(config: ModelConfig) -> Iterable[Entry]:
    """The block that all places share: theirs have it at every place."""
    part = config.part("Z")
    head_dim = part.head_width(config.d_model)
    sizes = tuple(heads * head_dim for heads in (part.num_heads, part.kv_heads, part.kv_heads))
    places = [f"model.layers.{i}.shared_transf" for i, letter in enumerate(config.layers) if letter == "Z"]

    def entry(ours: str, *names: str, sizes: tuple[int, ...] = (), transpose: bool = True) -> Entry:
        first, *others = (tuple(f"{place}.{name}.weight" for name in names) for place in places)
        return Entry(f"shared.{part.key}.{ours}", first, sizes, transpose=transpose, copies=tuple(others))

    yield entry("norm", "input_layernorm", transpose=False)
    yield entry("qkv", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", sizes=sizes)
    yield entry("out", "self_attn.o_proj")
    yield entry("inner_norm", "pre_ff_layernorm", transpose=False)
    yield entry("gate_up", "feed_forward.gate_proj", "feed_forward.up_proj", sizes=(part.width, part.width))
    yield entry("down", "feed_forward.down_proj")


def _mamba(ours: str, theirs: str, part: MambaConfig, d_model: int) -> Iterable[Entry]:
    """One Mamba mixer. Theirs has heads, a dimension of its own in front, and x and z of a channel side by side."""
    inner, groups = part.inner(d_model), part.num_groups
    alternating = (*range(0, 2 * inner, 2), *range(1, 2 * inner, 2))
    yield Entry(f"{ours}.in_proj", (f"{theirs}.in_proj.weight",), transpose=True, order=alternating)
    yield Entry(f"{ours}.conv_weight", (f"{theirs}.conv1d.weight",), shape=(inner, 1, part.d_conv))
    if part.conv_bias:
        yield Entry(f"{ours}.conv_bias", (f"{theirs}.conv1d.bias",))
    yield Entry(
        f"{ours}.x_proj",
        (f"{theirs}.x_proj_weight",),
        convert=(lambda w: w.mT.flatten(0, 1), lambda w: w.unflatten(0, (groups, -1)).mT),
    )
    flat = (lambda w: w.flatten(0, 1), lambda w: w.unflatten(0, (groups, -1)))
    yield Entry(f"{ours}.dt_proj", (f"{theirs}.dt_proj_weight",), transpose=True, convert=flat)
    for name, their_name in (("dt_bias", "dt_proj_bias"), ("A_log", "A_log"), ("D", "D")):
        yield Entry(f"{ours}.{name}", (f"{theirs}.{their_name}",), convert=flat)
    yield Entry(f"{ours}.out", (f"{theirs}.out_proj.weight",), transpose=True)
