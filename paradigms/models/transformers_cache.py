"""Bytes of `transformers`' caches, read off their tensors: keys and values (MLA's latents too), convolution windows and
recurrent states, whatever mixture a model keeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor

PER_POSITION = ("keys", "values", "indexer_keys")
CONSTANT = ("conv_states", "recurrent_states")
_LENGTH_DIM = {"indexer_keys": 1}  # of keys and values it is the second last


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
