"""Speculative decoding (2211.17192): how many tokens a forward of the target yields, and how much faster that is.

    tokens a target forward  (1 - a^(g+1)) / (1 - a)                         a accepted, g drafted
    speed-up                 tokens / (g c + v)                              c = draft / target, v = verifying / target

The paper takes v = 1: verifying g + 1 tokens costs what one costs. A target that computes, too, has v a little above 1.
"""

from __future__ import annotations


def tokens_per_target_forward(acceptance: float, num_drafted: int) -> float:
    """Expected tokens of one forward of the target, its own among them.

    Raises:
        ValueError: an acceptance outside 0 to 1, or less than one drafted token.
    """
    if not 0 <= acceptance <= 1:
        raise ValueError(f"acceptance={acceptance} is a probability; it must lie between 0 and 1")
    if num_drafted < 1:
        raise ValueError(f"num_drafted={num_drafted} is too small; it must be at least 1")
    return float(sum(acceptance**index for index in range(num_drafted + 1)))


def speed_up(
    acceptance: float, num_drafted: int, *, target_s: float, draft_s: float, verify_s: float | None = None
) -> float:
    """How many times faster than the target by itself.

    Args:
        target_s, draft_s: seconds of a forward of one token.
        verify_s: of the target's forward over `num_drafted` + 1 tokens; None takes it for `target_s`.
    """
    verify_s = target_s if verify_s is None else verify_s
    return tokens_per_target_forward(acceptance, num_drafted) * target_s / (num_drafted * draft_s + verify_s)
