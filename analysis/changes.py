"""The cells of two sweeps, matched, and what became of each figure: ratio, interval, verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from analysis import intervals, moderated
from analysis.frames import Frames
from analysis.summary import OUTPUT_LEN, per_request, show, summarise, tell_apart

MARGIN = 0.02  # a change smaller than this is none
LEVEL = 0.05  # of all comparisons together
TIMES = {"e2e_s": "E2E, s", "ttft_s": "TTFT, s", "tpot_s": "TPOT, s"}
BYTES = {"peak": "peak, bytes", "state_used_bytes": "state, bytes"}
HELD_OUT, JUDGE = "held-out, bits/byte", "judge, bits/byte"
VERDICTS = ("slower", "faster", "bigger", "smaller", "worse", "better", "failed", "same", "undecided")
# What a sweep may set otherwise without measuring another cell.
FREE = ("measure.", "sweep.")
STILL = ("measure.timeline",)
FACTS = ("code", "machine", "machine_id", "cpu", "gpu", "device.threads", "torch_version", "transformers_version",
         "python_version", "kernels", "execution", "keeps_freed_memory", "corpus_sha256")  # fmt: skip


@dataclass(frozen=True, eq=False)
class Changes:
    """A comparison of two sweeps.

    Attributes:
        title: what was compared.
        differences: what else differs than the figures, a line each.
        found: a row a comparison: `name` of the cell, `figure`, `unit`, `old`, `new`, `ratio`, `low`, `high`, `p`,
            `adjusted`, `counts`, `verdict`.
        only_old, only_new: names of cells that one sweep alone has.
    """

    title: str
    differences: list[str]
    found: pd.DataFrame
    only_old: list[str]
    only_new: list[str]


def compare(old: Frames, new: Frames, *, margin: float = MARGIN, relative: bool = False) -> Changes:
    """Compare what both sweeps measured.

    Args:
        margin: relative change below which a cell is the same.
        relative: divide times by their median ratio over all cells.

    Raises:
        ValueError: no cell is in both, a margin outside 0 to 1, or `relative` with too few cells.
    """
    if not 0 < margin < 1:
        raise ValueError(f"margin={margin} is no share; it must lie between 0 and 1, such as 0.02")
    cells, lone, ignored = match(old, new)
    if relative and len(cells) < moderated.ENOUGH_CELLS:
        raise ValueError(
            f"relative needs {moderated.ENOUGH_CELLS} cells, to tell one that changed from all of them; "
            f"{len(cells)} are in both. Leave it out"
        )
    sides = (old, new)
    rows = [*_failed(cells, sides)]
    for metric in TIMES:
        rows += _times(cells, sides, metric, relative)
    for metric in BYTES:
        rows += _bytes(cells, sides, metric)
    rows += _held_out(cells, sides) + _judged(cells, sides)
    found = pd.DataFrame(rows)
    found["adjusted"] = moderated.holm(found["p"])
    found["verdict"] = [_verdict(row, margin) for row in found.to_dict("records")]
    names = [" + ".join(map(str, side.folders)) for side in sides]
    title = f"{names[0]} → {names[1]}: {len(cells)} cells in both{', times relative to their median' * relative}"
    return Changes(title, [*_differences(sides, cells), *ignored], found, *lone)


# ------------------------------------------------------------ which cells


def match(old: Frames, new: Frames) -> tuple[pd.DataFrame, tuple[list[str], list[str]], list[str]]:
    """Cells of equal factors.

    Returns:
        `name`, `old` and `new` (names of the cell in each) of the matched; names of those that only one has; a line
        for factors that only one sweep knows.

    Raises:
        ValueError: there is none, or several cells of a sweep are equal in all that both know.
    """
    tables = [side.cells.assign(label=side.cells["paradigm.label"]) for side in (old, new)]
    factors = [{str(name) for name in table if "." in str(name)} for table in tables]
    shared = sorted(name for name in factors[0] & factors[1] if name in STILL or not name.startswith(FREE))
    shared = [name for name in shared if name != "paradigm.label"]
    lacking = [f"{which} alone knows {', '.join(sorted(names))}"
               for which, names in (("the old", factors[0] - factors[1]), ("the new", factors[1] - factors[0]))
               if names]  # fmt: skip
    freed = sorted(name for name in factors[0] & factors[1] if name.startswith(FREE) and name not in STILL)
    for extra in ([], ["machine_id"], ["machine_id", *freed]):
        keys = [
            [tuple(show(row[name]) for name in [*shared, *extra]) for _, row in table.iterrows()] for table in tables
        ]
        if all(len(set(key)) == len(key) for key in keys):
            break
    else:
        raise ValueError(
            "a sweep holds several cells that are equal in every factor both sweeps know; compare folders of one "
            "machine and one version each"
        )
    names = [_names(table) for table in tables]
    place = [dict(zip(key, range(len(key)), strict=True)) for key in keys]
    both = [key for key in keys[0] if key in place[1]]
    if not both:
        raise ValueError(
            f"no cell of {len(keys[0])} and {len(keys[1])} is in both folders: {_nearest(tables, shared)}. "
            "Compare two sweeps of the same cells"
        )
    cells = pd.DataFrame({
        "name": [names[1].iloc[place[1][key]] for key in both],
        "old": [tables[0]["cell"].iloc[place[0][key]] for key in both],
        "new": [tables[1]["cell"].iloc[place[1][key]] for key in both],
    })  # fmt: skip
    lone = tuple([name for name, key in zip(names[i], keys[i], strict=True) if key not in place[1 - i]] for i in (0, 1))
    return cells, (lone[0], lone[1]), lacking


def _names(cells: pd.DataFrame) -> pd.Series:
    """Label, output length, and the fewest other factors that tell the cells of a label apart."""
    parts = [tell_apart(str(label), group, OUTPUT_LEN) for label, group in cells.groupby("label")]
    return pd.concat(parts).reindex(cells.index) + " · output " + cells[OUTPUT_LEN].map(show)


def _nearest(tables: Sequence[pd.DataFrame], shared: Sequence[str]) -> str:
    apart = [name for name in shared if not set(tables[0][name].map(show)) & set(tables[1][name].map(show))]
    return "no value of " + ", ".join(apart) + " is the same" if apart else "their combinations differ"


def _differences(sides: tuple[Frames, Frames], cells: pd.DataFrame) -> list[str]:
    """What else is not the same, and how the two machines or days compare by work that no code of ours changes."""
    ok = [side.ok[side.ok["cell"].isin(cells[which])] for side, which in zip(sides, ("old", "new"), strict=True)]
    free = sorted({str(name) for side in ok for name in side if str(name).startswith(FREE)} - {"sweep.name"})
    lines = []
    for name in (*FACTS, *free):
        seen = [
            ", ".join(sorted({show(value) for value in side[name].dropna()})) if name in side else "" for side in ok
        ]
        if seen[0] != seen[1]:
            lines.append(f"{name}: {seen[0] or 'not recorded'} → {seen[1] or 'not recorded'}")
    for name in ("contended", "outlier", "extrapolated"):
        counts = [int(side[name].sum()) for side in ok]
        if any(counts):
            lines.append(f"units {name}: {counts[0]} of {len(ok[0])} → {counts[1]} of {len(ok[1])}")
    probes_s = [side[["probe_before_s", "probe_after_s"]].stack().median() for side in ok]
    if not any(math.isnan(value) for value in probes_s):
        lines.append(f"fixed work beside the units, new / old: {probes_s[1] / probes_s[0]:.3f}")
    return lines or ["nothing else differs that is recorded"]


# ------------------------------------------------------------ figures


def _row(cell: dict[str, Any], figure: str, unit: str, old: float, new: float, **rest: Any) -> dict[str, Any]:
    nothing = {
        "ratio": new / old if old else math.nan,
        "low": math.nan,
        "high": math.nan,
        "p": math.nan,
        "counts": "1, 1",
    }
    return {"name": cell["name"], "figure": figure, "unit": unit, "old": old, "new": new, **nothing, **rest}


def _failed(cells: pd.DataFrame, sides: tuple[Frames, Frames]) -> list[dict[str, Any]]:
    """Cells that had a unit that succeeded, and have none any more."""
    done = [set(side.ok["cell"]) for side in sides]
    lost = [cell for cell in cells.to_dict("records") if cell["old"] in done[0] and cell["new"] not in done[1]]
    return [_row(cell, "any unit succeeded", "failed", math.nan, math.nan) for cell in lost]


def _times(cells: pd.DataFrame, sides: tuple[Frames, Frames], metric: str, relative: bool) -> list[dict[str, Any]]:
    logs = []
    for side, which in zip(sides, ("old", "new"), strict=True):
        timed = per_request(side)
        timed = timed.assign(instance=timed["sweep.name"].fillna("").astype(str) + "/" + timed["round"].astype(str))
        by_round = timed[timed[metric] > 0].groupby(["cell", "instance"])[metric].median().unstack()
        logs.append(np.log(by_round.reindex(cells[which]).astype(float)).set_axis(cells.index))
    known = logs[0].notna().any(axis=1) & logs[1].notna().any(axis=1)
    logs = [side[known] for side in logs]
    if not known.any():
        return []
    tested = moderated.changes(logs[0], logs[1], relative=relative)
    rows = []
    for index, cell in cells[known].iterrows():
        old, new = (float(np.exp(side.loc[index].mean())) for side in logs)
        test = tested.loc[index]
        counts = f"{test['rounds_old']:.0f}, {test['rounds_new']:.0f}"
        rest = {name: float(test[name]) for name in ("ratio", "low", "high", "p")}
        rows.append(_row(cell.to_dict(), TIMES[metric], "time", old, new, counts=counts, **rest))
    return rows


def _summaries(cells: pd.DataFrame, sides: tuple[Frames, Frames]) -> list[tuple[dict[str, Any], pd.Series, pd.Series]]:
    summary = [summarise(side).set_index("cell") for side in sides]
    return [(cell, summary[0].loc[cell["old"]], summary[1].loc[cell["new"]]) for cell in cells.to_dict("records")]


def _bytes(cells: pd.DataFrame, sides: tuple[Frames, Frames], metric: str) -> list[dict[str, Any]]:
    """Memory is the same in every run of the same work; peaks are the device's where both have it."""
    rows = []
    for cell, old, new in _summaries(cells, sides):
        on_gpu = pd.notna(old["cuda_peak_allocated_bytes"]) and pd.notna(new["cuda_peak_allocated_bytes"])
        name = {True: "cuda_peak_allocated_bytes", False: "peak_tensor_bytes"}[on_gpu] if metric == "peak" else metric
        if pd.notna(old[name]) and pd.notna(new[name]):
            rows.append(_row(cell, BYTES[metric], "bytes", float(old[name]), float(new[name])))
    return rows


def _held_out(cells: pd.DataFrame, sides: tuple[Frames, Frames]) -> list[dict[str, Any]]:
    """Held-out text, once a pair of models; standard errors over windows, taken as if the windows were others."""
    rows, seen = [], set()
    for cell, old, new in _summaries(cells, sides):
        values = [(side["bits_per_byte"], side["bits_per_byte_se"]) for side in (old, new)]
        if any(pd.isna(value) for value, _ in values) or (old["label"], *values) in seen:
            continue
        seen.add((old["label"], *values))
        (first, first_se), (second, second_se) = values
        error = math.hypot(first_se, second_se)
        z = abs(second - first) / error if error > 0 else math.nan
        reach = 1.96 * math.hypot(first_se / first, second_se / second) if error > 0 else math.nan
        ratio = second / first
        rest = {"low": ratio * math.exp(-reach), "high": ratio * math.exp(reach), "p": 2 * float(stats.norm.sf(z))}
        rows.append(_row(cell, HELD_OUT, "quality", first, second, **(rest if first != second else {})))
    return rows


def _judged(cells: pd.DataFrame, sides: tuple[Frames, Frames]) -> list[dict[str, Any]]:
    """Texts of the same requests, pairwise."""
    name, keys = "judge_bits_per_byte", ["request_id", "seed"]
    texts = []
    for side in sides:
        judged = side.timed[side.timed[name] > 0].drop_duplicates(["cell", *keys])
        texts.append(dict(list(judged.set_index(keys).groupby("cell")[name])))
    rows = []
    for cell in cells.to_dict("records"):
        if cell["old"] in texts[0] and cell["new"] in texts[1]:
            pair = pd.concat([texts[0][cell["old"]], texts[1][cell["new"]]], axis=1, keys=["old", "new"]).dropna()
            if len(pair):
                logs = np.log(pair["new"] / pair["old"]).to_numpy()
                ratio = intervals.paired_ratio(logs)
                rest = {"ratio": ratio.value, "low": ratio.low, "high": ratio.high, "counts": f"{len(pair)} texts"}
                if np.any(logs):
                    rest["p"] = intervals.signed_rank_p(logs)
                rows.append(_row(cell, JUDGE, "quality", pair["old"].median(), pair["new"].median(), **rest))
    return rows


def _verdict(row: dict[str, Any], margin: float) -> str:
    """Beyond noise when the adjusted p says so and the change counts; the same when its interval has room for none."""
    if row["unit"] == "failed":
        return "failed"
    less, more = {"time": ("faster", "slower"), "bytes": ("smaller", "bigger"), "quality": ("better", "worse")}[
        row["unit"]
    ]
    if row["old"] == row["new"] and math.isnan(row["p"]):
        return "same"
    if row["unit"] == "bytes":
        change = row["new"] / row["old"] - 1 if row["old"] else math.inf
        counts = row["figure"] == BYTES["state_used_bytes"] or abs(change) > margin
        return (more if change > 0 else less) if counts else "same"
    if row["adjusted"] < LEVEL and not 1 / (1 + margin) <= row["ratio"] <= 1 + margin:
        return more if row["ratio"] > 1 else less
    return "same" if row["low"] >= 1 / (1 + margin) and row["high"] <= 1 + margin else "undecided"
