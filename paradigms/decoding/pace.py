"""How fast a text becomes final, where the text itself decides: said by whoever asks for a plan.

Tokens per forward are those of one row: its committed tokens over the forwards until it ended, as the records have
them (`committed_tokens` and `nfe`).
"""

from __future__ import annotations

from math import isfinite
from typing import Any

NEGLIGIBLE = 1e-9  # forwards that are less likely than this are left out of a plan


def check_pace(decoder: Any, tokens_per_forward: float | None) -> float | None:
    """The same number, None where the decoder's number of forwards is known without it.

    Raises:
        ValueError: it is missing, has no effect, or is no rate.
    """
    if not decoder.depends_on_values:
        if tokens_per_forward is not None:
            raise ValueError(
                f"tokens_per_forward={tokens_per_forward} has no effect: how many forwards this "
                f"{type(decoder).__name__} makes does not depend on the text; leave it out (null)"
            )
        return None
    if tokens_per_forward is None:
        raise ValueError(
            f"tokens_per_forward=null: the text decides how many forwards this {type(decoder).__name__} makes; give "
            "the tokens of a row that become final by one forward on average, as measured (committed_tokens / nfe)"
        )
    if not (isfinite(tokens_per_forward) and tokens_per_forward > 0):
        raise ValueError(f"tokens_per_forward={tokens_per_forward} must be more than 0, and finite")
    return tokens_per_forward
