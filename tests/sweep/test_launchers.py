"""Every launcher is started for real: records are whole, turns are kept, and Ctrl-C leaves nothing behind."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path

import fake_slurm
import pytest
from commands import Running, overlap
from test_sweep_cli import runs

LAUNCHERS = [
    "joblib",
    "submitit_local",
    pytest.param(
        "ray",
        marks=[
            pytest.mark.slow,
            pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="pip install '.[ray]' for launch=ray"),
        ],
    ),
]


def options(launcher: str) -> list[str]:
    return [f"launch={launcher}", *(["hydra.launcher.num_cpus=2"] if launcher == "ray" else [])]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_lanes_share_the_cells_and_take_turns(conf: Path, tmp_path: Path, launcher: str) -> None:
    trace = tmp_path / "trace"
    grid = ["workload.output_len=8,16,32,64", "measure.rounds=2", f"behaviour='takes:0.1:{trace}'"]
    code, out = Running(conf, *options(launcher), *grid).finish()
    assert code == 0, out
    records = runs(tmp_path)
    assert len({record["key"] for record in records}) == len(records) == 8
    assert {record["status"] for record in records} == {"ok"}
    assert len(list((tmp_path / "runs/adhoc/records").glob("runs-*"))) == 2
    assert not overlap(trace)
    assert "measured 8 units, reused 0" in out


@pytest.mark.parametrize("how", ["ctrl-c", pytest.param("killed", marks=pytest.mark.slow)])
@pytest.mark.parametrize("launcher", ["joblib", pytest.param("submitit_local", marks=pytest.mark.slow), LAUNCHERS[-1]])
def test_nothing_is_left_behind(conf: Path, tmp_path: Path, launcher: str, how: str) -> None:
    started = tmp_path / "started"
    running = Running(conf, *options(launcher), "workload.output_len=8,16", f"behaviour='sleeps:{started}'")
    assert running.wait_for(started.exists), running.out.read_text()
    if how == "ctrl-c":
        running.interrupt()
        code, out = running.finish()
        assert code == 130 and "interrupted: 0 of 2 units are measured and kept" in out, out
    else:
        running.process.send_signal(signal.SIGKILL)
        running.finish()
    running.assert_all_end()
    assert not (tmp_path / "runs/adhoc/records").exists() or not runs(tmp_path)


def test_experiments_keep_their_own_launchers_and_grids(conf: Path, tmp_path: Path) -> None:
    add_launcher(conf, "pair", "joblib")
    code, out = Running(conf, "experiment=pair,trio", "workload.output_len=8").finish()
    assert code == 0, out
    assert {run["paradigm.name"] for run in runs(tmp_path, "pair")} == {"ar", "ssm"}
    assert {run["paradigm.name"] for run in runs(tmp_path, "trio")} == {"ar", "ssm", "diffusion"}
    plans = {
        name: sorted(path.name for path in (tmp_path / "runs" / name / "plan").iterdir()) for name in ("pair", "trio")
    }
    assert plans == {
        "pair": ["measure-0.json", "measure-1.json", "prepare-0.json", "prepare-1.json"],
        "trio": ["prepare-measure-0.json"],
    }


def add_launcher(conf: Path, experiment: str, launcher: str) -> None:
    path = conf / "experiment" / f"{experiment}.yaml"
    path.write_text(path.read_text().replace("sweep:", f"defaults: [override /launch: {launcher}]\nsweep:", 1))


@pytest.mark.slow
def test_a_launcher_of_the_command_line_is_that_of_all_experiments(conf: Path, tmp_path: Path) -> None:
    add_launcher(conf, "pair", "submitit_local")
    code, out = Running(conf, "experiment=pair,trio", "launch=joblib", "workload.output_len=8").finish()
    assert code == 0, out
    for name in ("pair", "trio"):
        assert (tmp_path / "runs" / name / "plan/measure-1.json").exists()
        assert not (tmp_path / "runs" / name / ".submitit").exists()


def test_a_setting_that_one_of_the_launchers_lacks_is_refused(conf: Path, tmp_path: Path) -> None:
    add_launcher(conf, "pair", "joblib")
    code, out = Running(conf, "experiment=pair,trio", "hydra.launcher.n_jobs=1", "workload.output_len=8").finish()
    assert code == 2 and len(out.splitlines()) <= 2, out
    assert "hydra.launcher.n_jobs" in out and "launch=" in out
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_settings_reach_slurm(conf: Path, tmp_path: Path) -> None:
    """No cluster here: its commands are stand-ins that run what they are given."""
    fake_slurm.install(tmp_path / "bin")
    settings = ["hydra.launcher.partition=gpu", "hydra.launcher.gpus_per_node=1", "hydra.launcher.timeout_min=90"]
    settings += ["hydra.launcher.cpus_per_task=3"]
    running = Running(
        conf,
        "launch=submitit_slurm",
        *settings,
        "workload.output_len=8,16,32",
        PATH=f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
        FAKE_SLURM=str(tmp_path),
    )
    code, out = running.finish()
    assert code == 0, out
    assert len({run["key"] for run in runs(tmp_path)}) == 3
    script = (tmp_path / "scripts").read_text()
    for line in ("--partition=gpu", "--gpus-per-node=1", "--time=90", "--cpus-per-task=3", "--array=0-1%2"):
        assert line in script, script
