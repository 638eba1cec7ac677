"""The GPU as its driver sees it, through nvidia-ml-py where that is installed (`pip install ".[energy]"`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def ask(device: torch.device, question: Callable[[Any, Any], Any]) -> Any:
    """What `question(pynvml, handle of the device)` says.

    None when the device is none of CUDA's, without nvidia-ml-py, and when the driver does not answer.
    """
    if device.type != "cuda":
        return None
    try:
        import pynvml  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        uuid = torch.cuda.get_device_properties(device).uuid
        return question(pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}"))
    except pynvml.NVMLError:
        return None
