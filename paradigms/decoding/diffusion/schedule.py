"""How many positions become tokens at which step, when a sampler's steps are fixed beforehand.

Steps are a number for the whole canvas, or "L" (one position a step), "L/4" (four a step). They are shared among the
blocks by the positions that each has to decide, and among a block's steps evenly.
"""

from __future__ import annotations

import re


def check_steps(steps: object) -> None:
    """Raise ValueError unless `steps` is a number of steps, "L", or "L/n"."""
    num_steps(steps, 1 << 30)


def num_steps(steps: object, total: int) -> int:
    """Steps for a canvas of `total` positions to decide."""
    if isinstance(steps, int) and not isinstance(steps, bool) and steps >= 1:
        return steps
    match = re.fullmatch(r"L(?:/([1-9]\d*))?", str(steps))
    if not match:
        raise ValueError(f'decoder.sampler.steps={steps!r} is not a number of steps, "L", or "L/n" with a whole n')
    return max(1, total // int(match[1] or 1))


def steps_of_block(steps: object, *, before: int, opened: int, total: int) -> int:
    """Steps for the block that decides `opened` positions after `before` of `total`; at least one if there are any."""
    if not opened:
        return 0
    whole = num_steps(steps, total)
    return min(opened, max(1, whole * (before + opened) // total - whole * before // total))


def share(opened: int, steps: int, index: int) -> int:
    """Positions that become tokens at step `index` when `opened` of them are spread evenly over `steps`."""
    return (index + 1) * opened // steps - index * opened // steps if index < steps else 0
