"""What was equal over all paradigms of a comparison, and what was not."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pandas as pd

from analysis.frames import WORK, Frames
from analysis.summary import labels, show

SAME_SIZE = 0.02


@dataclass(frozen=True)
class Equality:
    """A factor that ought to be equal over all paradigms."""

    factor: str
    equal: bool
    values: str


def equalities(frames: Frames) -> list[Equality]:
    """Each factor with its one value, or with who differs."""
    ok = frames.ok
    if not len(ok):
        return []
    sampling = sorted(str(name) for name in ok if re.search(r"\.(temperature|top_k|top_p)$", str(name)))
    rows = [
        _equality("machine", frames, ok["machine"]),
        _equality("device", frames, ok["device.name"]) if "device.name" in ok else None,
        _equality("dtype", frames, ok["device.dtype"]) if "device.dtype" in ok else None,
        _equality("threads", frames, ok["device.threads"]) if "device.threads" in ok else None,
        _equality("execution", frames, ok["execution"]),
        _equality("kernels", frames, ok["kernels"]),
        _equality("timeline", frames, ok["measure.timeline"]) if "measure.timeline" in ok else None,
        _equality("sampling", frames, _joined(ok, sampling)) if sampling else None,
        _equality("stop", frames, ok["workload.stop"]) if "workload.stop" in ok else None,
        _equality("prompts", frames, ok["workload.prompts"]) if "workload.prompts" in ok else None,
        _lengths(frames),
        _parameters(frames),
        _equality("tokens seen by the kept checkpoint", frames, ok["checkpoint_tokens"]),
        _equality("tokens trained on in all", frames, _budget(frames)),
        _equality("corpus", frames, ok["corpus_sha256"].map(lambda value: str(value)[:12], na_action="ignore")),
        *(_equality(str(name), frames, ok[name]) for name in ok if str(name).startswith("tokenizer.")),
        _equality("torch", frames, ok["torch_version"]),
        _equality("code", frames, ok["code"]),
    ]
    return [row for row in rows if row is not None]


def _equality(factor: str, frames: Frames, values: pd.Series) -> Equality:
    shown = values.astype(object).where(values.notna(), None).map(show)
    distinct = list(dict.fromkeys(shown))
    if len(distinct) == 1:
        return Equality(factor, True, "not recorded" if distinct[0] == "none" and factor != "sampling" else distinct[0])
    by_label = {
        label: ", ".join(sorted(set(group)))
        for label, group in shown.groupby(frames.ok["paradigm.label"].loc[shown.index])
    }
    groups: dict[str, list[str]] = {}
    for label in labels(frames):
        if label in by_label:
            groups.setdefault(by_label[label], []).append(label)
    return Equality(factor, False, "; ".join(f"{value} ({' / '.join(names)})" for value, names in groups.items()))


def _joined(runs: pd.DataFrame, names: list[str]) -> pd.Series:
    rows = runs[names].to_dict("records")
    text = [", ".join(f"{name.rpartition('.')[2]} {show(row[name])}" for name in names) for row in rows]
    return pd.Series(text, index=runs.index, dtype=object)


def _budget(frames: Frames) -> pd.Series:
    return frames.ok["checkpoint"].map(frames.training.groupby("checkpoint")["tokens"].max())


def _lengths(frames: Frames) -> Equality:
    cells = frames.ok.drop_duplicates(["paradigm.label", *WORK])
    work = {
        label: set(map(tuple, group[list(WORK)].to_numpy().tolist()))
        for label, group in cells.groupby("paradigm.label")
    }
    everything = set.union(*work.values())
    lacking = {label: len(everything - done) for label, done in work.items() if everything - done}
    text = f"{len(everything)} combination{'s' * (len(everything) > 1)} of output, prompt and batch"
    if lacking:
        text += "; not measured: " + ", ".join(f"{count} of {label}" for label, count in lacking.items())
    return Equality("work", not lacking, text)


def _parameters(frames: Frames) -> Equality:
    sizes = frames.ok.groupby("paradigm.label")["parameters"].median().dropna()
    if not len(sizes):
        return Equality("parameters", True, "not recorded")
    spread = float(sizes.max() / sizes.min() - 1)
    text = f"{sizes.min():,.0f} to {sizes.max():,.0f}, {spread:.2%} apart (allowed: {SAME_SIZE:.0%})"
    return Equality("parameters", spread <= SAME_SIZE, text if spread else f"{sizes.min():,.0f}")
