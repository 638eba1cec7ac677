"""One sentence a figure of masked diffusion, computed from the data."""

from __future__ import annotations

import pandas as pd

from analysis import samplers
from analysis.findings import capital, number
from analysis.frames import Frames
from analysis.summary import BATCH_SIZE


def quality_by_forwards(frames: Frames) -> str:
    """From the most forwards to the fewest: what the judge says, and what the entropy does."""
    found = samplers.lines(frames)
    parts = []
    for way in found.ways:
        rows = found.diffusion[found.diffusion["way"] == way].sort_values("nfe")
        if rows["nfe"].nunique() > 1:
            parts.append(f"{way} {_change(rows.iloc[-1], rows.iloc[0])}")
    return capital(f"from the most forwards to the fewest: {'; '.join(parts)}.") if parts else _each(found.diffusion)


def quality_by_time(frames: Frames) -> str:
    """The fastest and the slowest, with both measures of quality, and the reference."""
    found = samplers.lines(frames)
    rows = found.diffusion.sort_values("e2e_per_token_s")
    parts = [_said(row["way"], row) for _, row in rows.iloc[[0, -1]].iterrows()]
    parts += [_said(row["label"], row) for _, row in found.references.iterrows()]
    return capital("; ".join(parts)) + "."


def blocks(frames: Frames) -> str:
    """From the shortest block to the longest, each family."""
    found = samplers.lines(frames, by_block=True)
    parts = []
    for way in found.ways:
        rows = found.diffusion[found.diffusion["way"] == way].sort_values("block")
        if len(rows) > 1:
            short, long = rows.iloc[0], rows.iloc[-1]
            parts.append(f"{way}, blocks of {short['block']:.0f} to {long['block']:.0f}: {_change(short, long)}")
    return capital("; ".join(parts)) + "." if parts else _each(found.diffusion)


def gains(frames: Frames) -> str:
    """How the gain of each shrinks or grows from the smallest batch to the largest."""
    rows = samplers.speedups(frames).sort_values(BATCH_SIZE)
    parts = []
    for label, group in rows[rows["cell"] != rows["base"]].groupby("label", sort=False):
        first, last = group.iloc[0], group.iloc[-1]
        parts.append(f"{label} {number(first['gain'])} to {number(last['gain'])} times")
    low, high = int(rows[BATCH_SIZE].min()), int(rows[BATCH_SIZE].max())
    return f"Faster than {rows['base_label'].iloc[0]} without a cache, batch {low} to {high}: {'; '.join(parts)}."


def cache_error(frames: Frames) -> str:
    """Largest error of each cache, and where; what the first look has."""
    rows = samplers.cache_errors(frames)
    parts = []
    for way, line in rows.groupby("way", sort=False):
        worst = line.loc[line["kl_nats"].idxmax()]
        parts.append(f"{way} {number(worst['kl_nats'], 2)} at look {worst['look']:.0f}")
    first = rows.loc[rows["look"] == 1, "kl_nats"].max()
    told = f"KL to the uncached distribution in nats, at most {number(first, 2)} at a first look"
    return f"{told}; largest: {'; '.join(parts)}."


def bounds(frames: Frames) -> str:
    rows = samplers.bounds(frames)
    parts = []
    for _, row in rows.iterrows():
        error = "" if pd.isna(row["bits_per_byte_se"]) else f" ± {row['bits_per_byte_se']:.3f}"
        parts.append(f"{row['kind']} {'≤ ' if row['bits_per_byte_is_bound'] else ''}{row['bits_per_byte']:.3f}{error}")
    return f"Held-out bits per byte (± one standard error): {', '.join(parts)}."


def _change(first: pd.Series, last: pd.Series) -> str:
    """Both measures, since neither says anything alone."""
    judged = f"judge {number(first['judge_bits_per_byte'])} to {number(last['judge_bits_per_byte'])}"
    return f"{judged}, entropy {number(first['token_entropy_nats'])} to {number(last['token_entropy_nats'])}"


def _said(name: object, row: pd.Series) -> str:
    text = f"{name} takes {number(1e3 * row['e2e_per_token_s'])} ms a token"
    if pd.isna(row["judge_bits_per_byte"]):
        return text
    return (
        f"{text}, judge {number(row['judge_bits_per_byte'])} bits per byte, entropy {number(row['token_entropy_nats'])}"
    )


def _each(rows: pd.DataFrame) -> str:
    return capital("; ".join(_said(row["way"], row) for _, row in rows.iterrows())) + "."
