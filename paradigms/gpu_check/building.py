"""`python -m paradigms.gpu_check.building`: whether the kernels of mamba-ssm can be built here; one line if not.

They are compiled against the torch that is installed, by a compiler of the same CUDA, for ten minutes or more: what is
missing is told before.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path


def missing() -> str | None:
    """What keeps this machine from building them, and what to do; None when nothing does."""
    try:
        import torch
    except ImportError:
        return "torch is not installed; make setup"
    if torch.version.cuda is None:
        return (
            f"torch {torch.__version__} is built without CUDA; install a CUDA build: "
            "https://pytorch.org/get-started/locally"
        )
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    nvcc = str(Path(home, "bin", "nvcc")) if home else shutil.which("nvcc")
    if nvcc is None or not Path(nvcc).is_file():
        where = f"CUDA_HOME={home}" if home else "PATH"
        return f"there is no nvcc in {where}; install the CUDA toolkit {torch.version.cuda}, or set CUDA_HOME"
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    release = re.search(r"release (\d+)\.", said)
    if release is None or release[1] != torch.version.cuda.split(".")[0]:
        found = f"CUDA {release[1]}" if release else "of an unknown version"
        return f"{nvcc} is {found}, torch is built for CUDA {torch.version.cuda}; set CUDA_HOME to that toolkit"
    if shutil.which(os.environ.get("CXX", "g++")) is None:
        return "there is no C++ compiler; install g++, or name yours in CXX"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return f"there is no Python.h in {sysconfig.get_path('include')}; install python3-dev"
    return None


def main() -> int:
    lacking = missing()
    print(f"make cuda-kernels: {lacking or 'building; this takes ten minutes or more'}", flush=True)
    return 1 if lacking else 0


if __name__ == "__main__":
    sys.exit(main())
