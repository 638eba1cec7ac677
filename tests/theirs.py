"""Folders as `transformers` writes them: tiny random models, with a tokenizer that was trained on the tiny text."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import tiny
import torch

SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 576,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_MAMBA2 = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8}
_MIXED = ["mamba", "attention", "mamba", "attention"]
_PURE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "state_size": 8}
ARCHITECTURES: dict[str, dict[str, Any]] = {  # model type -> what makes a tiny one of it
    "llama": {},
    "qwen2": {},
    "mamba": _PURE,
    "falcon_mamba": _PURE,
    "mamba2": {**_PURE, "num_heads": 4, "head_dim": 16, "n_groups": 2, "chunk_size": 8},
    "jamba": {
        "num_hidden_layers": 4,
        "num_experts": 4,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "mamba_d_state": 8,
        "mamba_dt_rank": 4,
        "use_mamba_kernels": False,
    },
    "zamba2": {
        "num_hidden_layers": 4,
        "num_key_value_heads": 4,
        "mamba_d_state": 8,
        "n_mamba_heads": 4,
        "mamba_headdim": 16,
        "mamba_ngroups": 1,
        "adapter_rank": 8,
        "use_mem_rope": True,
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
        "chunk_size": 8,
        "use_mamba_kernels": False,
    },
    "bamba": {"num_hidden_layers": 4, "attn_layer_indices": [1, 3], **_MAMBA2},
    "falcon_h1": {"head_dim": 16, "mamba_d_ssm": 64, **_MAMBA2},
    "nemotron_h": {
        "num_hidden_layers": 4,
        "head_dim": 16,
        "layers_block_type": ["mamba", "attention", "mamba", "mlp"],
        "mamba_num_heads": 4,
        "mamba_head_dim": 16,
        "ssm_state_size": 8,
        "n_groups": 1,
        "chunk_size": 8,
    },
    "granitemoehybrid": {
        "num_hidden_layers": 4,
        "layer_types": _MIXED,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 48,
        **_MAMBA2,
    },
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "q_lora_rank": 32,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 1,
        "n_shared_experts": 1,
    },
    "qwen3_next": {
        "num_hidden_layers": 4,
        "head_dim": 16,
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
    },
}
SPECIAL = ("<unk>", "<s>", "</s>")


def write_folder(
    folder: Path,
    model_type: str = "llama",
    *,
    tokenizer: str | None = "byte level",
    weights: bool = True,
    **changes: Any,
) -> Path:
    """A model folder; values of SIZES that a model type does not know are left out."""
    from transformers import AutoConfig, AutoModelForCausalLM

    known = AutoConfig.for_model(model_type)
    sizes = {name: value for name, value in SIZES.items() if hasattr(known, name)}
    config = AutoConfig.for_model(model_type, **{**sizes, **ARCHITECTURES.get(model_type, {}), **changes})
    folder.mkdir(parents=True, exist_ok=True)
    if weights:
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():  # strong layers: what is said depends on what was read
            for name, parameter in model.named_parameters():
                if parameter.dim() == 2 and "A_log" not in name:
                    parameter.mul_(3)
        model.save_pretrained(folder)
    else:
        config.save_pretrained(folder)
    if tokenizer is not None:
        (folder / "tokenizer.json").write_text(library_json(tokenizer))
    return folder


CANVAS_LEN = 8
_VISION = {
    "model_type": "gemma4_vision",
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "position_embedding_size": 64,
}


def write_canvas_folder(folder: Path, *, tokenizer: str | None = "byte level", weights: bool = True) -> Path:
    """A tiny DiffusionGemma: 4 experts, a window of 6 positions in one of its layers, canvases of 8."""
    from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion

    text = {
        **{name: value for name, value in SIZES.items() if name != "vocab_size"},
        "vocab_size": 300,
        "pad_token_id": 0,
        "head_dim": 8,
        "global_head_dim": 16,
        "num_global_key_value_heads": 1,
        "sliding_window": 6,
        "layer_types": ["sliding_attention", "full_attention"],
        "num_experts": 4,
        "top_k_experts": 2,
        "moe_intermediate_size": 16,
    }
    ids = {"boi_token_id": 297, "eoi_token_id": 298, "image_token_id": 299}
    config = DiffusionGemmaConfig(text_config=text, vision_config=_VISION, canvas_length=CANVAS_LEN, **ids)
    folder.mkdir(parents=True, exist_ok=True)
    if weights:
        torch.manual_seed(0)
        model = DiffusionGemmaForBlockDiffusion(config)
        with torch.no_grad():  # strong layers, and a head that is nearly sure
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(std=1.0 if len(parameter) == text["vocab_size"] else 0.2)
        model.save_pretrained(folder)
    else:
        config.save_pretrained(folder)
    if tokenizer is not None:
        (folder / "tokenizer.json").write_text(library_json(tokenizer))
    return folder


class Vocabulary:
    """Of a model without mask token."""

    bos_id, eos_id, mask_id, vocab_size = SIZES["bos_token_id"], SIZES["eos_token_id"], None, SIZES["vocab_size"]

    def decode(self, ids):
        return " ".join(map(str, ids))


@lru_cache(maxsize=4)
def library_json(kind: str) -> str:
    """A `tokenizers` description of 300 ids: "byte level", "sentencepiece" (▁ and byte fallback) or "word piece"."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    if kind == "byte level":
        library = Tokenizer(models.BPE())
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        library.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=list(SPECIAL), initial_alphabet=alphabet)
        library.train_from_iterator(tiny.texts(), trainer)
    elif kind == "sentencepiece":
        vocab = {token: index for index, token in enumerate(SPECIAL)}
        vocab |= {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
        for token in ("▁", *"theoqurs", "th", "▁th", "▁the"):
            vocab[token] = len(vocab)
        merges = [("t", "h"), ("▁", "th"), ("▁th", "e")]
        library = Tokenizer(
            models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
        )
        library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        library.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
        library.add_special_tokens(list(SPECIAL))
    else:
        library = Tokenizer(models.WordPiece(unk_token="<unk>"))
        library.normalizer = normalizers.Lowercase()
        library.pre_tokenizer = pre_tokenizers.Whitespace()
        library.decoder = decoders.WordPiece()
        library.train_from_iterator(
            tiny.texts(), trainers.WordPieceTrainer(vocab_size=200, special_tokens=list(SPECIAL))
        )
    return library.to_str()
