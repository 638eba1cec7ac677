"""How `generate` compiles its steps: behind a static cache, by its own switch.

The library compiles only on accelerators unless told to do it everywhere. What it compiled holds for the very tensors
of a cache, so one cache a size is kept with the model and emptied for the next text.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from paradigms.models.programs import num_compiled
from paradigms.models.transformers_cache import tensors_of

_caches: WeakKeyDictionary[torch.nn.Module, dict[tuple[int, int], Any]] = WeakKeyDictionary()


def static_cache(theirs: Any, batch_size: int, max_len: int) -> Any:
    """An empty static cache for a model of the library; one text at a time uses it.

    Raises:
        ValueError: a model whose cache cannot be compiled.
    """
    from transformers import StaticCache

    caches = _caches.setdefault(theirs, {})
    if (batch_size, max_len) not in caches:
        cache = StaticCache(config=theirs.config.get_text_config(decoder=True), max_cache_len=max_len)
        if not cache.is_compileable:
            raise ValueError(
                f"transformers cannot compile steps of a {theirs.config.model_type}; use device.execution=eager"
            )
        caches[batch_size, max_len] = cache
    with torch.inference_mode():  # as generate itself runs
        caches[batch_size, max_len].reset()
    return caches[batch_size, max_len]


def compile_config(device: torch.device) -> Any:
    """The library's own setting, CUDA graphs included where there is CUDA."""
    from transformers import CompileConfig

    config: Any = CompileConfig(mode="reduce-overhead" if device.type == "cuda" else "default", dynamic=False)
    config._compile_all_devices = True
    return config


def counting(tokens: Iterator[Tensor], model: Any) -> Iterator[Tensor]:
    """The same tokens; the time of steps that compiled something is added to `model.compile_s`."""
    while True:
        before, started = num_compiled(), time.perf_counter()
        token_B = next(tokens, None)
        if num_compiled() != before:
            model.compile_s += time.perf_counter() - started
        if token_B is None:
            return
        yield token_B


def allocated_bytes(cache: Any) -> int | None:
    """Bytes of a static cache, all of whose columns exist from the start; None for a growing one."""
    from transformers import StaticCache

    if not isinstance(cache, StaticCache):
        return None
    return sum(tensor.nbytes for layer in cache.layers for tensor in tensors_of(layer))
