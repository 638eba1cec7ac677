"""The command line in a process of its own, whose descendants can be found again wherever a launcher put them."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PACKAGE = HERE.parents[1]
MARK = "PARADIGMS_TEST_MARK"
# as `python -m paradigms`, but the code has a fixed name: whoever edits it meanwhile does not make units stale
MAIN = (
    "import paradigms.lane as lane; lane.identities = lambda: ('c0de', 'm1'); "
    "from paradigms.cli import main; raise SystemExit(main())"
)


class Running:
    """`python -m paradigms arguments`, the leader of a group of processes as one started from a shell is."""

    def __init__(self, conf: Path, *arguments: str, **environment: str) -> None:
        self.mark = uuid.uuid4().hex
        path = os.pathsep.join([str(HERE), str(PACKAGE)])
        self.out = conf.parent / f"{self.mark}.out"
        with open(self.out, "w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", MAIN, *arguments, "--config-path", str(conf)],
                # HYDRA_FULL_ERROR: what ran the command line in this process has set it
                env=os.environ
                | {"PYTHONPATH": path, MARK: self.mark, "COLUMNS": "200", "HYDRA_FULL_ERROR": "0"}
                | environment,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def finish(self, timeout_s: float = 120.0) -> tuple[int, str]:
        """Exit code, and what it said."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise
        return code, self.out.read_text()

    def wait_for(self, happens: Callable[[], bool], timeout_s: float = 120.0) -> bool:
        """Whether it happened before the command ended."""
        end = time.monotonic() + timeout_s
        while not happens():
            if self.process.poll() is not None:
                return happens()
            assert time.monotonic() < end, self.out.read_text()
            time.sleep(0.02)
        return True

    def interrupt(self) -> None:
        """As a terminal does at Ctrl-C: to the whole group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def descendants(self) -> dict[int, str]:
        """Processes that live and carry the mark, the first one included: number -> command line."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if f"{MARK}={self.mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
        return found

    def assert_all_end(self, timeout_s: float = 40.0) -> None:
        end = time.monotonic() + timeout_s
        while left := self.descendants():
            assert time.monotonic() < end, left
            time.sleep(0.1)


def spans(trace: Path) -> list[tuple[float, float]]:
    """Begin and end of each unit that `takes` time, in order of their begin."""
    lines: list[Any] = [line.split() for line in trace.read_text().splitlines()]
    return sorted((float(line[0]), float(line[1])) for line in lines)


def overlap(trace: Path) -> bool:
    found = spans(trace)
    return any(after[0] < before[1] for before, after in itertools.pairwise(found))
