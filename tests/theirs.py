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
SPECIAL = ("<unk>", "<s>", "</s>")


def write_folder(
    folder: Path,
    model_type: str = "llama",
    *,
    tokenizer: str | None = "byte level",
    weights: bool = True,
    **changes: Any,
) -> Path:
    """A model folder; the values of SIZES that a model type does not know are its own business."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(model_type, **{**SIZES, **changes})
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
