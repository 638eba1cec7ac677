"""What a figure was measured on: the machine, the versions, the code. No host name, user or path is recorded.

Only `set_threads` loads torch: a sweep that finds all its units finished should not wait for it.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from paradigms.records import content_hash

_PACKAGE = Path(__file__).resolve().parent.parent
_PACKAGES = ("torch", "transformers", "datasets", "tokenizers", "hydra-core", "numpy", "pandas", "seaborn")
_GIB = 2**30


def versions(packages: Sequence[str] = _PACKAGES) -> dict[str, str | None]:
    """Versions of Python and of distributions, by name; None for those that are not installed. Imports none of them."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = None
    return found


@lru_cache(maxsize=1)
def _machine() -> dict[str, Any]:
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count() or 1,
        "memory_bytes": _memory_bytes(),
        "gpus": gpu_names(),
        "os": platform.system(),
        "arch": platform.machine(),
    }


def machine() -> dict[str, Any]:
    """Facts of the machine.

    Returns:
        cpu: model name. cores: logical cores; usable_cores: those that this process may use. memory_bytes: physical
        memory, or None. gpus: names, possibly none. os, arch: as the platform calls them.
    """
    return {**_machine(), "usable_cores": usable_cores()}


def usable_cores() -> int:
    """Logical cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def machine_id() -> str:
    """Hash of the hardware that decides figures: stable over reboots, and equal for machines that are equal."""
    facts = dict(_machine())
    memory_bytes = facts.pop("memory_bytes")
    facts["memory_gib"] = None if memory_bytes is None else round(memory_bytes / _GIB)
    return content_hash(facts, length=12)


def machine_line() -> str:
    """The machine in one line, for captions."""
    facts = machine()
    cores = facts["cores"]
    parts = [facts["cpu"], f"{cores} core" if cores == 1 else f"{cores} cores"]
    if facts["memory_bytes"] is not None:
        parts.append(f"{facts['memory_bytes'] / _GIB:.0f} GiB")
    counts = {name: facts["gpus"].count(name) for name in facts["gpus"]}
    parts.extend(name if count == 1 else f"{count} x {name}" for name, count in counts.items())
    parts.append(f"{facts['os']} {facts['arch']}")
    return ", ".join(parts)


@lru_cache(maxsize=1)
def gpu_names() -> tuple[str, ...]:
    """Names of NVIDIA GPUs, from the driver's tool: asking torch would start CUDA, which a parent of forks must not."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    try:
        answer = subprocess.run(
            [tool, "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in answer.stdout.splitlines() if line.strip())


def _cpu_model() -> str:
    for line in _read("/proc/cpuinfo").splitlines():
        if line.lower().startswith("model name"):
            return " ".join(line.split(":", 1)[1].split())
    if platform.system() == "Darwin":
        try:
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            pass
    return platform.processor() or platform.machine() or "unknown CPU"


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def code_hash(*parts: str, package: Path = _PACKAGE) -> str:
    """Hash of the package's Python files, names and contents, and of nothing else.

    Args:
        parts: subpackages ("models") or modules ("paradigm.py") to restrict it to; without any, the whole package.
        package: folder of the package.

    Raises:
        ValueError: a part that holds no Python file.
    """
    files: set[Path] = set()
    for part in parts or (".",):
        path = package / part
        found = [path] if path.is_file() and path.suffix == ".py" else list(path.rglob("*.py"))
        if not found:
            raise ValueError(f"{package.name} has no Python file in {part!r}; name a subpackage or a module.py of it")
        files.update(found)
    digest = hashlib.sha256()
    for name, path in sorted((file.relative_to(package).as_posix(), file) for file in files):
        content = path.read_bytes().replace(b"\r\n", b"\n")
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def set_threads(num_threads: int) -> None:
    """Let one operator use this many CPU threads.

    Raises:
        ValueError: fewer than one.
        RuntimeError: this build of torch does not obey.
    """
    if num_threads < 1:
        raise ValueError(f"device.threads={num_threads} is too small; it must be at least 1")
    import torch

    torch.set_num_threads(num_threads)
    if torch.get_num_threads() != num_threads:
        raise RuntimeError(f"torch runs {torch.get_num_threads()} threads although {num_threads} were asked for")


def keep_freed_memory() -> bool:
    """Let the C library keep what is freed for the next allocation, instead of giving it back to the system; whether it
    obeys (glibc does).

    By default glibc hands megabytes back as soon as they lie free, and every operator on a long prompt then waits for
    the system to map and clear its pages again: 5 to 20 % of the time of a prompt of 512 tokens at 5M parameters, more
    or less of it by the history of the process. Kept memory makes that time the operators' own, for all paradigms
    alike.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of malloc.h
    return bool(mallopt(mmap_threshold, 32 * 2**20) and mallopt(trim_threshold, 2**30))
