"""The tables of a sweep as text: headline, every cell, what failed; one content for terminal, Markdown and HTML."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from analysis import findings, roofline, statistics
from analysis.findings import number, with_interval
from analysis.frames import SLOW, WORK, Frames
from analysis.statistics import Estimate
from analysis.summary import axes_varying, headline_cells, labels, reference_label, series_over, show, summarise

ENERGY = "J a token"
_MARKED = ("units_outlier", "units_contended", "units_extrapolated")


@dataclass(frozen=True)
class Table:
    """Column heads and rows of text; the first column names the row, the others are figures, intervals in brackets."""

    title: str
    heads: list[str]
    rows: list[list[str]]

    def without(self, head: str) -> Table:
        """Without the column whose head begins so."""
        kept = [index for index, name in enumerate(self.heads) if not name.startswith(head)]
        return Table(
            self.title, [self.heads[index] for index in kept], [[row[index] for index in kept] for row in self.rows]
        )

    def without_intervals(self) -> Table:
        return Table(
            self.title, self.heads, [[row[0], *(value.split(" [")[0] for value in row[1:])] for row in self.rows]
        )

    def markdown(self) -> str:
        lines = [self.heads, ["---", *["---:"] * (len(self.heads) - 1)], *self.rows]
        return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def size(value: float) -> str:
    """Bytes with a decimal prefix; a missing figure is a dash."""
    if pd.isna(value):
        return "–"
    for scale, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.0f} B"


def estimate(row: pd.Series, name: str, scale: float = 1.0) -> Estimate:
    """A summary's figure with its interval, scaled."""
    count = int(row["rounds"]) if pd.notna(row["rounds"]) else 0
    value, low, high = (float(row[key]) * scale for key in (name, f"{name}_low", f"{name}_high"))
    return Estimate(value, low, high, count)


def bound(row: pd.Series) -> str:
    """Bits per byte of held-out text; ≤ marks an upper bound."""
    if pd.isna(row["bits_per_byte"]):
        return "–"
    return ("≤ " if row["bits_per_byte_is_bound"] else "") + f"{row['bits_per_byte']:.3f}"


def headline(frames: Frames) -> Table:
    """A row a series at the largest common work; ratios to the reference are paired within rounds."""
    cells = findings.ratio_to_reference(frames) if len(frames.ok) else pd.DataFrame()
    if not len(cells):
        return Table("No unit succeeded", ["paradigm"], [])
    axis = cells["axis"].iloc[0]
    lines = dict(list(series_over(frames, axis).groupby("series"))) if axes_varying(frames) else {}
    slopes = f"slope over {axis.rpartition('.')[2].replace('_', ' ')}"
    heads = ["paradigm", "E2E, s", f"× {reference_label(frames)}", slopes, "ms a token", "TTFT, ms",
             "tokens / forward", "state", "peak", "held-out, bits/byte", "judge, bits/byte", "entropy, nats",
             "parameters", "n"]  # fmt: skip
    rows = []
    for _, row in cells.iterrows():
        slope = (
            statistics.loglog_slope(lines[row["series"]]["x"], lines[row["series"]]["e2e_s"])
            if row["series"] in lines
            else None
        )
        peak = (
            row["cuda_peak_allocated_bytes"] if pd.notna(row["cuda_peak_allocated_bytes"]) else row["peak_tensor_bytes"]
        )
        rows.append([
            row["series"] + (" †" if row["contended"] else "") + (" ‡" if row["extrapolated"] else ""),
            with_interval(estimate(row, "e2e_s")),
            with_interval(row["ratio"]), number(slope.value, 3) if slope else "–",
            number(1e3 * row["e2e_per_token_s"]), number(1e3 * row["ttft_s"]), number(row["tokens_per_forward"]),
            size(row["state_used_bytes"]), size(peak), bound(row), number(row["judge_bits_per_byte"]),
            number(row["token_entropy_nats"]), f"{row['parameters']:,.0f}" if pd.notna(row["parameters"]) else "–",
            f"{row['requests']:.0f} in {row['rounds']:.0f}",
        ])  # fmt: skip
    if axis not in axes_varying(frames):
        heads, rows = [head for head in heads if head != slopes], [row[:3] + row[4:] for row in rows]
    return Table(findings.where(cells), heads, rows)


def every_cell(frames: Frames) -> Table:
    """A row a cell, failed ones too; energy where a counter told it."""
    cells = summarise(frames)
    heads = ["paradigm", "output", "prompt", "batch", "E2E, s", "ms a token", "TTFT, ms", "TPOT, ms", "NFE",
             "positions", "state", "peak", ENERGY, "judge", "rounds", "requests", "p90 E2E, s", "units not ok",
             "outliers", "contended", "extrapolated"]  # fmt: skip
    rows = []
    for _, row in cells.iterrows():
        bad = ", ".join(
            f"{int(row[f'units_{status}'])} {status}"
            for status in ("oom", "failed", "skipped")
            if row[f"units_{status}"]
        )
        figures = pd.notna(row["e2e_s"])
        rows.append([
            row["label"], *(show(row[name]) for name in WORK),
            with_interval(estimate(row, "e2e_s")) if figures else "–",
            number(1e3 * row["e2e_per_token_s"]), number(1e3 * row["ttft_s"]), number(1e3 * row["tpot_s"]),
            show(row["nfe"]) if figures else "–", f"{row['positions_computed']:,.0f}" if figures else "–",
            size(row["state_used_bytes"]), size(row["peak_tensor_bytes"]), number(row["energy_j_per_token"]),
            number(row["judge_bits_per_byte"]),
            f"{row['rounds']:.0f}" if figures else "0", f"{row['requests']:.0f}", number(row["e2e_s_p90"]), bad or "–",
            *(f"{row[name]} of {row['units_ok']}" if row[name] else "–" for name in _MARKED),
        ])  # fmt: skip
    if not cells["energy_j_per_token"].notna().any():
        place = heads.index(ENERGY)
        heads, rows = [head for head in heads if head != ENERGY], [row[:place] + row[place + 1 :] for row in rows]
    return Table("Every cell", heads, rows)


def failures(frames: Frames) -> Table:
    """Units that did not succeed, equal errors of a cell together."""
    bad = frames.runs[frames.runs["status"] != "ok"]
    rows = []
    for (label, output, prompt, batch, status, error), group in bad.groupby(
        ["paradigm.label", *WORK, "status", "error"], dropna=False
    ):
        rounds = ", ".join(str(int(value)) for value in sorted(group["round"]))
        lines = error.strip().splitlines() if isinstance(error, str) else []
        work = [show(output), show(prompt), show(batch)]
        rows.append([str(label), *work, str(status), rounds, lines[-1] if lines else "no error recorded"])
    return Table(
        "Units that did not succeed", ["paradigm", "output", "prompt", "batch", "status", "rounds", "error"], rows
    )


def contended(frames: Frames) -> Table:
    """Cells with units that ran while the machine was busy: with what, and after how many attempts."""
    cells = summarise(frames)
    units = dict(list(frames.ok[frames.ok["contended"]].groupby("cell")))
    rows = [[row["label"], *(show(row[name]) for name in WORK), f"{row['units_contended']} of {row['units_ok']}",
             _contended_by(units[row["cell"]]), show(units[row["cell"]]["attempts"].max())]
            for _, row in cells[cells["contended"]].iterrows()]  # fmt: skip
    heads = ["paradigm", "output", "prompt", "batch", "units", "by", "attempts"]
    return Table("Contended cells", heads, rows)


def _contended_by(units: pd.DataFrame) -> str:
    """Reasons with their largest readings; units that `frames` marked for the probe beside them were slower."""
    worst: dict[str, float] = {}
    for text in units["contended_by"].dropna():
        for part in text.split(", "):
            reason, _, reading = part.rpartition(" ")
            worst[reason] = max(worst.get(reason, 0.0), float(reading))
    slower = float(units["slowdown"].max())
    if slower > SLOW:
        worst["slower"] = max(worst.get("slower", 0.0), slower)
    return ", ".join(f"{reason} {number(reading)}" for reason, reading in worst.items()) or "not recorded"


def extrapolated(frames: Frames) -> Table:
    """Cells with units that were not run whole, and how many forwards of how many were timed."""
    cells = summarise(frames)
    timed = frames.requests[frames.requests["extrapolated"]].groupby("key")["forwards_timed"].max()
    timed = timed.groupby(frames.ok.set_index("key")["cell"]).max()
    rows = [[row["label"], *(show(row[name]) for name in WORK), f"{row['units_extrapolated']} of {row['units_ok']}",
             f"{show(timed.get(row['cell']))} of {show(row['nfe'])}"]
            for _, row in cells[cells["extrapolated"]].iterrows()]  # fmt: skip
    return Table("Extrapolated cells", ["paradigm", "output", "prompt", "batch", "units", "forwards timed"], rows)


def results(frames: Frames) -> pd.DataFrame:
    """The tidy CSV: a row a cell, factors first, then counts, then figures with `_low` and `_high`."""
    cells = summarise(frames).merge(roofline.by_cell(frames), on="cell", how="left").drop(columns=["label", "cell"])
    names = [str(name) for name in cells]
    first = ["paradigm.label", "paradigm.name", "machine_id", "machine", *WORK]
    factors = sorted(name for name in names if "." in name and name not in first)
    counts = [name for name in names if name.startswith("units_")]
    counts += ["rounds", "requests", "generations", "contended", "extrapolated"]
    rest = [name for name in names if name not in {*first, *factors, *counts, "cell_key"}]
    varying = [name for name in factors if cells[name].astype(str).nunique() > 1]
    constant = [name for name in factors if name not in varying]
    return cells.reindex(columns=[*first, *varying, *counts, *rest, "cell_key", *constant])


def samples(frames: Frames, *, characters: int = 400) -> list[tuple[str, str]]:
    """One generated text a headline series, its beginning; the first request of the first round, not a chosen one."""
    cells = headline_cells(frames) if len(frames.ok) else pd.DataFrame()
    texts = frames.samples
    if not len(cells) or "text" not in texts:
        return []
    texts = texts.merge(frames.runs[["key", "cell", "round"]], on="key").sort_values(["round", "repeat", "row"])
    first = texts.drop_duplicates("cell").set_index("cell")["text"]
    return [
        (row["series"], str(first[row["cell"]])[:characters]) for _, row in cells.iterrows() if row["cell"] in first
    ]


def contents(frames: Frames) -> str:
    """One line: how many cells, units, requests of how many paradigms."""
    ok = len(frames.ok)
    return (
        f"{_plural(len(labels(frames)), 'paradigm')}, {_plural(len(frames.cells), 'cell')}, "
        f"{_plural(len(frames.runs), 'unit')} ({ok:,} ok), {_plural(len(frames.requests), 'timed request')}"
    )


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"
