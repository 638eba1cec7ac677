"""Quality against what it costs, one frontier a paradigm: time, forwards, bytes of state.

A point is a cell, or cells that differ in the seed of their training alone, whose own generations were judged: quality
and time come from the very same requests. Only texts that may end by themselves count; those of them that ran into
their limit stay in, and their share is told. A text of forced length is cut off, or goes on where its author would have
stopped, so its quality is no quality; and the time of a natural text says nothing where its length was forced.

    dominated            another point of the same work costs no more and is no worse, and one of the two is better
    frontier             of a paradigm: its points that none of its own dominates, from the cheapest to the best
    cost of a level q    along the frontier, linear in log cost between two neighbours; the cheapest point's for what it
                         exceeds; not reached above the best

A median of texts is, where a point has several trainings, one over trainings of each one's median, and its interval
stands on them: texts of one training share its luck.
Figures that can be gamed stand beside token entropy: text that a judge likes may be dull.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd

from analysis import later_scores, statistics
from analysis.findings import capital, number
from analysis.frames import Frames
from analysis.intervals import Estimate
from analysis.series import SEED, STOP, described, flag, named
from analysis.summary import labels, tell_apart
from analysis.trainings import over_trainings

COSTS = ("seconds", "nfe", "state_used_bytes")
ENTROPY = "token_entropy_nats"
PERPLEXITY = "perplexity"  # of the same scorer as bits per byte, which are drawn where there are both
Line = tuple[np.ndarray, np.ndarray]  # costs and goods of a frontier, both rising
_WORK = ("workload.", "device.name", "device.threads")


@dataclass(frozen=True)
class Measure:
    """A figure of quality.

    Attributes:
        name: column of the records.
        higher: whether more is better.
        share: a mean of yes and no, else a median over distinct generations (`_median`).
        gamed: whether dull text improves it, so that it stands beside entropy.
    """

    name: str
    title: str
    unit: str
    higher: bool
    share: bool = False
    gamed: bool = False

    @property
    def sign(self) -> int:
        return 1 if self.higher else -1


CORRECT = Measure("correct", "Answers that are right", "share of answers", higher=True, share=True)
JUDGE = Measure("judge_bits_per_byte", "Judged text", "judge, bits per byte", higher=False, gamed=True)
# Endings of columns in `scores` and `set_scores` whose sense is known; others are not drawn.
_LOWER = ("bits_per_byte", PERPLEXITY)
_HIGHER = ("mauve", "accuracy")


def measure_of(column: str) -> Measure | None:
    """How a column of `scores` or `set_scores` is to be read, by its name; None where its name does not say."""
    words = column.replace("_", " ")
    if column in _HIGHER:
        return Measure(column, capital(words), words, higher=True)
    if column.endswith(_LOWER) and not column.startswith(("val_", "given_")):
        return Measure(column, capital(words), words, higher=False, gamed=True)
    return None


@lru_cache(maxsize=8)
def requests(frames: Frames) -> pd.DataFrame:
    """Timed requests of cells whose texts may end by themselves, with `setting`, `curve`, `series` and all scores.

    The one gate of this page: `workload.stop` must say `natural`. Extrapolated runs have no text, planted errors are
    another question.
    """
    ok = frames.ok
    if STOP not in ok:
        return pd.DataFrame()
    cells = ok[(ok[STOP] == "natural") & ~ok["extrapolated"]].drop_duplicates("cell")
    if len(cells):
        cells = described(cells)
        cells = cells[cells["planted"] == 0]
    if not len(cells):
        return pd.DataFrame()
    cells = cells.assign(setting=_settings(cells), curve=_curves(cells))
    cells["series"] = named(cells, ["setting"])
    columns = ["cell", "label", "setting", "curve", "series", "task", SEED]
    rows = frames.timed[~frames.timed["extrapolated"]].merge(cells[columns], on="cell")
    if CORRECT.name in rows:
        rows[CORRECT.name] = rows[CORRECT.name].map(flag).astype(float)
    per_token = rows["e2e_s"] / rows["committed_tokens"].where(rows["committed_tokens"] > 0)
    rows["seconds"] = rows["e2e_s"].where(rows["task"] != "", per_token)
    rows["state_used_bytes"] = rows["cell"].map(frames.ok.groupby("cell")["state_used_bytes"].median())
    return _with_scores(frames, rows)


def _settings(cells: pd.DataFrame) -> pd.Series:
    """What is asked, named: equal work on an equal machine, whatever does it."""
    sha256 = cells["corpus_sha256"].map(lambda value: str(value)[:8])
    cells = cells.assign(**{"corpus.sha256": sha256, "sweep.name": "", "one": 0})
    work = ["task", "machine_id", "corpus.sha256", *(str(name) for name in cells if str(name).startswith(_WORK))]
    kept = cells[work].astype(object).map(str).agg("/".join, axis=1)  # of older records some are missing
    first = cells[["one", "label", "sweep.name", *work]][~kept.duplicated()]
    names = [tell_apart(str(task) or "text", group, "one") for task, group in first.groupby("task", sort=False)]
    by_work = dict(zip(kept[first.index], pd.concat(names)[first.index], strict=True))
    return kept.map(by_work)


def _curves(cells: pd.DataFrame) -> pd.Series:
    """The paradigm of a cell: its label, or its name where its settings have labels of their own."""
    names = cells["paradigm.name"].fillna("unnamed").astype(str)
    several = cells.groupby(names)["label"].transform("nunique") > 1
    return names.map(lambda name: capital(name.replace("_", " "))).where(several, cells["label"])


def _with_scores(frames: Frames, rows: pd.DataFrame) -> pd.DataFrame:
    """Joined with the table `scores`, a line a sample, where somebody wrote one: those of `later_scores.scoring`."""
    scores = later_scores.table(frames, "scores")
    identity = ["key", "repeat", "row"]
    if not len(scores) or not set(identity) <= set(scores):
        return rows
    columns = [str(name) for name in scores if measure_of(str(name)) is not None and name not in rows]
    scores = scores[[*identity, *columns]].copy()
    for name in (*identity[1:], *columns):
        scores[name] = pd.to_numeric(scores[name], errors="coerce")
    return rows.merge(scores.groupby(identity).last().reset_index(), on=identity, how="left")


def forced(frames: Frames) -> int:
    """Cells with judged generations that are left out because their length was forced."""
    scored = [name for name in (CORRECT.name, JUDGE.name) if name in frames.requests]
    if not scored or STOP not in frames.ok:
        return 0
    keys = set(frames.requests.loc[frames.requests[scored].notna().any(axis=1), "key"])
    ok = frames.ok[frames.ok["key"].isin(keys)]
    return int(ok.loc[ok[STOP] != "natural", "cell"].nunique())


@lru_cache(maxsize=8)
def measures(frames: Frames) -> tuple[Measure, ...]:
    """Figures of quality that some point has, those of the requests first."""
    rows = requests(frames)
    found = [measure for measure in (CORRECT, JUDGE) if measure.name in rows and len(points(frames, measure))]
    names = sorted(({str(name) for name in rows} | set(later_scores.of_cells(frames).columns)) - set(frames.requests))
    later = [measure for name in names if (measure := measure_of(name)) is not None and len(points(frames, measure))]
    if any(measure.name.endswith("bits_per_byte") for measure in later):
        later = [measure for measure in later if not measure.name.endswith(PERPLEXITY)]
    return tuple([*found, *later])


@lru_cache(maxsize=32)
def points(frames: Frames, measure: Measure) -> pd.DataFrame:
    """A row a point: `setting`, `curve`, `series`, `label`, `quality` and COSTS with `_low` and `_high`, entropy.

    Returns:
        Points without quality or time are left out. `scored` and `requests` are counts, `units` those that times stand
        on, `trainings` those that quality does where there are several, `cut_off` the share of texts that ran into
        their limit, `unscored` of those without a figure, `contended` where a unit was.
    """
    rows = requests(frames)
    of_sets = _of_sets(frames, measure)
    found = []
    for (setting, curve, series), group in (
        rows.groupby(["setting", "curve", "series"], sort=False) if len(rows) else ()
    ):
        quality = _quality(group, measure) or of_sets.get((str(setting), str(series)))
        if quality is None or math.isnan(quality.value):
            continue
        row = {"setting": setting, "curve": curve, "series": series, "label": group["label"].iloc[0],
               "is_task": bool(group["task"].iloc[0]), "cells": group["cell"].nunique(),
               "units": group["key"].nunique(), "scored": quality.count, "requests": len(group),
               "trainings": group[SEED].nunique(), "cut_off": _cut_off(group),
               "contended": bool(group["contended"].any()), "extrapolated": False}  # fmt: skip
        row |= _named("quality", quality)
        for cost in COSTS:
            row |= _named(cost, statistics.median_interval(group[cost], group["key"]))
        texts = group.drop_duplicates(["cell", "request_id", "seed"])
        row |= _named(ENTROPY, _median(texts, ENTROPY))
        row["unscored"] = texts[measure.name].isna().mean() if measure.name in texts else math.nan
        found.append(row)
    table = pd.DataFrame(found)
    if not len(table):
        return pd.DataFrame(columns=["setting", "curve", "series", "label", "quality", *COSTS, ENTROPY])
    table = table[table["seconds"] > 0]
    order = {label: place for place, label in enumerate(labels(frames))}
    table = table.assign(_place=table["label"].map(order)).sort_values(["setting", "_place", "seconds"], kind="stable")
    return table.drop(columns="_place").reset_index(drop=True)


def _named(name: str, estimate: Estimate) -> dict[str, float]:
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def texts_with(rows: pd.DataFrame, measure: Measure) -> pd.DataFrame:
    """Distinct generations with this figure."""
    if measure.name not in rows:
        return rows[:0]
    identity = ["cell", "request_id"] if measure.share else ["cell", "request_id", "seed"]
    return rows[rows[measure.name].notna()].drop_duplicates(identity)


def _quality(rows: pd.DataFrame, measure: Measure) -> Estimate | None:
    texts = texts_with(rows, measure)
    if not len(texts):
        return None
    if measure.share:
        found = over_trainings(texts, measure.name)
        return Estimate(found.value, found.low, found.high, len(texts), found.coverage)
    return _median(texts, measure.name)


def _median(texts: pd.DataFrame, column: str) -> Estimate:
    """Over texts, or over trainings of each one's median where there are several; `count` is texts."""
    trainings = texts[SEED] if texts[SEED].nunique() > 1 else None
    found = statistics.median_interval(texts[column], trainings)
    return Estimate(found.value, found.low, found.high, int(texts[column].notna().sum()), found.coverage)


def _cut_off(rows: pd.DataFrame) -> float:
    """Share of distinct texts that ran into their limit; NaN where nobody wrote down how they ended."""
    if "finish_reason" not in rows:
        return math.nan
    return float(rows.drop_duplicates(["cell", "request_id", "seed"])["finish_reason"].eq("length").mean())


def ends(found: pd.DataFrame) -> str:
    """How the texts of points ended, in words."""
    cut = found["cut_off"].fillna(0)
    if not cut.gt(0).any():
        return "texts that ended by themselves"
    most = f"{100 * cut.max():.0f} % ran into their limit ({found.loc[cut.idxmax(), 'series']})"
    return f"texts that may end by themselves, of which up to {most}"


def _of_sets(frames: Frames, measure: Measure) -> dict[tuple[str, str], Estimate]:
    """What `set_scores` say of single cells; a point of several trainings has none, since sets do not average."""
    sets, rows = later_scores.of_cells(frames), requests(frames)
    if measure.name not in sets:
        return {}
    cells = rows.drop_duplicates("cell")
    found = {}
    for (setting, series), group in cells.groupby(["setting", "series"]):
        cell = group["cell"].iloc[0]
        if len(group) > 1 or cell not in sets.index:
            continue
        ends = [sets.loc[cell].get(name) for name in (measure.name, f"{measure.name}_low", f"{measure.name}_high")]
        value, low, high = pd.to_numeric(pd.Series(ends, dtype=object), errors="coerce").astype(float)
        texts = len(rows[rows["cell"] == cell].drop_duplicates(["request_id", "seed"]))
        found[str(setting), str(series)] = Estimate(value, *((low, high) if low <= high else (math.nan,) * 2), texts)
    return found


def dominated(costs: Sequence[float], goods: Sequence[float]) -> np.ndarray:
    """Of each point, whether another costs no more and is no worse, and is better in one of the two.

    Args:
        goods: quality, more is better.
    """
    cost, good = np.asarray(costs, dtype=float), np.asarray(goods, dtype=float)
    no_worse = (cost[None, :] <= cost[:, None]) & (good[None, :] >= good[:, None])
    better = (cost[None, :] < cost[:, None]) | (good[None, :] > good[:, None])
    return (no_worse & better).any(axis=1)


def frontier(costs: Sequence[float], goods: Sequence[float]) -> Line:
    """Costs and goods of the points that none dominates, both rising; of equal points one."""
    cost, good = np.asarray(costs, dtype=float), np.asarray(goods, dtype=float)
    known = np.isfinite(cost) & np.isfinite(good)
    pairs = sorted(set(zip(cost[known].tolist(), (-good[known]).tolist(), strict=True)))
    kept: list[tuple[float, float]] = []
    for price, bad in pairs:
        if not kept or -bad > kept[-1][1]:
            kept.append((price, -bad))
    return np.array([price for price, _ in kept]), np.array([value for _, value in kept])


def cost_at(level: float, line: Line) -> float:
    """What a level costs along a frontier, linear in log cost between its points; NaN where it is not reached."""
    costs, goods = line
    if not len(goods) or math.isnan(level) or level > goods[-1]:
        return math.nan
    return float(np.exp(np.interp(level, goods, np.log(costs))))


def common_level(one: Line, other: Line, measure: Measure) -> float:
    """The highest level that both reach; NaN where one reaches nothing, as a share of 0 is nothing."""
    if not len(one[1]) or not len(other[1]):
        return math.nan
    level = float(min(one[1][-1], other[1][-1]))
    return math.nan if measure.share and level <= 0 else level


def results(frames: Frames) -> pd.DataFrame:
    """The tidy CSV: a row a point and measure, with whether another point of the same work dominates it in time."""
    found = []
    for measure in measures(frames):
        for _, group in points(frames, measure).groupby("setting", sort=False):
            worse = dominated(group["seconds"], measure.sign * group["quality"])
            found.append(group.assign(measure=measure.name, higher_is_better=measure.higher, dominated=worse))
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame()


def sentence(frames: Frames, measure: Measure) -> str:
    """Who stands on the common frontier in time, from the fastest to the best."""
    found = points(frames, measure)
    several = found["setting"].nunique() > 1
    parts = []
    for setting, group in found.groupby("setting", sort=False):
        kept = group[~dominated(group["seconds"], measure.sign * group["quality"])].sort_values("seconds")
        said = [f"{row['series']} {number(row['quality'])} in {number(1e3 * row['seconds'])} ms"
                for _, row in kept.iterrows()]  # fmt: skip
        parts.append((f"{setting}: " if several else "") + ", ".join(said))
    return f"Not dominated, from the fastest to the best, in {measure.unit}: {'; '.join(parts)}."


def note(frames: Frames) -> str:
    """What the page rests on; why it is empty, where it is."""
    left_out = forced(frames)
    text = (
        f"{left_out} cell{'s' * (left_out > 1)} of forced length left out: such texts are cut off" if left_out else ""
    )
    if not measures(frames):
        return f"No quality frontier: {text}; workload=natural_stop lets texts end." if text else ""
    found = pd.concat([points(frames, measure) for measure in measures(frames)], ignore_index=True)
    parts = [f"Every point is a cell whose own generations were judged and timed, {ends(found)}"]
    parts += [text] if text else []
    every = pd.concat([points(frames, measure) for measure in measures(frames)])
    if (every["unscored"] > 0).any():
        worst = every.loc[every["unscored"] == every["unscored"].max()].iloc[0]
        parts.append(
            f"texts without a figure, as where nothing was written, are in no quality: up to {worst['unscored']:.2g} "
            f"of all ({worst['series']})"
        )
    if (judge := later_scores.scoring(frames)).scorer is not None:
        parts.append(f"perplexity and bits per byte by an external scorer are those of {judge.scorer}")
    if judge.others:
        ways = f"{judge.others} other way{'s' * (judge.others > 1)}"
        parts.append(f"the folder holds scores by {ways}, of fewer texts or older ones, which are not shown")
    parts.append("between points cost is interpolated in its logarithm")
    if any(measure.gamed for measure in measures(frames)):
        parts.append("what a judge likes may be dull: read it beside token entropy")
    return capital("; ".join(parts)) + "."
