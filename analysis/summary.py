"""One row a cell: medians with their intervals and counts; and cells named as the series of a figure.

Times are medians over rounds, with intervals over rounds (`analysis.intervals`). Quality figures are medians over
distinct generations: a request that was run again, with the same seed, adds no new text. Memory is measured once, in
the first round, and has no interval. Extrapolated figures keep their mark: `extrapolated` where a unit of the cell is.
"""

from __future__ import annotations

import math
from functools import lru_cache

import pandas as pd

from analysis import statistics
from analysis.frames import BYTES, WORK, Frames

OUTPUT_LEN, PROMPT_LEN, BATCH_SIZE = WORK
TIMED = ("ttft_s", "tpot_s", "e2e_s", "e2e_per_token_s", "itl_median_s", "itl_max_s", "step_time_s", "prefill_s",
         "throughput_tokens_per_s", "nfe", "tokens_per_forward", "positions_computed", "committed_tokens",
         "max_chunk_tokens")  # fmt: skip
PER_UNIT = ("energy_j_per_token",)  # of all its repeats together
GENERATED = ("judge_bits_per_byte", "judge_given_bits_per_byte", "token_entropy_nats", "distinct_1", "distinct_2")
ONCE = (*BYTES, "parameters", "bits_per_byte", "bits_per_byte_se", "checkpoint_tokens", "cache_kl_nats",
        "cache_other_argmax_share", "cache_largest_logit_difference")  # fmt: skip
PERCENTILES = (90, 99)
_COLUMNS = ["cell", "rounds", "generations", *(f"e2e_s_p{percent}" for percent in PERCENTILES), *ONCE,
            *(f"{name}{end}" for name in (*TIMED, *PER_UNIT, *GENERATED) for end in ("", "_low", "_high")),
            "bits_per_byte_low", "bits_per_byte_high", "bits_per_byte_is_bound"]  # fmt: skip


@lru_cache(maxsize=8)
def per_request(frames: Frames) -> pd.DataFrame:
    """`Frames.timed` with what follows from one request: seconds a token, tokens a forward, throughput of its batch."""
    timed = frames.timed.copy()
    timed["e2e_per_token_s"] = timed["e2e_s"] / timed["committed_tokens"]
    timed["tokens_per_forward"] = timed["committed_tokens"] / timed["nfe"].where(timed["nfe"] > 0)
    batch = timed.groupby(["key", "repeat"])
    timed["throughput_tokens_per_s"] = batch["committed_tokens"].transform("sum") / batch["e2e_s"].transform("max")
    return timed


@lru_cache(maxsize=8)
def summarise(frames: Frames) -> pd.DataFrame:
    """`Frames.cells` with every figure as `name`, `name_low`, `name_high`; only cells with an ok unit have figures."""
    timed = per_request(frames)
    units = frames.ok.groupby("cell")
    rows = []
    for cell, requests in timed.groupby("cell"):
        unit = units.get_group(cell)
        row = {"cell": cell, "rounds": requests["round"].nunique()}
        for name in TIMED:
            row |= _named(name, statistics.median_interval(requests[name], requests["round"]))
        for name in PER_UNIT:
            row |= _named(name, statistics.median_interval(unit[name], unit["round"]))
        texts = requests.drop_duplicates(["request_id", "seed"])
        row["generations"] = len(texts)
        for name in GENERATED:
            row |= _named(name, statistics.median_interval(texts[name]))
        for percent in PERCENTILES:
            row[f"e2e_s_p{percent}"] = statistics.percentile(requests["e2e_s"], percent)[0]
        for name in ONCE:
            row[name] = unit[name].dropna().median()
        half = 1.96 * row["bits_per_byte_se"]
        row["bits_per_byte_low"], row["bits_per_byte_high"] = row["bits_per_byte"] - half, row["bits_per_byte"] + half
        row["bits_per_byte_is_bound"] = bool(unit["bits_per_byte_is_bound"].any())
        rows.append(row)
    summary = pd.DataFrame(rows) if rows else pd.DataFrame(columns=_COLUMNS, dtype=float).astype({"cell": object})
    cells = frames.cells.merge(summary, on="cell", how="left").copy()  # in one piece: columns are added below
    cells["label"] = cells["paradigm.label"]
    cells["contended"] = cells["units_contended"] > 0
    cells["extrapolated"] = cells["units_extrapolated"] > 0
    cells["bits_per_byte_is_bound"] = cells["bits_per_byte_is_bound"].eq(True)
    place = {label: index for index, label in enumerate(labels(frames))}
    cells["_place"] = cells["label"].map(place)
    return cells.sort_values(["_place", "machine_id", *WORK]).drop(columns="_place").reset_index(drop=True)


def _named(name: str, estimate: statistics.Estimate) -> dict[str, float]:
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


@lru_cache(maxsize=8)
def labels(frames: Frames) -> list[str]:
    """Labels of the paradigms in their one order, which fixes colours, legends and tables."""
    pairs = (
        frames.runs[["paradigm.name", "paradigm.label"]]
        .fillna("")
        .drop_duplicates()
        .sort_values(["paradigm.name", "paradigm.label"])
    )
    return list(dict.fromkeys(pairs["paradigm.label"]))


def reference_label(frames: Frames) -> str:
    """The paradigm that the others are compared with: `ar` where it ran, else the first."""
    plain = frames.ok[frames.ok["paradigm.name"] == "ar"]["paradigm.label"]
    return (
        str(plain.iloc[0])
        if len(plain)
        else next(label for label in labels(frames) if label in set(frames.ok["paradigm.label"]))
    )


@lru_cache(maxsize=16)
def series_over(frames: Frames, axis: str) -> pd.DataFrame:
    """Rows of `summarise` that vary along `axis` with all other work equal, with the `series` they belong to.

    A series is a paradigm; where one label covers cells that differ in more than the axis, the factors that tell them
    apart are added to its name, so that no point mixes two settings. Empty when nothing varies along the axis.
    """
    cells = summarise(frames)
    cells = cells[cells["e2e_s"].notna()].copy()
    if "workload.prompts" in cells:  # lengths follow from a task: where they differ, so does what is asked
        cells = cells[cells["workload.prompts"] != "task"]
    others = ["label", "machine_id", *(name for name in WORK if name != axis)]
    spread = cells.groupby(others, dropna=False)[axis].transform("nunique")
    cells = cells[spread > 1]
    cells = _named_series(cells, axis)
    lone = cells.groupby(["series", "machine_id"])["x"].transform("nunique") < 2
    return _named_series(cells[~lone], axis).sort_values("x", kind="stable")


def _named_series(cells: pd.DataFrame, axis: str) -> pd.DataFrame:
    names = [tell_apart(str(label), group, axis) for label, group in cells.groupby("label")]
    return cells.assign(series=pd.concat(names) if names else None, x=cells[axis])


def tell_apart(label: str, group: pd.DataFrame, axis: str) -> pd.Series:
    """Series names: the label, and the fewest factors that leave one cell a point."""
    factors = [
        str(name)
        for name in group
        if "." in str(name) and name not in (axis, *WORK, "paradigm.name", "paradigm.label", "sweep.name")
    ]
    candidates = [name for name in WORK if name != axis] + ["machine_id", *factors, "sweep.name"]
    chosen: list[str] = []
    points = group[axis].nunique()
    for name in candidates:
        split = group.groupby([axis, *chosen, name], dropna=False).ngroups
        if split > points:
            chosen.append(name)
            points = split
        if points == len(group):
            break
    return group.apply(
        lambda row: " · ".join([label, *(f"{name.split('.')[-1]} {show(row[name])}" for name in chosen)]), axis=1
    )


def axes_varying(frames: Frames) -> list[str]:
    """Which of output length, prompt length and batch size some paradigm was measured at more than one value of."""
    return [axis for axis in WORK if len(series_over(frames, axis))]


def show(value: object) -> str:
    """A factor's value as text: 16.0 as 16, a missing one as none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "none"
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() else f"{value:g}"
    return str(value)


@lru_cache(maxsize=8)
def headline_cells(frames: Frames) -> pd.DataFrame:
    """The cell of each series at the largest value that all series share of the first varying axis.

    With nothing varying it is every cell. `x` holds the value, `axis` its factor.
    """
    axis = (axes_varying(frames) or [OUTPUT_LEN])[0]
    rows = series_over(frames, axis)
    if not len(rows):
        rows = summarise(frames)
        rows = _named_series(rows[rows["e2e_s"].notna()], axis)
    else:
        shared = set.intersection(*(set(group["x"]) for _, group in rows.groupby("series")))
        largest = max(shared) if shared else None
        rows = rows[rows["x"] == (rows.groupby("series")["x"].transform("max") if largest is None else largest)]
    return rows.assign(axis=axis).sort_index()
