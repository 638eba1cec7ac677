"""mamba-ssm's Triton kernels on a CPU, through Triton's interpreter, against the readable forms. Run as a program: the
interpreter is chosen by the environment before Triton is imported, and must not reach other tests.

    TRITON_INTERPRET=1 MAMBA_DETERMINISTIC=1 python tests/models/interpreted.py

The package does not import without a compiled extension, so its folder is entered beside its `__init__`, and the
extension, which no kernel here uses, is an empty module. MAMBA_DETERMINISTIC leaves one configuration a kernel: nothing
is to be benchmarked.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import torch
import torch.nn.functional as F


def enter_mamba_ssm() -> None:
    """Let `mamba_ssm.ops` be imported without a GPU."""
    spec = importlib.util.find_spec("mamba_ssm")
    assert spec is not None and spec.submodule_search_locations
    package = ModuleType("mamba_ssm")
    package.__path__ = list(spec.submodule_search_locations)
    sys.modules |= {"mamba_ssm": package, "selective_scan_cuda": ModuleType("selective_scan_cuda")}
    torch.cuda.device = lambda index: contextlib.nullcontext()  # type: ignore[assignment]
    torch.cuda.get_device_properties = lambda device: SimpleNamespace(multi_processor_count=1)  # type: ignore[assignment]


def mend_interpreter() -> None:
    """Triton 3.6's interpreter takes `int` of an array of one number, which NumPy 2.4 refuses."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor, scope) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def check(actual: torch.Tensor, expected: torch.Tensor, what: str, tolerance: float = 1e-4) -> None:
    error = (actual - expected).abs().max().item() / max(1.0, expected.abs().max().item())
    print(f"{what}: {error:.1e}")
    assert error < tolerance, what


def mamba2_step(groups: int) -> None:
    from paradigms.models import kernels, ssd

    B, H, P, N = 2, 4, 16, 16
    x, b, c = normal(B, H, P), normal(B, groups, N, seed=1), normal(B, groups, N, seed=2)
    dt, A, state = F.softplus(normal(B, H, seed=3)), -normal(H, seed=4).exp(), normal(B, H, P, N, seed=5)
    reference = state.clone()
    y = kernels.ssd_step(x, dt, A, b, c, state)
    check(y, ssd.ssd_step(x, dt, A, b, c, reference), f"Mamba-2 step, {groups} groups")
    check(state, reference, "  state")


def mamba_step() -> None:
    from paradigms.models import kernels, selective_scan

    B, width, N = 2, 40, 16
    x, b, c, D = normal(B, width), normal(B, N, seed=1), normal(B, N, seed=2), normal(width, seed=6)
    dt, A, state = F.softplus(normal(B, width, seed=3)), -normal(N, width, seed=4).exp(), normal(B, N, width, seed=5)
    reference = state.clone()
    y = kernels.selective_step(x, dt, A, b, c, D, state)
    check(y, selective_scan.selective_step(x, dt, A, b, c, D, reference), "Mamba step")
    check(state, reference, "  state")


def mamba2_chunked(from_state: bool, groups: int) -> None:
    from paradigms.models import kernels, ssd

    B, T, H, P, N = 2, 40, 2, 16, 16
    x, b, c = normal(B, T, H, P), normal(B, T, groups, N, seed=1), normal(B, T, groups, N, seed=2)
    dt, A = F.softplus(normal(B, T, H, seed=3)), -normal(H, seed=4).exp()
    start = normal(B, H, P, N, seed=5) if from_state else None
    y, state = kernels.ssd_chunked(x, dt, A, b, c, start, 16)
    y_reference, state_reference = ssd.ssd_chunked(x, dt, A, b, c, start, 16)
    check(y, y_reference, f"Mamba-2 chunks, {groups} groups, {'from a state' if from_state else 'from zero'}", 2e-3)
    if from_state:
        check(state, state_reference, "  state", 2e-3)


def mamba2_gradients() -> None:
    from paradigms.models import kernels, ssd

    B, T, H, P, N = 2, 40, 2, 16, 16
    values = {
        "x": normal(B, T, H, P),
        "dt": F.softplus(normal(B, T, H, seed=3)),
        "A": -normal(H, seed=4).exp(),
        "B": normal(B, T, 1, N, seed=1),
        "C": normal(B, T, 1, N, seed=2),
    }
    weights = normal(B, T, H, P, seed=9)

    def gradients(function) -> tuple[torch.Tensor, ...]:
        inputs = [value.clone().requires_grad_() for value in values.values()]
        y, _ = function(*inputs, None, 16)
        return torch.autograd.grad((y * weights).sum(), inputs)

    for name, ours, reference in zip(values, gradients(kernels.ssd_chunked), gradients(ssd.ssd_chunked), strict=True):
        check(ours, reference, f"gradient of {name}", 2e-3)


if __name__ == "__main__":
    enter_mamba_ssm()
    mend_interpreter()
    from paradigms.models import kernels

    found = kernels.mamba_ssm_kernels()
    assert found is not None
    kernels._mamba_ssm = lambda x: found
    for groups in (1, 2):
        mamba2_step(groups)
    mamba_step()
    for from_state in (False, True):
        mamba2_chunked(from_state, 1)
    mamba2_chunked(True, 2)
    mamba2_gradients()
