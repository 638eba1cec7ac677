"""The steps of the check, in order, each against the clock."""

from __future__ import annotations

import json
import platform
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from paradigms.gpu_check.figures import FIGURES, Figure, common
from paradigms.isolate import call, start_server
from paradigms.measure.environment import usable_cores
from paradigms.records import read_table

ROOT = Path(__file__).resolve().parents[2]
ENDING_S = 15.0  # for a sweep to end what it runs


@dataclass(frozen=True)
class Told:
    """What became of a step: `ok`, `failed` or `skipped`, and one line on it."""

    name: str
    status: str
    seconds: float
    line: str


class Check:
    """One run of the check.

    Args:
        out: where everything is written.
        device, tiny: what runs, and whether small.
        deadline_s: for all steps together.
    """

    def __init__(self, out: Path, *, device: str, tiny: bool, deadline_s: float) -> None:
        self.out, self.device, self.tiny = out, device, tiny
        self.started, self.deadline_s = time.monotonic(), deadline_s
        self.told: list[Told] = []
        self.found: dict[str, Any] = {"device": device, "tiny": tiny, "python": platform.python_version()}

    @property
    def which(self) -> tuple[str, bool]:
        return self.device, self.tiny

    @property
    def left_s(self) -> float:
        return self.deadline_s - (time.monotonic() - self.started)

    def run(self, wheels: Mapping[str, list[str]]) -> int:
        self.found["wheels"] = dict(wheels)
        (self.out / "logs").mkdir(parents=True, exist_ok=True)
        start_server(["paradigms.bench", "paradigms.gpu_check.figures", "paradigms.gpu_check.peaks"])
        self.step("environment", 60, lambda limit_s: self.in_child("environment", limit_s, "environment.environment"))
        self.step("rates", 60, lambda limit_s: self.in_child("rates", limit_s, "rates.rates", *self.which))
        self.step(
            "peaks", 60, lambda limit_s: self.in_child("peaks", limit_s, "peaks.peaks", *self.which, str(self.out))
        )
        self.all_tests(120)
        for figure in FIGURES:
            self.step(f"figure {figure.name}", 45, lambda limit_s, figure=figure: self.figure(figure, limit_s))
        self.step("sweep", self.left_s, self.sweep)
        print(f"{self.pack()}: gpu_check.json, logs, and sweep/ for python -m analysis.report, here or elsewhere")
        return 1 if any(told.status == "failed" for told in self.told) else 0

    def step(self, name: str, budget_s: float, work: Callable[[float], tuple[str, str]]) -> None:
        """Run one step within its time and what is left of the whole; whatever it raises is its failure alone."""
        limit_s, started = min(budget_s, self.left_s), time.monotonic()
        if limit_s <= 0:
            status, line = "skipped", "no time left"
        else:
            try:
                status, line = work(limit_s)
            except Exception as error:
                status, line = "failed", f"{type(error).__name__}: {error}"
        self.told.append(Told(name, status, time.monotonic() - started, line))
        print(f"{status:8}{self.told[-1].seconds:6.1f} s  {name}: {line}", flush=True)
        steps = [asdict(told) for told in self.told]
        (self.out / "gpu_check.json").write_text(json.dumps({**self.found, "steps": steps}, indent=1))

    def pack(self) -> Path:
        """One file of what came out, without caches and unpacked wheels, to be carried to another machine."""
        path = self.out / "results.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            for name in ("gpu_check.json", "calibration.json", "logs", "sweep"):
                if (self.out / name).exists():
                    archive.add(self.out / name, f"gpu_check/{name}")
        return path

    def in_child(self, name: str, limit_s: float, function: str, *arguments: Any) -> tuple[str, str]:
        """A function of this package in a process of its own; what it returns is kept under the name."""
        log = self.out / "logs" / f"{name.replace(' ', '_')}.log"
        outcome = call(f"paradigms.gpu_check.{function}", *arguments, log=log, timeout_s=limit_s)
        if outcome.status != "ok":
            return "failed", f"{outcome.error} ({log.relative_to(self.out)})"
        self.found[name] = outcome.value
        return "ok", short(outcome.value)

    def all_tests(self, budget_s: float) -> None:
        """A step a file, several at a time: they hold results against each other and time nothing.

        Without a GPU they are only found, all in one step.
        """
        with ThreadPoolExecutor(max_workers=min(8, usable_cores())) as pool:
            limit_s = min(budget_s, self.left_s)
            groups = {f"tests {path.relative_to(ROOT / 'tests')}": [path] for path in gpu_tests()}
            if self.device == "cpu":
                groups = {"tests, found": gpu_tests()}
            runs = {name: pool.submit(self.tests, paths, limit_s) for name, paths in groups.items()}
            for name, run in runs.items():
                self.step(name, budget_s, lambda _, run=run: run.result())

    def tests(self, paths: Sequence[Path], limit_s: float) -> tuple[str, str]:
        """The tests in these files that are marked gpu."""
        if find_spec("pytest") is None:
            return "skipped", "pytest is not there; put its wheel among the wheels (make gpu-wheels)"
        more = [] if self.device == "cuda" else ["--collect-only"]
        command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", *more]
        command += map(str, paths)
        log = self.out / "logs" / f"{paths[0].stem}.log"
        with open(log, "w") as file:
            try:
                code = subprocess.run(command, cwd=ROOT, stdout=file, stderr=file, timeout=limit_s).returncode
            except subprocess.TimeoutExpired:
                return "failed", f"not done after {limit_s:.0f} s ({log.relative_to(self.out)})"
        lines = [line.strip() for line in log.read_text().splitlines() if line.strip()]
        return "failed" if code else "ok", f"{lines[-1] if lines else 'silent'} ({log.relative_to(self.out)})"

    def figure(self, figure: Figure, limit_s: float) -> tuple[str, str]:
        if "rates" not in self.found:
            return "skipped", "the rates that it would be set against are not known"
        if self.device == "cpu" and figure.graphed:
            return "skipped", "there are no CUDA graphs on a CPU"
        execution = f"device.execution={'cuda_graph' if figure.graphed else 'eager'}"
        overrides = [*figure.overrides(self.tiny), *common(self.device, self.tiny), execution]
        return self.in_child(
            f"figure {figure.name}", limit_s, "figures.measure", figure, overrides, self.found["rates"]
        )

    def sweep(self, limit_s: float) -> tuple[str, str]:
        """The experiment, until it is done or the time is up; what is measured by then is kept."""
        if limit_s < 2 * ENDING_S:
            return "skipped", "no time left"
        graphed = [f"figure {figure.name}" for figure in FIGURES if figure.graphed]
        work = all(told.status == "ok" for told in self.told if told.name in graphed)  # or every unit would fail
        execution = "cuda_graph" if work else "eager"
        code = self.run_sweep(f"device.execution={execution}", time.monotonic() + limit_s - ENDING_S)
        folder = self.out / "sweep"
        statuses = [run["status"] for run in read_table(folder, "runs")] if folder.exists() else []
        line = ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses)) or "no unit"
        ended = {0: "all done", 1: "all done, some failed", 2: "bad input", 130: "stopped at the deadline"}
        good = code in (0, 130) and "ok" in statuses
        return (
            "ok" if good else "failed",
            f"{execution}: {line}; {ended.get(code, f'exit code {code}')} (logs/sweep.log)",
        )

    def run_sweep(self, execution: str, end: float) -> int:
        small = [*common(self.device, True), "device.dtype=float32", "size=125m", "workload.batch_size=1,2",
                 "workload.prompt_len=8", "workload.output_len=16,24",
                 "measure.extrapolate_over_s=1e-9"]  # fmt: skip
        command = [sys.executable, "-m", "paradigms", "experiment=gpu_side_by_side", f"sweep.dir={self.out / 'sweep'}",
                   "sweep.report=false", *(small if self.tiny else []), execution]  # fmt: skip
        with open(self.out / "logs" / "sweep.log", "a") as log:
            process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
            try:
                return process.wait(max(1.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
            try:
                return process.wait(ENDING_S)
            except subprocess.TimeoutExpired:
                process.kill()
                return process.wait()


def gpu_tests() -> list[Path]:
    """Files with tests marked gpu."""
    return [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.gpu" in path.read_text()]


def short(value: Any) -> str:
    """The figures of a result in one line."""
    wanted = ("machine", "gpu", "torch", "copy_bytes_per_s", "read_bytes_per_s", "matmul_flops_per_s", "time_s", "mbu",
              "mfu", "kernels", "execution")  # fmt: skip
    parts = {name: value[name] for name in wanted if isinstance(value, dict) and value.get(name) is not None}
    return ", ".join(
        f"{name} {number:.4g}" if isinstance(number, float) else f"{name} {number}" for name, number in parts.items()
    )
