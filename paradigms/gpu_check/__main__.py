"""`python -m paradigms.gpu_check`: see the package."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from paradigms.gpu_check.wheels import unpack_missing

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "runs" / "gpu_check"
LONGEST_SOCKET_FOLDER = 64  # characters: a name that a socket's file may have is short


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check: 0 when no step failed, 1 when one did, 2 for bad input."""
    parser = argparse.ArgumentParser(prog="python -m paradigms.gpu_check", description="What only a GPU can tell.")
    parser.add_argument("--wheels", type=Path, help="folder of pure wheels (make gpu-wheels), for missing packages")
    parser.add_argument("--out", type=Path, default=OUT, help="where everything is written (default: %(default)s)")
    parser.add_argument("--deadline-s", type=float, default=420, help="no step begins or goes on after it")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny models: tries the check itself, on a CPU")
    options = parser.parse_args(arguments)
    out = options.out.absolute()
    try:
        unpacked = {} if options.wheels is None else unpack_missing(options.wheels, out / "site")
        stay_inside(out)
    except (ValueError, OSError) as error:
        parser.exit(2, f"gpu_check: {error}\n")
    from paradigms.gpu_check.steps import Check  # needs what was unpacked

    return Check(out, device=options.device, tiny=options.tiny, deadline_s=options.deadline_s).run(unpacked)


def stay_inside(out: Path) -> None:
    """Let this process and its children find the packages, and write nowhere but into the folder."""
    site = str(out / "site")
    sys.path += [site]  # behind the interpreter's own
    own = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(ROOT), *own, site]))
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    folders = {
        "PARADIGMS_CACHE": "cache",
        "XDG_CACHE_HOME": "cache",
        "HF_HOME": "cache/huggingface",
        "HYPOTHESIS_STORAGE_DIRECTORY": "cache/hypothesis",
        "MPLCONFIGDIR": "cache/matplotlib",
        "TRITON_CACHE_DIR": "cache/triton",
        "TORCHINDUCTOR_CACHE_DIR": "cache/inductor",
        "CUDA_CACHE_PATH": "cache/cuda",
    }
    if len(str(out)) < LONGEST_SOCKET_FOLDER:
        folders["TMPDIR"] = "tmp"
    for variable, name in folders.items():
        (out / name).mkdir(parents=True, exist_ok=True)
        os.environ[variable] = str(out / name)


if __name__ == "__main__":
    sys.exit(main())
