"""One sentence a figure, computed from the data: with the interval and the count behind it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import pandas as pd

from analysis import intervals, statistics
from analysis.frames import Frames
from analysis.statistics import Estimate
from analysis.summary import (
    BATCH_SIZE,
    OUTPUT_LEN,
    PROMPT_LEN,
    headline_cells,
    per_request,
    reference_label,
    series_over,
)

NAMES = {OUTPUT_LEN: "output tokens", PROMPT_LEN: "prompt tokens", BATCH_SIZE: "requests a batch"}


def number(value: float, digits: int = 3) -> str:
    """Three significant digits, without an exponent where people can read it."""
    if pd.isna(value):
        return "–"
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        decimals = max(0, digits - 1 - (math.floor(math.log10(abs(value))) if value else 0))
        return f"{value:,.{decimals}f}"
    return f"{value:.{digits}g}"


def with_interval(estimate: Estimate, digits: int = 3) -> str:
    text = number(estimate.value, digits)
    return (
        text
        if math.isnan(estimate.low)
        else f"{text} [{number(estimate.low, digits)}, {number(estimate.high, digits)}]"
    )


def slope_text(slope: Estimate) -> str:
    if math.isnan(slope.value):
        return "no slope: one point"
    if math.isnan(slope.low):
        return f"slope {slope.value:.2f} (two points)"
    return f"slope {slope.value:.2f} ± {max(slope.value - slope.low, 0.001):.2g}"


def named(row: dict[str, Any]) -> str:
    """A series at its headline cell, and whether that was run whole."""
    return f"{row['series']}{' (extrapolated)' if row['extrapolated'] else ''}"


def where(cells: pd.DataFrame) -> str:
    """At which work the headline cells stand: "at 512 output tokens"."""
    if not len(cells):
        return ""
    values = sorted({int(value) for value in cells["x"]})
    return f"at {' / '.join(f'{value:,}' for value in values)} {NAMES[cells['axis'].iloc[0]]}"


def ratio_to_reference(frames: Frames, metric: str = "e2e_s") -> pd.DataFrame:
    """Headline cells with `ratio`: metric over the reference's, paired within the rounds of one sweep and machine."""
    cells = headline_cells(frames)
    by_round = per_request(frames).groupby(["cell", "sweep.name", "round"], dropna=False)[metric].median()
    reference = cells[cells["label"] == reference_label(frames)].drop_duplicates(["machine_id", "x"])
    reference_of = reference.set_index(["machine_id", "x"])["cell"].to_dict()
    ratios = []
    for row in cells.to_dict("records"):
        other = reference_of.get((row["machine_id"], row["x"]))
        pair = (by_round.loc[row["cell"]], by_round.loc[other]) if other else None
        ratios.append(statistics.paired_ratio(*pair) if pair else statistics.NOTHING)
    return cells.assign(ratio=ratios)


def intervals_note(frames: Frames) -> str:
    """What the brackets of the headline table promise."""
    cells = ratio_to_reference(frames) if len(frames.ok) else pd.DataFrame()
    if not len(cells):
        return "no intervals"
    counts = set(cells["rounds"].astype(int))
    medians = intervals.describe((count, intervals.median_level(count)[1]) for count in counts)
    ratios = intervals.describe((ratio.count, ratio.coverage) for ratio in cells["ratio"])
    parts = [f"the median over rounds with {medians}"] if medians else []
    parts += [f"the ratio within rounds with {ratios}"] if ratios else []
    return f"[ ]: covers {', '.join(parts)}" if parts else "one round: no intervals"


def _extremes(rows: pd.DataFrame, metric: str) -> tuple[dict[Any, Any], dict[Any, Any]] | None:
    """The rows with the least and the most of a metric; None where nobody has it."""
    known = rows[rows[metric].notna()].sort_values(metric, kind="stable").to_dict("records")
    return (known[0], known[-1]) if known else None


def latency(frames: Frames) -> str:
    cells = ratio_to_reference(frames)
    reference = reference_label(frames)
    rows = cells.sort_values("e2e_s").to_dict("records")
    text = f"{capital(where(cells))} {named(rows[0])} is fastest with {number(rows[0]['e2e_s'])} s"
    others = [row for row in rows if row["label"] != reference and row["ratio"].count]
    if others:
        slowest = max(others, key=lambda row: row["ratio"].value)
        ratio = slowest["ratio"]
        text += (
            f"; {named(slowest)} takes {with_interval(ratio)} times as long as {reference}"
            f" (paired within rounds: {intervals.describe([(ratio.count, ratio.coverage)]) or 'one'})"
        )
    return text + "."


def slopes(frames: Frames) -> str:
    rows = series_over(frames, OUTPUT_LEN)
    found = {
        str(name): statistics.loglog_slope(line["x"], line["e2e_s"])
        for name, line in rows.groupby("series", sort=False)
    }
    low, high = min(found, key=lambda name: found[name].value), max(found, key=lambda name: found[name].value)
    text = f"Latency grows with length as N^slope: {high} has {slope_text(found[high])}"
    text += f", {low} {slope_text(found[low])}" if low != high else ""
    return text + ("; lines with extrapolated points among them." if rows["extrapolated"].any() else ".")


def seconds_a_token(frames: Frames) -> str:
    rows = series_over(frames, OUTPUT_LEN).sort_values("x")
    change = {
        name: line["e2e_per_token_s"].iloc[-1] / line["e2e_per_token_s"].iloc[0]
        for name, line in rows.groupby("series")
    }
    least, most = min(change, key=change.__getitem__), max(change, key=change.__getitem__)
    second = f" and {number(change[most])} for {most}" if most != least else ""
    shortest, longest = int(rows["x"].min()), int(rows["x"].max())
    return (
        f"From {shortest:,} to {longest:,} tokens the time of a token changes by a factor of {number(change[least])} "
        f"for {least}{second}."
    )


def first_token(frames: Frames) -> str:
    cells = headline_cells(frames)
    found = _extremes(cells, "ttft_s")
    if found is None:
        return "No first token was timed."
    whole = cells.loc[cells["ttft_s"] >= 0.999 * cells["e2e_s"], "series"].tolist()
    wait_ms = number(1e3 * found[0]["ttft_s"])
    text = f"{capital(where(cells))} {found[0]['series']} shows its first token after {wait_ms} ms"
    return text + (f"; only with the last one: {_list(whole)}." if whole else ".")


def tokens_per_forward(frames: Frames) -> str:
    cells = headline_cells(frames)
    found = _extremes(cells, "tokens_per_forward")
    if found is None:
        return "No forwards were counted."
    one = cells.loc[cells["tokens_per_forward"] == 1, "series"].tolist()
    most = found[1]
    text = f"{capital(where(cells))} {most['series']} commits {number(most['tokens_per_forward'])} tokens a forward"
    return text + (f"; exactly one: {_list(one)}." if one else ".")


def positions(frames: Frames) -> str:
    rows = series_over(frames, OUTPUT_LEN).sort_values("x")
    growth = {
        name: line["positions_computed"].iloc[-1] / line["positions_computed"].iloc[0]
        for name, line in rows.groupby("series")
    }
    growth = {name: times for name, times in growth.items() if not math.isnan(times)}
    cells = headline_cells(frames)
    found = _extremes(cells, "positions_computed")
    if not growth or found is None:
        return "No positions were recorded."
    least, most = found
    steepest = max(growth, key=growth.__getitem__)
    return (
        f"{capital(where(cells))} {most['series']} computes {most['positions_computed']:,.0f} positions and "
        f"{least['series']} {least['positions_computed']:,.0f}; from the shortest to the longest output {steepest} "
        f"grows most, {number(growth[steepest])} times."
    )


def memory(frames: Frames) -> str:
    rows = series_over(frames, OUTPUT_LEN)
    state = rows[rows["state_used_bytes"] > 0].groupby("series")["state_used_bytes"]
    constant = [str(name) for name, values in state if values.nunique() == 1]
    growing = [f"{name} {number(values.max() / values.min())} times" for name, values in state if values.nunique() > 1]
    none = [str(name) for name, line in rows.groupby("series", sort=False) if (line["state_used_bytes"] == 0).all()]
    parts = [f"constant state: {_list(constant)}"] if constant else []
    parts += [f"from the shortest to the longest output the state grows: {_list(growing)}"] if growing else []
    parts += [f"no state between steps: {_list(none)}"] if none else []
    return capital("; ".join(parts) or "no state was recorded") + "."


def context(frames: Frames) -> str:
    rows = series_over(frames, PROMPT_LEN).sort_values("x")
    growth = _growth(rows, {"first token": "ttft_s", "a step": "step_time_s"})
    return f"From {int(rows['x'].min()):,} to {int(rows['x'].max()):,} prompt tokens, {growth}."


def batch(frames: Frames) -> str:
    rows = series_over(frames, BATCH_SIZE).sort_values("x")
    growth = _growth(rows, {"throughput": "throughput_tokens_per_s", "latency of a request": "e2e_s"})
    return f"From batch {int(rows['x'].min()):,} to {int(rows['x'].max()):,}, {growth}."


def _growth(rows: pd.DataFrame, quantities: dict[str, str]) -> str:
    """By what the quantities (words -> column) of each series grow from its first row to its last."""
    parts = []
    for name, line in rows.groupby("series"):
        first, last = line.iloc[0], line.iloc[-1]
        ratios = (f"{words} × {number(last[column] / first[column])}" for words, column in quantities.items())
        parts.append(f"{name}: {', '.join(ratios)}")
    return "; ".join(parts)


def quality(frames: Frames) -> str:
    cells = headline_cells(frames)
    found = _extremes(cells, "judge_bits_per_byte")
    if found is None:
        return "No generated text was judged."
    text = ", ".join(
        f"{row['series']} {number(row['judge_bits_per_byte'])} at {number(1e3 * row['e2e_per_token_s'])} ms a token"
        for row in (found if found[0] is not found[1] else found[:1])
    )
    few = int(cells.loc[cells["judge_bits_per_byte"].notna(), "generations"].min())
    text = f"{capital(where(cells))} the judge gives, in bits per byte, {text}"
    return f"{text} (at least {few} distinct generation{'s' * (few > 1)} a cell)."


@dataclass(frozen=True)
class Curve:
    """Validation curve of one checkpoint: what to call it, whose colour it takes, whether it is a bound."""

    name: str
    label: str
    is_bound: bool
    rows: pd.DataFrame


def curves(frames: Frames) -> list[Curve]:
    """A curve a checkpoint, in the order of its first paradigm; several decoders of one checkpoint share it."""
    found = []
    rows = frames.training[frames.training["val_bits_per_byte"].notna()]
    order = headline_cells(frames)["label"].tolist()
    for checkpoint, curve in rows.groupby("checkpoint"):
        users = frames.ok[frames.ok["checkpoint"] == checkpoint]
        shared = sorted(
            set(users["paradigm.label"]), key=lambda label: order.index(label) if label in order else len(order)
        )
        trained = curve["paradigm"].iloc[0]
        name = shared[0] if len(shared) == 1 else _common(shared) or str(trained)
        bound = users["bits_per_byte_is_bound"].any() if "bits_per_byte_is_bound" in users else False
        if "is_bound" in curve:  # told where the model was not scored
            bound = bound or curve["is_bound"].eq(True).any()
        found.append(Curve(name, shared[0], bool(bound), curve))
    return sorted(found, key=lambda curve: order.index(curve.label) if curve.label in order else len(order))


def loss(frames: Frames) -> str:
    parts = []
    for curve in curves(frames):
        best = curve.rows.sort_values("val_bits_per_byte").to_dict("records")[0]
        bound = " (upper bound)" if curve.is_bound else ""
        parts.append(f"{curve.name} {best['val_bits_per_byte']:.2f}{bound} after {best['tokens']:,.0f} tokens")
    return f"Best validation bits per byte: {'; '.join(parts)}."


def _list(names: list[str]) -> str:
    unique = list(dict.fromkeys(names))
    return ("; " if any("," in name for name in unique) else ", ").join(unique)


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _common(names: list[str]) -> str:
    """What names begin with alike, in whole words: "AR, cached" and "AR, naive" give "AR"."""
    shared = takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False))
    prefix = "".join(letters[0] for letters in shared)
    if any(name[len(prefix) :][:1].isalnum() for name in names):
        prefix = prefix[: max(prefix.rfind(" "), prefix.rfind(","), 0)]
    return prefix.rstrip(" ,;:·-(=")
