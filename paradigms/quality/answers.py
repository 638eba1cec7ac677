"""Likelihood of an answer after its prompt: what multiple choice, few-shot scoring and other harnesses ask of a model.

The prompt is given, and only the answer is scored. A causal model says it exactly: Σ_i −ln p(x_i | prompt, x_<i). A
denoiser gives the bound of `likelihood`, with masks in the answer only (2502.09992, appendix B.5): the L tokens of the
answer, l of them masked, weight L / l. A block-causal one gives the sum over blocks; a prompt may end within a block,
whose other tokens alone are scored.

Every answer has its own standard error, from drawing masks: two answers whose bounds differ by less are not told apart.
Answers of a few tokens have none: all their masks are read. The masks follow from the seed and the prompt, so that an
answer costs the same whatever else is asked with it, and answers of equal length to one prompt are compared under the
same masks. A bound also depends on how it was made: compare answers under one model, not nats of a bound with exact
ones.

Dimension letters: N answers, T columns, R masks of all answers.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from paradigms.models.stack import Model
from paradigms.quality.masks import Masks, draw_masks, join
from paradigms.quality.nats import default_batch_size, exact_nats, masked_nats

Pair = tuple[Sequence[int], Sequence[int]]  # token ids of a prompt, begin-of-text included, and of an answer
BATCHES = 64  # of rows, whose masks are drawn together


@dataclass(frozen=True, kw_only=True)
class AnswerLikelihood:
    """What one answer costs.

    Attributes:
        nats: −ln p(answer | prompt), or the estimate of its upper bound.
        nats_se: standard error from drawing masks, too large rather than too small; 0 where none were drawn, None of a
            single mask, which tells nothing.
        num_tokens: of the answer.
        is_bound: the true figure is at most this one.
        is_greedy: whether each token of the answer is the likeliest after those before it; None for a denoiser, whose
            greedy answer depends on the decoder.
    """

    nats: float
    nats_se: float | None
    num_tokens: int
    is_bound: bool
    is_greedy: bool | None


def answer_likelihoods(
    model: Model,
    pairs: Sequence[Pair],
    *,
    mask_id: int | None,
    num_masks: int = 128,
    batch_size: int | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> list[AnswerLikelihood]:
    """Likelihood of each answer given its prompt, in the order of the pairs.

    Args:
        pairs: token ids of prompts (begin-of-text included) and answers, of any lengths.
        mask_id: the mask token; None where a causal model has none.
        num_masks: masks drawn for each answer, for denoisers only; where an answer has no more in all, each is taken.
        batch_size: rows of one forward, those of similar length together; None takes 16, or fewer where the vocabulary
            is large.
        seed: of the masks.
        progress: called now and then with the number of answers scored, and of all.

    Raises:
        ValueError: an empty prompt or answer, more tokens than the model has positions, a denoiser without `mask_id`.
    """
    config = model.config
    _check(pairs, config.max_positions)
    if num_masks < 1 or (batch_size is not None and batch_size < 1):
        raise ValueError(f"num_masks={num_masks} and batch_size={batch_size} must be at least 1")
    if not config.causal and mask_id is None:
        raise ValueError("mask_id=None: a denoiser is scored with a mask token; give its id")
    lengths = [len(prompt) + len(answer) for prompt, answer in pairs]
    if batch_size is None:
        batch_size = default_batch_size(max(lengths, default=1), config.vocab_size)
    order = sorted(range(len(pairs)), key=lambda n: -lengths[n])
    together = max(1, BATCHES * batch_size // (1 if config.causal else num_masks))

    found: dict[int, AnswerLikelihood] = {}
    was_training = model.training
    model.eval()
    try:
        for start in range(0, len(order), together):
            numbers = order[start : start + together]
            texts = _Texts([pairs[n] for n in numbers])
            if config.causal:
                scored = _exact(model, texts, mask_id, batch_size)
            else:
                assert mask_id is not None
                scored = _bounds(model, texts, mask_id, num_masks, batch_size, seed)
            found |= zip(numbers, scored, strict=True)
            if progress is not None:
                progress(len(found), len(pairs))
    finally:
        model.train(was_training)
    return [found[n] for n in range(len(pairs))]


class _Texts:
    """Prompts with their answers as arrays; what is behind an answer is never looked at."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self.pairs = pairs
        self.lengths_N = np.array([len(prompt) + len(answer) for prompt, answer in pairs])
        self.tokens_NT = np.zeros((len(pairs), self.lengths_N.max()), np.int64)
        self.scored_NT = np.zeros(self.tokens_NT.shape, bool)
        for n, (prompt, answer) in enumerate(pairs):
            self.tokens_NT[n, : self.lengths_N[n]] = [*prompt, *answer]
            self.scored_NT[n, len(prompt) : self.lengths_N[n]] = True


def _exact(model: Model, texts: _Texts, mask_id: int | None, batch_size: int) -> list[AnswerLikelihood]:
    nats_N, greedy_N = exact_nats(
        model, texts.tokens_NT, texts.lengths_N, texts.scored_NT, mask_id=mask_id, batch_size=batch_size
    )
    return [
        AnswerLikelihood(
            nats=float(nats_N[n]), nats_se=0.0, num_tokens=len(answer), is_bound=False, is_greedy=bool(greedy_N[n])
        )
        for n, (_, answer) in enumerate(texts.pairs)
    ]


def _bounds(
    model: Model, texts: _Texts, mask_id: int, num_masks: int, batch_size: int, seed: int
) -> list[AnswerLikelihood]:
    block = model.config.canvas_block
    masks = join(
        [
            draw_masks(
                texts.scored_NT[n : n + 1, :length], num_masks, block=block, seed=(seed, _hash(texts.pairs[n][0]))
            )
            for n, length in enumerate(texts.lengths_N.tolist())
        ]
    )
    nats_RK = masked_nats(model, texts.tokens_NT, texts.lengths_N, masks, mask_id=mask_id, batch_size=batch_size)
    nats_N = masks.sums_N(nats_RK)
    return [
        AnswerLikelihood(
            nats=float(nats_N[n]),
            nats_se=_mask_error(nats_RK, masks, n),
            num_tokens=len(answer),
            is_bound=bool(masks.is_bound_N[n]),
            is_greedy=None,
        )
        for n, (_, answer) in enumerate(texts.pairs)
    ]


def _check(pairs: Sequence[Pair], max_positions: int) -> None:
    for n, (prompt, answer) in enumerate(pairs):
        if not len(prompt) or not len(answer):
            raise ValueError(
                f"pair {n} has a prompt of {len(prompt)} and an answer of {len(answer)} tokens; at least 1 of each is "
                "needed (the prompt begins with begin-of-text)"
            )
        if len(prompt) + len(answer) > max_positions:
            raise ValueError(
                f"pair {n} has {len(prompt) + len(answer)} tokens and exceeds model.max_positions={max_positions}; "
                "shorten the prompt from its left"
            )


def _mask_error(nats_RK: np.ndarray, masks: Masks, n: int) -> float | None:
    if not masks.drawn_N[n]:
        return 0.0
    differences = masks.differences(nats_RK, n)
    return None if differences is None else math.sqrt((differences**2).sum())


def _hash(tokens: Sequence[int]) -> int:
    data = np.asarray(tokens, "<i8").tobytes()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")
