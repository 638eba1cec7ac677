"""Whatever a child does, the parent learns how it ended."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from paradigms.isolate import call
from paradigms.memory_watch import MemoryWatch


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "child.log"


def test_a_value_comes_back_with_what_was_printed(log: Path) -> None:
    lines: list[str] = []
    outcome = call("standin.add", 2, 3, log=log, on_line=lines.append)
    assert (outcome.status, outcome.value, outcome.error) == ("ok", 5, None)
    assert lines == ["adding"] and log.read_text() == "adding\n"


@pytest.mark.parametrize(
    ("behaviour", "status", "error"),
    [
        ("raises", "failed", "three is not a length"),
        ("killed", "failed", "killed by signal 9 (SIGKILL)"),
        ("segfaults", "failed", "killed by signal 11 (SIGSEGV)"),
        ("exits", "failed", "the process ended without a result, exit code 3"),
        ("memory", "oom", "MemoryError"),
    ],
)
def test_each_way_to_fail_is_told_in_one_line(log: Path, behaviour: str, status: str, error: str) -> None:
    outcome = call("standin.misbehave", behaviour, log=log)
    assert (outcome.status, outcome.error, outcome.value) == (status, error, None)
    assert (outcome.traceback is not None) == (behaviour in ("raises", "memory"))


def test_torch_running_out_of_memory_is_recognised_without_torch(log: Path) -> None:
    outcome = call("standin.raise_torch_like", log=log)
    assert outcome.status == "oom" and outcome.error is not None and "Tried to allocate" in outcome.error


def test_killed_while_holding_most_of_the_memory_is_out_of_memory(log: Path) -> None:
    outcome = call("standin.hold_then_die", 200 * 2**20, 1.3, log=log, memory_limit_bytes=300 * 2**20)
    assert outcome.status == "oom" and outcome.error is not None and "of 300 MiB" in outcome.error
    watch = MemoryWatch(os.getpid(), limit_bytes=2**50)
    watch.sample()
    assert watch.rss_bytes > 2**20 and not watch.ran_out()


def test_leaving_without_a_word_is_a_failure(log: Path) -> None:
    outcome = call("standin.return_nothing_to_say", log=log)
    assert (outcome.status, outcome.error) == ("failed", "SystemExit: 4")


def test_a_child_that_takes_too_long_is_ended(log: Path, tmp_path: Path) -> None:
    outcome = call("standin.sleep_after_touching", str(tmp_path / "pid"), log=log, timeout_s=1.0)
    assert (outcome.status, outcome.error) == ("failed", "timed out after 1 s")
    assert is_gone(int((tmp_path / "pid").read_text()))


def test_ctrl_c_ends_the_child_and_reaches_the_caller(log: Path, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"

    def interrupt() -> None:
        while not pid_file.exists() or not pid_file.read_text():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        call("standin.sleep_after_touching", str(pid_file), log=log)
    assert is_gone(int(pid_file.read_text()))


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_parts_come_as_they_are_made_and_stay_when_the_rest_fails(tmp_path: Path) -> None:
    parts: list[int] = []
    outcome = call("standin.count_then_fail", 3, log=tmp_path / "log", on_part=parts.append)
    assert parts == [0, 1, 2] and outcome.status == "failed" and "no more" in (outcome.error or "")


def test_each_part_has_the_whole_time(tmp_path: Path) -> None:
    parts: list[int] = []
    outcome = call("standin.count_slowly", 4, 0.4, log=tmp_path / "log", on_part=parts.append, timeout_s=1.2)
    assert (outcome.status, parts) == ("ok", [0, 1, 2, 3]) and outcome.seconds > 1.2


def test_a_killed_server_costs_the_call_that_runs_and_no_other(log: Path, tmp_path: Path) -> None:
    from multiprocessing import forkserver

    def kill_server() -> int:
        while not started.exists() or not started.read_text():
            time.sleep(0.02)
        os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)  # type: ignore[attr-defined]
        return int(started.read_text())

    started = tmp_path / "started"
    children: list[int] = []
    killer = threading.Thread(target=lambda: children.append(kill_server()))
    killer.start()
    outcome = call("standin.sleep_after_touching", str(started), log=log)
    killer.join()
    assert outcome.error == "the process that children are forked from was killed"
    with pytest.raises(ProcessLookupError):
        os.kill(children[0], 0)
    os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)  # type: ignore[attr-defined]
    assert call("standin.add", 2, 3, log=log).value == 5, "dead, perhaps not yet known to be"
    assert call("standin.add", 3, 3, log=log).value == 6
