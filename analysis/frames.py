"""Record files to tidy frames.

Only units with a `runs` line count. A unit that was written twice (two folders merged, a failed one tried again) counts
once: ok wins, then the later one, and its child records come from the same shard. Units of a cell that ran under older
code or another checkpoint are set aside. Whatever is left out is said in `Frames.notes`, with its count.

A cell is a config on a machine: `cell` joins the two, so that merged machines stay apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from analysis import shards, statistics
from paradigms.records import STATUSES, canonical_json

TEXT = ("key", "cell_key", "status", "error", "started_at", "machine_id", "machine", "cpu", "gpu", "code", "checkpoint",
        "engine", "execution", "kernels", "ledger", "contended_by", "energy_source", "corpus_sha256", "torch_version",
        "python_version", "transformers_version", "paradigm.name", "paradigm.label", "sweep.name")  # fmt: skip
FLAGS = ("contended", "extrapolated", "is_anchor", "warmup_steady", "bits_per_byte_is_bound", "corpus_is_zoo_corpus")
SLOW = 1.2  # a probe this much slower than the machine's best marks its unit
WORK = ("workload.output_len", "workload.prompt_len", "workload.batch_size")
BYTES = ("weight_bytes", "state_used_bytes", "state_allocated_bytes", "state_formula_bytes", "peak_tensor_bytes",
         "peak_rss_bytes", "cuda_peak_allocated_bytes", "cuda_peak_reserved_bytes")  # fmt: skip
COUNTED = ("forwards", "matmul_flops", "hidden_flops", "other_flops", "weight_bytes", "state_read_bytes",
           "state_written_bytes")  # fmt: skip
LEDGER = tuple(f"{name}_{phase}" for phase in ("prefill", "decode", "denoise") for name in COUNTED)
UNIT_NUMBERS = ("round", "parameters", *BYTES, *LEDGER, "requested_tokens", "committed_tokens", "effective_tokens",
                "import_s", "load_s", "products_s", "compile_s", "warmup_s", "steady_s",
                "num_warmups", "forwards_timed", "bits_per_byte", "bits_per_byte_se", "checkpoint_tokens",
                "load_before", "load_after", "steal_fraction", "other_cores", "run_queue_fraction", "lost_fraction",
                "contention", "attempts", "waited_s", "energy_j", "energy_j_per_token",
                "cache_kl_nats", "cache_other_argmax_share", "cache_largest_logit_difference",
                "cpu_mhz_before", "cpu_mhz_after", "probe_before_s", "probe_after_s")  # fmt: skip
REQUEST_NUMBERS = ("repeat", "row", "seed", "prompt_tokens", "requested_tokens", "committed_tokens", "ttft_s", "tpot_s",
                   "e2e_s", "itl_median_s", "itl_max_s", "num_chunks", "max_chunk_tokens", "nfe", "positions_computed",
                   "step_time_s", "prefill_s", "token_entropy_nats", "distinct_1", "distinct_2",
                   "judge_bits_per_byte", "judge_given_bits_per_byte", "forwards_timed")  # fmt: skip
TRAINING_NUMBERS = (
    "step",
    "tokens",
    "epoch",
    "train_nats",
    "val_bits_per_byte",
    "lr",
    "tokens_per_s",
    "peak_rss_bytes",
)


@dataclass(frozen=True, eq=False)
class Frames:
    """Tables of one or more sweeps.

    Attributes:
        folders: where they came from.
        runs: a row a unit, of every status, factors and observations; `cell` names config and machine.
        requests: a row a timed request of an ok unit; `extrapolated` where only some of its forwards were timed.
        training: a row a training step of a checkpoint that a unit used.
        notes: what was left out, one sentence each.
    """

    folders: tuple[Path, ...]
    runs: pd.DataFrame
    requests: pd.DataFrame
    training: pd.DataFrame
    notes: tuple[str, ...]

    @cached_property
    def ok(self) -> pd.DataFrame:
        return self.runs[self.runs["status"] == "ok"]

    @cached_property
    def timed(self) -> pd.DataFrame:
        """Requests joined with the factors and the round of their unit."""
        factors = [name for name in self.runs if "." in str(name)]
        columns = ["key", "cell", "round", "contended", "machine_id", *factors]
        return self.requests.merge(self.runs[columns], on="key", validate="many_to_one")

    @cached_property
    def cells(self) -> pd.DataFrame:
        """A row a cell: its factors, and how many of its units ended how."""
        factors = [name for name in self.runs if "." in str(name)]
        constant = ["cell", "cell_key", "machine_id", "machine", *factors]
        cells = self.runs[constant].drop_duplicates("cell").set_index("cell")
        counts = pd.crosstab(self.runs["cell"], self.runs["status"]).reindex(columns=list(STATUSES), fill_value=0)
        cells = cells.join(counts.add_prefix("units_"))
        cells["units_contended"] = (
            self.ok.groupby("cell")["contended"].sum().reindex(cells.index, fill_value=0).astype(int)
        )
        cells["units_extrapolated"] = (
            self.ok.groupby("cell")["extrapolated"].sum().reindex(cells.index, fill_value=0).astype(int)
        )
        cells["units_outlier"] = self.ok.groupby("cell")["outlier"].sum().reindex(cells.index, fill_value=0).astype(int)
        cells["requests"] = self.timed.groupby("cell").size().reindex(cells.index, fill_value=0)
        return cells.reset_index()

    @cached_property
    def samples(self) -> pd.DataFrame:
        """What was generated, a row a timed request; read when first asked for."""
        return _children(self.folders, "samples", self.ok, ["repeat", "row"])[0]

    @cached_property
    def tokens(self) -> pd.DataFrame:
        """When each position became final, a row a position; empty unless measure.tokens was set."""
        return _children(self.folders, "tokens", self.ok, ["repeat", "row", "position"])[0]


def load(*folders: str | Path) -> Frames:
    """Read one or more sweep folders and merge them.

    Raises:
        ValueError: a folder is missing, or none holds a finished unit.
    """
    if not folders:
        raise ValueError("no sweep folder given; name at least one, such as runs/side_by_side")
    paths = tuple(dict.fromkeys(Path(folder) for folder in folders))
    for path in paths:
        if not path.is_dir():
            near = sorted(str(other.parent) for other in path.parent.glob("*/records"))
            hint = (
                f"there are {', '.join(near)}"
                if near
                else "run a sweep first: python -m paradigms -m experiment=side_by_side"
            )
            raise ValueError(f"no folder {path}; {hint}")
    units, notes = _read(paths, "runs")
    if not len(units):
        names = ", ".join(map(str, paths))
        raise ValueError(
            f"no finished unit in {names}: {'; '.join(notes) or 'its records folder holds no runs-*.jsonl lines'}. "
            "Run a sweep into it, or name another folder"
        )
    runs, superseded = _resolve_units(_frame(units, TEXT, FLAGS, UNIT_NUMBERS + WORK, notes))
    notes += superseded
    runs = _mark_slow(runs)
    ok = runs[runs["status"] == "ok"]
    requests, more = _children(paths, "requests", ok, ["repeat", "row"])
    runs = _mark_outliers(runs, requests)
    training, curves = _training(paths, ok)
    return Frames(paths, runs, requests, training, (*notes, *more, *curves))


def _mark_slow(runs: pd.DataFrame) -> pd.DataFrame:
    """Count units as contended whose machine was slow: the fixed work beside them took longer than it can.

    The reference is the machine's 10th percentile over all units of the same folders, threads and device: neighbours of
    a virtual machine slow it without showing as stolen time or as another process. `slowdown` is the worse of the two
    probes against it.
    """
    probe_s = runs[["probe_before_s", "probe_after_s"]]
    threads = runs.get("device.threads", pd.Series(1, index=runs.index))
    groups = [runs["machine_id"].fillna("?"), threads.fillna(1)]
    best_s = probe_s.min(axis=1).groupby(groups).transform(lambda values: values.quantile(0.1))
    slowdown = probe_s.max(axis=1) / best_s
    return runs.copy().assign(slowdown=slowdown, contended=runs["contended"] | (slowdown > SLOW))


def _mark_outliers(runs: pd.DataFrame, requests: pd.DataFrame) -> pd.DataFrame:
    """`outlier`: units far from their cell's other rounds (`statistics.outliers`); they are marked, and stay in."""
    e2e_s = requests.groupby("key")["e2e_s"].median()
    by_unit = pd.DataFrame({"cell": runs["cell"], "e2e_s": runs["key"].map(e2e_s).astype(float)})
    return runs.assign(outlier=statistics.outliers(by_unit))


def _read(folders: Sequence[Path], table: str) -> tuple[pd.DataFrame, list[str]]:
    """Records of a table with folder and shard in `_source`, and what had to be left out."""
    frames, notes = [], []
    for folder in folders:
        frame, more = shards.read(folder, table)
        if len(frame):
            frame[shards.SOURCE] = f"{folder}/" + frame[shards.SOURCE]
            frames.append(frame)
        notes += more
    return (pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()), notes


def _frame(
    frame: pd.DataFrame, text: Sequence[str], flags: Sequence[str], numbers: Sequence[str], notes: list[str]
) -> pd.DataFrame:
    """Frame with every named column, in its type; numbers that are none become missing, with a note."""
    missing = [name for name in ("_source", *text, *flags, *numbers) if name not in frame]
    frame = frame.reindex(columns=[*frame.columns, *missing])
    for name in numbers:
        values = pd.to_numeric(frame[name], errors="coerce").astype(float)
        lost = int((values.isna() & frame[name].notna()).sum())
        if lost:
            notes.append(f"{lost} value{'s' * (lost > 1)} of {name} left out: not a number")
        frame[name] = values
    for name in flags:
        frame[name] = frame[name].map(lambda value: value is True or value == 1).astype(bool)
    for name in text:
        frame[name] = frame[name].astype(object).where(frame[name].notna(), None)
    for name in frame.columns:
        if "." in str(name) and frame[name].map(lambda value: isinstance(value, list | dict)).any():
            frame[name] = frame[name].map(
                lambda value: canonical_json(value) if isinstance(value, list | dict) else value
            )
    return frame.copy()  # its columns, set one by one, in one piece again


def _resolve_units(units: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """One row a unit, units of one version a cell."""
    units["cell"] = units["machine_id"].fillna("?").astype(str) + "/" + units["cell_key"].astype(str)
    units["paradigm.label"] = units["paradigm.label"].fillna(units["paradigm.name"]).fillna("unnamed")
    units["_is_ok"] = units["status"] == "ok"
    units["_time"] = units["started_at"].fillna("").astype(str)
    units["_version"] = units["code"].fillna("").astype(str) + "/" + units["checkpoint"].fillna("").astype(str)
    units = units.sort_values(["_is_ok", "_time"], kind="stable").drop_duplicates("key", keep="last")
    # A unit that failed before its weights were known has no checkpoint: only ok units outdate one another's weights.
    units["_version"] = units["_version"].where(units["_is_ok"], units["code"].fillna("").astype(str))
    newest = units[units["_is_ok"]].sort_values("_time", kind="stable").groupby("cell")["_version"].last()
    newest_code = units.sort_values("_time", kind="stable").groupby("cell")["code"].last().fillna("").astype(str)
    current_code = units["code"].fillna("").astype(str) == units["cell"].map(newest_code)
    current = current_code & (~units["_is_ok"] | (units["_version"] == units["cell"].map(newest)))
    old = int((~current).sum())
    notes = [f"{old} unit{'s' * (old > 1)} set aside: measured with older code or another checkpoint"] if old else []
    units = units[current].drop(columns=["_is_ok", "_time", "_version"])
    return units.sort_values(["cell", "round"], kind="stable").reset_index(drop=True), notes


def _children(
    folders: Sequence[Path], table: str, units: pd.DataFrame, identity: list[str]
) -> tuple[pd.DataFrame, list[str]]:
    """Records of the given units, from the shard that committed each and from the last try that wrote them."""
    records, notes = _read(folders, table)
    source = dict(zip(units["key"], units["_source"], strict=True))
    kept = records[records["key"].map(source) == records["_source"]] if len(records) else records
    numbers, flags = (REQUEST_NUMBERS, ("extrapolated",)) if table == "requests" else (tuple(identity), ())
    frame = _frame(kept, ("key", "request_id"), flags, numbers, notes)
    # A crash before the runs line leaves that try's records in the shard; each try begins with the same first record.
    is_first = (frame[identity] == 0).all(axis=1)
    attempt = is_first.groupby(frame["key"]).cumsum()
    frame = frame[attempt == attempt.groupby(frame["key"]).transform("max")]
    frame = frame.drop_duplicates(["key", *identity], keep="last").drop(columns="_source")
    return frame.reset_index(drop=True), notes


def _training(folders: Sequence[Path], units: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    records, notes = _read(folders, "training")
    used = set(units["checkpoint"].dropna())
    kept = records[records["checkpoint"].isin(used)] if len(records) else records
    frame = _frame(kept, ("checkpoint", "paradigm"), (), TRAINING_NUMBERS, notes)
    frame = frame.drop_duplicates(["checkpoint", "step"], keep="last").drop(columns="_source")
    return frame.sort_values(["checkpoint", "step"], kind="stable").reset_index(drop=True), notes
