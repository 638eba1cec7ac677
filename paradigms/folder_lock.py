"""One sweep a folder, and lanes that end with their sweep.

Two sweeps in one folder would measure the same units at the same time; so would a resumed one beside lanes of a killed
one, which a launcher may have left running in processes of their own. So a sweep holds `.lock` alone, its lanes share
`.lanes`, and a lane looks once a second whether its sweep still is: by the name that the sweep has written into `.lock`
and takes out again at its end, which any machine that shares the folder can read; and on the sweep's own machine by the
lock itself, which the kernel takes back from a killed process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from paradigms.progress import shown

SWEEP, LANES = ".lock", ".lanes"
POLL_S = 1.0
PATIENCE_S = 20.0  # lanes of a killed sweep see it within a second and end the child that runs
GRACE_S = 15.0


@contextlib.contextmanager
def sweep_lock(folder: Path, say: Callable[[str], None]) -> Iterator[str]:
    """Hold a folder; yields the name under which lanes know their sweep.

    Raises:
        ValueError: another sweep, or lanes of an earlier one, are at work in it.
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / SWEEP, "a") as lock, open(folder / LANES, "a") as lanes:
        if not _try(lock, fcntl.LOCK_EX, patience_s=0.3):  # a lane that looks holds it for an instant
            raise ValueError(f"{shown(folder)} is in use by another sweep; wait for it, or set sweep.name")
        lock.truncate(0)  # tells lanes of a killed sweep that it is over, now that the lock says nothing any more
        if not _try(lanes, fcntl.LOCK_EX):
            say("waiting for the lanes of an earlier sweep in this folder to end")
            if not _try(lanes, fcntl.LOCK_EX, patience_s=PATIENCE_S):
                raise ValueError(
                    f"lanes of an earlier sweep still measure into {shown(folder)}; wait for them, end them (scancel, "
                    "on Slurm), or set sweep.name"
                )
        name = f"{_boot()}/{uuid.uuid4().hex}"
        lock.write(name)
        lock.flush()
        fcntl.flock(lanes, fcntl.LOCK_UN)
        try:
            yield name
        finally:
            lock.truncate(0)


@contextlib.contextmanager
def lane_lock(folder: Path, sweep: str) -> Iterator[None]:
    """Take part in a sweep, for as long as there is one; afterwards the lane is interrupted, as by Ctrl-C, and its
    process ended, since nobody waits for it.

    Raises:
        ValueError: the sweep has ended already, as it may have for a job that stood in a queue.
    """
    with open(folder / LANES, "a") as lanes:
        fcntl.flock(lanes, fcntl.LOCK_SH)
        if _is_over(folder, sweep):
            raise ValueError("its sweep has ended")
        done = threading.Event()
        caller = threading.get_ident()

        def watch() -> None:
            while not done.wait(POLL_S):
                if _is_over(folder, sweep):
                    signal.pthread_kill(caller, signal.SIGINT)
                    done.wait(GRACE_S)
                    os._exit(1)

        threading.Thread(target=watch, daemon=True).start()
        try:
            yield
        finally:
            done.set()


def _is_over(folder: Path, sweep: str) -> bool:
    try:
        with open(folder / SWEEP) as lock:
            if lock.read() != sweep:
                return True
            return sweep.split("/")[0] == _boot() and _try(lock, fcntl.LOCK_SH)
    except OSError:  # a network's file system, for a moment
        return False


def _try(file: IO[str], kind: int, *, patience_s: float = 0.0) -> bool:
    end = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
            time.sleep(0.05)
        else:
            return True


def _boot() -> str:
    """Names the running system: equal for processes that one kernel serves."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{os.uname().nodename}"
