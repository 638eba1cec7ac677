"""Figures of masked diffusion: what steps, samplers, caches and blocks cost and buy, beside an autoregressive model.

A judge's bits per byte never stand without token entropy: dull text pleases a judge.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from analysis import diffusion_findings as said
from analysis import samplers, style
from analysis.choices import Choice
from analysis.frames import Frames
from analysis.samplers import Lines
from analysis.summary import BATCH_SIZE, OUTPUT_LEN, labels

QUALITY = {
    "judge_bits_per_byte": ("Judged text (lower: likelier)", "judge, bits per byte"),
    "token_entropy_nats": ("Its variety (higher: less dull)", "token entropy, nats"),
}
SECONDS = "end to end / tokens, seconds a token"
MOST_WAYS = 12  # lines that one panel can hold
_REFERENCE_COLORS = ("black", "#7a7a7a", "#a9a9a9")
_REFERENCE_MARKERS = "*hp8"


def choose(frames: Frames) -> list[Choice]:
    """Figures for what varies among the cells of masked diffusion."""
    rows = samplers.lines(frames).diffusion
    chosen: list[Choice] = []
    judged = len(rows) > 2 and rows["judge_bits_per_byte"].notna().any()
    few = judged and rows["way"].nunique() <= MOST_WAYS
    if few and rows.groupby("way")["nfe"].nunique().max() > 1:
        title = "Quality against forwards"
        chosen.append(Choice("quality_by_forwards", title, quality_by_forwards, said.quality_by_forwards))
    if few:
        chosen.append(Choice("quality_by_time", "Quality against time", quality_by_time, said.quality_by_time))
    if judged and rows["block"].nunique() > 2:
        chosen.append(Choice("blocks", "Length of what is decided at once", blocks, said.blocks))
    if len(samplers.speedups(frames)):
        chosen.append(Choice("gains", "What is gained at larger batches", gains, said.gains))
    if len(samplers.cache_errors(frames)):
        chosen.append(Choice("cache_error", "How far approximate caches are off", cache_error, said.cache_error))
    if len(samplers.bounds(frames)):
        chosen.append(Choice("bounds", "From autoregressive to the whole canvas", bounds, said.bounds))
    return chosen


def quality_by_forwards(frames: Frames) -> Figure:
    """Judge and entropy against forwards a request; references as lines, whose forwards say nothing here."""
    found = samplers.lines(frames)
    with style.look():
        fig, panels = style.panels(len(QUALITY), width=4.4, legend=3.4)
        for panel, (metric, (title, unit)) in zip(panels, QUALITY.items(), strict=True):
            _lines(panel, found, "nfe", metric)
            _levels(panel, frames, found.references, metric)
            style.log_axis(panel, "x", values=_ticks(found.diffusion["nfe"]))
            panel.set(xlabel="forwards a request (NFE)", ylabel=unit, title=title)
        style.legend(fig, [*_way_handles(found), *_level_handles(frames, found.references)])
        style.caption(fig, frames, _work(found), style.texts_note(found.diffusion))
    return fig


def quality_by_time(frames: Frames) -> Figure:
    """Judge and entropy against seconds a token; references as points."""
    found = samplers.lines(frames)
    with style.look():
        fig, panels = style.panels(len(QUALITY), width=4.4, legend=3.4)
        for panel, (metric, (title, unit)) in zip(panels, QUALITY.items(), strict=True):
            _lines(panel, found, "e2e_per_token_s", metric)
            for label, mark in _reference_marks(frames, found.references).items():
                rows = found.references[found.references["label"] == label]
                style.points(panel, rows, "e2e_per_token_s", metric, mark, line=False)
            style.log_axis(panel, "x", unit="s")
            panel.set(xlabel=SECONDS, ylabel=unit, title=title)
        marks = _reference_marks(frames, found.references)
        points = [style.handle(label, mark, line=False) for label, mark in marks.items()]
        style.legend(fig, [*_way_handles(found), *points])
        style.caption(fig, frames, _work(found), style.texts_note(found.diffusion))
    return fig


def blocks(frames: Frames) -> Figure:
    """Judge, entropy and seconds a token against the length of what is decided at once."""
    found = samplers.lines(frames, by_block=True)
    panels_of = {**QUALITY, "e2e_per_token_s": ("What it takes", SECONDS)}
    with style.look():
        fig, panels = style.panels(len(panels_of), width=4.0, legend=4.0)
        for panel, (metric, (title, unit)) in zip(panels, panels_of.items(), strict=True):
            _lines(panel, found, "block", metric)
            _levels(panel, frames, found.references, metric)
            style.log_axis(panel, "x", values=_ticks(found.diffusion["block"]))
            if metric == "e2e_per_token_s":
                style.log_axis(panel, "y", unit="s")
            panel.set(xlabel="block length, tokens", ylabel=unit, title=title)
        style.legend(fig, [*_way_handles(found), *_level_handles(frames, found.references)])
        style.caption(fig, frames, _work(found), "The longest block is the whole canvas")
    return fig


def gains(frames: Frames) -> Figure:
    """How many times faster than uncached one-token-a-step decoding, against the size of the batch."""
    rows = samplers.speedups(frames)
    with style.look():
        fig, (panel,) = style.panels(1, width=6.4, legend=3.4)
        handles = []
        for label, group in rows.groupby("label", sort=False):
            if (group["cell"] == group["base"]).all():
                continue
            is_reference = group[samplers.SAMPLER].isna().all()
            marks = _reference_marks(frames, rows[rows[samplers.SAMPLER].isna()]) if is_reference else {}
            mark = marks.get(str(label), style.mark_of(frames, str(label)))
            style.points(panel, group.sort_values(BATCH_SIZE), BATCH_SIZE, "gain", mark)
            handles.append(style.handle(str(label), mark))
        panel.axhline(1, color=style.GREY, linestyle=":", linewidth=1.2)
        style.log_axis(panel, "x", values=rows[BATCH_SIZE])
        style.log_axis(panel, "y")
        base = str(rows["base_label"].iloc[0])
        panel.set(xlabel="batch size, requests", ylabel=f"times faster than\n{base}, no cache, same batch")
        style.legend(fig, handles)
        style.caption(fig, frames, "Ratios of end-to-end times, paired within rounds (signed-rank intervals)")
    return fig


def cache_error(frames: Frames) -> Figure:
    """KL divergence from the uncached distributions, by the look at the block; 0 at the first: exact there."""
    rows = samplers.cache_errors(frames)
    ways = list(dict.fromkeys(rows["way"]))
    with style.look():
        fig, (panel,) = style.panels(1, width=6.8, legend=3.6)
        handles = []
        for index, way in enumerate(ways):
            line, mark = rows[rows["way"] == way], replace(style.mark(index, len(ways)), size=4)
            panel.plot(line["look"], line["kl_nats"], color=mark.color, linestyle=mark.dash, marker=mark.marker,
                       markersize=mark.size)  # fmt: skip
            handles.append(style.handle(way, mark))
        panel.set(xlabel="look at the block, from its first", ylabel="KL to the uncached, nats a position")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.set_ylim(bottom=0)
        style.legend(fig, handles)
        style.caption(fig, frames, _work(samplers.lines(frames)), "Means over the masked positions of one batch")
    return fig


def bounds(frames: Frames) -> Figure:
    """Held-out bits per byte from autoregressive over blocks to the whole canvas; arrows: upper bounds."""
    rows = samplers.bounds(frames)
    kinds = list(dict.fromkeys(rows["kind"]))
    x = rows["kind"].map({kind: place for place, kind in enumerate(kinds)})
    rows = rows.assign(x=x)
    with style.look():
        fig, (panel,) = style.panels(1, width=6.4, legend=0.4)
        for is_bound, group in rows.groupby("bits_per_byte_is_bound"):
            mark = replace(style.mark(0 if is_bound else 1, 2), size=7)
            style.points(panel, group, "x", "bits_per_byte", mark, line=False)
            for place, value in zip(group["x"], group["bits_per_byte"], strict=True):
                text = ("≤ " if is_bound else "") + f"{value:.2f}"
                panel.annotate(text, (place, value), xytext=(9, 4), textcoords="offset points", fontsize=9)
                if is_bound:
                    panel.annotate("", xy=(place, value), xytext=(0, -20), textcoords="offset points",
                                   arrowprops={"arrowstyle": "<-", "color": mark.color, "lw": 1.3})  # fmt: skip
        panel.set_xticks(range(len(kinds)), kinds)
        panel.margins(x=0.12, y=0.25)
        panel.set(xlabel="what the model predicts at once", ylabel="held-out text, bits per byte")
        panel.grid(visible=False, axis="x")
        style.caption(fig, frames, "Arrows: an upper bound; autoregressive exact. Bars: 1.96 standard errors")
    return fig


def _lines(panel: Axes, found: Lines, x: str, y: str) -> None:
    for index, way in enumerate(found.ways):
        rows = found.diffusion[found.diffusion["way"] == way].sort_values(x)
        style.points(panel, rows, x, y, style.mark(index, len(found.ways)))


def _way_handles(found: Lines) -> list[Line2D]:
    return [style.handle(way, style.mark(index, len(found.ways))) for index, way in enumerate(found.ways)]


def _reference_marks(frames: Frames, references: pd.DataFrame) -> dict[str, style.Mark]:
    """Black and greys, which no sampler has."""
    there = [label for label in labels(frames) if label in set(references["label"])]
    return {
        label: style.Mark(_REFERENCE_COLORS[index % 3], _REFERENCE_MARKERS[index % 4], 9, style.dash_of(index + 1))
        for index, label in enumerate(there)
    }


def _levels(panel: Axes, frames: Frames, references: pd.DataFrame, metric: str) -> None:
    """A horizontal line a reference, its interval as a band."""
    for label, mark in _reference_marks(frames, references).items():
        row = references[references["label"] == label].iloc[0]
        if pd.isna(row[metric]):
            continue
        panel.axhline(row[metric], color=mark.color, linestyle=mark.dash, linewidth=1.3, zorder=1)
        low, high = row.get(f"{metric}_low"), row.get(f"{metric}_high")
        if pd.notna(low) and high > low:
            panel.axhspan(low, high, color=mark.color, alpha=0.09, linewidth=0, zorder=0)


def _level_handles(frames: Frames, references: pd.DataFrame) -> list[Line2D]:
    marks = _reference_marks(frames, references)
    return [Line2D([], [], color=mark.color, linestyle=mark.dash, label=label) for label, mark in marks.items()]


def _ticks(values: pd.Series) -> pd.Series:
    """The values themselves where they are few, else powers of two within them."""
    distinct = sorted(set(values.dropna()))
    if len(distinct) <= 9 and all(later / sooner > 1.25 for sooner, later in pairwise(distinct)):
        return pd.Series(distinct)
    powers = [2**exponent for exponent in range(20)]
    inside = [power for power in powers if distinct[0] <= power <= distinct[-1]]
    return pd.Series(inside if len(inside) > 1 else [distinct[0], distinct[-1]])


def _work(found: Lines) -> str:
    row = found.diffusion.iloc[0]
    return f"{row[OUTPUT_LEN]:.0f} output tokens, batch {row[BATCH_SIZE]:.0f}"
