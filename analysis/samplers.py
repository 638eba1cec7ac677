"""Cells of masked diffusion as series of figures: one a way of decoding, whatever number it was dialled to.

A sampler has one dial that trades speed for quality: steps, threshold or factor. Cells that differ in it alone form a
line; the sampler, its cache and its blocks name that line. What was decoded otherwise (an autoregressive model) stands
beside them as a reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import pandas as pd

from analysis import statistics
from analysis.frames import WORK, Frames
from analysis.summary import BATCH_SIZE, OUTPUT_LEN, per_request, show, summarise, tell_apart

SAMPLER, CACHE, BLOCK_LEN, CANVAS_BLOCK = "decoder.sampler", "decoder.cache", "decoder.block_len", "model.canvas_block"
DIALS = ("decoder.sampler.steps", "decoder.sampler.threshold", "decoder.sampler.factor")


@dataclass(frozen=True)
class Lines:
    """Cells of equal work: those of masked diffusion with their `way`, and the others."""

    diffusion: pd.DataFrame
    references: pd.DataFrame

    @property
    def ways(self) -> list[str]:
        return list(dict.fromkeys(self.diffusion["way"]))


def decoded(frames: Frames) -> pd.DataFrame:
    """Rows of `summarise` that a sampler decoded, with `block`, the length of what it decides at once; may be empty."""
    cells = summarise(frames)
    if SAMPLER not in cells:
        return cells[:0].assign(block=[])
    cells = cells[cells["e2e_s"].notna() & cells[SAMPLER].notna()].copy()
    block = pd.Series(float("nan"), index=cells.index)
    for name in (BLOCK_LEN, CANVAS_BLOCK, OUTPUT_LEN):
        if name in cells:
            block = block.fillna(cells[name].astype(float))
    return cells.assign(block=block)


@lru_cache(maxsize=8)
def lines(frames: Frames, *, by_block: bool = False) -> Lines:
    """Cells at the work that most cells share (of those, the longest).

    Args:
        by_block: the length of blocks is the dial; it does not name the line then.
    """
    rows = decoded(frames)
    if not len(rows):
        return Lines(rows.assign(way=[]), rows)
    counts = rows.groupby(list(WORK)).size().reset_index(name="count").sort_values(["count", *WORK])
    work = counts.iloc[-1][list(WORK)]
    rows = rows[(rows[list(WORK)] == work).all(axis=1)]
    others = summarise(frames)
    others = others[others[SAMPLER].isna() & others["e2e_s"].notna() & (others[list(WORK)] == work).all(axis=1)]
    rows = rows.assign(way=[_way(row, by_block=by_block) for _, row in rows.iterrows()])
    rows["dial"] = [_dial(row, by_block=by_block) for _, row in rows.iterrows()]
    ignored = {SAMPLER, CACHE, *((BLOCK_LEN, CANVAS_BLOCK) if by_block else DIALS)}
    names = [
        tell_apart(str(way), group.drop(columns=[name for name in ignored if name in group]), "dial")
        for way, group in rows.groupby("way", sort=False)
    ]
    return Lines(rows.assign(way=pd.concat(names)), others)


def _way(row: pd.Series, *, by_block: bool) -> str:
    parts = [str(row[SAMPLER]).replace("_", "-")]
    cache = row.get(CACHE)
    if isinstance(cache, str) and cache != "none":
        parts.append(f"{cache.replace('_', '-')} cache")
    trained = pd.notna(row.get(CANVAS_BLOCK))
    if by_block:
        return ", ".join([f"trained on {'blocks' if trained else 'the whole canvas'}", *parts])
    if trained:
        parts.append(f"trained on blocks of {show(row[CANVAS_BLOCK])}")
    elif pd.notna(row.get(BLOCK_LEN)):
        parts.append(f"blocks of {show(row[BLOCK_LEN])}")
    return ", ".join(parts)


def _dial(row: pd.Series, *, by_block: bool) -> str:
    return show(row["block"]) if by_block else " ".join(show(row.get(name)) for name in DIALS)


def speedups(frames: Frames) -> pd.DataFrame:
    """Every cell with `gain`, how many times faster it is than uncached one-token-a-step decoding of the same batch.

    Paired within rounds; empty where that was not measured at two batch sizes.
    """
    rows, cells = decoded(frames), summarise(frames)
    plain = rows["tokens_per_forward"].eq(1) & (rows["block"] == rows[OUTPUT_LEN])
    plain &= rows[CACHE].eq("none") if CACHE in rows else False
    base = rows[plain].drop_duplicates([*WORK, "machine_id"])
    base_of = base.set_index([*WORK, "machine_id"])["cell"].to_dict()
    cells = cells[cells["e2e_s"].notna()]
    cells = cells.assign(base=[base_of.get(tuple(key)) for key in cells[[*WORK, "machine_id"]].to_numpy()])
    cells = cells[cells["base"].notna()]
    if cells[BATCH_SIZE].nunique() < 2:
        return cells[:0]
    by_round = per_request(frames).groupby(["cell", "round"])["e2e_s"].median()
    pairs = zip(cells["base"], cells["cell"], strict=True)
    gains = [statistics.paired_ratio(by_round.loc[base], by_round.loc[cell]) for base, cell in pairs]
    columns = {"gain": [gain.value for gain in gains], "gain_low": [gain.low for gain in gains],
               "gain_high": [gain.high for gain in gains]}  # fmt: skip
    return cells.assign(**columns, base_label=base["label"].iloc[0])


def cache_errors(frames: Frames) -> pd.DataFrame:
    """How far approximate caches are from reading everything again: a row a way and look, with `kl_nats`.

    Empty where no records tell it. Looks count from 1 within the block.
    """
    if "cache_kl_nats_by_look" not in frames.ok:
        return pd.DataFrame(columns=["way", "look", "kl_nats"])
    known = frames.ok[frames.ok["cache_kl_nats_by_look"].map(lambda value: isinstance(value, list))]
    of_cell = known.groupby("cell")["cache_kl_nats_by_look"].first()
    rows = []
    for _, row in lines(frames).diffusion.iterrows():
        for look, nats in enumerate(of_cell.get(row["cell"], ()), 1):
            if nats is not None:
                rows.append({"way": row["way"], "look": look, "kl_nats": max(0.0, nats)})
    return pd.DataFrame(rows, columns=["way", "look", "kl_nats"])


def bounds(frames: Frames) -> pd.DataFrame:
    """Held-out bits per byte of each kind of factorisation, a row a checkpoint: `kind`, and `place` from AR to whole.

    Empty unless a model that was trained on blocks is among them.
    """
    cells = summarise(frames)
    need = ["model.causal", "model.noise", CANVAS_BLOCK]
    if not set(need) <= set(cells) or not cells[CANVAS_BLOCK].notna().any():
        return cells[:0]
    cells = cells[cells["bits_per_byte"].notna()].merge(
        frames.ok.drop_duplicates("cell")[["cell", "checkpoint"]], on="cell"
    )
    cells = cells.drop_duplicates("checkpoint")
    causal = cells["model.causal"].eq(True)
    cells = cells[causal | cells["model.noise"].eq("absorbing")]
    place = cells[CANVAS_BLOCK].where(~cells["model.causal"].eq(True), 1).fillna(float("inf")).astype(float)
    kind = ["whole canvas" if value == float("inf") else "autoregressive" if is_causal else f"blocks of {value:.0f}"
            for value, is_causal in zip(place, cells["model.causal"], strict=True)]  # fmt: skip
    return cells.assign(place=place, kind=kind).sort_values("place", kind="stable")
