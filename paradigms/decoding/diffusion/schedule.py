"""How many steps a block takes, and how many positions become tokens at each of them.

Steps are a number for the whole canvas, or "L" (one position a step), "L/4" (four a step). They are shared among the
blocks by the positions that each has to decide, and a block's positions are spread evenly over its steps.
"""

from __future__ import annotations

import re
from functools import lru_cache

MOST_STEPS = 1 << 20  # of a block, so that every step of every block has a number of its own


def check_steps(steps: object) -> None:
    """Raise ValueError unless `steps` is a number of steps, not too large, "L", or "L/n"."""
    if num_steps(steps, 1) > MOST_STEPS:
        raise ValueError(f"decoder.sampler.steps={steps} is too many; at most {MOST_STEPS} steps can be told apart")


def check_blocks(steps: object, *, canvas_len: int, num_blocks: int) -> None:
    """Raise ValueError when there are fewer steps than blocks."""
    if num_steps(steps, canvas_len) < num_blocks:
        raise ValueError(
            f"decoder.sampler.steps={steps} leaves some of the {num_blocks} blocks of workload.output_len={canvas_len} "
            f"without a step; use at least {num_blocks} steps, or longer blocks (decoder.block_len)"
        )


def num_steps(steps: object, total: int) -> int:
    """Steps for a canvas of `total` positions to decide."""
    if isinstance(steps, int) and not isinstance(steps, bool) and steps >= 1:
        return steps
    match = re.fullmatch(r"L(?:/([1-9]\d*))?", str(steps))
    if not match:
        raise ValueError(f'decoder.sampler.steps={steps!r} is not a number of steps, "L", or "L/n" with a whole n')
    return max(1, total // int(match[1] or 1))


@lru_cache(maxsize=1024)  # rows of a batch mostly ask the same
def steps_of_block(steps: int | str, before: int, opened: int, total: int) -> int:
    """Steps for the block that decides `opened` positions after `before` of `total`; at least one if there are any.

    Those of all blocks add up to the canvas's, unless a block so short that it has no whole step is given one.
    """
    if not opened:
        return 0
    whole = num_steps(steps, total)
    return max(1, whole * (before + opened) // total - whole * before // total)


@lru_cache(maxsize=1024)
def share_of_block(steps: int | str, before: int, opened: int, total: int, index: int) -> int:
    """Positions that become tokens at step `index` of such a block."""
    return share(opened, steps_of_block(steps, before, opened, total), index)


def share(opened: int, steps: int, index: int) -> int:
    """Positions that become tokens at step `index` when `opened` of them are spread evenly over `steps`.

    With more steps than positions one becomes a token at each of the first `opened` steps.
    """
    steps = min(steps, opened)
    return (index + 1) * opened // steps - index * opened // steps if index < steps else 0
