"""What the counts of a run must be, from its factors alone: forwards, and positions pushed through the model.

Written from what each sampler and cache promises, not from its code, so that the two can disagree.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from analysis.summary import OUTPUT_LEN

EQUAL_SHARES = ("random", "low_confidence", "top1", "margin", "entropy")
ONE_A_FORWARD = ("first_hitting",)
BY_VALUES = ("threshold", "factor")
STRETCHES = ("prefix", "dual")


@dataclass(frozen=True)
class Canvas:
    """A request of masked diffusion: its positions, and the positions each block has to decide."""

    prompt_len: int
    output_len: int
    blocks: tuple[int, ...]

    @property
    def total(self) -> int:
        return self.prompt_len + self.output_len


def canvas(cell: pd.Series) -> Canvas | None:
    """The canvas of a cell; None where text is given within it, which blocks share in a way of their own."""
    if _number(cell, "workload.num_gaps"):
        return None
    prompt, length = int(cell["workload.prompt_len"]), int(cell[OUTPUT_LEN])
    own, block_len = _number(cell, "model.canvas_block"), _number(cell, "decoder.block_len")
    width = own or block_len or length
    first = width - prompt % width if own else width  # a trained block may have begun in the prompt
    blocks = [min(first, length)]
    while sum(blocks) < length:
        blocks.append(min(width, length - sum(blocks)))
    return Canvas(prompt, length, tuple(blocks))


def steps_of_blocks(steps: object, lengths: tuple[int, ...]) -> Iterator[int]:
    """K steps dealt to blocks in proportion to their positions, one at least each."""
    match = re.fullmatch(r"L(?:/(\d+))?", str(steps))
    total = sum(lengths)
    whole = max(1, total // int(match[1] or 1)) if match else int(float(str(steps)))
    before = 0
    for length in lengths:
        yield max(1, whole * (before + length) // total - whole * before // total)
        before += length


def forwards(cell: pd.Series) -> float | None:
    """Forwards a request takes, whatever its cache: N token by token, K for a canvas in K steps; None where the text
    or chance decides.
    """
    if cell.get("workload.stop", "length") != "length":
        return None
    sampler, length = cell.get("decoder.sampler"), int(cell[OUTPUT_LEN])
    if not isinstance(sampler, str):
        cache = cell.get("decoder.cache")
        return length if cell.get("model.causal") in (True,) and isinstance(cache, str) else None
    if sampler in ONE_A_FORWARD:
        return length
    found = canvas(cell)
    if found is None or sampler not in EQUAL_SHARES:
        return None
    steps = steps_of_blocks(cell["decoder.sampler.steps"], found.blocks)
    return sum(min(opened, number) for opened, number in zip(found.blocks, steps, strict=True))


def expected_ancestral(cell: pd.Series) -> float | None:
    """Mean forwards of ancestral sampling with reuse, a request alone: T (1 − (1 − 1/T)^L), of each block."""
    found = canvas(cell) if cell.get("decoder.sampler") == "ancestral" else None
    if found is None or cell.get("decoder.sampler.reuse") is not True or cell["workload.batch_size"] != 1:
        return None
    steps = steps_of_blocks(cell["decoder.sampler.steps"], found.blocks)
    return sum(T * (1 - (1 - 1 / T) ** opened) for T, opened in zip(steps, found.blocks, strict=True))


def positions(cell: pd.Series) -> float | None:
    """Positions that one request alone pushes through a denoiser in `nfe` forwards; None where no law is known.

    Without a cache every forward reads all, or up to the end of its block where a model was trained on blocks. The
    prefix and dual caches read all at the first look at a block; then from the block on, or the block, and one column
    before it where predictions are shifted.
    """
    sampler, cache, nfe = cell.get("decoder.sampler"), cell.get("decoder.cache"), cell["nfe"]
    if not isinstance(sampler, str) or cell["workload.batch_size"] != 1 or pd.isna(nfe):
        return None
    trained_on_blocks = _number(cell, "model.canvas_block") is not None
    if cache == "none" and not trained_on_blocks:
        given = (_number(cell, "workload.num_gaps") or 0) * (_number(cell, "workload.given_len") or 0)
        return nfe * (cell["workload.prompt_len"] + cell[OUTPUT_LEN] + given)
    found = canvas(cell)
    if found is None or sampler not in (*EQUAL_SHARES, *ONE_A_FORWARD):
        return None
    if cache not in ("none", *STRETCHES) or _number(cell, "decoder.cache.refresh_every") is not None:
        return None
    dealt = found.blocks
    if sampler in EQUAL_SHARES:
        steps = steps_of_blocks(cell["decoder.sampler.steps"], found.blocks)
        dealt = [min(opened, number) for opened, number in zip(found.blocks, steps, strict=True)]
    shift = int(cell.get("model.shift_logits") in (True,))
    start, total = found.prompt_len, 0.0
    for opened, looks in zip(found.blocks, dealt, strict=True):
        stop = start + opened
        if cache == "none":
            total += looks * stop
        else:
            stretch = (found.total if cache == "prefix" else stop) - start + shift
            total += found.total + (looks - 1) * stretch
        start = stop
    return total


def kept_positions(cell: pd.Series) -> int | None:
    """Positions whose keys and values a cell keeps when it keeps most, a request; None where no law is known."""
    cache, length = cell.get("decoder.cache"), int(cell[OUTPUT_LEN])
    if cache == "state":
        return int(cell["workload.prompt_len"]) + length - 1  # the last token is never read back
    found = canvas(cell) if cache in (*STRETCHES, "block") else None
    if found is None:
        return None
    shift = int(cell.get("model.shift_logits") in (True,))
    if cache == "dual":  # all but the block, which is read afresh
        return found.total - min(found.blocks) - shift
    return found.total - found.blocks[-1] - shift  # what comes before the last block


def _number(cell: pd.Series, name: str) -> int | None:
    value = cell.get(name)
    return None if value is None or (isinstance(value, float) and math.isnan(value)) else int(value)
