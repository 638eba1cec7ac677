"""Other people's checkpoints: where they lie, what network they describe, and how their weights enter the native stack.

A checkpoint is what `transformers` reads: a folder with config.json and safetensors (one file, or an index of several),
a GGUF file, or the name of one on the Hugging Face hub; mamba-ssm's own folders are read as well. Its config is read
while a sweep is planned, so that is cheap: `transformers` is imported once to fill in what config.json leaves out, and
the result is cached on disk.

Weights are read a tensor at a time, so no more than one copy of them exists beside the tensor at hand. Where a file's
names are not those of the model in memory (experts that the library fuses on loading, a GGUF file), `transformers`
opens it first and its tensors are let go one by one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paradigms.data.cache import cached
from paradigms.models.config import ModelConfig
from paradigms.models.families import Family, family_of, mamba_ssm, native_tensors
from paradigms.models.stack import Model

SMOLLM2 = Path("runs/pretrained/smollm2_135m")  # where `make smollm2` puts it
CONFIG, INDEX, GGUF = "config.json", "model.safetensors.index.json", ".gguf"
HUB_FILES = ["*.json", "*.safetensors", "tokenizer.model", "*.txt"]
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def native_config(path: str, max_positions: int | None = None) -> ModelConfig:
    """The network of a checkpoint in the native stack.

    Args:
        path: folder, GGUF file or name on the hub.
        max_positions: positions to build for; None is what the checkpoint was made for.

    Raises:
        ValueError: nothing there, or a network that the native stack does not compute.
    """
    theirs = read_config(path)
    config = _family(path, theirs).from_transformers(theirs)
    return config if max_positions is None else dataclasses.replace(config, max_positions=max_positions)


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


def load_native(path: str, config: ModelConfig) -> Model:
    """The checkpoint as a native model, float32, on the CPU.

    Raises:
        ValueError: tensors that are missing, or that the native stack does not compute with.
    """
    place = locate(path)
    family = _family(path, read_config(path))
    uses = Counter(name for entry in family.entries(config) for name in entry.theirs)
    tensors = _stored(place) if place.is_dir() else {}
    if not uses.keys() <= tensors.keys() and not _is_mamba_ssm(place):
        tensors = _opened(place, uses)
    model = Model(config, initialise=False)
    parameters = model.state_dict(keep_vars=True)
    with torch.no_grad():
        for name, value in native_tensors(family, config, tensors):
            if name not in parameters or parameters[name].shape != value.shape:
                raise ValueError(
                    f"model.path={path}: {name} of shape {tuple(value.shape)} does not fit the native stack"
                )
            parameters.pop(name).copy_(value)
    if parameters:
        raise ValueError(f"model.path={path} says nothing of {', '.join(sorted(parameters)[:5])}")
    return model.float()


def weights_sha256(path: str) -> str:
    """Hash of a checkpoint's weights and config; files that have not changed since are not read again."""
    place = locate(path)
    files = _weight_files(place) if place.is_dir() else [place]
    if place.is_dir():
        files = [place / CONFIG, *files]
    return hashlib.sha256("".join(_file_sha256(file) for file in files).encode()).hexdigest()


def transformers_model(path: str, **options: Any) -> Any:
    """The checkpoint opened by `transformers`; options go to its `from_pretrained`."""
    from transformers import AutoModelForCausalLM

    place = locate(path)
    folder, gguf = (place, None) if place.is_dir() else (place.parent, place.name)
    if gguf is None:
        _weight_files(place)
    else:
        _needs("gguf", "accelerate")
        options["gguf_file"] = gguf
    return AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, **options)


def _stored(folder: Path) -> Mapping[str, Tensor]:
    """Tensors of a folder by name, each read when it is asked for."""
    first = _weight_files(folder)[0]
    if first.name == mamba_ssm.WEIGHTS:
        return torch.load(first, map_location="cpu", mmap=True, weights_only=True)
    return _SafetensorsFolder(folder)


class _SafetensorsFolder(Mapping[str, Tensor]):
    """Tensors of one or several safetensors files, each read when it is asked for."""

    def __init__(self, folder: Path) -> None:
        from safetensors import safe_open

        self._file_of: dict[str, Any] = {}
        for path in _weight_files(folder):
            file = safe_open(str(path), framework="pt")
            self._file_of |= dict.fromkeys(file.keys(), file)

    def __getitem__(self, name: str) -> Tensor:
        return self._file_of[name].get_tensor(name)

    def __contains__(self, name: object) -> bool:
        return name in self._file_of

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def __len__(self) -> int:
        return len(self._file_of)


class _Released(Mapping[str, Tensor]):
    """Tensors of an opened model, each let go when it has been asked for as often as it is needed."""

    def __init__(self, tensors: dict[str, Tensor], uses: Mapping[str, int]) -> None:
        self._tensors, self._names, self._left = tensors, set(tensors), Counter(uses)

    def __getitem__(self, name: str) -> Tensor:
        self._left[name] -= 1
        return self._tensors[name] if self._left[name] > 0 else self._tensors.pop(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _opened(place: Path, uses: Mapping[str, int]) -> Mapping[str, Tensor]:
    theirs = transformers_model(str(place), dtype="auto" if place.is_dir() else torch.float32)
    tensors = dict(theirs.state_dict())
    del theirs  # its tensors now live in the dictionary alone
    return _Released(tensors, uses)


def _family(path: str, theirs: Mapping[str, Any]) -> Family:
    family = family_of(theirs)
    if family is None:
        raise ValueError(
            f"model.path={path} is a {theirs.get('model_type')!r}, which the native stack does not have; "
            f"model=transformers model.path={path} runs it by the library's own code"
        )
    return family


@lru_cache(maxsize=64)
def _read_config(place: Path) -> dict[str, Any]:
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
        _needs("gguf")
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True, **gguf)
    except (ValueError, KeyError, OSError) as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ValueError(f"model.path={place}: transformers cannot read its config ({first})") from None


def _filled_in(place: Path) -> str:
    """JSON of the config, with the names that all configs share beside a model's own."""
    if _is_mamba_ssm(place):
        return json.dumps(mamba_ssm.filled_in(json.loads((place / CONFIG).read_text())))
    config = transformers_config(place)
    values = config.to_dict()
    for common in config.attribute_map:
        values.setdefault(common, getattr(config, common, None))
    return json.dumps(values, default=str)


def _is_mamba_ssm(place: Path) -> bool:
    """Whether a folder is one of mamba-ssm's own, which `transformers` does not read."""
    if not (place / CONFIG).is_file():
        return False
    try:
        return mamba_ssm.recognises(json.loads((place / CONFIG).read_text()))
    except json.JSONDecodeError:
        return False


def _weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder, in order; the file of torch where mamba-ssm has left one.

    Raises:
        ValueError: none, or some that the index names are missing.
    """
    if (folder / INDEX).exists():
        names = sorted(set(json.loads((folder / INDEX).read_text())["weight_map"].values()))
    else:
        names = ["model.safetensors"]
        if not (folder / names[0]).exists() and (folder / mamba_ssm.WEIGHTS).exists() and _is_mamba_ssm(folder):
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
    """Folder of a hub snapshot; the network is asked only when nothing whole is on this machine."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(name, allow_patterns=HUB_FILES, local_files_only=True))
        _weight_files(folder)
        return folder
    except (LocalEntryNotFoundError, ValueError):
        pass
    try:
        folder = Path(snapshot_download(name, allow_patterns=HUB_FILES))
        if _is_mamba_ssm(folder):
            snapshot_download(name, allow_patterns=[mamba_ssm.WEIGHTS])
        return folder
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ValueError(
            f"model.path={name} is no folder here, and the Hugging Face hub did not give it ({reason[:120]}); "
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


def _needs(*packages: str) -> None:
    from importlib.util import find_spec

    if missing := [package for package in packages if find_spec(package) is None]:
        raise ValueError(
            f"a GGUF file needs {' and '.join(missing)}: pip install -c constraints.txt -e '.[pretrained]', "
            "or give a folder with safetensors"
        )


def _some(names: list[str]) -> str:
    return f"{', '.join(names[:5])}{' …' if len(names) > 5 else ''}"
