"""The machine that this runs on, as a device of the cost model."""

from __future__ import annotations

from paradigms.costs.calibrated import CALIBRATE, CalibratedDevice
from paradigms.measure.calibration import calibration_for
from paradigms.measure.environment import machine


def device_of(device: str, threads: int) -> CalibratedDevice:
    """What `calibrate` has stored of it.

    Args:
        device: `cpu` or `cuda`.

    Raises:
        ValueError: there is no such device, it has not been calibrated, or the system does not tell its memory.
    """
    if device == "cuda" and not machine()["gpus"]:
        raise ValueError("device=cuda, but this machine shows no NVIDIA GPU; use device=cpu, or a datasheet")
    calibration = calibration_for(None, device, threads)
    if calibration is None:
        raise ValueError(
            f"device={device} with threads={threads} is not calibrated here; "
            f"run {CALIBRATE} --device {device} --threads {threads}"
        )
    if device == "cuda":
        import torch

        return CalibratedDevice(calibration, memory_bytes=torch.cuda.get_device_properties(0).total_memory)
    memory_bytes = machine()["memory_bytes"]
    if memory_bytes is None:
        raise ValueError("device=cpu: this system does not tell how much memory it has; predict on a datasheet")
    return CalibratedDevice(calibration, memory_bytes=memory_bytes)
