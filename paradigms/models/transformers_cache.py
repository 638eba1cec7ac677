"""Caches of `transformers`: the one that a model takes, as a state of ours, and its bytes, read off the tensors.

They hold keys and values (MLA's latents too), convolution windows and recurrent states, whatever mixture a model keeps.

Dimension letters: B batch, S columns cached.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

ELSEWHERE = ("recurrent_gemma", "blt")  # state in the modules, which two texts would share; caches within a cache
PER_POSITION = ("keys", "values", "indexer_keys")
CONSTANT = ("conv_states", "recurrent_states")
_LENGTH_DIM = {"indexer_keys": 1}  # of keys and values it is the second last


class TransformersState:
    """A cache of `transformers` and the lengths of its rows.

    Attributes:
        lengths: tokens each row has seen.
        num_columns: columns cached, padding included.
        seen_BS: which of them hold tokens; None when all do.
    """

    form = "growing"

    def __init__(self, cache: Any, batch_size: int, max_len: int) -> None:
        self.cache, self.max_len = cache, max_len
        self.lengths, self.num_columns = [0] * batch_size, 0
        self.seen_BS: Tensor | None = None

    @property
    def uniform_length(self) -> int | None:
        """The length of every row when all are equal, else None."""
        return self.lengths[0] if len(set(self.lengths)) == 1 else None

    @property
    def used_bytes(self) -> int:
        return cache_bytes(self.cache, self.lengths, self.num_columns)[0]

    @property
    def allocated_bytes(self) -> int:
        return cache_bytes(self.cache, self.lengths, self.num_columns)[1]

    def copy(self) -> TransformersState:
        other = copy.copy(self)
        other.cache = copy.deepcopy(self.cache)
        return other

    def rows(self, rows: Sequence[int]) -> TransformersState:
        """A copy of some rows."""
        other = copy.copy(self)
        other.cache = copy.copy(self.cache)
        other.cache.layers = [copy.copy(layer) for layer in self.cache.layers]
        other.select_rows(rows)
        return other

    def select_rows(self, rows: Sequence[int]) -> None:
        """Keep these rows in this order; a row may be taken more than once."""
        device = next(tensor.device for layer in self.cache.layers for tensor in tensors_of(layer))
        rows_N = torch.tensor(list(rows), dtype=torch.long, device=device)
        self.cache.reorder_cache(rows_N)
        self.lengths = [self.lengths[row] for row in rows]
        self.seen_BS = None if self.seen_BS is None else self.seen_BS[rows_N]

    def mark(self) -> None:
        raise ValueError(
            "a cache of transformers cannot go back; use a native model (model=pretrained) for this decoder"
        )

    def insert(self, other: Any, at: Sequence[int] | None = None) -> None:
        raise ValueError("a cache of transformers takes no new rows; use a native model (model=pretrained) for this")


def cache_argument(theirs: Any) -> str:
    """Name of the argument of its forward that takes a cache: `past_key_values`, since transformers 5.24 `cache`."""
    takes = inspect.signature(theirs.forward).parameters
    return next((name for name in ("cache", "past_key_values", "cache_params") if name in takes), "cache")


def new_cache(theirs: Any) -> Any | None:
    """An empty cache for a model; None for one that keeps its state in a way of its own."""
    from transformers import DynamicCache

    if not keeps_cache(type(theirs), theirs.config):
        return None
    return DynamicCache(config=theirs.config.get_text_config(decoder=True))


def keeps_cache(kind: Any, config: Any) -> bool:
    """Whether a class of theirs keeps all its state in the library's plain cache."""
    layered = hasattr(config.get_text_config(decoder=True), "num_hidden_layers")
    return layered and config.model_type not in ELSEWHERE and kind._supports_default_dynamic_cache()


def cache_bytes(cache: Any, lengths: Sequence[int], num_columns: int) -> tuple[int, int]:
    """Bytes used and allocated when the rows have seen `lengths` tokens, in `num_columns` columns.

    Used are the positions of each row; the columns of its padding are allocated and not used. A sliding window keeps
    what it sees and no more. The cache may be further by now: only its shapes are read.
    """
    used = allocated = 0
    for layer in cache.layers:
        window = getattr(layer, "sliding_window", None)
        most = max(num_columns, 1) if window is None else max(min(num_columns, window - 1), 1)
        for name in PER_POSITION:
            for tensor in _tensors(getattr(layer, name, None)):
                dim = _LENGTH_DIM.get(name, tensor.dim() - 2)
                column = tensor.nbytes // (tensor.shape[0] * tensor.shape[dim]) if tensor.numel() else 0
                used += column * sum(min(length, most) for length in lengths)
                allocated += column * len(lengths) * min(num_columns, most)
        for name in CONSTANT:
            constant = sum(tensor.nbytes for tensor in _tensors(getattr(layer, name, None)))
            used, allocated = used + constant, allocated + constant
    return used, allocated


def tensors_of(layer: Any) -> Iterator[Tensor]:
    """What one layer of a cache holds."""
    for name in (*PER_POSITION, *CONSTANT):
        yield from _tensors(getattr(layer, name, None))


def holds_recurrence(cache: Any) -> bool:
    """Whether some layer keeps a state that its tokens overwrite."""
    return any(hasattr(layer, name) for layer in cache.layers for name in CONSTANT)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, Iterable):
        for one in value:
            yield from _tensors(one)
