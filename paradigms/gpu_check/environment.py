"""What is there: machine, versions, device, kernels."""

from __future__ import annotations

from typing import Any

import torch

from paradigms.measure.environment import machine, machine_line, versions
from paradigms.models import kernels


def environment() -> dict[str, Any]:
    """Facts of the machine and of what is installed, as far as figures depend on them."""
    found: dict[str, Any] = {"machine": machine_line(), **machine(), "cuda": torch.version.cuda}
    packages = ("torch", "transformers", "triton", "mamba-ssm", "causal-conv1d", "hydra-core", "pytest")
    found |= versions(packages)
    found["mamba_ssm_kernels"] = kernels.mamba_ssm_kernels() is not None
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        free, total = torch.cuda.mem_get_info(0)
        found |= {
            "gpu": properties.name,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "gpu_total_bytes": total,
            "gpu_free_bytes": free,
        }
    return found
