"""Lanes end with their sweep, and a new one waits until they have."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import PACKAGE

from paradigms.folder_lock import lane_lock, sweep_lock


def test_a_lane_whose_sweep_has_ended_does_not_begin(tmp_path: Path) -> None:
    with sweep_lock(tmp_path, print) as name, lane_lock(tmp_path, name):
        pass
    with pytest.raises(ValueError, match="its sweep has ended"), lane_lock(tmp_path, name):
        pytest.fail("nobody waits for it")
    with (
        sweep_lock(tmp_path, print),
        pytest.raises(ValueError, match="its sweep has ended"),
        lane_lock(tmp_path, name),
    ):
        pytest.fail("there is another sweep")


def script(code: str) -> subprocess.Popen[str]:
    code = f"import time; from pathlib import Path; from paradigms.folder_lock import *\n{code}"
    environment = os.environ | {"PYTHONPATH": str(PACKAGE)}
    return subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=lambda how: how.name)
def test_lanes_end_with_their_sweep(tmp_path: Path, how: signal.Signals) -> None:
    folder = f"Path({str(tmp_path)!r})"
    sweep = script(f"with sweep_lock({folder}, print) as name: print(name, flush=True); time.sleep(60)")
    name = first_line(sweep)
    lane = script(f"with lane_lock({folder}, {name!r}): print('on', flush=True); time.sleep(60)")
    assert first_line(lane) == "on"
    with pytest.raises(ValueError, match="in use by another sweep"), sweep_lock(tmp_path, print):
        pytest.fail("the folder is in use")
    sweep.send_signal(how)
    sweep.wait()
    began = time.monotonic()
    said: list[str] = []
    with sweep_lock(tmp_path, said.append) as other:
        assert lane.wait(1) != 0 and other != name
    assert said == ["waiting for the lanes of an earlier sweep in this folder to end"]
    assert time.monotonic() - began < 15, "interrupted, not waited for"


def test_lanes_that_do_not_end_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those on a machine that cannot know."""
    import fcntl

    monkeypatch.setattr("paradigms.folder_lock.PATIENCE_S", 0.1)
    with open(tmp_path / ".lanes", "a") as lanes:
        fcntl.flock(lanes, fcntl.LOCK_SH)
        with pytest.raises(ValueError, match="lanes of an earlier sweep still measure"), sweep_lock(tmp_path, print):
            pytest.fail("they would measure the same units")
