"""Sweeps are killed, starved of disk and resumed: no finished record is lost or doubled, and each ends complete.

Whole sweeps through the command line, of short units. A trial does one kind of harm at a random moment, then gives the
same command again until it ends well.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import Running

KINDS = ("sweep", "worker", "server", "disk")
UNIT_S = 0.03


@contextlib.contextmanager
def small_disk(folder: Path, num_bytes: int) -> Iterator[bool]:
    """A file system of that size at the folder, where it may be mounted; whether it was."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "tmpfs", str(folder)]
    mounted = os.getuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def whole_lines(folder: Path, table: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Shard and record of every whole line."""
    for path in sorted((folder / "records").glob(f"{table}-*.jsonl")):
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                yield path.name.removeprefix(table), json.loads(line)


def finished(folder: Path) -> dict[str, str]:
    """Key of every unit that ended well -> its line; each once."""
    found: dict[str, str] = {}
    for _, record in whole_lines(folder, "runs"):
        if record["status"] == "ok":
            assert record["key"] not in found, "measured twice"
            found[record["key"]] = json.dumps(record, sort_keys=True)
    return found


def check(folder: Path, num_units: int) -> None:
    runs = finished(folder)
    assert len(runs) == num_units, "complete"
    shard_of = {record["key"]: shard for shard, record in whole_lines(folder, "runs") if record["status"] == "ok"}
    children = Counter(record["key"] for shard, record in whole_lines(folder, "requests"))
    assert children == dict.fromkeys(shard_of, 1), "each unit has its own records, once, and nothing else is there"
    assert all(shard_of[record["key"]] == shard for shard, record in whole_lines(folder, "requests"))
    curves = Counter((record["checkpoint"], record["step"]) for _, record in whole_lines(folder, "training"))
    assert set(curves.values()) == {1}
    for path in (folder / "plan").iterdir():
        if path.suffix == ".json":
            json.loads(path.read_text())


def harm(kind: str, running: Running, trace: Path, num_units: int, chance: random.Random) -> None:
    """While a random unit runs, or is written; at times before the first."""
    unit = chance.randrange(-2, num_units)
    if unit > 0:
        running.wait_for(lambda: trace.exists() and trace.read_text().count("\n") >= unit)
    time.sleep(chance.uniform(0, 3 * UNIT_S) if unit >= 0 else chance.uniform(0, 2))
    while running.process.poll() is None:
        if kind == "sweep":
            running.process.kill()
            return
        family = [pid for pid, line in running.descendants().items() if "multiprocessing.forkserver" in line]
        servers = [pid for pid in family if parent(pid) == running.process.pid]
        for pid in family:
            if (pid in servers) if kind == "server" else (parent(pid) in servers):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                return


def parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    return 0


def trial(kind: str, conf: Path, disk: Path, seed: int, num_cells: int) -> None:
    chance = random.Random(seed)
    folder = disk / "sweep"
    lengths = ",".join(map(str, range(8, 8 + num_cells)))
    command = [f"workload.output_len={lengths}", "measure.rounds=3", f"sweep.dir={folder}", "sweep.name=trial"]
    trace = conf.parent / "trace"
    trace.unlink(missing_ok=True)
    command.append(f"behaviour='takes:{UNIT_S}:{trace}'")
    filler = disk / "filler"
    if kind == "disk":  # a plan is 1 kB a cell, a unit's records are 2 kB, and there are ten files
        needed = 20 * 4096 + 1_000 * num_cells + 2_000 * 3 * num_cells
        with open(filler, "wb") as file:
            file.write(bytes(shutil.disk_usage(disk).free - chance.randrange(4_096, needed)))
    running = Running(conf, *command)
    if kind != "disk":
        harm(kind, running, trace, 3 * num_cells, chance)
    code, out = running.finish()
    running.assert_all_end()
    kept = finished(folder)
    print(f"{kind}: {len(kept)} of {3 * num_cells} units were kept", flush=True)
    if kind == "disk":
        assert code == 0 or "no space left" in out.lower(), out
        filler.unlink()
    for _ in range(3):
        running = Running(conf, *command)
        code, out = running.finish()
        if code == 0:
            break
    assert code == 0, out
    after = finished(folder)
    assert kept.items() <= after.items(), "what was finished is as it was"
    check(folder, 3 * num_cells)
    running.assert_all_end()
    shutil.rmtree(folder)


def trials(kinds: list[str], conf: Path, tmp_path: Path, num_cells: list[int]) -> None:
    with small_disk(tmp_path / "disk", 2**20) as mounted:
        for seed, kind in enumerate(kinds):
            if kind == "disk" and not mounted:
                pytest.skip("no tmpfs can be mounted here; test_files_that_may_not_grow stands in")
            trial(kind, conf, tmp_path / "disk", seed, num_cells[seed % len(num_cells)])


def test_killed_at_random_moments(conf: Path, tmp_path: Path) -> None:
    trials([*KINDS], conf, tmp_path, [5])


@pytest.mark.slow
def test_killed_fifty_times(conf: Path, tmp_path: Path) -> None:
    trials([KINDS[index % len(KINDS)] for index in range(50)], conf, tmp_path, [10, 15, 20])


def test_files_that_may_not_grow(conf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk's stand-in where none can be mounted: the limit on a file's size, which the sweep inherits."""
    folder = tmp_path / "sweep"
    command = ["workload.output_len=8,9,10,11,12,13", "measure.rounds=3", f"sweep.dir={folder}"]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write over the limit is then an error
    resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, limits[1]))
    try:
        running = Running(conf, *command)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    code, out = running.finish()
    assert code == 1 and "File too large; what is measured is kept, the same command resumes" in out, out
    kept = finished(folder)
    assert 0 < len(kept) < 18
    code, out = Running(conf, *command).finish()
    assert code == 0, out
    assert kept.items() <= finished(folder).items()
    check(folder, 18)
