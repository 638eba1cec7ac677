"""Likelihood of held-out text, in bits per byte: exact for causal models, an upper bound for denoisers.

Causal: NLL(x) = −Σ_i ln p(x_i | x_<i), over the scored columns of each window.

Denoiser (absorbing noise): the bound has three equal forms, with M the masked positions. We estimate the second.

    ∫_0^1 (1/t) E Σ_{i in M} −ln p(x_i | x_rest) dt,  each position in M with probability t    (2406.07524, eq. 8)
    E (L/l) Σ_{i in M} −ln p(x_i | x_rest),  l uniform on 1..L, M any l positions              (2502.09992, eq. 14)
    E Σ_k −ln p(x_{o_k} | x_{o_<k}),  o any order                                              (chain rule)

Its l is stratified, over the masks of a window and from window to window; an independent t costs three times the
standard error. No decoder ever says the mask token, so it has probability 0 here too, for every model.

Dimension letters: N windows, T columns, V vocabulary, M masked positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paradigms.data.stream import EvaluationWindows
from paradigms.models.stack import Model

MOST_LOGITS = 1 << 26  # numbers that the logits of a batch may be; large vocabularies fill the memory otherwise
Progress = Callable[[int, int], None]  # (rows scored, rows in all)


@dataclass(frozen=True, kw_only=True)
class Likelihood:
    """How well a model predicts a text.

    Attributes:
        nats: Σ −ln p over the scored tokens, or the estimate of its upper bound.
        num_tokens, num_bytes: scored tokens, and their UTF-8 bytes.
        bits_per_byte: nats / (ln 2 x num_bytes).
        bits_per_byte_se: its standard error over windows; for a bound it includes the error of drawing masks.
        is_bound: the true figure is at most this one.
    """

    nats: float
    num_tokens: int
    num_bytes: int
    bits_per_byte: float
    bits_per_byte_se: float | None
    is_bound: bool

    @property
    def nats_per_token(self) -> float:
        return self.nats / self.num_tokens


@torch.inference_mode()
def evaluate(
    model: Model,
    windows: EvaluationWindows,
    token_bytes: Sequence[bytes],
    *,
    mask_id: int | None,
    num_masks: int = 8,
    batch_size: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Likelihood:
    """Likelihood of held-out windows; the same figure whatever the batch size.

    Args:
        model: its `logits_where` at column i predicts the token at i + 1 in a causal model, the one at i in a denoiser.
        windows: see `paradigms.data.stream.evaluation_windows`; what is not scored is visible context.
        token_bytes: bytes of each token id.
        mask_id: the mask token; None where a causal model has none.
        num_masks: masks drawn for each window, for denoisers only.
        batch_size: rows of one forward; None takes 16, or as many as give logits of a quarter of a gigabyte.
        seed: of the masks; the same seed draws the same masks for every model.
        progress: called after each forward.

    Raises:
        ValueError: windows longer than the model, or no bytes to score.
    """
    config = model.config
    num_columns = windows.tokens_NT.shape[1]
    if num_columns > config.max_positions:
        raise ValueError(
            f"windows of {num_columns} positions exceed model.max_positions={config.max_positions}; use shorter ones"
        )
    if batch_size is None:
        batch_size = max(1, min(16, MOST_LOGITS // (num_columns * len(token_bytes))))
    if num_masks < 1 or batch_size < 1:
        raise ValueError(f"num_masks={num_masks} and batch_size={batch_size} must be at least 1")

    was_training = model.training
    model.eval()
    try:
        if config.causal:
            nats_N = _exact_nats(model, windows, mask_id, batch_size, progress)
        else:
            assert mask_id is not None
            nats_N = _bound_nats(model, windows, mask_id, num_masks, batch_size, seed, progress)
    finally:
        model.train(was_training)
    return _summary(nats_N, windows, token_bytes, is_bound=not config.causal)


def draw_masks(scored_NT: np.ndarray, num_masks: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Masks of exactly l scored positions, with l stratified over 1..L for the L scored positions of each window.

    Args:
        scored_NT: which columns may be masked.

    Returns:
        masks [N, num_masks, T], and their weights L / (l x num_masks) [N, num_masks]. Over a window's masks, the sum of
        weight x NLL of the masked tokens has the bound as its expectation.
    """
    num_windows = len(scored_NT)
    rng = np.random.default_rng([seed, 0x6D61736B])
    shift_N = (rng.permutation(num_windows) + rng.random(num_windows)) / num_windows
    masks = np.zeros((num_windows, num_masks, scored_NT.shape[1]), bool)
    weights = np.zeros((num_windows, num_masks))
    for n, (scored_T, shift) in enumerate(zip(scored_NT, shift_N, strict=True)):
        columns = np.flatnonzero(scored_T)
        L = len(columns)
        for s in range(num_masks if L else 0):
            num_masked = 1 + int(L * (s + shift) / num_masks)
            masks[n, s, rng.permutation(columns)[:num_masked]] = True
            weights[n, s] = L / (num_masked * num_masks)
    return masks, weights


def _exact_nats(
    model: Model, windows: EvaluationWindows, mask_id: int | None, batch_size: int, progress: Progress | None
) -> np.ndarray:
    device = next(model.parameters()).device
    nats_N = np.zeros(len(windows.tokens_NT))
    scored_NT = windows.scored_NT
    for rows in _batches(windows.lengths_N, batch_size, progress):
        length = windows.lengths_N[rows[0]]
        tokens_BT = torch.from_numpy(windows.tokens_NT[rows, :length]).to(device)
        scored_BT = torch.from_numpy(scored_NT[rows, :length]).to(device)
        logits_MV = model.logits_where(
            tokens_BT, scored_BT.roll(-1, 1)
        )  # column i predicts i + 1; column 0 is not scored
        nats_N[rows] = _row_sums(_nll(logits_MV, tokens_BT[scored_BT], mask_id), scored_BT)
    return nats_N


def _bound_nats(
    model: Model,
    windows: EvaluationWindows,
    mask_id: int,
    num_masks: int,
    batch_size: int,
    seed: int,
    progress: Progress | None,
) -> np.ndarray:
    device = next(model.parameters()).device
    masks, weights = draw_masks(windows.scored_NT, num_masks, seed)
    masks_RT, weights_R = masks.reshape(-1, masks.shape[-1]), weights.reshape(-1)  # a row a mask
    lengths_R = np.repeat(windows.lengths_N, num_masks)
    nats_R = np.zeros(len(masks_RT))
    for rows in _batches(lengths_R, batch_size, progress):
        length = lengths_R[rows[0]]
        tokens_BT = torch.from_numpy(windows.tokens_NT[rows // num_masks, :length]).to(device)
        mask_BT = torch.from_numpy(masks_RT[rows, :length]).to(device)
        logits_MV = model.logits_where(tokens_BT.masked_fill(mask_BT, mask_id), mask_BT)
        nats_R[rows] = _row_sums(_nll(logits_MV, tokens_BT[mask_BT], mask_id), mask_BT)
    return (nats_R * weights_R).reshape(-1, num_masks).sum(1)


def _batches(lengths: np.ndarray, batch_size: int, progress: Progress | None) -> Iterator[np.ndarray]:
    """Indices of rows of one length, so that no batch is padded."""
    done = 0
    for length in np.unique(lengths)[::-1]:
        rows = np.flatnonzero(lengths == length)
        for start in range(0, len(rows), batch_size):
            batch = rows[start : start + batch_size]
            yield batch
            done += len(batch)
            if progress is not None:
                progress(done, len(lengths))


def _nll(logits_MV: Tensor, targets_M: Tensor, mask_id: int | None) -> Tensor:
    """−ln softmax(logits)[target] without the mask token, computed in float32 or better, returned in float64."""
    logits_MV = logits_MV.to(torch.promote_types(logits_MV.dtype, torch.float32))
    if mask_id is not None:
        logits_MV[:, mask_id] = -math.inf
    return torch.nn.functional.cross_entropy(logits_MV, targets_M, reduction="none").double()


def _row_sums(values_M: Tensor, where_BT: Tensor) -> np.ndarray:
    """Sums over the rows of the positions that `where_BT` selected."""
    rows = torch.zeros(where_BT.shape, dtype=values_M.dtype, device=values_M.device)
    rows[where_BT] = values_M
    return rows.sum(1).cpu().numpy()


def _summary(
    nats_N: np.ndarray, windows: EvaluationWindows, token_bytes: Sequence[bytes], *, is_bound: bool
) -> Likelihood:
    bytes_N = windows.num_bytes_N(token_bytes)
    num_bytes = int(bytes_N.sum())
    if not num_bytes:
        raise ValueError("the windows hold no text to score; bits per byte are undefined")
    nats_per_byte = nats_N.sum() / num_bytes
    N = len(nats_N)
    residual_N = nats_N - nats_per_byte * bytes_N  # a ratio of sums, linearised
    error = math.sqrt(N / (N - 1) * (residual_N**2).sum()) / num_bytes if N > 1 else None
    return Likelihood(
        nats=float(nats_N.sum()),
        num_tokens=int(windows.scored_NT.sum()),
        num_bytes=num_bytes,
        bits_per_byte=float(nats_per_byte / math.log(2)),
        bits_per_byte_se=None if error is None else error / math.log(2),
        is_bound=is_bound,
    )
