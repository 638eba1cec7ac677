"""A config folder of stand-in cells."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from paradigms.isolate import start_server

CONF = Path(__file__).resolve().parents[2] / "conf"


@pytest.fixture(scope="session", autouse=True)
def server() -> None:
    """One server for the children of all these tests, that has the stand-ins imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), str(CONF.parent)]))
        start_server(["standin", "paradigms.lane"])


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """A config folder for --config-path: stand-in cells under the package's own sweep and launch groups."""
    root = tmp_path / "conf"
    for group in ("sweep", "launch", "hydra", "workload", "measure", "device"):
        shutil.copytree(CONF / group, root / group)
    for group in ("paradigm", "model", "experiment"):
        (root / group).mkdir(parents=True)
    (root / "config.yaml").write_text(
        f"""
defaults:
  - workload: fixed_length
  - measure: smoke
  - device: cpu
  - model: small
  - paradigm: ar
  - sweep: default
  - launch: local
  - _self_
  - experiment: null
  - override hydra/sweeper: rounds
  - override hydra/hydra_logging: none
  - override hydra/job_logging: none
_target_: standin.StandInCell
behaviour: ok
trace: ""
sweep:
  runner: standin.run_unit
  preparer: standin.prepare
  preload: []
  report: false
  dir: {tmp_path}/runs/${{sweep.name}}
hydra:
  output_subdir: null
  job: {{name: paradigms, chdir: false}}
  sweep: {{dir: "${{sweep.dir}}", subdir: .}}
"""
    )
    (root / "model" / "small.yaml").write_text("_target_: standin.StandInModel\nwidth: 8\n")
    (root / "model" / "wide.yaml").write_text("_target_: standin.StandInModel\nwidth: 16\n")
    for name, model in (("ar", "small"), ("ssm", "wide"), ("diffusion", "small")):
        (root / "paradigm" / f"{name}.yaml").write_text(
            f"# @package _global_\ndefaults:\n  - override /model: {model}\nparadigm:\n"
            f"  _target_: standin.StandInParadigm\n  name: {name}\n  label: {name.upper()}\n"
        )
    for name, grid in (("pair", "ar,ssm"), ("trio", "ar,ssm,diffusion")):
        (root / "experiment" / f"{name}.yaml").write_text(
            f"# @package _global_\nsweep: {{name: {name}}}\nhydra:\n  sweeper:\n    params: {{paradigm: '{grid}'}}\n"
        )
    return root
