"""Imports go one way, and what should be light stays light."""

import subprocess
import sys
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).resolve().parent.parent


def test_import_contracts(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    assert lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("modules", "unwanted"),
    [
        ("analysis.figures, paradigms.records", {"torch", "transformers", "hydra", "paradigms.models"}),
        ("paradigms.workload, paradigms.build", {"torch", "transformers", "hydra", "pandas"}),
        ("paradigms.models.config", {"transformers", "hydra", "pandas"}),  # a layer's config stands beside its mixer
        ("paradigms.bench, paradigms.engines.transformers_generate", {"transformers", "hydra", "pandas"}),
    ],
)
def test_importing_loads_no_more_than_it_says(modules, unwanted):
    program = f"import sys, {modules}; print(*sorted({unwanted!r} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_thread_policy_is_set_before_torch_loads():
    program = "import os; os.environ.pop('OMP_WAIT_POLICY', 0); import paradigms; print(os.environ['OMP_WAIT_POLICY'])"
    program += "; import sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["PASSIVE", "False"]
