"""Answers to tasks: accuracy of each paradigm over its trainings, what was equal, and who wins.

What is asked is a task of one size, with or without a planted error. Who answers is a paradigm in one setting, a
series, whose cells differ in the seed of their training alone (`series`). Intervals and winners: `trainings`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
import pandas as pd

from analysis import intervals, statistics
from analysis.findings import capital, number, with_interval
from analysis.frames import Frames
from analysis.intervals import NOTHING, Estimate
from analysis.series import PROMPTS, SEED, STOP, column_of, described, flag, sizes
from analysis.summary import labels, show
from analysis.tables import Table
from analysis.trainings import NOT, Mean, of_trainings, over_trainings, standing

FLAGS = ("correct", "planted_kept", "correct_behind")
MOST_PROBLEMS = 3
_KEYS = ["task", "planted", "series"]
_COLUMNS = ["task", "planted", "series", "label", "seeds", "instances", "correct", "correct_low", "correct_high",
            "behind", "behind_low", "behind_high", "revised", "revised_low", "revised_high"]  # fmt: skip


@lru_cache(maxsize=8)
def answers(frames: Frames) -> pd.DataFrame:
    """A row a distinct instance that a cell answered; empty where no task was asked.

    Returns:
        `Frames.timed` with `task`, `planted`, `series`, SEED, and the flags as 0, 1 or NaN. Answers that nobody scored
        are left out; an instance that a cell answered again, with the same seed, counts once.
    """
    return _scored(frames).drop_duplicates(["cell", "request_id"])


def unscored(frames: Frames) -> int:
    """Answers without a verdict."""
    rows = _asked(frames)
    return len(rows) - len(_scored(frames)) if len(rows) else 0


@lru_cache(maxsize=8)
def _asked(frames: Frames) -> pd.DataFrame:
    """Timed requests of cells that asked a task, of every verdict."""
    ok = frames.ok
    if PROMPTS not in ok or "correct" not in frames.requests:
        return pd.DataFrame()
    cells = ok[ok[PROMPTS] == "task"].drop_duplicates("cell")
    if not len(cells):
        return pd.DataFrame()
    cells = described(cells)
    rows = frames.timed.merge(cells[["cell", "label", SEED, *_KEYS]], on="cell")
    for name in FLAGS:
        rows[name] = rows[name].map(flag).astype(float) if name in rows else math.nan
    share = rows["answer_share"] if "answer_share" in rows else pd.Series(math.nan, index=rows.index)
    rows["answer_share"] = pd.to_numeric(share, errors="coerce")
    rows["revised"] = 1 - rows["planted_kept"]
    return rows


def _scored(frames: Frames) -> pd.DataFrame:
    rows = _asked(frames)
    return rows[rows["correct"].notna()] if len(rows) else pd.DataFrame(columns=["cell", "request_id"])


@lru_cache(maxsize=8)
def groups(frames: Frames) -> pd.DataFrame:
    """A row for who answered what: tasks in order, plants behind what is asked without, paradigms in their one order.

    Returns:
        `task`, `planted`, `series`, `label`, `seeds`, `instances` (of one training); `correct`, and
        `behind` and `revised` where an error was planted; `e2e_s`, `e2e_per_token_s` and `nfe`, medians over units of
        the generations that were judged: these with `_low` and `_high`; `answer_share`, `cut_off` (share of answers
        that found no end), `problems`, `parameters`, `trained_rows`, `trained_tokens`, `rate`, `chance`, `stop`,
        `batch`, and `verdict` within what is asked.
    """
    rows = answers(frames)
    if not len(rows):
        return pd.DataFrame(columns=_COLUMNS)
    timed = _scored(frames)
    found = []
    for (task, planted, series), group in rows.groupby(_KEYS, sort=True):
        trained = of_trainings(group)
        row = {"task": task, "planted": planted, "series": series, "label": group["label"].iloc[0]}
        row |= {"seeds": len(trained), "instances": int(trained["count"].min())}
        row["of_each"] = ", ".join(number(share) for share in trained["share"])
        row |= _named("correct", over_trainings(group))
        for name, column in (("behind", "correct_behind"), ("revised", "revised")):
            row |= _named(name, over_trainings(group, column) if planted else NOTHING)
        runs = timed[(timed[_KEYS] == [task, planted, series]).all(axis=1)]
        units = frames.ok[frames.ok["key"].isin(runs["key"])]
        row |= _times(runs) | _facts(frames, units) | {"problems": problems(group)}
        row["answer_share"] = group["answer_share"].mean()
        row["cut_off"] = group["finish_reason"].eq("length").mean() if "finish_reason" in group else math.nan
        found.append(row)
    order = {label: place for place, label in enumerate(labels(frames))}
    table = pd.DataFrame(found)
    table = table.assign(_place=table["label"].map(order), _series=table["series"].map(_numerically))
    table = table.assign(_plant=table["planted"].map(lambda count: (abs(count), count < 0)))  # the control comes last
    own = ["_plant", "_place", "_series"]
    table = table.sort_values(["task", *own]).drop(columns=own).reset_index(drop=True)
    return table.assign(verdict=pd.concat(list(_verdicts(frames, table))))


@lru_cache(maxsize=8)
def by_size(frames: Frames) -> pd.DataFrame:
    """Rows of `groups` without plants whose task was asked at several sizes: these with `kind`, `size_name`, `size`."""
    found = groups(frames)
    found = found[found["planted"] == 0]
    if not len(found):
        return found
    ok = frames.ok
    cells = described(ok[ok[PROMPTS] == "task"].drop_duplicates("cell"))
    found = found.join(sizes(cells), on="task", how="inner").sort_values(["kind", "size"], kind="stable")
    return found.assign(extrapolated=False, contended=False)  # who is right does not hang on the clock


def size_sentence(frames: Frames) -> str:
    """From the smallest size to the largest, in words."""
    parts = []
    for (kind, name), group in by_size(frames).groupby(["kind", "size_name"], sort=False):
        low, high = (show(end) for end in (group["size"].min(), group["size"].max()))
        ends = []
        for series, rows in group.groupby("series", sort=False):
            first, last = rows["correct"].iloc[0], rows["correct"].iloc[-1]
            ends.append(f"{series} {number(first)} and {number(last)}")
        parts.append(f"{kind}, right at {name} {low} and {high}: {listed(ends)}")
    return capital("; ".join(parts)) + "."


def _numerically(text: str) -> str:
    """A key that sorts 4 before 16."""
    return re.sub(r"\d+", lambda digits: digits[0].zfill(12), text)


def _verdicts(frames: Frames, table: pd.DataFrame) -> Iterator[pd.Series]:
    rows = answers(frames)
    for (task, planted), group in table.groupby(["task", "planted"], sort=False):
        asked = rows[(rows["task"] == task) & (rows["planted"] == planted)]
        column = "correct_behind" if planted else "correct"
        means = {series: Mean.of(asked[asked["series"] == series], column) for series in group["series"]}
        yield group["series"].map(standing(means))


def _named(name: str, estimate: Estimate) -> dict[str, float]:
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def _times(rows: pd.DataFrame) -> dict[str, float]:
    rows = rows.assign(e2e_per_token_s=rows["e2e_s"] / rows["committed_tokens"].where(rows["committed_tokens"] > 0))
    row: dict[str, float] = {"units": rows["key"].nunique()}
    for name in ("e2e_s", "e2e_per_token_s", "nfe"):
        row |= _named(name, statistics.median_interval(rows[name], rows["key"]))
    return row


def _facts(frames: Frames, units: pd.DataFrame) -> dict[str, object]:
    """What the answers stand on: size, training, chosen rate, and the level of guessing where it is known."""
    tokens = units["checkpoint"].map(frames.training.groupby("checkpoint")["tokens"].max())
    lengths = column_of(units, "train.lengths").map(row_length)
    rates = [rate for _, unit in units.drop_duplicates("checkpoint").iterrows() if (rate := chosen_rate(frames, unit))]
    return {
        "parameters": units["parameters"].median(), "trained_tokens": _one(tokens),
        "trained_rows": _one((tokens / lengths).round()),
        "rate": " / ".join(dict.fromkeys(f"{rate:g}" for rate in rates)),
        "rates": " / ".join(dict.fromkeys(column_of(units, "train.learning_rates").dropna().map(str))),
        "trial_seed": _one(column_of(units, "train.trial_seed")),
        "chance": chance(units), "stop": " / ".join(sorted(set(column_of(units, STOP).dropna()))),
        "batch": _one(column_of(units, "workload.batch_size")), "contended": bool(units["contended"].any()),
        "machines": " / ".join(sorted(set(units["machine_id"].fillna("?")))),
    }  # fmt: skip


def _one(values: pd.Series) -> float:
    """The one value; NaN where there are several, or none."""
    known = set(values.astype(float))
    return known.pop() if len(known) == 1 else math.nan


def row_length(lengths: object) -> float:
    """Tokens of a training row, from `train.lengths` as the records have it; NaN where rows are of several lengths."""
    try:
        (length,) = set(json.loads(lengths)) if isinstance(lengths, str) else ()
        return float(length)
    except ValueError:
        return math.nan


def chosen_rate(frames: Frames, unit: pd.Series) -> float | None:
    """The peak learning rate of a unit's training: what the record says, or what its loss curve implies.

    The rate of step s (from 1) of N is peak · min(s / W, (N − s + 1) / (N − W)) with W warm-up steps, a tenth of N at
    most; a rate of the grid within 2 % is taken for it.
    """
    if pd.notna(unit.get("learning_rate")):
        return float(unit["learning_rate"])
    curve = frames.training[(frames.training["checkpoint"] == unit["checkpoint"]) & (frames.training["lr"] > 0)]
    if not len(curve) or pd.isna(unit.get("train.warmup_steps")):
        return None
    steps, first = float(curve["step"].max()), curve.iloc[0]
    warmup = max(1.0, min(float(unit["train.warmup_steps"]), steps // 10))
    share = min(first["step"] / warmup, (steps - first["step"] + 1) / max(1.0, steps - warmup))
    peak = float(first["lr"] / share)
    return next((rate for rate in grid_of(unit.get("train.learning_rates")) if abs(peak / rate - 1) < 0.02), peak)


def grid_of(rates: object) -> list[float]:
    """A grid of rates as the records have it; empty where there is none."""
    try:
        return [float(rate) for rate in json.loads(rates)] if isinstance(rates, str) else []
    except (ValueError, TypeError):
        return []


def chance(units: pd.DataFrame) -> float:
    """Accuracy of a guess: column `chance` of the records; of a star graph 1 / degree, a guess at its fork."""
    if "chance" in units and pd.to_numeric(units["chance"], errors="coerce").notna().any():
        return float(pd.to_numeric(units["chance"], errors="coerce").median())
    stars = units[column_of(units, "corpus") == "star_graph"]
    return float(1 / stars["corpus.degree"].astype(float).median()) if len(stars) else math.nan


def problems(rows: pd.DataFrame) -> str:
    """The most frequent problems with their share of all answers: `wrong branch 45 %, too short 2 %`."""
    if "answer_problem" not in rows:
        return ""
    wrong = rows.loc[rows["correct"] == 0, "answer_problem"].fillna("not said").astype(str)
    counts = wrong.value_counts(sort=False)
    ordered = sorted(counts.items(), key=lambda item: (-int(item[1]), str(item[0])))[:MOST_PROBLEMS]
    return ", ".join(f"{problem} {_percent(int(count) / len(rows))}" for problem, count in ordered)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.005 else "under 1 %"


def asked(task: str, planted: int) -> str:
    """What is asked, for a row: `copying`, or `copying, first wrong`, `copying, first 3 wrong`, `..., first right`."""
    number = f" {abs(planted)}" if abs(planted) > 1 else ""
    return task + (f", first{number} {'wrong' if planted > 0 else 'right'}" if planted else "")


def _estimate(row: pd.Series, name: str, scale: float = 1.0) -> Estimate:
    value, low, high = (float(row[key]) * scale for key in (name, f"{name}_low", f"{name}_high"))
    return Estimate(value, low, high, int(row["seeds"]))


def _score(row: pd.Series) -> str:
    """What counts for the win: accuracy, or that behind a planted error."""
    return "behind" if row["planted"] else "correct"


def matrix(frames: Frames) -> Table:
    """Who wins where: a row for what is asked, a column a series, in words; and how long a request took."""
    found = groups(frames)
    series = list(dict.fromkeys(found["series"]))
    rows = []
    found = found[found["planted"] >= 0]  # nobody wins a control
    for (task, planted), group in found.groupby(["task", "planted"], sort=False):
        by_series = {row["series"]: row for _, row in group.iterrows()}
        cells = [_said(by_series[name]) if name in by_series else "not asked" for name in series]
        rows.append([asked(str(task), int(planted)), _in_words(group), *cells])
    return Table("Who wins where", ["task", "in words", *series], rows)


def _said(row: pd.Series) -> str:
    value, milliseconds = row[_score(row)], f"{number(1e3 * row['e2e_s'])} ms"
    if pd.isna(value):
        return f"not scored; {milliseconds}"
    won = "" if row["verdict"] == NOT else f", {row['verdict']}"
    return f"{number(value)}{'*' if row['seeds'] < 2 else ''}{won}; {milliseconds}"


def _in_words(group: pd.DataFrame) -> str:
    """`Diffusion alone`, or who cannot be told from the best, `all but Mamba-2`, and which of them is fastest."""
    winners = group[group["verdict"] != NOT]
    if not len(winners):
        known = group.apply(lambda row: row[_score(row)], axis=1).notna().any()
        return "nobody: not one answer is right" if known else "nobody: nothing was scored"
    names = winners["series"].tolist()
    if len(names) == 1:
        return f"{names[0]} alone" if len(group) > 1 else f"{names[0]}, the only one asked"
    others = group.loc[group["verdict"] == NOT, "series"].tolist()
    if not others:
        text = "not told apart: all"
    elif len(others) < len(names):
        text = f"not told apart: all but {listed(others)}"
    else:
        text = f"not told apart: {listed(names)}"
    known = winners[winners["e2e_s"].notna()].sort_values("e2e_s", kind="stable")
    return text + (f"; fastest of them: {known['series'].iloc[0]}" if len(known) else "")


def table(frames: Frames) -> Table:
    """A row for who answered what: accuracy over trainings and of each, problems, time and forwards of the same
    generations, size and training.
    """
    heads = ["paradigm", "task", "accuracy", "of each training", "instances", "right symbols", "most frequent problems",
             "E2E of a request, ms", "NFE", "parameters", "training rows", "learning rate"]  # fmt: skip
    rows = []
    for _, row in groups(frames).iterrows():
        rows.append([
            row["series"] + (" †" if row["contended"] else ""), asked(row["task"], row["planted"]),
            with_interval(_estimate(row, "correct")) + ("*" if row["seeds"] < 2 else ""), row["of_each"],
            f"{row['instances']:,}", number(row["answer_share"]), row["problems"] or "–",
            with_interval(_estimate(row, "e2e_s", 1e3)), number(row["nfe"]), count(row["parameters"]),
            count(row["trained_rows"]), row["rate"] or "–",
        ])  # fmt: skip
    return Table("Tasks", heads, rows)


def plants(frames: Frames) -> Table:
    """A row for who answered with an error planted: what is right behind it, how often it was revised; then with a
    right symbol planted, which is the control: what revises it as often has corrected nothing.
    """
    found = groups(frames)
    without = found[found["planted"] == 0].set_index(["task", "series"])["correct"].to_dict() if len(found) else {}
    heads = ["paradigm", "task", "right behind the plant", "plant revised", "whole answer right", "without a plant"]
    rows = [
        [row["series"], asked(row["task"], row["planted"]), with_interval(_estimate(row, "behind")),
         with_interval(_estimate(row, "revised")), with_interval(_estimate(row, "correct")),
         number(without.get((row["task"], row["series"]), math.nan))]
        for _, row in found[found["planted"] != 0].sort_values("planted", ascending=False, kind="stable").iterrows()
    ]  # fmt: skip
    return Table("Planted errors", heads, rows)


def count(value: float) -> str:
    return "–" if pd.isna(value) else f"{value:,.0f}"


def listed(names: Sequence[str]) -> str:
    return ("; " if any("," in name for name in names) else ", ").join(names)


def tables(frames: Frames) -> list[Table]:
    """All of the page's tables that have rows, who wins first; none where no task was asked."""
    return [each for each in (matrix(frames), table(frames), plants(frames)) if each.rows]


def results(frames: Frames) -> pd.DataFrame:
    """The tidy CSV: a row for who answered what."""
    return groups(frames).drop(columns=["label"], errors="ignore")


def sentence(frames: Frames) -> str:
    """Who wins each task, in words; without planted errors, as in its figure."""
    found = groups(frames)
    tasks = found[found["planted"] == 0].groupby("task", sort=False)
    parts = [f"{task}: {_in_words(group)}" for task, group in tasks]
    return capital("; ".join(parts)) + "."


def plants_sentence(frames: Frames) -> str:
    """Who revises what was planted, against how often it revises what was right; and what is right behind a plant."""
    found = groups(frames)
    control = found[(found["planted"] < 0) & found["revised"].notna()]
    found = found[(found["planted"] > 0) & found["revised"].notna()]
    if not len(found):
        return "Nothing was recorded of what became of planted errors."
    best = found.loc[found["revised"].idxmax()]
    behind = found[found["behind"].notna()]
    if not best["revised"]:
        text = "Nobody revises a plant"
        if len(behind) and not behind["behind"].max():
            return text + "; behind one nobody is right."
    else:
        same = control[(control["task"] == best["task"]) & (control["series"] == best["series"])]
        against = "with no right symbol planted as a control, so that this says nothing of correcting"
        if len(same):
            against = f"and {_percent(same['revised'].iloc[0])} of right symbols planted alike"
        text = f"{best['series']} replaces {_percent(best['revised'])} of the plants of {best['task']}, {against}"
    if len(behind):
        top, last = behind.loc[behind["behind"].idxmax()], behind.loc[behind["behind"].idxmin()]
        text += (
            f"; behind a plant {top['series']} has {number(top['behind'])} right ({top['task']})"
            f" and {last['series']} {number(last['behind'])} ({last['task']})"
        )
    return text + "."


def note(frames: Frames) -> str:
    """What the figures promise, and what was left out; empty where no task was asked."""
    found = groups(frames)
    if not len(found):
        return ""
    seeds = sorted(set(found["seeds"]))
    many = [str(count) for count in seeds if count > 1]
    parts = []
    if many:
        parts.append(
            f"Accuracy: mean over {' or '.join(many)} trainings with a 95 % t interval, never narrower than that of "
            "Clopper and Pearson for the instances of one training"
        )
    if 1 in seeds:
        parts.append(
            "* one training: Clopper and Pearson's 95 % interval over instances, which says nothing of another training"
        )
    parts.append("winners: the best, and all that Welch's t does not tell from it at 5 %")
    batches = ", ".join(f"{size:.0f}" for size in sorted(set(found["batch"].dropna()))) or "unknown size"
    covered = intervals.describe((count, intervals.median_level(count)[1]) for count in set(found["units"].astype(int)))
    parts.append(
        f"times are of the same generations, a request in a batch of {batches}, medians over units with "
        f"{covered.replace('round', 'unit') or 'no interval: there was one'}"
    )
    lost = unscored(frames)
    if lost:
        parts.append(f"{lost:,} answer{'s' * (lost > 1)} without a verdict left out")
    cut = found[found["cut_off"].gt(0) & (found["stop"] == "natural")]
    if len(cut):
        worst = cut.loc[cut["cut_off"].idxmax()]
        parts.append(
            f"answers that came to no end count as they stand, at most {_percent(worst['cut_off'])} "
            f"({worst['series']}, {worst['task']})"
        )
    return capital("; ".join(parts)) + "."


def shares(found: pd.DataFrame, name: str) -> np.ndarray:
    """Values and how far their intervals reach down and up, [3, rows], for a figure."""
    value, low, high = (found[f"{name}{end}"].to_numpy(dtype=float) for end in ("", "_low", "_high"))
    return np.array([value, np.maximum(value - low, 0), np.maximum(high - value, 0)])
