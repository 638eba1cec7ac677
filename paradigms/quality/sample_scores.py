"""Columns of generated texts, one by one and of a set together, away from any clock; nothing is dropped.

Every figure of a set has its interval over texts and their number (`intervals`): a text that has no such figure (too
short, rejected by the scorer) is in the counts. A text that was to end by itself and ran into its limit is `truncated`,
and stays in every figure.

    mean over texts      what `sample_columns` says of each
    ratio of sums        the external scorer's nats per token and bits per byte
    of the set           self-BLEU, distinct-n, and MAUVE against the reference
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paradigms.quality.diversity import Grams, compression_ratio, rep_n, repeated_share
from paradigms.quality.external import Text
from paradigms.quality.intervals import POSITIVE, SHARE, mean, of_set, ratio
from paradigms.quality.novelty import TrainingText, novelty_columns
from paradigms.quality.samples import distinct_n, token_entropy_nats

MEANS = ("token_entropy_nats", "distinct_1", "distinct_2", "rep_4", "repeated_share", "compression_ratio",
         "external_token_entropy_nats", "longest_match_bytes", "longest_match_share", "seen_share",
         "output_tokens", "output_bytes")  # fmt: skip
SHARES = ("distinct_1", "distinct_2", "rep_4", "repeated_share", "longest_match_share", "seen_share")
SET_DISTINCT = (1, 2, 3, 4)


@dataclass(frozen=True)
class Generation:
    """One generated text.

    Attributes:
        tokens: the output, in the contestant's tokens.
        text: in its place, as bytes.
        truncated: whether it was to end by itself, and did not.
    """

    tokens: tuple[int, ...]
    text: Text
    truncated: bool = False

    @property
    def stretches(self) -> list[bytes]:
        """The output's bytes; several where text is given between them."""
        edges = np.flatnonzero(np.diff(self.text.is_output.astype(np.int8), prepend=0, append=0))
        return [self.text.data[start:stop] for start, stop in zip(edges[::2], edges[1::2], strict=True)]

    @property
    def output(self) -> bytes:
        return b"".join(self.stretches)


def sample_columns(generation: Generation, training: TrainingText | None) -> dict[str, Any]:
    """Columns of the `scores` table but the external scorer's.

    Args:
        training: None leaves novelty out.
    """
    tokens, output = generation.tokens, generation.output
    columns = {
        "truncated": generation.truncated,
        "output_tokens": len(tokens),
        "output_bytes": len(output),
        "token_entropy_nats": token_entropy_nats(tokens),
        "distinct_1": distinct_n(tokens, 1),
        "distinct_2": distinct_n(tokens, 2),
        "rep_4": rep_n(tokens),
        "repeated_share": repeated_share(tokens),
        "compression_ratio": compression_ratio(output),
    }
    if training is not None:
        columns |= novelty_columns([training.matches(stretch) for stretch in generation.stretches])
    return columns


def set_columns(generations: Sequence[Generation], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Columns of the `set_scores` table but MAUVE.

    Args:
        rows: what the `scores` table says of each generation.
    """
    columns: dict[str, Any] = {
        "samples": len(rows),
        "truncated": sum(bool(row.get("truncated")) for row in rows),
        "empty": sum(not generation.tokens for generation in generations),
    }
    if any("external_nats" in row for row in rows):
        columns |= _external(rows)
    for name in MEANS:
        if any(name in row for row in rows):
            columns |= mean([row.get(name) for row in rows]).columns(
                name, between=SHARE if name in SHARES else POSITIVE
            )
    grams = Grams([generation.tokens for generation in generations])
    for n in SET_DISTINCT:
        found = of_set(lambda chosen, n=n: grams.distinct(n, chosen), len(generations))
        columns |= found.columns(f"set_distinct_{n}", between=SHARE)
    return columns | of_set(grams.self_bleu, len(generations)).columns("self_bleu", between=SHARE)


def _external(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    nats = [row.get("external_nats") for row in rows]
    per_token = ratio(nats, [row.get("external_tokens") or 0 for row in rows])
    per_byte = ratio(nats, [math.log(2) * (row.get("external_bytes") or 0) for row in rows])
    reasons = Counter(row["external_rejected"] for row in rows if row.get("external_rejected"))
    low, high = per_token.interval() or (None, None)
    perplexity = {"": per_token.value, "_low": low, "_high": high}
    return {
        "external_rejected": reasons.total(),
        "external_rejected_reasons": dict(sorted(reasons.items())),
        "external_bytes_across": sum(row.get("external_bytes_across") or 0 for row in rows),
        **per_token.columns("external_nats_per_token", between=POSITIVE),
        **per_byte.columns("external_bits_per_byte", between=POSITIVE),
        **{
            f"generative_perplexity{end}": None if value is None else math.exp(value)
            for end, value in perplexity.items()
        },
    }
