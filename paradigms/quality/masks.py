"""Masks for the bound of a denoiser, and how far the estimate may be off because only some of them were drawn.

The bound of L scored tokens is an expectation over masks of exactly l of them, l uniform on 1..L, of (L / l) x the NLL
of what is masked. It is a sum over blocks where a model denoises block by block (BD3-LM, 2503.09573): every block has
an l and a mask of its own, and one forward reads a mask of each. Two ways:

    drawn         num_masks masks a text; l stratified over a text's masks, and over all blocks of all texts
    enumerated    every mask once, where no block has more than `num_masks` of them (2^L - 1): no error is left

Dimension letters: N texts, T columns, K blocks of a text, R rows (a mask of a text), S masks of a text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Masks:
    """Masks of many texts.

    Attributes:
        text_R: which text each mask is of, ascending.
        masked_RT: bool.
        weight_RK: what the NLL of the tokens that are masked in a block counts. A text's weighted sum over its rows has
            its bound as expectation.
        share_RK: masked tokens / scored tokens of each block; 0 where nothing is scored.
        size_NK: scored tokens of each block.
        drawn_N: whether the masks of a text were drawn, not enumerated.
    """

    text_R: np.ndarray
    masked_RT: np.ndarray
    weight_RK: np.ndarray
    share_RK: np.ndarray
    size_NK: np.ndarray
    drawn_N: np.ndarray

    @property
    def is_bound_N(self) -> np.ndarray:
        """Whether the sum is a bound; False where every block has one scored token at most."""
        return np.greater(self.size_NK.max(1), 1)

    def sums_N(self, nats_RK: np.ndarray) -> np.ndarray:
        """Sum of the weighted rows of each text."""
        return np.bincount(self.text_R, nats_RK.sum(1), minlength=len(self.drawn_N))

    def differences(self, nats_RK: np.ndarray, text: int) -> np.ndarray | None:
        """Differences [pairs, K] between the rows of neighbouring strata, pair by pair, of a text whose masks were
        drawn. Their squares sum up to the variance of the text's estimate, plus that of the trend from one stratum to
        the next. None of a single mask, which tells nothing.
        """
        start, stop = np.searchsorted(self.text_R, (text, text + 1))
        num_pairs = (stop - start) // 2
        if not num_pairs:
            return None
        left, right = (nats_RK[start + side : start + 2 * num_pairs : 2] for side in (0, 1))
        return (left - right) * math.sqrt((stop - start) / (2 * num_pairs))


def draw_masks(
    scored_NT: np.ndarray, num_masks: int, *, block: int | None = None, seed: int | tuple[int, ...] = 0
) -> Masks:
    """Masks of some texts; the same ones for every model with blocks of that size.

    Args:
        scored_NT: which columns may be masked.
        num_masks: masks of each text; fewer where they can be enumerated.
        block: positions of a block, counted from column 0; None is one block of all columns.
        seed: of the draws.
    """
    num_texts, num_columns = scored_NT.shape
    width = num_columns if block is None else block
    num_blocks = -(-num_columns // width)
    rng = np.random.default_rng([*((seed,) if isinstance(seed, int) else seed), 0x6D61736B])
    num_units = num_texts * num_blocks
    shift_NK = ((rng.permutation(num_units) + rng.random(num_units)) / num_units).reshape(num_texts, num_blocks)
    text, masked, weight, share = [], [], [], []
    size_NK, drawn_N = np.zeros((num_texts, num_blocks), np.int64), np.zeros(num_texts, bool)
    for n, scored_T in enumerate(scored_NT):
        columns = np.flatnonzero(scored_T)
        size_K = size_NK[n] = np.bincount(columns // width, minlength=num_blocks)
        drawn_N[n] = size_K.max() > math.log2(num_masks + 1)
        if drawn_N[n]:
            masked_ST, weight_SK = _drawn(columns, width, size_K, shift_NK[n], num_masks, num_columns, rng)
        else:
            masked_ST, weight_SK = _enumerated(columns, width, size_K, num_columns)
        text.append(np.full(len(masked_ST), n))
        masked.append(masked_ST)
        weight.append(weight_SK)
        masked_SK = np.add.reduceat(masked_ST, np.arange(0, num_columns, width), axis=1)
        share.append(masked_SK / np.maximum(size_K, 1))
    return Masks(
        text_R=np.concatenate(text),
        masked_RT=np.concatenate(masked),
        weight_RK=np.concatenate(weight),
        share_RK=np.concatenate(share),
        size_NK=size_NK,
        drawn_N=drawn_N,
    )


def join(parts: Sequence[Masks]) -> Masks:
    """Masks of the texts of all parts, one after another; columns and blocks that a part lacks have none."""

    def stacked(arrays: list[np.ndarray]) -> np.ndarray:
        width = max(array.shape[1] for array in arrays)
        return np.concatenate([np.pad(array, ((0, 0), (0, width - array.shape[1]))) for array in arrays])

    first_text = np.cumsum([0, *(len(part.drawn_N) for part in parts)])
    return Masks(
        text_R=np.concatenate([part.text_R + first for part, first in zip(parts, first_text, strict=False)]),
        masked_RT=stacked([part.masked_RT for part in parts]),
        weight_RK=stacked([part.weight_RK for part in parts]),
        share_RK=stacked([part.share_RK for part in parts]),
        size_NK=stacked([part.size_NK for part in parts]),
        drawn_N=np.concatenate([part.drawn_N for part in parts]),
    )


def _drawn(
    columns: np.ndarray,
    block: int,
    size_K: np.ndarray,
    shift_K: np.ndarray,
    num_masks: int,
    num_columns: int,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Mask s has in each block the first l of a random order, l from stratum s of `num_masks`."""
    masked_ST = np.zeros((num_masks, num_columns), bool)
    num_SK = 1 + (size_K * (np.arange(num_masks)[:, None] + shift_K) / num_masks).astype(int)
    num_SK = np.minimum(num_SK, np.maximum(size_K, 1))
    first_K = np.cumsum(size_K) - size_K
    for masked_T, num_K in zip(masked_ST, num_SK, strict=True):
        order = rng.permutation(columns)
        order = order[np.argsort(order // block, kind="stable")]  # block by block, in random order within each
        rank = np.arange(len(order)) - first_K[order // block]
        masked_T[order[rank < num_K[order // block]]] = True
    return masked_ST, size_K / (num_SK * num_masks)


def _enumerated(columns: np.ndarray, block: int, size_K: np.ndarray, num_columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Row r has in each block the mask whose bits are those of r + 1, once: shorter blocks rest in later rows."""
    num_masks = (1 << int(size_K.max())) - 1
    number_S = np.arange(1, num_masks + 1)
    masked_ST = np.zeros((num_masks, num_columns), bool)
    rank = np.arange(len(columns)) - (np.cumsum(size_K) - size_K)[columns // block]
    exists = number_S[:, None] < (1 << size_K[columns // block])
    masked_ST[:, columns] = (number_S[:, None] >> rank & 1).astype(bool) & exists
    weight_SK = np.zeros((num_masks, len(size_K)))
    for size in np.unique(size_K).tolist():
        counts = [number.bit_count() for number in range(1, 1 << size)]
        weights = np.array([1 / (count * math.comb(size, count)) for count in counts])
        weight_SK[: len(counts), size_K == size] = weights[:, None]
    return masked_ST, weight_SK
