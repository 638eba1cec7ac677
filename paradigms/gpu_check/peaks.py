"""The peaks of the device, calibrated as `python -m paradigms.costs calibrate` does: the roof of the sweep's cells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from paradigms.measure.calibration.measured import Extent, calibrate

TINY = Extent(
    working_sets_bytes=(2**16, 2**20),
    dtypes=("float32",),
    sizes=((128, 344),),
    rows=(1, 32),
    thread_counts=(),
    budget_s=0.001,
)


def peaks(device_name: str, tiny: bool, out: str) -> dict[str, Any]:
    """Measure and keep a calibration, in the folder `out` and, unless it is tiny, where the sweep looks for it."""
    found = calibrate(torch.device(device_name), 1, extent=TINY if tiny else None)
    path = found.save(Path(out) / "calibration.json")
    if not tiny:
        found.save()
    dtype = "float32" if tiny else "bfloat16"
    return {
        "file": path.name,
        "read_bytes_per_s": found.peak_bytes_per_s(),
        "matmul_flops_per_s": found.peak_flops_per_s(dtype),
        "dispatch_s": found.dispatch_s,
        "time_s": found.took_s,
    }
