"""What tokens cost by their position in a window: so it shows how much of the text before them a model uses.

A causal model pays for the token in column c what it costs given the c tokens before it, begin-of-text included. A
denoiser pays what it adds to the bound: its cost with as much of the window known as when it is decided in a random
order, on both sides of it; so its curve is no curve over context, and is marked as a bound like the sum.

Columns are taken together in buckets that double in width: 1, 2 to 3, 4 to 7, ... Standard errors are over windows, of
ratios of sums (as in `likelihood`).

Dimension letters: N windows, T columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from paradigms.data.processes.process import Estimated
from paradigms.data.stream import EvaluationWindows
from paradigms.models.stack import Model
from paradigms.quality.masks import draw_masks
from paradigms.quality.nats import default_batch_size, exact_nats, masked_nats


@dataclass(frozen=True, kw_only=True)
class PositionBits:
    """Likelihood of the tokens of a stretch of columns.

    Attributes:
        first, last: columns, counted from begin-of-text in column 0; so the first of them has `first` tokens before it.
        bits_per_byte: NaN where no token of the stretch has bytes.
        num_tokens, num_bytes: scored in it.
        is_bound: the figures come from a bound of the whole.
    """

    first: int
    last: int
    bits_per_byte: Estimated
    num_tokens: int
    num_bytes: int
    is_bound: bool


def by_position(
    model: Model,
    windows: EvaluationWindows,
    token_bytes: Sequence[bytes],
    *,
    mask_id: int | None,
    num_masks: int = 8,
    batch_size: int | None = None,
    seed: int = 0,
) -> list[PositionBits]:
    """Bits per byte by position; the sum over all is `likelihood.evaluate` with the same masks."""
    nats_NT, is_bound = column_nats(
        model, windows, mask_id=mask_id, num_masks=num_masks, batch_size=batch_size, seed=seed
    )
    return in_buckets(nats_NT, windows, token_bytes, is_bound=is_bound)


def column_nats(
    model: Model,
    windows: EvaluationWindows,
    *,
    mask_id: int | None,
    num_masks: int = 8,
    batch_size: int | None = None,
    seed: int = 0,
) -> tuple[np.ndarray, bool]:
    """What each scored token costs [N, T], 0 where nothing is scored; and whether the sums are bounds.

    Args: as of `likelihood.evaluate`.

    Raises:
        ValueError: windows longer than the model, or a denoiser without `mask_id`.
    """
    num_columns = windows.tokens_NT.shape[1]
    if num_columns > model.config.max_positions:
        raise ValueError(
            f"windows of {num_columns} positions exceed model.max_positions={model.config.max_positions}; use shorter "
            "ones"
        )
    if not model.config.causal and mask_id is None:
        raise ValueError("mask_id=None: a denoiser is scored with a mask token; give its id")
    nats_NT = np.zeros(windows.tokens_NT.shape)
    if batch_size is None:
        batch_size = default_batch_size(num_columns, model.config.vocab_size)
    texts = (windows.tokens_NT, windows.lengths_N)
    was_training = model.training
    model.eval()
    try:
        if model.config.causal:
            scored_NT = windows.scored_NT
            exact_nats(model, *texts, scored_NT, mask_id=mask_id, batch_size=batch_size, by_column_NT=nats_NT)
            return nats_NT, False
        assert mask_id is not None
        masks = draw_masks(windows.scored_NT, num_masks, block=model.config.canvas_block, seed=seed)
        masked_nats(model, *texts, masks, mask_id=mask_id, batch_size=batch_size, by_column_NT=nats_NT)
        return nats_NT, bool(masks.is_bound_N.any())
    finally:
        model.train(was_training)


def in_buckets(
    nats_NT: np.ndarray, windows: EvaluationWindows, token_bytes: Sequence[bytes], *, is_bound: bool
) -> list[PositionBits]:
    """Costs by column, taken together."""
    bytes_V = np.array([len(token) for token in token_bytes])
    scored_NT = windows.scored_NT
    bytes_NT = np.where(scored_NT, bytes_V[windows.tokens_NT], 0)
    found = []
    for first, last in buckets(nats_NT.shape[1] - 1):
        columns = slice(first, last + 1)
        if not (num_tokens := int(scored_NT[:, columns].sum())):
            continue
        here_N = bytes_NT[:, columns].sum(1)
        found.append(
            PositionBits(
                first=first,
                last=last,
                bits_per_byte=Estimated.ratio(nats_NT[:, columns].sum(1) / math.log(2), here_N),
                num_tokens=num_tokens,
                num_bytes=int(here_N.sum()),
                is_bound=is_bound,
            )
        )
    return found


def buckets(last: int) -> Iterator[tuple[int, int]]:
    """First and last number of stretches of 1 to `last`, each twice as long as the one before."""
    first = 1
    while first <= last:
        yield first, min(2 * first - 1, last)
        first *= 2
