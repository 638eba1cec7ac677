"""The check of a lent GPU, as far as a CPU can try it: nothing is replaced, nothing stops it, its records travel."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from paradigms.gpu_check import building, steps, wheels
from paradigms.gpu_check.figures import FIGURES, forward_flops
from paradigms.gpu_check.peaks import peaks
from paradigms.gpu_check.rates import rates
from paradigms.measure.calibration import Calibration
from paradigms.models.attention import AttentionConfig
from paradigms.models.config import ModelConfig
from paradigms.models.feed_forward import FeedForwardConfig

ROOT = Path(__file__).resolve().parent.parent


def wheel(folder: Path, name: str) -> None:
    with zipfile.ZipFile(folder / name, "w") as file:
        file.writestr("some_module.py", "VALUE = 1\n")


def test_only_pure_wheels_of_what_is_missing_are_unpacked(tmp_path):
    folder, site = tmp_path / "wheels", tmp_path / "site"
    folder.mkdir()
    for name in ("some_package-1.2-py3-none-any.whl", "Torch-9.9-py3-none-any.whl", "fast-1.0-cp312-cp312-linux.whl"):
        wheel(folder, name)
    for _ in range(2):  # a second time finds what the first unpacked, and unpacks it again
        found = wheels.unpack_missing(folder, site)
        assert found["unpacked"] == ["some_package 1.2"] and found["present"] == ["Torch"]
        assert found["not_pure"] == ["fast-1.0-cp312-cp312-linux.whl"]
    assert (site / "some_module.py").exists()
    (folder / "broken-1.0-py3-none-any.whl").write_text("no zip file")
    with pytest.raises(ValueError, match="is no wheel, or damaged"):
        wheels.unpack_missing(folder, site)


def test_rates_are_those_of_the_best_size():
    found = rates("cpu", tiny=True)
    for name in ("copy_bytes_per_s", "read_bytes_per_s"):
        assert found[name] == max(found[f"{name}_by_size"].values()) > 0
    assert found["matmul_flops_per_s"] == max(found["matmul_flops_per_s_by_width"].values()) > 0


def test_peaks_are_kept_with_the_records(tmp_path):
    found = peaks("cpu", True, str(tmp_path))
    kept = Calibration.load(tmp_path / found["file"])
    assert found["matmul_flops_per_s"] == kept.peak_flops_per_s("float32") > 0
    assert found["read_bytes_per_s"] == kept.peak_bytes_per_s() > 0


def test_operations_of_a_forward_are_those_that_torch_counts():
    """Bidirectional, so that no half of the pairs is left out; the head looks at one position of each row."""
    config = ModelConfig(
        vocab_size=50,
        d_model=32,
        num_blocks=3,
        causal=False,
        noise="absorbing",
        attention=AttentionConfig(num_heads=4),
        feed_forward=FeedForwardConfig(width=40),
    )
    model = config.build().eval()
    norms = 32 * (2 * 3 + 1)  # multiplied, but not by a matrix
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 20, dtype=torch.long), logits_at=slice(-1, None))
    counted = counter.get_total_flops() - 2 * 32 * 50
    cell = type("Cell", (), {"model": config})
    assert forward_flops(cell, 20, config.num_parameters() - norms) == counted  # type: ignore[arg-type]


def test_every_file_with_gpu_tests_is_run():
    names = {path.relative_to(ROOT / "tests").as_posix() for path in steps.gpu_tests()}
    assert {"models/test_kernels_gpu.py", "measure/test_clock.py", "measure/test_memory.py"} <= names


def check(folder: Path, deadline_s: float) -> steps.Check:
    folder.mkdir(exist_ok=True)
    return steps.Check(folder, device="cpu", tiny=True, deadline_s=deadline_s)


def test_a_step_that_fails_or_comes_too_late_stops_nothing(tmp_path, capsys):
    mine = check(tmp_path, 1e6)

    def fail(limit_s: float) -> tuple[str, str]:
        raise RuntimeError("no such device")

    mine.step("broken", 5, fail)
    mine.step("whole", 5, lambda limit_s: ("ok", f"had {limit_s:g} s"))
    late = check(tmp_path / "late", -1)
    late.step("late", 5, fail)
    assert [(told.status, told.line) for told in mine.told + late.told] == [
        ("failed", "RuntimeError: no such device"),
        ("ok", "had 5 s"),
        ("skipped", "no time left"),
    ]
    assert [step["status"] for step in json.loads((tmp_path / "gpu_check.json").read_text())["steps"]] == [
        "failed",
        "ok",
    ]
    assert "no such device" in capsys.readouterr().out


def test_figures_have_names_of_their_own_and_graphed_ones_an_eager_twin():
    names = [figure.name for figure in FIGURES]
    assert len(set(names)) == len(names)
    assert {f"{name.removesuffix('_graphed')}" for name in names if name.endswith("_graphed")} <= set(names)
    assert all(figure.graphed == figure.name.endswith("_graphed") for figure in FIGURES)


def test_building_kernels_names_what_is_missing(monkeypatch, capsys):
    monkeypatch.setattr(torch.version, "cuda", None)
    assert building.main() == 1 and "is built without CUDA" in capsys.readouterr().out
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    assert building.missing() == (
        "there is no nvcc in CUDA_HOME=/nowhere; install the CUDA toolkit 13.0, or set CUDA_HOME"
    )


@pytest.mark.slow
def test_the_whole_check_runs_on_a_cpu_and_its_records_open_elsewhere(tmp_path):
    """In a copy of the checkout, so that what it writes outside its folder would show."""
    checkout = tmp_path / "checkout"
    for name in ("paradigms", "analysis", "conf", "tests", "hydra_plugins"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__", "runs"))
    shutil.copy(ROOT / "pyproject.toml", checkout)
    before = {path for path in checkout.rglob("*") if path.is_file()}
    command = [sys.executable, "-m", "paradigms.gpu_check", "--device", "cpu", "--tiny", "--deadline-s", "300"]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    out = checkout / "runs" / "gpu_check"
    found = json.loads((out / "gpu_check.json").read_text())
    assert {step["status"] for step in found["steps"]} <= {"ok", "skipped"}, done.stdout
    assert found["peaks"]["matmul_flops_per_s"] > 0 and (out / "calibration.json").exists()
    assert found["figure ar_decode"]["mbu"] > 0 and found["figure denoise"]["mfu"] > 0
    after = {path for path in checkout.rglob("*") if path.is_file()}
    assert not [path for path in after - before if out not in path.parents]
    with tarfile.open(out / "results.tar.gz") as archive:
        archive.extractall(tmp_path / "elsewhere", filter="data")
    sweep = tmp_path / "elsewhere" / "gpu_check" / "sweep"
    report = subprocess.run([sys.executable, "-m", "analysis.report", sweep], cwd=ROOT, capture_output=True, text=True)
    assert report.returncode == 0 and "extrapolated" in (sweep / "report" / "index.html").read_text(), report.stderr
