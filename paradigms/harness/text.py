"""From the texts of lm-eval to tokens: where a context ends, what is cut, how a generation is asked for.

As lm-eval has it: whitespace at the end of a context belongs to the answer; context and answer are encoded as one text,
and the answer is what stands behind as many tokens as the context alone has. Where a token reaches over that joint, the
answer's tokens are not those of its text; such pairs are counted (`joined`).

Every context begins with begin-of-text, as all prompts of the suite do (`begin="text"`), or with nothing
(`begin="none"`, what `hf` does with a tokenizer that adds nothing by itself). An empty context is begin-of-text alone.
What is too long loses its left end, begin-of-text first. A text never turns into a special token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paradigms.data.tokenizers import Tokenizer

BEGINS = ("text", "none")
MAX_GEN_TOKS = 256  # lm-eval's default
LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")  # the first that is given counts


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Tokens of a context and of the answer behind it.

    Attributes:
        num_cut: tokens that the context lost at its left.
        joined: a token reaches over the joint of context and answer.
    """

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    num_cut: int = 0
    joined: bool = False


def encode_pair(tokenizer: Tokenizer, context: str, answer: str, *, begin: str, max_positions: int, name: str) -> Pair:
    """A context and an answer as tokens.

    Args:
        begin: one of BEGINS.
        max_positions: tokens of both together, at most.
        name: of the instance, for errors.

    Raises:
        ValueError: an answer without tokens, or one that leaves no room for any context.
    """
    kept = context.rstrip()
    head, whole = tokenizer.encode(kept), tokenizer.encode(context + answer)
    tokens = whole[len(head) :]
    if not tokens:
        raise ValueError(
            f"{name}: the answer {answer!r} has no tokens behind its context, so there is nothing to score; give it "
            "text of its own (doc_to_choice, doc_to_target, target_delimiter)"
        )
    if len(tokens) >= max_positions:
        raise ValueError(
            f"{name}: an answer of {len(tokens)} tokens leaves no room for a context in {max_positions} positions; "
            "shorten it, or take a model of more positions"
        )
    prompt = [tokenizer.bos_id, *head] if begin == "text" or not head else head
    num_cut = max(0, len(prompt) + len(tokens) - max_positions)
    return Pair(
        prompt=tuple(prompt[num_cut:]), answer=tuple(tokens), num_cut=num_cut, joined=whole[: len(head)] != head
    )


def encode_context(tokenizer: Tokenizer, context: str, *, begin: str, most: int) -> tuple[tuple[int, ...], int]:
    """Tokens of a context that is to be gone on from, the last `most` of them, and how many were cut."""
    tokens = tokenizer.encode(context)
    prompt = [tokenizer.bos_id, *tokens] if begin == "text" or not tokens else tokens
    num_cut = max(0, len(prompt) - most)
    return tuple(prompt[num_cut:]), num_cut


@dataclass(frozen=True, kw_only=True)
class Generation:
    """How a text is to be generated, as a task asks for it (`generation_kwargs`).

    Attributes:
        until: stop strings, of which none is in the text.
        max_new_tokens: at most so many.
        temperature, top_k, top_p: see `decoding.sampling`; temperature 0 takes the likeliest token.
    """

    until: tuple[str, ...] = ()
    max_new_tokens: int = MAX_GEN_TOKS
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None

    @classmethod
    def of(cls, asked: Mapping[str, Any], *, name: str) -> Generation:
        """Read what a task asks for. Greedy unless it asks for draws, as in lm-eval.

        Raises:
            ValueError: draws at temperature 0, no tokens, or a setting that no decoder here has; `name` is the
                instance's.
        """
        given = dict(asked)
        until = given.pop("until", None) or ()
        until = (until,) if isinstance(until, str) else tuple(until)
        if wrong := [string for string in until if not isinstance(string, str)]:
            raise ValueError(f"{name}: generation_kwargs.until has {wrong[0]!r}, which is no text; put it in quotes")
        lengths = [
            _number(name, key, value, whole=True) for key in LENGTHS if (value := given.pop(key, None)) is not None
        ]
        do_sample = given.pop("do_sample", None)
        temperature = _number(name, "temperature", given.pop("temperature", None) or 0.0)
        top_k, top_p = given.pop("top_k", None) or None, given.pop("top_p", None)
        top_k = None if top_k is None else int(_number(name, "top_k", top_k, whole=True))
        top_p = None if top_p is None else _number(name, "top_p", top_p)
        if given:
            key = min(given)
            raise ValueError(
                f"{name}: generation_kwargs.{key}={given[key]!r} is no setting of the decoders here; leave it out "
                f"(until, {LENGTHS[0]}, do_sample, temperature, top_k and top_p are)"
            )
        if do_sample and not temperature:
            raise ValueError(
                f"{name}: generation_kwargs.do_sample=true at temperature 0 draws nothing; give a temperature above 0, "
                "or do_sample=false"
            )
        length = int(lengths[0]) if lengths else MAX_GEN_TOKS
        if length < 1:
            raise ValueError(f"{name}: generation_kwargs.{LENGTHS[0]}={length} must be at least 1")
        stops = tuple(string for string in until if string)
        if do_sample is False or not temperature:
            return cls(until=stops, max_new_tokens=length)
        return cls(until=stops, max_new_tokens=length, temperature=float(temperature), top_k=top_k, top_p=top_p)


def _number(name: str, key: str, value: Any, *, whole: bool = False) -> float:
    """A setting as a number; raises ValueError where it is none."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = math.nan
    if not math.isfinite(found) or (whole and found != int(found)):
        raise ValueError(f"{name}: generation_kwargs.{key}={value!r} must be a {'whole ' if whole else ''}number")
    return found


def text_of(tokenizer: Tokenizer, tokens: Sequence[int], generation: Generation) -> str:
    """The text of generated tokens, up to its end and before any stop string."""
    ids = list(tokens)
    text = tokenizer.decode(ids[: [*ids, tokenizer.eos_id].index(tokenizer.eos_id)])
    for string in generation.until:
        text = text.partition(string)[0]
    return text
