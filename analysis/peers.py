"""Our decoding against another engine on the very same weights and work: ratios paired within rounds."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from analysis import intervals, statistics
from analysis.findings import number, with_interval
from analysis.frames import WORK, Frames
from analysis.summary import per_request
from analysis.tables import Table

SAME = ("checkpoint", "machine_id", "sweep.name", "device.threads", "device.dtype", "execution", *WORK)
# What a side does not have is null there.
DECODING = ("decoder.temperature", "decoder.top_k", "decoder.top_p", "decoder.kv_dtype")
METRICS = ("e2e_s", "tpot_s", "ttft_s")


def against_peers(frames: Frames) -> Table:
    """A row for each pair of cells that differ in the engine alone; no rows where there is none."""
    heads = ["weights", "parameters", "execution", "prompt", "output", "ours, ms a token", "peer, ms a token",
             "peer / ours: E2E", "a token after the first", "first token",
             "our step / bare products", "coverage (rounds)"]  # fmt: skip
    rows = []
    for ours, theirs in pairs(frames):
        ratio = {metric: _ratio(frames, theirs, ours, metric) for metric in METRICS}
        step_s, products_s = (_median(frames, ours, name) for name in ("tpot_s", "products_s"))
        rows.append([
            ours["paradigm.label"], f"{ours['parameters']:,.0f}", ours["execution"],
            f"{ours['workload.prompt_len']:.0f}", f"{ours['workload.output_len']:.0f}",
            number(1e3 * step_s), number(1e3 * _median(frames, theirs, "tpot_s")),
            *(with_interval(ratio[metric]) for metric in METRICS),
            number(step_s / products_s), intervals.describe([(ratio["e2e_s"].count, ratio["e2e_s"].coverage)]) or "1",
        ])  # fmt: skip
    return Table("Against peers, on the same weights", heads, rows)


def pairs(frames: Frames) -> Iterator[tuple[pd.Series, pd.Series]]:
    """Cells of ours and of another engine, equal in weights, work, conditions and decoding; by size, then prompt."""
    if not {"engine", *SAME} <= set(frames.ok):
        return
    cells = frames.ok.drop_duplicates("cell").sort_values(["parameters", "paradigm.label", *WORK])
    decoding = [name for name in DECODING if name in cells]
    for _, group in cells.groupby([*SAME, *decoding, _without_cache(cells)], sort=False, dropna=False):
        for _, ours in group[group["engine"] == "native"].iterrows():
            for _, theirs in group[group["engine"] != "native"].iterrows():
                yield ours, theirs


def _without_cache(cells: pd.DataFrame) -> pd.Series:
    """Whether the whole text is read again at each step, which either side says in its own words."""
    said = cells.reindex(columns=["decoder.cache", "decoder.use_cache"])
    return said["decoder.cache"].eq("none") | said["decoder.use_cache"].eq(False)


def _ratio(frames: Frames, theirs: pd.Series, ours: pd.Series, metric: str) -> statistics.Estimate:
    timed = per_request(frames)
    of = {
        name: timed[timed["cell"] == cell["cell"]].groupby("round")[metric].median()
        for name, cell in (("theirs", theirs), ("ours", ours))
    }
    return statistics.paired_ratio(of["theirs"], of["ours"])


def _median(frames: Frames, cell: pd.Series, metric: str) -> float:
    table = frames.ok if metric in frames.ok else per_request(frames)
    if metric not in table:
        return float("nan")
    of_cell = table[table["cell"] == cell["cell"]]
    return float(statistics.median_interval(of_cell[metric], of_cell["round"]).value)
