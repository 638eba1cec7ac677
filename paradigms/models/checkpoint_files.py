"""Where other people's checkpoints lie, and what their configs say: folders of transformers, GGUF files, the hub.

A config is read while a sweep is planned, so that is cheap: `transformers` is imported once to fill in what config.json
leaves out, and the result is cached on disk. So are the hashes of weights, by size and time of the files.
"""

from __future__ import annotations

import hashlib
import json
import re
from functools import lru_cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from paradigms.data.cache import cached
from paradigms.models.families import dream, llada, mamba_ssm, mdlm

SMOLLM2 = Path("runs/pretrained/smollm2_135m")  # where `make smollm2` puts it
CONFIG, INDEX, GGUF = "config.json", "model.safetensors.index.json", ".gguf"
HUB_FILES = ["*.json", "*.safetensors", "tokenizer.model", "*.txt"]
TOKENIZER_FILES = ["*.json", "tokenizer.model", "*.txt"]
OWN = {  # model types that transformers does not have, and what fills in their config.json
    "llada": llada.filled_in,
    "Dream": dream.filled_in,
    "mdlm": mdlm.filled_in,
    "bd3lm": mdlm.filled_in,
}
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def read_config(path: str) -> dict[str, Any]:
    """The checkpoint's config as `transformers` understands it, defaults filled in.

    Raises:
        ValueError: nothing there, or nothing that `transformers` knows.
    """
    return dict(_read_config(locate(path)))


@lru_cache(maxsize=64)
def locate(path: str) -> Path:
    """Folder or GGUF file of a checkpoint; what is on the hub is fetched, once.

    Raises:
        ValueError: nothing there; says what to do.
    """
    place = Path(path).expanduser()
    if place.is_dir() or (place.is_file() and place.suffix == GGUF):
        return place
    if place == SMOLLM2:
        raise ValueError(f"model.path={path} is not there; `make smollm2` fetches SmolLM2-135M into it")
    if place.exists():
        raise ValueError(f"model.path={path} is neither a folder nor a {GGUF} file; give one of them, or a hub name")
    if not _HUB_NAME.fullmatch(path):
        raise ValueError(f"model.path={path} does not exist; give a folder, a {GGUF} file, or owner/name on the hub")
    return _fetched(path)


@lru_cache(maxsize=64)
def locate_tokenizer(path: str) -> Path:
    """Folder or GGUF file that a tokenizer is read from; of a hub model, its tokenizer's files alone are fetched.

    Raises:
        ValueError: nothing there; says what to do.
    """
    place = Path(path).expanduser()
    if place.is_dir() or (place.is_file() and place.suffix == GGUF):
        return place
    if place.exists() or not _HUB_NAME.fullmatch(path):
        raise ValueError(f"tokenizer.text_path={path} is no folder; give one, a {GGUF} file, or owner/name on the hub")
    return _snapshot(path, TOKENIZER_FILES, "tokenizer.text_path")


def weights_sha256(path: str) -> str:
    """Hash of a checkpoint's weights and config; files that have not changed since are not read again."""
    place = locate(path)
    files = weight_files(place) if place.is_dir() else [place]
    if place.is_dir():
        files = [place / CONFIG, *files]
    return hashlib.sha256("".join(_file_sha256(file) for file in files).encode()).hexdigest()


@lru_cache(maxsize=64)
def _read_config(place: Path) -> dict[str, Any]:
    if (ours := _own_config(place)) is not None:
        return ours
    file = place / CONFIG if place.is_dir() else place
    try:
        key = {"transformers": metadata.version("transformers"), "file": _file_sha256(file)}
        text = cached("transformers-config", key, lambda: _filled_in(place).encode())
    except FileNotFoundError:
        raise ValueError(f"model.path={place} has no {CONFIG}; give the folder of a transformers model") from None
    return json.loads(text)


def transformers_config(place: Path) -> Any:
    """The config that `transformers` makes of a folder or GGUF file."""
    from transformers import AutoConfig

    folder, gguf = (place, {}) if place.is_dir() else (place.parent, {"gguf_file": place.name})
    if gguf:
        needs("gguf")
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True, **gguf)
    except (ValueError, KeyError, OSError) as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ValueError(f"model.path={place}: transformers cannot read its config ({first})") from None


def _filled_in(place: Path) -> str:
    """JSON of the config, with the names that all configs share beside a model's own."""
    config = transformers_config(place)
    values = config.to_dict()
    for common in config.attribute_map:
        values.setdefault(common, getattr(config, common, None))
    return json.dumps(values, default=str)


def _own_config(place: Path) -> dict[str, Any] | None:
    """The config of a folder whose network `transformers` does not have, filled in here; None for all others."""
    values = _config_json(place)
    if mamba_ssm.recognises(values):
        return mamba_ssm.filled_in(values)
    fill_in = OWN.get(str(values.get("model_type")))
    return fill_in(values) if fill_in is not None else None


def _config_json(place: Path) -> dict[str, Any]:
    """What config.json says; empty where there is none that can be read."""
    if not (place / CONFIG).is_file():
        return {}
    try:
        values = json.loads((place / CONFIG).read_text())
    except json.JSONDecodeError:
        return {}
    return values if isinstance(values, dict) else {}


def is_mamba_ssm(place: Path) -> bool:
    """Whether a folder is one of mamba-ssm's own, which `transformers` does not read."""
    return mamba_ssm.recognises(_config_json(place))


def is_own(place: Path) -> bool:
    """Whether `transformers` does not have the network of a folder, so that it is read here or not at all."""
    values = _config_json(place)
    return mamba_ssm.recognises(values) or values.get("model_type") in OWN


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder, in order; the file of torch where mamba-ssm has left one.

    Raises:
        ValueError: none, or some that the index names are missing.
    """
    if (folder / INDEX).exists():
        names = sorted(set(json.loads((folder / INDEX).read_text())["weight_map"].values()))
    else:
        names = ["model.safetensors"]
        if not (folder / names[0]).exists() and (folder / mamba_ssm.WEIGHTS).exists() and is_mamba_ssm(folder):
            names = [mamba_ssm.WEIGHTS]
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        raise ValueError(
            f"model.path={folder} lacks {_some(missing)}; weights must be safetensors. "
            "With train=random measure=latency a config.json is enough"
        )
    return [folder / name for name in names]


@lru_cache(maxsize=64)
def _fetched(name: str) -> Path:
    """Folder of a hub model; the network is asked only when nothing whole is on this machine."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(name, allow_patterns=HUB_FILES, local_files_only=True))
        weight_files(folder)
        return folder
    except (LocalEntryNotFoundError, ValueError):
        pass
    folder = _snapshot(name, HUB_FILES, "model.path")
    return _snapshot(name, [mamba_ssm.WEIGHTS], "model.path") if is_mamba_ssm(folder) else folder


def _snapshot(name: str, patterns: list[str], key: str) -> Path:
    """Folder with these files of what is on the hub; `key` is the dotted key that named it, for errors."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=patterns))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ValueError(
            f"{key}={name} is no folder here, and the Hugging Face hub did not give it ({reason[:120]}); "
            f"fetch it where there is a network (hf download {name} --local-dir folder) and give that folder"
        ) from None


@lru_cache(maxsize=256)
def _sha256_of_state(path: str, size: int, mtime_ns: int) -> str:
    def read() -> bytes:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest().encode()

    return cached("sha256", {"path": path, "size": size, "mtime_ns": mtime_ns}, read).decode()


def _file_sha256(file: Path) -> str:
    state = file.stat()
    return _sha256_of_state(str(file.resolve()), state.st_size, state.st_mtime_ns)


def needs(*packages: str) -> None:
    if missing := [package for package in packages if find_spec(package) is None]:
        raise ValueError(
            f"a GGUF file needs {' and '.join(missing)}: pip install -c constraints.txt -e '.[pretrained]', "
            "or give a folder with safetensors"
        )


def _some(names: list[str]) -> str:
    return f"{', '.join(names[:5])}{' …' if len(names) > 5 else ''}"
