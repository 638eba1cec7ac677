"""The held-out split under weights: its windows, and its likelihood in bits per byte or a bound of it."""

from __future__ import annotations

from paradigms.data.splits import Corpus
from paradigms.data.stream import EvaluationWindows, evaluation_windows, token_stream
from paradigms.quality.likelihood import Likelihood
from paradigms.training.loop import validate
from paradigms.weights import Weights, answer_rows

WINDOW_LEN = 512
NUM_MASKS = 16


def heldout_likelihood(weights: Weights, corpus: Corpus, *, num_masks: int = NUM_MASKS) -> Likelihood:
    """Bits per byte of the whole held-out split: windows of 512 tokens behind begin-of-text, none overlapping; of pairs
    the answers, each in a row of its own; see `heldout_window_len`.
    """
    return validate(weights.model, heldout_windows(weights, corpus), weights.tokenizer, num_masks=num_masks)


def heldout_windows(weights: Weights, corpus: Corpus, *, count: int | None = None) -> EvaluationWindows:
    """The windows of `heldout_likelihood`, or `count` of them, evenly spread."""
    tokenizer, window = weights.tokenizer, heldout_window_len(weights, corpus)
    if corpus.prompt_lens is not None:
        rows = answer_rows(corpus, tokenizer, "heldout")
        rows.check(1 + window, "as long as the longest that were trained on")
        return rows.windows(1 + window, count=count)
    stream = token_stream(corpus, tokenizer, "heldout")
    windows = evaluation_windows(stream, window=window, bos_id=tokenizer.bos_id, eos_id=tokenizer.eos_id)
    return windows if count is None else windows.spread(count)


def heldout_window_len(weights: Weights, corpus: Corpus) -> int:
    """Tokens after begin-of-text of a held-out window: 512; of pairs, as many as the longest rows of training have."""
    pairs_of_ours = corpus.prompt_lens is not None and weights.card
    return weights.card["recipe"]["longest"] - 1 if pairs_of_ours else WINDOW_LEN
