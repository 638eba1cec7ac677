"""What a run writes: tidy tables, one JSON line a record, observations only (summaries are made in analysis/).

Layout of a sweep's folder:

    runs/<sweep>/records/runs-<shard>.jsonl       one line a unit; written last, so its presence commits the unit
                         requests-<shard>.jsonl   one line a request of a timed repeat
                         samples-<shard>.jsonl    what was generated: what was timed is what is scored
                         tokens-<shard>.jsonl     optional: when each position became final and could be streamed
                         training-<shard>.jsonl   loss curves of the checkpoints that the units used

Each writer owns its shard, so parallel launchers never share a file, and a crash loses at most the unit that it hit. A
unit is (cell, round); `unit_key` hashes everything that determines its figures, so a stale one is never reused and the
folders of two machines can be merged by copying their files together.

Column names: a dotted name is a factor, flattened from the resolved config (`workload.output_len`); a name without a
    dot is
an observation, with its unit in the name (`e2e_s`, `peak_tensor_bytes`). No torch here, nor anything else of the
package.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

TABLES = ("runs", "requests", "samples", "tokens", "training")
STATUSES = ("ok", "oom", "failed", "skipped")


class RecordWarning(UserWarning):
    """A record line that cannot be read; it is left out and named."""


def canonical_json(value: Any) -> str:
    """JSON that is equal for equal values: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def content_hash(value: Any, *, length: int = 16) -> str:
    """First `length` hex digits of the SHA-256 of a JSON-able value."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:length]


def unit_key(*, cell: Mapping[str, Any], round_index: int, code: str, checkpoint: str, machine: str) -> str:
    """Name of a unit: equal exactly when its figures may be reused."""
    return content_hash(
        {"cell": cell, "round": round_index, "code": code, "checkpoint": checkpoint, "machine": machine}
    )


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings to dotted names: {"workload": {"output_len": 8}} -> {"workload.output_len": 8}."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{name}."))
        else:
            flat[name] = value
    return flat


class RecordWriter:
    """Appends whole units to one shard; nothing of a unit counts until its `runs` line is on disk."""

    def __init__(self, folder: Path, shard: str) -> None:
        self.folder = folder / "records"
        self.shard = shard
        self.folder.mkdir(parents=True, exist_ok=True)

    def write_unit(self, run: Mapping[str, Any], **tables: Sequence[Mapping[str, Any]]) -> None:
        """Write a unit's child records, then its `runs` line.

        Raises:
            OSError: the disk is full or read-only; the half-written line is cut off again, the unit counts as not run.
            ValueError: an unknown table or status.
        """
        if run["status"] not in STATUSES:
            raise ValueError(f"status {run['status']!r} is not one of {', '.join(STATUSES)}")
        for table, rows in tables.items():
            if table not in TABLES or table == "runs":
                raise ValueError(f"unknown table {table!r}; tables are {', '.join(TABLES)}")
            self._append(table, rows)
        self._append("runs", [run])

    def _append(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        if not rows:
            return
        path = self.folder / f"{table}-{self.shard}.jsonl"
        data = "".join(canonical_json(row) + "\n" for row in rows).encode()
        with open(path, "ab", buffering=0) as file:  # a buffer would write its rest again when the file is closed
            start = file.seek(0, os.SEEK_END)
            if start and not _ends_with_newline(path):
                data = b"\n" + data  # a line that a crash cut off stays a line of its own
            try:
                while data:
                    data = data[file.write(data) :]
                os.fsync(file.fileno())
            except OSError as error:
                os.truncate(path, start)
                raise OSError(error.errno, error.strerror, str(path)) from error


def _ends_with_newline(path: Path) -> bool:
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def read_table(folder: Path, table: str) -> Iterator[dict[str, Any]]:
    """Records of one table over all shards, in no promised order.

    Lines that are not whole JSON objects are left out, each with a `RecordWarning` naming file and line.
    """
    if table not in TABLES:
        raise ValueError(f"unknown table {table!r}; tables are {', '.join(TABLES)}")
    for path in sorted((folder / "records").glob(f"{table}-*.jsonl")):
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    record = json.loads(line)
                    if not isinstance(record, dict):
                        raise ValueError("not an object")
                except ValueError as error:
                    if line.strip():
                        warnings.warn(f"{path}, line {number}: record left out ({error})", RecordWarning, stacklevel=2)
                    continue
                yield record


def finished_keys(folder: Path, *, statuses: Sequence[str] = ("ok", "skipped")) -> set[str]:
    """Keys of units that need not run again; failed and out-of-memory units are tried again."""
    return {run["key"] for run in read_table(folder, "runs") if run.get("status") in statuses and "key" in run}
