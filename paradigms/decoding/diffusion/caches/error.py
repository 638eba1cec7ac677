"""How far a cache is from reading everything again, along the way that a decoder takes with it.

Every look is made twice: from what the cache keeps, which is what the decoder goes on with, and over the whole row. An
approximate cache is exact at a block's first look and departs from it as the block fills, so errors are told by the
number of the look at the block. What is compared are distributions over the tokens that can be said, all but the mask.

Dimension letters: R rows looked at, W positions of a block, M wanted positions, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from paradigms.decoding.diffusion.caches.none import NoCache, NoCacheReader
from paradigms.decoding.diffusion.canvas import Canvas
from paradigms.decoding.diffusion.contract import Block, Cache, Look, Reader, Reads, Stretch
from paradigms.decoding.stopping import Vocabulary
from paradigms.models.network import NetworkConfig
from paradigms.models.stack import Model
from paradigms.paradigm import Request, StateBytes


@dataclass(slots=True)
class LookError:
    """Looks of the same number at their block, over all blocks and rows.

    Attributes:
        looks: rows looked at.
        positions: masked positions that the model was asked about there.
        largest_difference: of any logit.
        kl_nats_sum: KL(uncached || cached), summed over the positions.
        other_argmax: positions at which another token is the most probable one.
    """

    looks: int = 0
    positions: int = 0
    largest_difference: float = 0.0
    kl_nats_sum: float = 0.0
    other_argmax: int = 0

    def add(self, exact_MV: Tensor, cached_MV: Tensor) -> None:
        """Count one row's positions."""
        self.looks += 1
        if not len(exact_MV):
            return
        exact_MV, cached_MV = exact_MV.double(), cached_MV.double()
        log_p, log_q = exact_MV.log_softmax(-1), cached_MV.log_softmax(-1)
        self.positions += len(exact_MV)
        self.largest_difference = max(self.largest_difference, float((exact_MV - cached_MV).abs().max()))
        self.kl_nats_sum += float((log_p.exp() * (log_p - log_q)).sum())
        self.other_argmax += int((exact_MV.argmax(-1) != cached_MV.argmax(-1)).sum())


@dataclass
class CacheError:
    """Errors by the number of the look at the block, from 0."""

    by_look: dict[int, LookError] = field(default_factory=dict)

    def columns(self) -> dict[str, Any]:
        """Means over all positions that the model was asked about, and the largest difference of any logit; and the
        means of each look, None where it asked about nothing.
        """
        found = self.by_look.values()
        positions = max(1, sum(error.positions for error in found))
        return {
            "cache_kl_nats": sum(error.kl_nats_sum for error in found) / positions,
            "cache_other_argmax_share": sum(error.other_argmax for error in found) / positions,
            "cache_largest_logit_difference": max((error.largest_difference for error in found), default=0.0),
            "cache_kl_nats_by_look": [
                look.kl_nats_sum / look.positions if look.positions else None
                for look in (self.by_look.get(index, LookError()) for index in range(max(self.by_look, default=-1) + 1))
            ],
        }


def cache_error(decoder: Any, model: Model, batches: Sequence[Sequence[Request]], vocabulary: Vocabulary) -> CacheError:
    """Errors of a decoder's cache (`MaskedDiffusion.cache`) while it decodes these batches."""
    error = CacheError()
    watched = dataclasses.replace(decoder, cache=Compared(decoder.cache, error))
    for requests in batches:
        for _ in watched.decode(model, requests, vocabulary):
            pass
    return error


@dataclass(frozen=True)
class Compared:
    """A cache, each of whose looks is made without it too."""

    cache: Cache
    error: CacheError
    exact: ClassVar[bool] = False

    def check(self, model: NetworkConfig, *, block_len: int | None) -> None:
        self.cache.check(model, block_len=block_len)

    def open(self, model: Model, canvas: Canvas) -> ComparedReader:
        return ComparedReader(self.error, self.cache.open(model, canvas), NoCache().open(model, canvas), canvas.mask_id)

    def reads(self, model: NetworkConfig, stretch: Stretch, look: Look, *, rows: int) -> Reads:
        return self.cache.reads(model, stretch, look, rows=rows)


class ComparedReader:
    """See `contract.Reader`; forwards and positions are those of the cache."""

    def __init__(self, error: CacheError, reader: Reader, whole: NoCacheReader, mask_id: int) -> None:
        self.error, self.reader, self.whole, self.mask_id = error, reader, whole, mask_id
        self.forwards = self.positions = 0
        self.looks: list[int] = []

    def begin(self, block: Block) -> None:
        self.looks = [0] * len(block.starts)
        self.reader.begin(block)

    def logits(self, block: Block, rows: Sequence[int] | None, wanted_BW: Tensor, time_B: Tensor | None) -> Tensor:
        cached_MV = self.reader.logits(block, rows, wanted_BW, time_B)
        self.forwards += self.reader.forwards
        self.positions += self.reader.positions
        self.reader.forwards = self.reader.positions = 0
        exact_MV = self.whole.logits(block, rows, wanted_BW, time_B)
        counts = wanted_BW.sum(-1).tolist()
        said = torch.arange(exact_MV.shape[1], device=exact_MV.device) != self.mask_id
        for row, exact, cached in zip(
            range(len(self.looks)) if rows is None else rows,
            exact_MV[:, said].split(counts),
            cached_MV[:, said].split(counts),
            strict=True,
        ):
            self.error.by_look.setdefault(self.looks[row], LookError()).add(exact, cached)
            self.looks[row] += 1
        return cached_MV

    def state(self) -> Callable[[], StateBytes] | None:
        return self.reader.state()
