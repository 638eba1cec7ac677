"""Other people's checkpoints in the native stack: what network they describe, and how their weights enter.

A checkpoint is what `transformers` reads: a folder with config.json and safetensors (one file, or an index of several),
a GGUF file, or the name of one on the Hugging Face hub; folders of mamba-ssm, LLaDA, Dream, MDLM and BD3-LM, which it
does not have, are read as well, without the code beside them. `checkpoint_files` finds them.

Weights are read a tensor at a time, so no more than one copy of them exists beside the tensor at hand. Where a file's
names are not those of the model in memory (experts that the library fuses on loading, a GGUF file), `transformers`
opens it first and its tensors are let go one by one.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paradigms.models.checkpoint_files import is_own, locate, needs, read_config, weight_files
from paradigms.models.config import ModelConfig
from paradigms.models.families import Family, family_of, mamba_ssm, native_tensors
from paradigms.models.stack import Model


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


def load_native(path: str, config: ModelConfig) -> Model:
    """The checkpoint as a native model, float32, on the CPU.

    Raises:
        ValueError: tensors that are missing, or that the native stack does not compute with.
    """
    place = locate(path)
    family = _family(path, read_config(path))
    uses = Counter(name for entry in family.entries(config) for name in entry.theirs)
    tensors = _stored(place) if place.is_dir() else {}
    if not uses.keys() <= tensors.keys() and not is_own(place):
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


def transformers_model(path: str, *, auto: str = "AutoModelForCausalLM", **options: Any) -> Any:
    """The checkpoint opened by a class of `transformers`; options go to its `from_pretrained`."""
    import transformers

    place = locate(path)
    folder, gguf = (place, None) if place.is_dir() else (place.parent, place.name)
    if gguf is None:
        weight_files(place)
    else:
        needs("gguf", "accelerate")
        options["gguf_file"] = gguf
    return getattr(transformers, auto).from_pretrained(folder, local_files_only=True, **options)


def _stored(folder: Path) -> Mapping[str, Tensor]:
    """Tensors of a folder by name, each read when it is asked for."""
    first = weight_files(folder)[0]
    if first.name == mamba_ssm.WEIGHTS:
        return torch.load(first, map_location="cpu", mmap=True, weights_only=True)
    return _SafetensorsFolder(folder)


class _SafetensorsFolder(Mapping[str, Tensor]):
    """Tensors of one or several safetensors files, each read when it is asked for."""

    def __init__(self, folder: Path) -> None:
        from safetensors import safe_open

        self._file_of: dict[str, Any] = {}
        for path in weight_files(folder):
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
