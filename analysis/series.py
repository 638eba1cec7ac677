"""Who is compared: a series, cells of one paradigm in one setting that differ in the seed of their training alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from analysis.summary import show, tell_apart

PLANTED, PLANT, STOP, PROMPTS, TRAINED = (
    "workload.planted",
    "workload.plant",
    "workload.stop",
    "workload.prompts",
    "train.seed",
)
SEED = "training_seed"  # of a request there is another
NOT_A_SIZE = ("corpus.num_heldout", "corpus.num_validation")


def described(cells: pd.DataFrame) -> pd.DataFrame:
    """Rows of `Frames.ok`, one a cell, with `task` ("" where text was asked to go on), `planted` (below 0 where what is
    planted is right, the control), SEED and `series`.
    """
    cells = cells.copy()
    cells["label"] = cells["paradigm.label"]
    cells["task"] = titles(cells)
    cells["planted"] = column_of(cells, PLANTED).astype(float).fillna(0).astype(int)
    cells["planted"] *= 1 - 2 * column_of(cells, PLANT).eq("right").astype(int)
    cells[SEED] = column_of(cells, TRAINED).astype(float).fillna(0).astype(int)
    return cells.assign(series=named(cells, ["task", "planted"]))


def named(cells: pd.DataFrame, by: Sequence[str]) -> pd.Series:
    """Series of cells that have the same `by`: the label, and the fewest factors that leave a cell a training."""
    of_task = [str(name) for name in cells if str(name).startswith("corpus.") and name not in NOT_A_SIZE]
    own = [*of_task, TRAINED, PLANTED]
    plain = cells.drop(columns=[name for name in own if name in cells])
    names = [
        tell_apart(str(key[-1]), group, SEED) for key, group in plain.groupby([*by, "label"], sort=False, dropna=False)
    ]
    return pd.concat(names) if names else pd.Series(dtype=object)


def sizes(cells: pd.DataFrame) -> pd.DataFrame:
    """Tasks that were asked at three sizes or more which differ in one number alone.

    Args:
        cells: with `task`, see `described`.

    Returns:
        A row a task, indexed by it: `kind` (its name), `size_name` and `size`.
    """
    found = []
    for kind, group in cells[cells["task"] != ""].groupby("corpus", sort=False):
        columns = _sizes_of(group)
        if len(columns) != 1 or group[columns[0]].nunique() < 3 or group[columns[0]].map(_is_number).eq(False).any():
            continue
        rows = group.drop_duplicates("task")[["task", columns[0]]].rename(columns={columns[0]: "size"})
        names = {"kind": str(kind).replace("_", " "), "size_name": columns[0].partition(".")[2].replace("_", " ")}
        found.append(rows.assign(**names, size=rows["size"].astype(float)))
    return pd.concat(found).set_index("task") if found else pd.DataFrame(columns=["kind", "size_name", "size"])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


def _sizes_of(cells: pd.DataFrame) -> list[str]:
    """The parameters in which cells of one task differ."""
    names = [str(name) for name in cells if str(name).startswith("corpus.") and name not in NOT_A_SIZE]
    return [name for name in names if cells[name].map(show).nunique() > 1]


def titles(cells: pd.DataFrame) -> pd.Series:
    """Name of each cell's task, with the sizes in which cells of the same task differ; "" where none was asked."""
    asked = cells[PROMPTS].eq("task") if PROMPTS in cells else pd.Series(False, index=cells.index)
    names = column_of(cells, "corpus").map(lambda value: value if isinstance(value, str) else "task").astype(object)
    found = names.str.replace("_", " ").where(asked, "")
    for name, group in cells[asked].groupby(found[asked]):
        columns = _sizes_of(group)
        for index, row in group.iterrows():
            parts = (f"{column.partition('.')[2].replace('_', ' ')} {show(row[column])}" for column in columns)
            found[index] = ", ".join([str(name), *parts])
    return found


def column_of(cells: pd.DataFrame, name: str) -> pd.Series:
    """A column, NaN throughout where older records have none."""
    return cells[name] if name in cells else pd.Series(math.nan, index=cells.index, dtype=object)


def flag(value: object) -> float:
    """1 of what is true, 0 of what is false, NaN of all else."""
    return 1.0 if value == 1 else 0.0 if value == 0 else math.nan
