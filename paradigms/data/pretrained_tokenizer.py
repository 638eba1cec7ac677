"""The tokenizer of a pretrained model, as its folder or GGUF file has it.

Bits per byte need the bytes of each token. Byte-level vocabularies spell them in an alphabet of their own,
sentencepiece-like ones write spaces as ▁ and rare bytes as <0xE3>; whether a vocabulary was understood is tried on a
text before it is believed. What cannot be mapped to bytes still generates, but cannot be scored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from .cache import cached
from .splits import Corpus
from .tokenizers import Tokenizer, byte_alphabet

FILE = "tokenizer.json"
SOURCES = (FILE, "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
_PROBE = "It's 2024 — naïve café,\n\n    x = [1]; 日本 🙂 end"
_SPACE = "▁"  # sentencepiece's


@dataclass(frozen=True, kw_only=True)
class PretrainedTokenizer:
    """The tokenizer beside a pretrained model.

    Attributes:
        path: folder, GGUF file or name on the Hugging Face hub, as `model.path`; its config says how many ids there
            are.
        text_path: where the tokenizer itself lies when the model has none beside it, as MDLM reads GPT-2's text; None
            is `path`.
        mask_id: the mask token of a denoiser, which may lie beyond the tokenizer's own vocabulary; None is what the
            model's config says (`mask_token_id`), if anything.
    """

    path: str
    text_path: str | None = None
    mask_id: int | None = None

    @property
    def vocab_size(self) -> int:
        """Rows of the model's embedding, which may be more than the tokenizer uses."""
        from paradigms.models.checkpoint_files import read_config

        return _vocab_size(read_config(self.path))

    def check(self, *, needs_text: bool, needs_bytes: bool) -> None:
        """Raise ValueError when it cannot do what a cell needs."""
        tokenizer = _load(self.path, self.text_path, self.mask_id)
        if needs_text and isinstance(tokenizer, IdsOnly):
            raise ValueError(
                f"tokenizer.path={self.path} has no tokenizer, so no text can be read: name the folder of one in "
                "tokenizer.text_path (GPT-2's for MDLM and BD3-LM), or use workload=random_prompts"
            )
        if needs_bytes and not any(tokenizer.token_bytes):
            raise ValueError(
                f"tokenizer.path={self.path}: the vocabulary cannot be mapped to bytes, so that bits per byte and text "
                "as it arrives are out of reach; set measure.quality=false measure.timeline=device"
            )

    def load(self, corpus: Corpus) -> Tokenizer:
        return _load(self.path, self.text_path, self.mask_id)


class LibraryTokenizer(Tokenizer):
    """A tokenizer of the `tokenizers` library.

    A text never turns into a special token. `bos_id` and `eos_id` are the same where a model has only one of them, and
    there is no mask unless the model has one. The dummy space that sentencepiece puts before a text counts as a byte of
    it.

    Attributes:
        token_bytes: bytes of each id, empty for special ones; all empty when the vocabulary cannot be mapped.
    """

    def __init__(self, text: str, *, bos_id: int, eos_id: int, vocab_size: int, mask_id: int | None = None) -> None:
        from tokenizers import Tokenizer as Library

        self.library = Library.from_str(text)
        self.library.encode_special_tokens = True
        self.library.no_truncation()
        self.library.no_padding()
        self.bos_id, self.eos_id, self.vocab_size, self.mask_id = bos_id, eos_id, vocab_size, mask_id
        self.sha256 = hashlib.sha256(f"{text}\n{bos_id} {eos_id} {vocab_size}{_said(mask_id)}".encode()).hexdigest()
        self.token_bytes = _bytes_of_ids(json.loads(text), self.library.get_vocab(), vocab_size)
        self._has_bytes = True
        found = b"".join(self.token_bytes[token] for token in self.encode(_PROBE))
        if found.removeprefix(b" ") != _PROBE.encode():
            self._has_bytes, self.token_bytes = False, (b"",) * vocab_size

    @property
    def plain_ids(self) -> Sequence[int]:
        special = {token for token, added in self.library.get_added_tokens_decoder().items() if added.special}
        special |= {self.bos_id, self.eos_id, self.mask_id}
        return [token for token in sorted(self.library.get_vocab().values()) if token not in special]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        for text in texts:
            text.encode()  # a lone surrogate is a ValueError
        encodings = self.library.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Iterable[int]) -> str:
        if self._has_bytes:
            return super().decode(ids)
        return self.library.decode([int(token) for token in ids], skip_special_tokens=True)

    def save(self, path: str | Path) -> None:
        raise ValueError("a pretrained tokenizer is not written again; copy the file it came from")


class IdsOnly(Tokenizer):
    """Stands for the tokenizer that a config without one leaves open: ids, and no text."""

    def __init__(self, *, bos_id: int, eos_id: int, vocab_size: int, mask_id: int | None = None) -> None:
        self.bos_id, self.eos_id, self.vocab_size, self.mask_id = bos_id, eos_id, vocab_size, mask_id
        self.token_bytes = (b"",) * vocab_size
        self.sha256 = hashlib.sha256(f"ids only {bos_id} {eos_id} {vocab_size}{_said(mask_id)}".encode()).hexdigest()

    @property
    def plain_ids(self) -> Sequence[int]:
        special = (self.bos_id, self.eos_id, self.mask_id)
        return [token for token in range(self.vocab_size) if token not in special]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        raise ValueError("this model came without a tokenizer, so no text can be read: use workload=random_prompts")


def _said(mask_id: int | None) -> str:
    """The mask in what is hashed; nothing where there is none."""
    return "" if mask_id is None else f" {mask_id}"


@lru_cache(maxsize=4)
def _load(path: str, text_path: str | None, mask_id: int | None) -> Tokenizer:
    from paradigms.models.checkpoint_files import locate, locate_tokenizer, read_config

    model, config = locate(path), read_config(path)
    place = model if text_path is None else locate_tokenizer(text_path)
    found, vocab_size = _special_ids(model, config), _vocab_size(config)
    mask_id = config.get("mask_token_id") if mask_id is None else mask_id
    if mask_id is not None and not 0 <= mask_id < vocab_size:
        raise ValueError(
            f"tokenizer.mask_id={mask_id} is no id of the model, which has {vocab_size}; give 0 to {vocab_size - 1}"
        )
    text = _library_json(place, str(config.get("model_type")))
    if text is None and text_path is not None:
        raise ValueError(f"tokenizer.text_path={text_path} has no tokenizer; give a folder with {FILE} or {SOURCES[2]}")
    if text is None:
        return IdsOnly(bos_id=found[0] or 0, eos_id=found[1] or 0, vocab_size=vocab_size, mask_id=mask_id)
    vocabulary = {entry["content"]: entry["id"] for entry in json.loads(text).get("added_tokens", [])}
    bos_id, eos_id = found
    for name, content in _special_contents(place).items():
        if name == "bos_token":
            bos_id = vocabulary.get(content, bos_id)
        if name == "eos_token":
            eos_id = vocabulary.get(content, eos_id)
    bos_id, eos_id = (eos_id if bos_id is None else bos_id), (bos_id if eos_id is None else eos_id)
    if bos_id is None or eos_id is None:
        raise ValueError(f"tokenizer.path={path} names neither begin-of-text nor end-of-text; a text needs one of them")
    return LibraryTokenizer(text, bos_id=bos_id, eos_id=eos_id, vocab_size=vocab_size, mask_id=mask_id)


def _vocab_size(config: Mapping[str, Any]) -> int:
    size = config.get("vocab_size") or (config.get("text_config") or {}).get("vocab_size")
    if size is None:
        raise ValueError(f"the config of this {config.get('model_type')!r} has no vocab_size: it is no model of text")
    return int(size)


def _special_ids(place: Path, config: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """bos and eos by generation_config.json, else by the model's config; the first where there are several."""
    generation: dict[str, Any] = {}
    if place.is_dir() and (place / "generation_config.json").exists():
        generation = json.loads((place / "generation_config.json").read_text())

    def first(name: str) -> int | None:
        value = generation.get(name, config.get(name, (config.get("text_config") or {}).get(name)))
        return value[0] if isinstance(value, list) and value else value if isinstance(value, int) else None

    return first("bos_token_id"), first("eos_token_id")


def _special_contents(place: Path) -> dict[str, str]:
    """bos_token and eos_token by tokenizer_config.json."""
    if not place.is_dir() or not (place / "tokenizer_config.json").exists():
        return {}
    values = json.loads((place / "tokenizer_config.json").read_text())
    named = {name: values.get(name) for name in ("bos_token", "eos_token")}
    named = {name: value.get("content") if isinstance(value, dict) else value for name, value in named.items()}
    return {name: value for name, value in named.items() if isinstance(value, str)}


_CLASSES = {
    "Dream": "Qwen2Tokenizer"
}  # of models whose own class only their own code has: the one that computes the same


def _library_json(place: Path, model_type: str) -> str | None:
    """The `tokenizers` library's own description, converted by `transformers` where there is none; None without any."""
    if place.is_dir() and (place / FILE).exists():
        return (place / FILE).read_text(encoding="utf-8")
    if place.is_dir() and not any((place / name).exists() for name in SOURCES):
        return None

    def convert() -> bytes:
        import transformers

        folder, more = (place, {}) if place.is_dir() else (place.parent, {"gguf_file": place.name})
        known = getattr(transformers, _CLASSES.get(model_type, "AutoTokenizer"))
        found = known.from_pretrained(folder, local_files_only=True, **more)
        if not found.is_fast:
            raise ValueError(f"tokenizer.path={place} has a tokenizer that the `tokenizers` library cannot express")
        return found.backend_tokenizer.to_str().encode()

    from importlib import metadata

    files = [place] if place.is_file() else [place / name for name in SOURCES if (place / name).exists()]
    state = [[str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns] for file in files]
    return cached(
        "library-tokenizer", {"files": state, "transformers": metadata.version("transformers")}, convert
    ).decode()


def _bytes_of_ids(description: Mapping[str, Any], vocabulary: Mapping[str, int], vocab_size: int) -> tuple[bytes, ...]:
    """Bytes of each id by the kind of vocabulary; empty for special tokens and ids that no token has.

    Raises:
        ValueError: a token beyond the model's embedding.
    """
    added = {entry["id"]: entry for entry in description.get("added_tokens", [])}
    parts = json.dumps([description.get(name) for name in ("normalizer", "pre_tokenizer", "decoder")])
    byte_of = {character: byte for byte, character in enumerate(byte_alphabet())} if "ByteLevel" in parts else None
    bytes_V = [b""] * vocab_size
    for token, index in vocabulary.items():
        if index in added:
            if added[index]["special"] or index >= vocab_size:
                continue
            bytes_V[index] = token.encode()
            continue
        if index >= vocab_size:
            raise ValueError(f"token id {index} of the tokenizer is beyond the model's vocab_size={vocab_size}")
        if byte_of is not None:
            known = all(character in byte_of for character in token)
            bytes_V[index] = bytes(byte_of[character] for character in token) if known else token.encode()
        elif len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            bytes_V[index] = bytes([int(token[3:5], 16)])
        else:
            bytes_V[index] = token.replace(_SPACE, " ").encode()
    return tuple(bytes_V)
