"""When a request is finished, and why: the fixed length, the end-of-text token, or a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from paradigms.paradigm import Request

if TYPE_CHECKING:
    from torch import Tensor


class Vocabulary(Protocol):
    """What a decoder needs to know of the tokenizer."""

    eos_id: int
    mask_id: int | None  # None where a model has no mask token
    vocab_size: int

    def decode(self, ids: Sequence[int], /) -> str: ...


def never_mask(logits_RV: Tensor, vocabulary: Vocabulary) -> Tensor:
    """The logits, changed in place so that the mask token is never said."""
    if vocabulary.mask_id is not None:
        logits_RV[:, vocabulary.mask_id] = float("-inf")
    return logits_RV


def finish(request: Request, tokens: Sequence[int], vocabulary: Vocabulary) -> tuple[str, int] | None:
    """(finish reason, tokens committed) of a request that has generated `tokens`, or None when it goes on.

    With a natural stop the end-of-text token is committed, and a stop string is kept with the token that completes it.
    """
    if not request.ignore_eos:
        if request.stop_strings:
            cut = _stop_string(request, tokens, vocabulary)
            if cut is not None:
                return "stop_string", cut
        if vocabulary.eos_id in tokens:
            return "eos", list(tokens).index(vocabulary.eos_id) + 1
    if len(tokens) >= request.max_new_tokens:
        return "length", request.max_new_tokens
    return None


def _stop_string(request: Request, tokens: Sequence[int], vocabulary: Vocabulary) -> int | None:
    """Tokens up to the one that completes a stop string before any end of text."""
    tokens = list(tokens)
    if vocabulary.eos_id in tokens:
        tokens = tokens[: tokens.index(vocabulary.eos_id)]
    if not _contains(vocabulary.decode(tokens), request.stop_strings):
        return None
    low, high = 1, len(tokens)
    while low < high:  # the shortest prefix that contains one
        middle = (low + high) // 2
        if _contains(vocabulary.decode(tokens[:middle]), request.stop_strings):
            high = middle
        else:
            low = middle + 1
    return low


def _contains(text: str, strings: Sequence[str]) -> bool:
    return any(string in text for string in strings)
