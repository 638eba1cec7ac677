"""mamba-ssm's Triton kernels on a CPU, where they and Triton are installed; see `interpreted`."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def test_triton_kernels_compute_what_the_readable_forms_do():
    for name in ("triton", "mamba_ssm"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    program = Path(__file__).with_name("interpreted.py")
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = {"TRITON_INTERPRET": "1", "MAMBA_DETERMINISTIC": "1", "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, str(program)], env=os.environ | settings, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
