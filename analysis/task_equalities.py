"""What was equal over the paradigms that answered a task, and what was not."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from analysis.equalities import SAME_SIZE, Equality
from analysis.frames import Frames
from analysis.series import SEED
from analysis.summary import show
from analysis.tables import Table
from analysis.tasks import answers, count, grid_of, groups, listed

HOW_ASKED = {"answers end by": "stop", "batch": "batch", "machine": "machines"}


def table(frames: Frames) -> Table:
    """What was equal over the paradigms that answered a task, and what was not."""
    rows = [[task, "equal" if row.equal else "NOT equal", row.factor, row.values] for task, row in equalities(frames)]
    return Table("What was equal", ["task", "verdict", "factor", "values"], rows)


def equalities(frames: Frames) -> list[tuple[str, Equality]]:
    """Of each task: size, training rows, how the rate was chosen, seeds, instances, how answers end, batch, machine."""
    found, rows = groups(frames), answers(frames)
    told = []
    for task, group in found.groupby("task", sort=False):
        sizes = dict(zip(group["series"], group["parameters"], strict=True))
        known = [size for size in sizes.values() if pd.notna(size)]
        spread = max(known) / min(known) - 1 if known else math.nan
        told.append((task, Equality("parameters", bool(known) and spread <= SAME_SIZE,
                                    f"{_range(known)}, {spread:.2%} apart (allowed: {SAME_SIZE:.0%})"
                                    if known else "not recorded")))  # fmt: skip
        what = "trained_rows" if group["trained_rows"].notna().all() else "trained_tokens"
        told.append((task, _same(f"{what.partition('_')[2]} seen in training", group, group[what].map(count))))
        told.append((task, _rates(group)))
        mine = rows[rows["task"] == task]
        for factor, column in (("trainings, by seed", SEED), ("instances", "request_id")):
            asked_by = mine.groupby(["series", "planted"])[column].agg(lambda values: tuple(sorted(set(values))))
            seen = pd.Series(
                [asked_by[key] for key in zip(group["series"], group["planted"], strict=True)], group.index
            )
            told.append((task, _same(factor, group, seen.map(_listed if column == SEED else _numbered(seen)))))
        told += [(task, _same(name, group, group[column].map(show)))
                 for name, column in HOW_ASKED.items()]  # fmt: skip
    return told


def _rates(group: pd.DataFrame) -> Equality:
    """Chosen per paradigm from one grid of several: else a bad rate looks like a bad paradigm."""
    grids, text = set(group["rates"]), _by_series(group, group["rate"].map(lambda rate: rate or "not recorded"))
    grid = grid_of(next(iter(grids))) if len(grids) == 1 else []
    if len(grids) > 1:
        return Equality("learning rates tried", False, _by_series(group, group["rates"].map(lambda it: it or "none")))
    if len(grid) < 2:
        return Equality("learning rate", False, f"{text}; not chosen: {'one rate' if grid else 'no rate'} was given")
    text += f"; chosen from {', '.join(f'{rate:g}' for rate in grid)}"
    if len(by := set(group["trial_seed"].dropna())) == 1:
        text += f", each tried in full by the training of seed {by.pop():g}"
    if len(grid) == 2:
        return Equality("learning rate chosen from", True, f"{text}: either is an edge, and a third may be better")
    edges = {f"{min(grid):g}", f"{max(grid):g}"}
    at_edge = list(dict.fromkeys(group.loc[group["rate"].isin(edges), "series"]))
    return Equality("learning rate chosen from", True, text + (f"; at its edge: {listed(at_edge)}" if at_edge else ""))


def _same(factor: str, group: pd.DataFrame, shown: pd.Series) -> Equality:
    distinct = list(dict.fromkeys(shown))
    return Equality(factor, len(distinct) == 1 and distinct[0] != "–",
                    (distinct[0] if distinct[0] != "–" else "not recorded") if len(distinct) == 1
                    else _by_series(group, shown))  # fmt: skip


def _by_series(group: pd.DataFrame, shown: pd.Series) -> str:
    """`0.001 (AR / Mamba-2); 0.004 (Diffusion)`."""
    whose: dict[str, list[str]] = {}
    for value, series in zip(shown, group["series"], strict=True):
        if series not in whose.setdefault(str(value), []):
            whose[str(value)].append(series)
    return next(iter(whose)) if len(whose) == 1 else "; ".join(f"{it} ({' / '.join(who)})" for it, who in whose.items())


def _numbered(sets: pd.Series):
    """Shows a set of instances by its size, and as another set where sizes agree and instances do not."""
    kinds = {instances: index for index, instances in enumerate(dict.fromkeys(sets))}
    return lambda it: f"{len(it):,}" + (f", set {'ABCDEFGH'[min(kinds[it], 7)]}" if len(kinds) > 1 else ", the same")


def _listed(values: tuple[object, ...]) -> str:
    return ", ".join(map(show, values))


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:,.0f}" if low == high else f"{low:,.0f} to {high:,.0f}"
