"""Scores that were written after the texts (`paradigms.rescore`): of texts, `scores`, and of whole cells, `set_scores`.

A folder may hold those of several scorers, of other code, and of runs that were broken off. Figures of two ways of
scoring do not compare, so one way is chosen (`scoring`), and all that is read is of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import pandas as pd

from analysis import shards
from analysis.frames import Frames


@dataclass(frozen=True)
class Scoring:
    """One way of scoring later, of those whose scores lie in the folders.

    Attributes:
        identity: of scorer, code and options; None of records that do not say it.
        scorer: its name; None where texts were scored without one.
        others: the other ways, whose scores are not shown.
    """

    identity: str | None = None
    scorer: str | None = None
    others: int = 0


@lru_cache(maxsize=8)
def scoring(frames: Frames) -> Scoring:
    """The one way of scoring that all figures here are of, since those of two scorers do not compare: that of the most
    texts; of several such one with a scorer, and then the one that scored last.
    """
    scores = _whole(frames, "scores")
    if not {"scored_by", "scored_at", "scorer"} <= set(scores):
        return Scoring()
    texts = scores[scores["key"].isin(set(frames.ok["key"]))].drop_duplicates(["scored_by", "key", "repeat", "row"])
    if not len(texts):
        return Scoring()
    ways = texts.groupby("scored_by").agg(
        texts=("key", "size"), scorer=("scorer", "first"), scored_at=("scored_at", "max")
    )
    ways = ways.assign(has=ways["scorer"].notna()).sort_values(["texts", "has", "scored_at"])
    last = ways.iloc[-1]
    return Scoring(str(ways.index[-1]), str(last["scorer"]) if last["has"] else None, len(ways) - 1)


def table(frames: Frames, name: str) -> pd.DataFrame:
    """A table of later scores, those of `scoring` alone, from the oldest to the latest."""
    found, identity = _whole(frames, name), scoring(frames).identity
    if identity is None or "scored_by" not in found:
        return found
    return found[found["scored_by"] == identity].sort_values("scored_at", kind="stable")


def _whole(frames: Frames, name: str) -> pd.DataFrame:
    """All shards of a table of later scores; empty where there is none."""
    found = [shards.read(folder, name)[0] for folder in frames.folders]
    found = [frame for frame in found if len(frame)]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame()


def of_cells(frames: Frames) -> pd.DataFrame:
    """Scores of whole cells, indexed by cell, of each the set of the most texts, the last of these; not those of the
    text held out.
    """
    sets = table(frames, "set_scores")
    if not {"cell_key", "machine_id"} <= set(sets):
        return pd.DataFrame()
    if "is_reference" in sets:
        sets = sets[sets["is_reference"].ne(True)]
    if "samples" in sets:
        sets = sets.sort_values("samples", kind="stable")
    cells = sets["machine_id"].astype(str) + "/" + sets["cell_key"].astype(str)
    sets = sets.assign(cell=cells)
    return sets.drop_duplicates("cell", keep="last").set_index("cell")
