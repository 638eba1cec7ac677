"""Energy of a stretch of work, from counters that the hardware keeps; read before and after, never during.

- GPU: what the whole board has used, by NVML's counter in mJ (Volta and later, with nvidia-ml-py).
- CPU: what each processor package has used, by RAPL in µJ, of Intel and of AMD alike (powercap). The files belong to
  root on most systems: `sudo chmod a+r /sys/class/powercap/intel-rapl:*/energy_uj`.

Both count all that board or machine did meanwhile, other processes and idling included: on a machine that is not
otherwise quiet they say little, and a package counts cores that the work does not use. A CUDA unit's energy is that of
its GPU, without the machine around it; a CPU unit's is that of all packages, without memory where that is apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from paradigms.measure.nvml import ask


@dataclass(frozen=True, slots=True)
class _Counter:
    """A counter in units of `unit_j` that goes from `largest` back to 0; None for one that does not."""

    value: int
    unit_j: float
    largest: int | None = None

    def since(self, before: _Counter) -> float:
        """Joules; a counter that is below what it was has gone round once."""
        moved = self.value - before.value
        if moved < 0 and self.largest is not None:
            moved += self.largest + 1
        return moved * self.unit_j


class EnergyMeter:
    """Joules between two readings.

    Args:
        device: a CUDA device is asked for its own counter, any other has that of the processor packages.
        sys: where sysfs is mounted.
    """

    COLUMNS: ClassVar[tuple[str, ...]] = ("energy_j", "energy_j_per_token", "energy_source")

    def __init__(self, device: torch.device | str = "cpu", *, sys: Path = Path("/sys")) -> None:
        self.device = torch.device(device)
        self.sys = sys
        self._before: dict[str, _Counter] | None = None

    def before(self) -> None:
        """Read the counters ahead of the work."""
        self._before = self._read()

    def after(self, num_tokens: int) -> dict[str, Any]:
        """Read them again. The work must be over: a device is waited for by whoever timed it.

        Args:
            num_tokens: committed in between, by all rows and repeats.

        Returns:
            energy_j: joules in between; energy_j_per_token; energy_source: `nvml` (the board) or `rapl` (all packages
            of the machine). Each None where there is no counter, or none that moved: one of tens of milliseconds on a
            GPU tells nothing of less.

        Raises:
            RuntimeError: `before` was not called.
        """
        if self._before is None:
            raise RuntimeError("EnergyMeter.after() has nothing to compare with; call before() ahead of the work")
        before, after = self._before, self._read()
        joules = sum(counter.since(before[name]) for name, counter in after.items() if name in before)
        if not after or after.keys() != before.keys() or joules <= 0:
            return dict.fromkeys(self.COLUMNS)
        return {
            "energy_j": joules,
            "energy_j_per_token": joules / num_tokens if num_tokens else None,
            "energy_source": "nvml" if self.device.type == "cuda" else "rapl",
        }

    def _read(self) -> dict[str, _Counter]:
        if self.device.type == "cuda":
            millijoules = ask(self.device, lambda nvml, handle: nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
            return {} if millijoules is None else {"board": _Counter(int(millijoules), 1e-3)}
        return _packages(self.sys / "class" / "powercap")


def _packages(folder: Path) -> dict[str, _Counter]:
    """Counters of the packages, `intel-rapl:0`, `intel-rapl:1`; parts of one, `intel-rapl:0:0`, are within it.

    The same packages may show a second time through another interface (`intel-rapl-mmio:0`): those are left out. One
    package that cannot be read makes the sum unknown.
    """
    counters = {}
    for path in sorted(folder.glob("intel-rapl:*")):
        if path.name.count(":") != 1 or not (_text(path / "name") or "").startswith("package"):
            continue
        value, largest = _text(path / "energy_uj"), _text(path / "max_energy_range_uj")
        if value is None:
            return {}
        counters[path.name] = _Counter(int(value), 1e-6, int(largest) if largest else None)
    return counters


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None
