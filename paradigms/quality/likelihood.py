"""Likelihood of held-out text, in bits per byte: exact for causal models, an upper bound for denoisers.

Causal: NLL(x) = −Σ_i ln p(x_i | x_<i), over the scored columns of each window.

Denoiser (absorbing noise): the bound has three equal forms, with M the masked positions. We estimate the second.

    ∫_0^1 (1/t) E Σ_{i in M} −ln p(x_i | x_rest) dt,  each position in M with probability t    (2406.07524, eq. 8)
    E (L/l) Σ_{i in M} −ln p(x_i | x_rest),  l uniform on 1..L, M any l positions              (2502.09992, eq. 14)
    E Σ_k −ln p(x_{o_k} | x_{o_<k}),  o any order                                              (chain rule)

Its l is stratified, over the masks of a window and from window to window; independent times cost two to nine times the
standard error, and their variance is infinite unless a least time is kept. No decoder ever says the mask token, so it
has probability 0 here too, for every model.

Block-causal denoiser (`model.canvas_block`; 2503.09573): the sum over blocks of the bound of each given the true blocks
before it, all blocks of a window in one forward. Blocks of one token have nothing to order: that is exact.

A time-conditioned denoiser is told l / L, the share of what is scored (of a block) that is masked, as the decoder tells
it: the bound is that of the sampler that decides one token a step. (The bound it was trained on has for each l the mean
over t ~ Beta(l, L − l + 1), the time at which l of L tokens are masked; it lies around l / (L + 1).)

Two errors are told apart. The text is a sample of all text: `bits_per_byte_se`, over windows. And a denoiser's masks
are a sample of all masks: `bits_per_byte_mask_se`, part of the former, is what more masks would make smaller.

Dimension letters: N windows, T columns, K blocks of a window, R masks of all windows, U blocks whose masks are drawn, P
pairs of masks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paradigms.data.stream import EvaluationWindows
from paradigms.models.stack import Model
from paradigms.quality.masks import Masks, draw_masks
from paradigms.quality.nats import Progress, default_batch_size, exact_nats, masked_nats


@dataclass(frozen=True, kw_only=True)
class Likelihood:
    """How well a model predicts a text.

    Attributes:
        nats: Σ −ln p over the scored tokens, or the estimate of its upper bound.
        num_tokens, num_bytes: scored tokens, and their UTF-8 bytes.
        bits_per_byte: nats / (ln 2 x num_bytes).
        bits_per_byte_se: its standard error over windows, that of drawing masks included; None of a single window.
        bits_per_byte_mask_se: the part of it that comes from drawing masks, with these windows: too large rather than
            too small; 0 where no masks were drawn, None where there is one a window, which tells nothing.
        is_bound: the true figure is at most this one.
    """

    nats: float
    num_tokens: int
    num_bytes: int
    bits_per_byte: float
    bits_per_byte_se: float | None
    bits_per_byte_mask_se: float | None
    is_bound: bool

    @property
    def nats_per_token(self) -> float:
        return self.nats / self.num_tokens


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
        num_masks: masks drawn for each window, for denoisers only; where all masks of a window's blocks are no more,
            each is taken once.
        batch_size: rows of one forward; None takes 16, or as many as give logits of a quarter of a gigabyte.
        seed: of the masks; the same seed draws the same masks for every model.
        progress: called after each forward.

    Raises:
        ValueError: windows longer than the model, no bytes to score, a denoiser without `mask_id`.
    """
    config = model.config
    num_columns = windows.tokens_NT.shape[1]
    if num_columns > config.max_positions:
        raise ValueError(
            f"windows of {num_columns} positions exceed model.max_positions={config.max_positions}; use shorter ones"
        )
    if batch_size is None:
        batch_size = default_batch_size(num_columns, len(token_bytes))
    if num_masks < 1 or batch_size < 1:
        raise ValueError(f"num_masks={num_masks} and batch_size={batch_size} must be at least 1")

    was_training = model.training
    model.eval()
    try:
        forwards = {"mask_id": mask_id, "batch_size": batch_size, "progress": progress}
        texts = (windows.tokens_NT, windows.lengths_N)
        if config.causal:
            nats_N, _ = exact_nats(model, *texts, windows.scored_NT, **forwards)
            return _summary(nats_N, windows, token_bytes, mask_error=0.0, is_bound=False)
        if mask_id is None:
            raise ValueError("mask_id=None: a denoiser is scored with a mask token; give its id")
        masks = draw_masks(windows.scored_NT, num_masks, block=config.canvas_block, seed=seed)
        nats_RK = masked_nats(model, *texts, masks, **forwards)
        return _summary(
            masks.sums_N(nats_RK),
            windows,
            token_bytes,
            mask_error=_mask_error(nats_RK, masks),
            is_bound=bool(masks.is_bound_N.any()),
        )
    finally:
        model.train(was_training)


def _mask_error(nats_RK: np.ndarray, masks: Masks) -> float | None:
    """Standard error of the sum over all windows from drawing masks, in nats; None where it cannot be told.

    From differences between neighbouring strata of l, in pairs, block by block: a block's masks are its own. What they
    have in common from block to block is the slope over l, which stratification takes out of the estimate, and so out
    of its error.
    """
    drawn = np.flatnonzero(masks.drawn_N)
    if not len(drawn):
        return 0.0
    differences = [masks.differences(nats_RK, n) for n in drawn.tolist()]
    if differences[0] is None:  # as many masks for each window whose masks are drawn
        return None
    varies_NK = masks.size_NK[drawn] > 1
    difference_UP = np.stack(differences).swapaxes(1, 2)[varies_NK]  # type: ignore[arg-type]
    size_U1 = masks.size_NK[drawn][varies_NK][:, None]
    U = len(size_U1)
    if U == 1:
        return float(np.sqrt((difference_UP**2).sum()))
    residual_UP = difference_UP - size_U1 * (difference_UP.sum(0) / size_U1.sum())
    return float(np.sqrt(U / (U - 1) * (residual_UP**2).sum()))


def _summary(
    nats_N: np.ndarray,
    windows: EvaluationWindows,
    token_bytes: Sequence[bytes],
    *,
    mask_error: float | None,
    is_bound: bool,
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
        bits_per_byte_mask_se=None if mask_error is None else mask_error / num_bytes / math.log(2),
        is_bound=is_bound,
    )
