"""Folders as LLaDA, Dream, MDLM and BD3-LM lie on the hub: tiny and random, their config.json and their names.

`transformers` has none of these networks, and the code that lies beside their files is never run: here it would fail.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import theirs
import torch
from safetensors.torch import save_file
from torch import Tensor

E, HEADS, LAYERS, LENGTH = 32, 4, 2, 576
TEXT = theirs.SIZES["vocab_size"]  # ids that the tokenizer uses
CONFIGS: dict[str, dict[str, Any]] = {
    "llada": {
        **{"architectures": ["LLaDAModelLM"], "auto_map": {"AutoModel": "modeling_llada.LLaDAModelLM"}},
        **{"d_model": E, "n_heads": HEADS, "n_kv_heads": HEADS, "n_layers": LAYERS, "mlp_hidden_size": 48},
        **{"vocab_size": TEXT + 3, "embedding_size": TEXT + 4, "max_sequence_length": LENGTH, "mlp_ratio": 4},
        **{"activation_type": "silu", "block_type": "llama", "layer_norm_type": "rms", "rms_norm_eps": 1e-5},
        **{"rope": True, "rope_theta": 500_000.0, "rope_full_precision": True, "alibi": False, "scale_logits": False},
        **{"weight_tying": False, "include_bias": False, "include_qkv_bias": False, "bias_for_layer_norm": False},
        **{"layer_norm_with_affine": True, "attention_layer_norm": False, "multi_query_attention": None},
        **{"mask_token_id": TEXT + 1, "eos_token_id": 2, "pad_token_id": 2, "input_emb_norm": False},
        **{"block_group_size": 1, "flash_attention": False, "init_device": "meta", "use_cache": False},
    },
    "Dream": {
        **{"architectures": ["DreamModel"], "auto_map": {"AutoModel": "modeling_dream.DreamModel"}},
        **{"hidden_size": E, "num_attention_heads": HEADS, "num_key_value_heads": 2, "num_hidden_layers": LAYERS},
        **{"intermediate_size": 48, "vocab_size": TEXT + 8, "max_position_embeddings": LENGTH, "hidden_act": "silu"},
        **{"rms_norm_eps": 1e-6, "rope_theta": 1e6, "rope_scaling": None, "tie_word_embeddings": False},
        **{"use_sliding_window": False, "sliding_window": None, "max_window_layers": 28, "use_mrope": False},
        **{"mask_token_id": TEXT, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "attention_dropout": 0.0},
    },
    "mdlm": {
        **{"architectures": ["MDLM"], "auto_map": {"AutoModelForMaskedLM": "modeling_mdlm.MDLM"}},
        **{"hidden_dim": E, "cond_dim": 12, "n_heads": HEADS, "n_blocks": LAYERS, "model_length": LENGTH},
        **{"vocab_size": TEXT + 1, "dropout": 0.1, "time_conditioning": False, "return_dict": False},
    },
    "bd3lm": {
        **{"architectures": ["BD3LM"], "auto_map": {"AutoModelForMaskedLM": "modeling_bd3lm.BD3LM"}},
        **{"hidden_dim": E, "cond_dim": 12, "n_heads": HEADS, "n_blocks": LAYERS, "model_length": LENGTH},
        **{"vocab_size": TEXT + 1, "dropout": 0.1, "time_conditioning": False, "return_dict": False},
        **{"block_size": 4, "cross_attn": True, "adaln": True, "attn_backend": "flex", "causal": False},
        **{"var_min": True, "sampling_eps_min": 1e-3, "sampling_eps_max": 0.999},
    },
}


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Their tensors, [out, in]."""
    kind = config["model_type"]
    if kind == "llada":
        size, width, kv = config["embedding_size"], config["mlp_hidden_size"], config["n_kv_heads"] * E // HEADS
        found: dict[str, tuple[int, ...]] = {"wte.weight": (size, E), "ln_f.weight": (E,)}
        found |= {} if config["weight_tying"] else {"ff_out.weight": (size, E)}
        for i in range(config["n_layers"]):
            layer = {"attn_norm": (E,), "ff_norm": (E,), "q_proj": (E, E), "k_proj": (kv, E), "v_proj": (kv, E)}
            layer |= {"attn_out": (E, E), "ff_proj": (width, E), "up_proj": (width, E), "ff_out": (E, width)}
            found |= {f"blocks.{i}.{name}.weight": shape for name, shape in layer.items()}
            if config["include_qkv_bias"]:
                found |= {f"blocks.{i}.{name}_proj.bias": (n,) for name, n in zip("qkv", (E, kv, kv), strict=True)}
        return {f"model.transformer.{name}": shape for name, shape in found.items()}
    if kind == "Dream":
        size, width, kv = config["vocab_size"], config["intermediate_size"], config["num_key_value_heads"] * E // HEADS
        found = {"model.embed_tokens.weight": (size, E), "model.norm.weight": (E,), "lm_head.weight": (size, E)}
        for i in range(config["num_hidden_layers"]):
            layer = {"input_layernorm.weight": (E,), "post_attention_layernorm.weight": (E,)}
            layer |= {f"self_attn.{x}_proj.weight": (n, E) for x, n in zip("qkv", (E, kv, kv), strict=True)}
            layer |= {f"self_attn.{x}_proj.bias": (n,) for x, n in zip("qkv", (E, kv, kv), strict=True)}
            layer |= {"self_attn.o_proj.weight": (E, E), "mlp.down_proj.weight": (E, width)}
            layer |= {f"mlp.{x}_proj.weight": (width, E) for x in ("gate", "up")}
            found |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
        return found
    size, C, told = config["vocab_size"], config["cond_dim"], config.get("adaln", True)
    found = {"vocab_embed.embedding": (size, E), "rotary_emb.inv_freq": (E // HEADS // 2,)}
    found |= {"output_layer.norm_final.weight": (E,)}
    found |= {"output_layer.linear.weight": (size, E), "output_layer.linear.bias": (size,)}
    for i in range(config["n_blocks"]):
        layer = {"norm1.weight": (E,), "norm2.weight": (E,), "attn_qkv.weight": (3 * E, E), "attn_out.weight": (E, E)}
        layer |= {"mlp.0.weight": (4 * E, E), "mlp.0.bias": (4 * E,), "mlp.2.weight": (E, 4 * E), "mlp.2.bias": (E,)}
        found |= {f"blocks.{i}.{name}": shape for name, shape in layer.items()}
    if told:
        found |= {"sigma_map.mlp.0.weight": (C, 256), "sigma_map.mlp.0.bias": (C,)}
        found |= {"sigma_map.mlp.2.weight": (C, C), "sigma_map.mlp.2.bias": (C,)}
        places = {**{f"blocks.{i}": 6 * E for i in range(config["n_blocks"])}, "output_layer": 2 * E}
        found |= {f"{place}.adaLN_modulation.weight": (n, C) for place, n in places.items()}
        found |= {f"{place}.adaLN_modulation.bias": (n,) for place, n in places.items()}
    found = {f"backbone.{name}": shape for name, shape in found.items()}
    return found | ({"sampling_eps_min": (), "sampling_eps_max": ()} if kind == "bd3lm" else {})


def tensors(config: dict[str, Any]) -> dict[str, Tensor]:
    """Random ones, strong enough that what is said depends on what was read."""
    draw = torch.Generator().manual_seed(0)
    found = {}
    for name, shape in shapes(config).items():
        value = torch.randn(shape, generator=draw) * (0.2 if len(shape) == 2 else 0.3)
        found[name] = value + 1 if "norm" in name or "ln_f" in name else value
    return found


def write_folder(folder: Path, kind: str, *, tokenizer: bool = True, **changes: Any) -> Path:
    """A folder of this `model_type`; with `tokenizer`, one of 300 ids that knows no mask."""
    config = {"model_type": kind, **CONFIGS[kind], **changes}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    for name in {file.partition(".")[0] for file in config["auto_map"].values()}:
        (folder / f"{name}.py").write_text("raise RuntimeError('code from a checkpoint was run')\n")
    save_file(tensors(config), folder / "model.safetensors", {"format": "pt"})
    if tokenizer:
        (folder / "tokenizer.json").write_text(theirs.library_json("byte level"))
        names = {"bos_token": "<s>", "eos_token": "</s>"}
        (folder / "tokenizer_config.json").write_text(json.dumps(names))
    return folder
