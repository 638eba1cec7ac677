"""What a machine achieves, as it was measured: a file a machine, kind of device and number of threads.

Peaks of a datasheet are reached by nobody; these are reached by the operators that the models use, so a cell that comes
near them has nothing left to gain, and one that does not has. Only observations are kept, and every figure derived from
them (a bandwidth in between, a peak, the best number of threads) is computed when asked for. No torch here.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from paradigms.data.cache import cache_folder
from paradigms.measure.environment import machine_id

FORMAT = 1
HOW = "python -m paradigms.costs calibrate"
_SAME = 0.05  # two numbers of threads whose times differ by less count as equally fast


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthPoint:
    """Reads of weights that are walked again and again.

    Attributes:
        working_set_bytes: what is walked.
        bytes_per_s: median of the tries.
        low, high: slowest and fastest try.
        method: the operator that read fastest.
    """

    working_set_bytes: int
    bytes_per_s: float
    low: float
    high: float
    method: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulPoint:
    """Products [rows, k] @ [k, n], of the same matrices again and again.

    Attributes:
        flops_per_s: two operations for a multiplication and addition; median of the tries.
        low, high: slowest and fastest try.
    """

    dtype: str
    rows: int
    k: int
    n: int
    flops_per_s: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadTimes:
    """Seconds of the same work with so many threads: a decode-like step (one row, many small operators) and a
    prefill-like product (many rows).
    """

    threads: int
    decode_s: float
    prefill_s: float


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What one device of one machine achieves with so many threads.

    Attributes:
        machine: `machine_id()`; machine_line: the machine for people.
        device: `cpu` or `cuda`; device_name: the CPU or GPU by name.
        threads: CPU threads of one operator, on CUDA those of the host.
        torch_version: measured with.
        date: when it began, ISO 8601, UTC.
        took_s: seconds it took.
        noise: columns of `NoiseReader.after()`.
        bandwidth: by growing working set.
        matmul: by dtype, size and rows.
        dispatch_s: host seconds of one small operator in a Python loop.
        launch_s: CUDA: device seconds from one small kernel to the next, launched one by one; None on a CPU.
        graph_replay_s: CUDA: seconds of replaying a graph of one small kernel, call included; None on a CPU.
        graph_kernel_s: CUDA: seconds that one more small kernel in a graph takes; None on a CPU.
        threads_tried: empty on CUDA.
        layers, decoders: figures of layers and decoders, as JSON values, by those who measure them (`paradigms.costs`).
    """

    machine: str
    machine_line: str
    device: str
    device_name: str
    threads: int
    torch_version: str
    date: str
    took_s: float
    noise: dict[str, Any]
    bandwidth: tuple[BandwidthPoint, ...]
    matmul: tuple[MatmulPoint, ...]
    dispatch_s: float
    launch_s: float | None = None
    graph_replay_s: float | None = None
    graph_kernel_s: float | None = None
    threads_tried: tuple[ThreadTimes, ...] = ()
    layers: dict[str, Any] = field(default_factory=dict)
    decoders: dict[str, Any] = field(default_factory=dict)

    # ------------------------------------------------------------ derived

    def bandwidth_at(self, working_set_bytes: float) -> float:
        """Bytes a second at a working set: between the measured ones on a straight line of logarithms, outside of them
        the nearest one.

        Raises:
            ValueError: a working set of nothing, or none was measured.
        """
        return _loglog(
            [(point.working_set_bytes, point.bytes_per_s) for point in self.bandwidth],
            working_set_bytes,
            "working_set_bytes",
        )

    def matmul_flops_per_s(self, dtype: str, rows: int, k: int, n: int) -> float:
        """Operations a second of [rows, k] @ [k, n]: on straight lines of logarithms first between the measured rows of
        each matrix, then between the matrices by their k n; outside of what was measured the nearest.

        Raises:
            ValueError: a dtype that was not measured, or a size below 1.
        """
        points = self._of_dtype(dtype)
        by_size = {
            size: _loglog([(point.rows, point.flops_per_s) for point in group], rows, "rows")
            for size, group in _grouped(points)
        }
        return _loglog(sorted(by_size.items()), k * n, "k n")

    def peak_flops_per_s(self, dtype: str) -> float:
        """The most operations a second that any product of this dtype achieved.

        Raises:
            ValueError: a dtype that was not measured.
        """
        return max(point.flops_per_s for point in self._of_dtype(dtype))

    def peak_bytes_per_s(self) -> float:
        """The most bytes a second that any working set achieved: that of the nearest cache. What weights of a given
        size can reach is `bandwidth_at` their bytes.

        Raises:
            ValueError: none was measured.
        """
        if not self.bandwidth:
            raise ValueError(f"no bandwidth was measured; calibrate again: {HOW}")
        return max(point.bytes_per_s for point in self.bandwidth)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Those whose products were measured."""
        return tuple(dict.fromkeys(point.dtype for point in self.matmul))

    @property
    def best_threads(self) -> dict[str, int]:
        """`decode` and `prefill` -> the fewest threads within 5 % of the fastest; empty where none were tried."""
        if not self.threads_tried:
            return {}
        return {
            "decode": _fewest([(tried.threads, tried.decode_s) for tried in self.threads_tried]),
            "prefill": _fewest([(tried.threads, tried.prefill_s) for tried in self.threads_tried]),
        }

    def _of_dtype(self, dtype: str) -> list[MatmulPoint]:
        points = [point for point in self.matmul if point.dtype == dtype]
        if not points:
            raise ValueError(
                f"products of dtype={dtype!r} were not calibrated on {self.device_name}; "
                f"measured: {', '.join(self.dtypes) or 'none'}"
            )
        return points

    # ------------------------------------------------------------ on disk

    def save(self, path: Path | None = None) -> Path:
        """Write it, whole or not at all.

        Args:
            path: where to; None is the place where `calibration_for` looks.

        Raises:
            OSError: it cannot be written there.
        """
        path = path or calibration_path(self.machine, self.device, self.threads)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"format": FORMAT, **asdict(self)}, indent=1, allow_nan=False)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text + "\n")
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        return path

    @classmethod
    def load(cls, path: Path) -> Calibration:
        """Read one.

        Raises:
            FileNotFoundError: there is none.
            ValueError: the file is damaged or of another version; named, with what to do.
        """
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            if not isinstance(stored, dict):
                raise ValueError("not an object")
            found = stored.pop("format", None)
            if found != FORMAT:
                raise ValueError(f"its format is {found!r}, this version reads {FORMAT}")
            missing = {entry.name for entry in fields(cls)} ^ set(stored)
            if missing:
                raise ValueError(f"missing or unknown: {', '.join(sorted(missing))}")
            for name, kind in (("bandwidth", BandwidthPoint), ("matmul", MatmulPoint), ("threads_tried", ThreadTimes)):
                stored[name] = tuple(kind(**entry) for entry in stored[name])
            return cls(**stored)
        except (ValueError, TypeError) as error:
            raise ValueError(f"calibration {path} cannot be used ({error}); make it again: {HOW}") from error


def calibration_path(machine: str, device: str, threads: int) -> Path:
    """Where the calibration of a machine (`machine_id()`), kind of device and number of threads is kept."""
    return cache_folder() / "calibration" / f"{machine}-{device}-{threads}.json"


def calibration_for(machine: str | None, device: str, threads: int) -> Calibration | None:
    """The stored calibration, or None when there is none.

    Args:
        machine: `machine_id()`; None is this machine.
        device: `cpu` or `cuda`.

    Raises:
        ValueError: the file is there and cannot be used.
    """
    try:
        return Calibration.load(calibration_path(machine or machine_id(), device, threads))
    except FileNotFoundError:
        return None


def _grouped(points: Iterable[MatmulPoint]) -> list[tuple[int, list[MatmulPoint]]]:
    """Points by k n."""

    def size(point: MatmulPoint) -> int:
        return point.k * point.n

    return [(kn, list(group)) for kn, group in groupby(sorted(points, key=size), key=size)]


def _fewest(seconds: Sequence[tuple[int, float]]) -> int:
    limit_s = (1 + _SAME) * min(each_s for _, each_s in seconds)
    return min(threads for threads, each_s in seconds if each_s <= limit_s)


def _loglog(points: Sequence[tuple[float, float]], x: float, name: str) -> float:
    """y at x on straight lines of logarithms through points; the nearest point outside of them."""
    if x <= 0:
        raise ValueError(f"{name}={x} is too small; it must be above 0")
    if not points:
        raise ValueError(f"nothing was measured by {name}; calibrate again: {HOW}")
    points = sorted(points)
    if x <= points[0][0]:
        return points[0][1]
    for (left, low), (right, high) in pairwise(points):
        if x <= right:
            share = math.log(x / left) / math.log(right / left)
            return math.exp((1 - share) * math.log(low) + share * math.log(high))
    return points[-1][1]
