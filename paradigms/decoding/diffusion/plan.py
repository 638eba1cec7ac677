"""The forwards that a decoder of masks will make, from what its sampler and its cache say of them.

What is drawn enters as its mean: rows that may have left enter with the probability of each number of rows, and columns
whose mean is no whole number as the two whole ones beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import exp, floor, lgamma, log, log1p, sqrt

from paradigms.decoding.diffusion.contract import Cache, Look, Sampler, Stretch
from paradigms.decoding.pace import NEGLIGIBLE
from paradigms.models.network import NetworkConfig
from paradigms.work import BatchShape, ForwardShape


def stretches(batch: BatchShape, block_len: int | None, *, from_prompt: bool) -> Iterator[Stretch]:
    """The blocks of every row; see `Canvas.blocks`."""
    row_len = batch.prompt_len + batch.output_len
    width = block_len or row_len
    edge = batch.prompt_len if from_prompt or block_len is None else batch.prompt_len - batch.prompt_len % width
    for start in range(edge, row_len, width):
        yield Stretch(
            start=max(start, batch.prompt_len),
            stop=min(start + width, row_len),
            prompt_len=batch.prompt_len,
            row_len=row_len,
        )


def paced(sampler: Sampler, stretch: Stretch, tokens_per_forward: float) -> Iterator[Look]:
    """Looks that make so many tokens final each, where the text decides; a row takes part in the last one as often as
    it takes to make their number right.
    """
    num_looks = max(1.0, stretch.opened / tokens_per_forward)
    pace = stretch.opened / num_looks
    index = 0
    while (left := num_looks - index) > NEGLIGIBLE:
        masked = pace * left
        yield Look(
            index=index,
            working=min(1.0, left),
            masked=max(1.0, masked),
            changed=pace if index else 0.0,
            wanted=min(pace, masked) if sampler.chooses_blindly else max(1.0, masked),
            varying=stretch.opened,
        )
        index += 1


def forwards_of(
    model: NetworkConfig, cache: Cache, stretch: Stretch, looks: Iterable[Look], *, rows: int
) -> Iterator[ForwardShape]:
    """The forwards of these looks at a block by a batch of so many rows."""
    for look in looks:
        for taking_part, chance in _numbers_of_rows(rows, look.working):
            read = cache.reads(model, stretch, look, rows=taking_part)
            for tokens, share in _whole(read.tokens):
                yield ForwardShape(
                    phase="denoise",
                    rows=taking_part,
                    tokens=tokens,
                    seen=read.seen,
                    kept=read.seen - tokens,
                    written=tokens if read.writes else 0,
                    forgotten=read.forgotten,
                    logits=taking_part * look.wanted,
                    times=chance * read.chance * share,
                )


def _numbers_of_rows(rows: int, working: float) -> Iterator[tuple[int, float]]:
    """How many of the rows may take part, and how likely that is."""
    if working >= 1:
        yield rows, 1.0
        return
    if working <= 0:
        return
    mean, reach = rows * working, 25 + 8 * sqrt(rows * working * (1 - working))  # beyond, chances are negligible
    for number in range(min(rows, floor(mean + reach)), max(0, floor(mean - reach)), -1):
        ways = (
            lgamma(rows + 1) - lgamma(number + 1) - lgamma(rows - number + 1)
        )  # of thousands of rows too many to count
        chance = exp(ways + number * log(working) + (rows - number) * log1p(-working))
        if chance > NEGLIGIBLE:
            yield number, chance


def _whole(tokens: float) -> Iterator[tuple[int, float]]:
    """Whole numbers and shares that have this mean."""
    below = floor(tokens + NEGLIGIBLE)
    above = tokens - below
    if above > NEGLIGIBLE:
        yield below + 1, above
        yield below, 1 - above
    else:
        yield below, 1.0
