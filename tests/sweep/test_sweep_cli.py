"""The command line, on stand-in cells: grids, order, errors, resumption."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra.core.global_hydra import GlobalHydra

from paradigms import cli
from paradigms.records import read_table

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(conf: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Runs the command line in this process: exit code, stdout, stderr."""
    monkeypatch.setattr(sys, "argv", ["paradigms"])
    monkeypatch.setattr("paradigms.lane.identities", lambda: ("c0de", "m1"))
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
        code = cli.main([*arguments, "--config-path", str(conf)])
        GlobalHydra.instance().clear()
        return code, *capfd.readouterr()

    return run


def runs(tmp_path: Path, name: str = "adhoc") -> list[dict[str, Any]]:
    return list(read_table(tmp_path / "runs" / name, "runs"))


def test_one_cell_needs_no_grid(command: Command, tmp_path: Path) -> None:
    code, out, err = command("paradigm=ssm", "workload.output_len=32")
    assert code == 0, err
    (run,) = runs(tmp_path)
    assert run["paradigm.name"] == "ssm" and run["model.width"] == 16 and run["workload.output_len"] == 32
    assert "SSM" in out and "15.62" in out, "0.5 s for 32 tokens"
    assert "1 cell, 1 unit," in out and "adhoc" in out


def test_a_grid_runs_round_after_round_in_random_order_and_resumes(command: Command, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    grid = ["-m", "paradigm=ar,ssm,diffusion", "workload.output_len=8,16", "measure.rounds=2", f"trace={trace}"]
    code, out, err = command(*grid)
    assert code == 0, err
    order = [line.split() for line in trace.read_text().splitlines()]
    rounds = [int(line[2]) for line in order]
    assert rounds == [0] * 6 + [1] * 6
    first, second = order[:6], order[6:]
    assert sorted(x[:2] for x in first) == sorted(x[:2] for x in second)
    assert [x[:2] for x in first] != [x[:2] for x in second]
    assert [x[:2] for x in first] != sorted(x[:2] for x in first)
    assert {run["model.width"] for run in runs(tmp_path) if run["paradigm.name"] == "ssm"} == {16}
    assert len({run["cell_key"] for run in runs(tmp_path)}) == 6

    code, out, err = command(*grid)
    assert code == 0 and "measured 0 units, reused 12" in out
    assert len(runs(tmp_path)) == 12 == len(trace.read_text().splitlines())


def test_failures_are_listed_and_the_exit_code_says_so(command: Command, tmp_path: Path) -> None:
    code, _out, err = command("behaviour=ok,raises,killed", "workload.output_len=8")
    assert code == 1
    assert "2 failed:" in err and "killed by signal 9" in err and "three is not a length" in err
    assert sorted(run["status"] for run in runs(tmp_path)) == ["failed", "failed", "ok"]


def test_impossible_cells_are_all_named_and_nothing_runs(command: Command, tmp_path: Path) -> None:
    code, _out, err = command("paradigm=ar,ssm", "workload.output_len=8,2000,3000")
    assert code == 2 and not (tmp_path / "runs").exists()
    assert "4 of 6 cells are impossible" in err
    assert "ssm, output_len=3000: workload.output_len=3000 is beyond the limit of 1000" in err
    assert len(err.splitlines()) == 5


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("paradigm=arr", "error: paradigm=arr is unknown (allowed: ar, diffusion, ssm; did you mean ar?)"),
        ("paradigm=ar,arr", "error: paradigm=arr is unknown (allowed: ar, diffusion, ssm; did you mean ar?)"),
        ("workload.output_length=8", "workload.output_length is unknown (allowed: batch_size, given_len, num_gaps"),
        ("workload.output_length=8,9", "did you mean output_len?"),
        ("+workload.output_length=8", "workload.output_length is unknown"),
        ("paradgim=ar", "did you mean paradigm?"),
        ("workload.output_len=abc", "error: workload.output_len='abc' has the wrong type: it must be a whole number"),
        ("workload.output_len=1.5", "workload.output_len=1.5 has the wrong type: it must be a whole number"),
        ("workload.output_len=0", "error: workload.output_len=0 is too small; it must be at least 1"),
        ("workload.output_len", "error: cannot read 'workload.output_len'; write key=value"),
        ("launch.lanes=0", "launch.lanes=0 must be a whole number of at least 1"),
        ("launch.lanes=1,2", "launch.lanes=1,2: cannot be swept"),
        ("sweep.name=a/b", "sweep.name='a/b' must be a plain name"),
        ("sweep.unit_timeout_s=-1", "sweep.unit_timeout_s=-1 must be above 0"),
        ("sweep.unit_timeout_s=nan", "sweep.unit_timeout_s=nan has the wrong type: it must be a finite number"),
        ("measure.min_time_s=inf", "measure.min_time_s=inf has the wrong type: it must be a finite number"),
        (
            "workload.stop_strings=[1]",
            "workload.stop_strings=[1] has the wrong type: it must be a list, each item text",
        ),
        ("workload.seed=???", "error: workload.seed has no default; give it: workload.seed=..."),
        ("sweep.exclude=[{paradigm.nam: ar}]", "sweep.exclude: paradigm.nam is no factor"),
        ("launch=submitit", "launch=submitit is unknown"),
    ],
)
def test_bad_input_is_one_line(command: Command, tmp_path: Path, argument: str, message: str) -> None:
    code, _out, err = command(argument)
    assert code == 2 and message in err and len(err.splitlines()) == 1, err
    assert not (tmp_path / "runs").exists()


def test_excluded_and_repeated_cells_are_left_out(command: Command, tmp_path: Path) -> None:
    code, _, err = command(
        "paradigm=ar,ssm",
        "workload.output_len=8,8,16",
        "sweep.exclude=[{paradigm.name: ssm, workload.output_len: [16]}]",
    )
    assert code == 0, err
    names = sorted((run["paradigm.name"], run["workload.output_len"]) for run in runs(tmp_path))
    assert names == [("ar", 8), ("ar", 16), ("ssm", 8)]


def test_swept_experiments_are_sweeps_of_their_own(command: Command, tmp_path: Path) -> None:
    code, _, err = command("experiment=pair,trio", "workload.output_len=8")
    assert code == 0, err
    assert {run["paradigm.name"] for run in runs(tmp_path, "pair")} == {"ar", "ssm"}
    assert {run["paradigm.name"] for run in runs(tmp_path, "trio")} == {"ar", "ssm", "diffusion"}


def test_the_command_line_narrows_an_experiments_grid(command: Command, tmp_path: Path) -> None:
    code, _, err = command("-m", "experiment=trio", "paradigm=ssm", "sweep.name=mine")
    assert code == 0, err
    assert [run["paradigm.name"] for run in runs(tmp_path, "mine")] == ["ssm"]


def test_lanes_share_the_cells(command: Command, tmp_path: Path) -> None:
    code, _out, err = command("launch=joblib", "launch.lanes=2", "workload.output_len=8,16,32", "measure.rounds=2")
    assert code == 0, err
    assert len({run["key"] for run in runs(tmp_path)}) == 6
    assert {run["status"] for run in runs(tmp_path)} == {"ok"}
    assert len(list((tmp_path / "runs/adhoc/records").glob("runs-*"))) == 2


def test_a_folder_that_cannot_be_written_is_one_line(command: Command, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file, so that no folder can be made here")
    code, _, err = command("paradigm=ar")
    assert code == 2 and len(err.splitlines()) == 1 and str(tmp_path / "runs") in err


def test_a_second_sweep_in_the_same_folder_is_refused(command: Command, tmp_path: Path) -> None:
    import fcntl

    folder = tmp_path / "runs" / "adhoc"
    folder.mkdir(parents=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, _, err = command("paradigm=ar")
    assert code == 2 and "in use by another sweep" in err


def test_ctrl_c_keeps_what_is_measured(conf: Path, tmp_path: Path) -> None:
    started = tmp_path / "started"
    arguments = [f"behaviour=ok,'sleeps:{started}'", "measure.rounds=2", "sweep.seed=1", "--config-path", str(conf)]
    path = os.pathsep.join([str(Path(__file__).parent), os.getcwd()])
    process = subprocess.Popen(
        [sys.executable, "-m", "paradigms", *arguments],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    while not started.exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    done = len(runs(tmp_path)) if (tmp_path / "runs/adhoc/records").exists() else 0
    assert f"interrupted: {done} of 4 units are measured and kept; the same command resumes" in out


@pytest.mark.parametrize("launcher", ["joblib", "submitit_local", "submitit_slurm", "ray"])
def test_a_launcher_that_is_not_installed_is_one_line(
    command: Command, conf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launcher: str
) -> None:
    """Every cell of every experiment is checked before, nothing has run."""
    import importlib.util

    from hydra.core.config_store import ConfigStore

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "ray" else find(name, *more))
    known = ConfigStore.instance().repo["hydra"]["launcher"]
    monkeypatch.setitem(ConfigStore.instance().repo["hydra"], "launcher", {"basic.yaml": known["basic.yaml"]})
    path = conf / "experiment" / "pair.yaml"
    path.write_text(path.read_text().replace("sweep:", f"defaults: [override /launch: {launcher}]\nsweep:", 1))
    code, _, err = command("experiment=trio,pair")
    package = "ray" if launcher == "ray" else f"hydra-{launcher.partition('_')[0]}-launcher"
    assert code == 2 and len(err.splitlines()) == 1
    assert err.strip().endswith(f"needs a package that is not installed: pip install {package}")
    assert not (tmp_path / "runs").exists()
