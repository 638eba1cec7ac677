"""What texts cost a model, in nats: the forwards behind every likelihood, in batches of texts of similar length.

Dimension letters: N texts, T columns, K blocks of a text, R rows (a mask of a text), B rows of a batch, V vocabulary, M
positions that are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paradigms.models.block_diffusion import block_logits_where
from paradigms.models.stack import Model
from paradigms.quality.masks import Masks

MOST_LOGITS = 1 << 26  # numbers that the logits of a batch may be; large vocabularies fill the memory otherwise
Progress = Callable[[int, int], None]  # (rows scored, rows in all)


def default_batch_size(num_columns: int, vocab_size: int) -> int:
    """16, or as many rows as give logits of a quarter of a gigabyte."""
    return max(1, min(16, MOST_LOGITS // (num_columns * vocab_size)))


@torch.inference_mode()
def exact_nats(
    model: Model,
    tokens_NT: np.ndarray,
    lengths_N: np.ndarray,
    scored_NT: np.ndarray,
    *,
    mask_id: int | None,
    batch_size: int,
    progress: Progress | None = None,
    by_column_NT: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """−ln p of the scored tokens of each text [N] under a causal model; and whether each of them is the likeliest [N].

    Args:
        tokens_NT: texts, and anything behind their ends.
        lengths_N: tokens of each text.
        scored_NT: bool; never in column 0, which nothing predicts.
        mask_id: a token that no model may say.
        by_column_NT: float64, zeros; gets what each token costs.
    """
    nats_N, greedy_N = np.zeros(len(tokens_NT)), np.zeros(len(tokens_NT), bool)
    for rows, length in _batches(lengths_N, batch_size, progress):
        tokens_BT = _tensor(model, tokens_NT[rows, :length])  # what is behind a shorter text is seen by none of it
        scored_BT = _tensor(model, scored_NT[rows, :length])
        logits_MV = _sayable(model.logits_where(tokens_BT, scored_BT.roll(-1, 1)), mask_id)  # column i predicts i + 1
        target_M = tokens_BT[scored_BT]
        nats_BT = _spread(_nll(logits_MV, target_M), scored_BT)
        nats_N[rows] = nats_BT.sum(1).cpu().numpy()
        if by_column_NT is not None:
            by_column_NT[rows, :length] += nats_BT.cpu().numpy()
        greedy_N[rows] = ~_spread(logits_MV.argmax(-1) != target_M, scored_BT).any(1).cpu().numpy()
    return nats_N, greedy_N


@torch.inference_mode()
def masked_nats(
    model: Model,
    tokens_NT: np.ndarray,
    lengths_N: np.ndarray,
    masks: Masks,
    *,
    mask_id: int,
    batch_size: int,
    progress: Progress | None = None,
    by_column_NT: np.ndarray | None = None,
) -> np.ndarray:
    """Weighted −ln p of the masked tokens of each block [R, K] under a denoiser, given all others of the text; under a
    block-causal one, given the others of the block and all tokens of the blocks before.

    Args:
        by_column_NT: float64, zeros; gets what each token adds to its text's sum: its cost with as much of the text
            known as when it is decided in a random order.
    """
    nats_RK = np.zeros(masks.weight_RK.shape)
    block = model.config.canvas_block or tokens_NT.shape[1]
    for rows, length in _batches(lengths_N[masks.text_R], batch_size, progress):
        texts = masks.text_R[rows]
        tokens_BT = _tensor(model, tokens_NT[texts, :length])
        masked_BT = _tensor(model, masks.masked_RT[rows, :length])
        target_M = tokens_BT[masked_BT]
        time_BT = None
        if model.config.reads_time:
            time_BT = _tensor(model, masks.share_RK[rows][:, np.arange(length) // block])
        logits_MV = _masked_logits(model, tokens_BT, masked_BT, lengths_N[texts], mask_id, time_BT)
        nats_BT = _spread(_nll(_sayable(logits_MV, mask_id), target_M), masked_BT).cpu().numpy()
        nats_BK = np.add.reduceat(nats_BT, np.arange(0, length, block), axis=1)
        nats_RK[rows, : nats_BK.shape[1]] = nats_BK * masks.weight_RK[rows, : nats_BK.shape[1]]
        if by_column_NT is not None:
            weight_BT = masks.weight_RK[rows][:, np.arange(length) // block]
            np.add.at(by_column_NT, (texts[:, None], np.arange(length)), nats_BT * weight_BT)
    return nats_RK


def _masked_logits(
    model: Model,
    tokens_BT: Tensor,
    masked_BT: Tensor,
    lengths_B: np.ndarray,
    mask_id: int,
    time_BT: Tensor | None,
) -> Tensor:
    """Logits [M, V] at the masked positions, row-major."""
    noisy_BT = tokens_BT.masked_fill(masked_BT, mask_id)
    T, ragged = tokens_BT.shape[1], lengths_B.min() < tokens_BT.shape[1]
    length_B = torch.from_numpy(lengths_B).to(tokens_BT.device)
    if model.config.canvas_block is not None:
        return block_logits_where(
            model, noisy_BT, tokens_BT, masked_BT, lengths_B=length_B if ragged else None, time_BT=time_BT
        )
    told: dict[str, Any] = {} if time_BT is None else {"time_B": time_BT[:, 0]}
    if not ragged:
        return model.logits_where(noisy_BT, masked_BT, **told)
    column_BT = torch.arange(T, device=tokens_BT.device) - (T - length_B[:, None])  # rows are right-aligned
    aligned_BT, wanted_BT = (x_BT.gather(1, column_BT.clamp(min=0)) for x_BT in (noisy_BT, masked_BT))
    return model.logits_where(aligned_BT, wanted_BT & (column_BT >= 0), num_tokens=lengths_B.tolist(), **told)


def _batches(lengths_R: np.ndarray, batch_size: int, progress: Progress | None) -> Iterator[tuple[np.ndarray, int]]:
    """Indices of rows of similar length, the longest first, and the length of the longest."""
    order = np.argsort(-lengths_R, kind="stable")
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        yield rows, int(lengths_R[rows[0]])
        if progress is not None:
            progress(start + len(rows), len(order))


def _tensor(model: Any, array: np.ndarray) -> Tensor:
    return torch.from_numpy(array).to(next(model.parameters()).device)


def _sayable(logits_MV: Tensor, mask_id: int | None) -> Tensor:
    """Logits in float32 or better, none for the mask token."""
    logits_MV = logits_MV.to(torch.promote_types(logits_MV.dtype, torch.float32))
    if mask_id is not None:
        logits_MV[:, mask_id] = -math.inf
    return logits_MV


def _nll(logits_MV: Tensor, target_M: Tensor) -> Tensor:
    """−ln softmax(logits)[target], in float64."""
    return torch.nn.functional.cross_entropy(logits_MV, target_M, reduction="none").double()


def _spread(values_M: Tensor, where_BT: Tensor) -> Tensor:
    """The values at the places of a mask, 0 elsewhere."""
    spread_BT = torch.zeros(where_BT.shape, dtype=values_M.dtype, device=values_M.device)
    spread_BT[where_BT] = values_M
    return spread_BT
