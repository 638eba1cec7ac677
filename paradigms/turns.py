"""Turns at a device: what is timed has it alone, whoever else measures on this machine.

Lanes of a sweep, and sweeps that one person starts beside each other, meet at a lock file for each device. The lock is
`flock`, which the kernel takes back when its holder dies, however that happens; the measuring child holds it too, so
that a killed lane frees the device when its child is gone and not before. Whoever is next in line holds a second lock,
the queue: otherwise a lane that gives a turn back would take the next one before a waiting process has woken up.

The files lie in memory (/dev/shm) where there is such a place, so they do not outlast a boot, and belong to one user.
Containers that share a device and no such place are given a folder that they share by PARADIGMS_TURNS.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from io import FileIO
from multiprocessing import reduction
from pathlib import Path
from typing import Any

SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Place:
    """Where a unit runs.

    Attributes:
        name: of the device: `cpu`, or the UUID of a GPU.
        environment: variables that make it the only one that a child sees.
    """

    name: str = "cpu"
    environment: dict[str, str] = field(default_factory=dict)


def place_for(wanted: str, lane: int) -> Place:
    """The device of a lane: lanes on a machine with several GPUs are dealt different ones.

    Args:
        wanted: `device.name` of the cell.
        lane: number of the lane.
    """
    gpus = visible_gpus() if wanted != "cpu" else ()
    if not gpus:
        return Place()
    gpu = gpus[lane % len(gpus)]
    return Place(gpu, {"CUDA_VISIBLE_DEVICES": gpu} if len(gpus) > 1 else {})


def visible_gpus() -> tuple[str, ...]:
    """UUIDs of the GPUs that this process may use, as CUDA_VISIBLE_DEVICES says; its own names for MIG devices."""
    uuids, chosen = _gpu_uuids(), os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None or not uuids:
        return uuids
    found: list[str] = []
    for token in map(str.strip, chosen.split(",")):
        if token.isdigit() and int(token) < len(uuids):
            found.append(uuids[int(token)])
        elif token.startswith("MIG-"):
            found.append(token)
        elif token.startswith("GPU-") and (same := [uuid for uuid in uuids if uuid.startswith(token)]):
            found.append(same[0])
        else:
            break  # so does CUDA: what comes after an unknown one is not seen
    return tuple(found)


@cache
def _gpu_uuids() -> tuple[str, ...]:
    """From the driver's tool, in the order of their bus: CUDA itself must not start in a parent of forks."""
    try:
        command = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in answer.stdout.splitlines() if line.strip())


class Turn:
    """A device that is held. Sent to a child of multiprocessing, it is held there too, until that child ends."""

    def __init__(self, file: FileIO, waited_s: float) -> None:
        self._file = file
        self.waited_s = waited_s

    def __reduce__(self) -> tuple[Any, ...]:
        return _held_too, (reduction.DupFd(self._file.fileno()), self.waited_s)


def _held_too(duplicate: Any, waited_s: float) -> Turn:
    return Turn(FileIO(duplicate.detach(), "r+", closefd=False), waited_s)


@contextlib.contextmanager
def take_turn(device: str, holder: str, on_wait: Callable[[str], None]) -> Iterator[Turn]:
    """Wait until the device is free, and hold it.

    Args:
        device: name of it.
        holder: who takes it, for those who wait.
        on_wait: called with the holder, before waiting for one.

    Raises:
        OSError: the lock files cannot be opened, or belong to someone else.
    """
    folder = _folder()
    started = time.monotonic()
    with FileIO(folder / f"{device}.queue", "a+") as queue, FileIO(folder / f"{device}.lock", "a+") as lock:
        waited = not (_lock_at_once(queue) and _lock_at_once(lock))
        if waited:
            on_wait(_read(lock))
            fcntl.flock(queue, fcntl.LOCK_EX)  # at once where it is held already
            fcntl.flock(lock, fcntl.LOCK_EX)
        fcntl.flock(queue, fcntl.LOCK_UN)
        with contextlib.suppress(OSError):  # on a full disk: the lock counts, the name is for people
            lock.truncate(0)
            lock.write(holder.encode())
        try:
            yield Turn(lock, time.monotonic() - started if waited else 0.0)
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)  # for a child that has not ended yet, too


def _lock_at_once(file: FileIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(file: FileIO) -> str:
    file.seek(0)
    return file.read().decode(errors="replace") or "another process"


def _folder() -> Path:
    if own := os.environ.get("PARADIGMS_TURNS"):
        Path(own).mkdir(parents=True, exist_ok=True)
        return Path(own)
    parent = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
    folder = parent / f"paradigms-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.lstat().st_uid != os.getuid():
        raise PermissionError(1, "belongs to another user, so nobody can wait for turns there", str(folder))
    return folder
