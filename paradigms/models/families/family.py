"""Other people's names for our tensors: one table a family of models, read in both directions.

A family says which `transformers` models it covers, how their config becomes ours and back, and which of their tensors
each of ours is made of. From that one table a checkpoint is loaded into the native stack, and a native model is handed
to `transformers` as the very same function, so that a peer runs on equal weights.

Theirs are [out, in], as torch's linear layers; ours [in, out]. Ours may join several of theirs along the outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from paradigms.models.config import ModelConfig


@dataclass(frozen=True)
class Entry:
    """One tensor of ours and the tensors of theirs that it is made of.

    Attributes:
        ours: its name in the native state dict.
        theirs: their names, joined along our last dimension.
        sizes: width of each of theirs along it; needed when there are several.
        transpose: whether theirs lies the other way round.
        order: theirs[..., order] is ours, for the joined outputs; None leaves them as they are.
        shape: shape of theirs when it is not ours transposed (a convolution's [C, 1, K]).
        convert: what turns one of theirs into ours, and back, where none of this does.
        copies: where they repeat these tensors under other names, as layers that share weights: the names, in the order
            of `theirs`, of each copy. They are written there too; read, they may be there, and must be equal.
    """

    ours: str
    theirs: tuple[str, ...]
    sizes: tuple[int, ...] = ()
    transpose: bool = False
    order: tuple[int, ...] | None = None
    shape: tuple[int, ...] | None = None
    convert: tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]] | None = None
    copies: tuple[tuple[str, ...], ...] = ()

    def to_ours(self, tensors: Mapping[str, Tensor]) -> Tensor:
        parts = [tensors[name] for name in self.theirs]
        for names in self.copies:
            for name, part in zip(names, parts, strict=True):
                if name in tensors and not torch.equal(tensors[name], part):
                    raise ValueError(f"{name} should repeat what the native stack keeps once, and differs from it")
        if self.convert is not None:
            parts = [self.convert[0](part) for part in parts]
        if self.transpose:
            parts = [part.mT for part in parts]
        value = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        if self.shape is not None:
            value = value.reshape([size for size in value.shape if size != 1])
        return (value if self.order is None else value[..., list(self.order)]).contiguous()

    def to_theirs(self, value: Tensor) -> dict[str, Tensor]:
        if self.order is not None:
            back = torch.tensor(self.order).argsort()
            value = value[..., back]
        parts = [value] if len(self.theirs) == 1 else list(value.split(list(self.sizes), -1))
        if self.transpose:
            parts = [part.mT for part in parts]
        if self.shape is not None:
            parts = [part.reshape(self.shape) for part in parts]
        if self.convert is not None:
            parts = [self.convert[1](part) for part in parts]
        parts = [part.contiguous() for part in parts]
        return {name: part for names in (self.theirs, *self.copies) for name, part in zip(names, parts, strict=True)}


class Family(Protocol):
    """Models that share a table of names."""

    model_types: tuple[str, ...]  # `model_type` of the transformers configs it reads

    def from_transformers(self, config: Mapping[str, Any]) -> ModelConfig:
        """Our config for theirs, as a dictionary (the contents of config.json, defaults filled in).

        Raises:
            ValueError: something in it that the native stack does not compute.
        """
        ...

    def to_transformers(self, config: ModelConfig) -> dict[str, Any] | None:
        """Their config, `model_type` included, for ours; None when this family has no such network."""
        ...

    def entries(self, config: ModelConfig) -> Iterable[Entry]:
        """All tensors."""
        ...


def to_native(family: Family, config: ModelConfig, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Native state dict of a checkpoint of theirs.

    Raises:
        ValueError: tensors that the table needs are missing, or there are others than it knows.
    """
    return dict(native_tensors(family, config, tensors))


def native_tensors(family: Family, config: ModelConfig, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """What `to_native` gives, one tensor at a time and each read only then; the names are checked before the first."""
    entries = list(family.entries(config))
    needed = {name for entry in entries for name in entry.theirs}
    if missing := sorted(needed - tensors.keys()):
        raise ValueError(f"the checkpoint lacks {', '.join(missing[:5])}{' …' if len(missing) > 5 else ''}")
    ignored = {name for entry in entries for names in entry.copies for name in names}
    ignored |= {"lm_head.weight"} if config.tied_head else set()
    ignored |= set(getattr(family, "ignored", ()))  # what is in their files and computes nothing
    unknown = sorted(name for name in tensors.keys() - needed - ignored if not name.endswith("rotary_emb.inv_freq"))
    if unknown:
        raise ValueError(
            f"the checkpoint has tensors that the native stack does not compute with: {', '.join(unknown[:5])}"
            f"{' …' if len(unknown) > 5 else ''}"
        )
    for entry in entries:
        yield entry.ours, entry.to_ours(tensors)


def to_theirs(family: Family, config: ModelConfig, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Their state dict of a native one; with a tied head, `lm_head.weight` is left to their own tying."""
    found: dict[str, Tensor] = {}
    for entry in family.entries(config):
        found |= entry.to_theirs(tensors[entry.ours])
    return found
