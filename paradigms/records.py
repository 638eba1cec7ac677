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
import mmap
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
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
        for table in tables:
            if table not in TABLES or table == "runs":
                raise ValueError(f"unknown table {table!r}; tables are {', '.join(TABLES)}")
        before: list[tuple[Path, int]] = []
        try:
            for table, rows in [*tables.items(), ("runs", [run])]:
                path = self._path(table)
                before.append((path, path.stat().st_size if path.exists() else 0))
                self._append(table, rows)
        except BaseException:  # Ctrl-C too
            for path, size in before:
                if path.exists():
                    os.truncate(path, size)
            raise

    def _path(self, table: str) -> Path:
        return self.folder / f"{table}-{self.shard}.jsonl"

    def _append(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append records and see them onto the disk: those that belong to a unit must be there before its last."""
        if not rows:
            return
        path = self._path(table)
        data = "".join(canonical_json(row) + "\n" for row in rows).encode()
        is_new = not path.exists()
        try:
            with open(path, "ab", buffering=0) as file:  # a buffer would write its rest again when the file is closed
                if file.seek(0, os.SEEK_END) and not _ends_with_newline(path):
                    data = b"\n" + data  # a line that a crash cut off stays a line of its own
                while data:
                    data = data[file.write(data) :]
                os.fsync(file.fileno())
            if is_new:
                _sync_folder(self.folder)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from error


def _ends_with_newline(path: Path) -> bool:
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, text: str) -> None:
    """Write a file that is there whole or as it was before, whatever happens meanwhile.

    Raises:
        OSError: the disk is full or read-only.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(unfinished, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


def drop_unfinished(folder: Path) -> int:
    """Cut off what a crash left at the ends of shards: records of a unit whose `runs` line never came, and half lines.

    Only the last unit of a shard can be unfinished, since its writer goes on only when one is written. Nobody may write
    into the folder meanwhile.

    Returns:
        How many lines were cut off.

    Raises:
        OSError: a file cannot be read or written.
    """
    num_dropped = 0
    for path in sorted((folder / "records").glob("*.jsonl")):
        table, _, shard = path.name.partition("-")
        if table == "runs":
            num_dropped += _cut_end(path, lambda key: True)
        elif table in ("requests", "samples", "tokens"):
            runs = path.with_name(f"runs-{shard}")
            committed = runs.read_bytes() if runs.exists() else b""
            num_dropped += _cut_end(path, lambda key, lines=committed: f'"key":{canonical_json(key)}'.encode() in lines)
    return num_dropped


def _cut_end(path: Path, is_committed: Callable[[Any], bool]) -> int:
    """Cut off half a line and lines of units that are not committed; their number."""
    end, num_dropped = path.stat().st_size, 0
    if not end:
        return 0
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        while end:  # from the end, so that little of a large file is read
            start = content.rfind(b"\n", 0, end - 1) + 1
            record = _parsed(content[start:end])
            if content[end - 1 : end] == b"\n" and ("key" not in record or is_committed(record["key"])):
                break
            end, num_dropped = start, num_dropped + 1
    if num_dropped:
        os.truncate(path, end)
    return num_dropped


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


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
