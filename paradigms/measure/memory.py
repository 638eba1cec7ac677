"""Peak memory of a block of work, in a pass of its own: watching allocations slows the work down.

Three readings, each for another question:

- Tensor bytes (CPU): the peak of live tensor storage, exact, without interpreter, allocator and other libraries. A
  dispatch mode sees every storage that an operator returns, once however many views it has, and sees it freed. Storage
  that lived before is the base: passed in, or found when an operator first touches it (so what `torch.from_numpy` makes
  inside the block counts as base). What a kernel allocates and frees inside itself is not seen, nor are kernels that
  bypass the dispatcher (compiled graphs).
- Resident bytes (Linux): the high-water mark of the process' physical memory, everything included, since the reset.
- CUDA: the caching allocator's peaks of bytes in tensors (allocated) and of bytes taken from the device (reserved).
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


@dataclass(slots=True)
class PeakMemory:
    """Peaks in bytes, filled in when the block ends; None where the device or platform has no such reading.

    Attributes:
        tensor_bytes: peak of live tensor storage, the base included (CPU).
        base_bytes: the part of it that lived before the block: weights, state, prompts.
        rss_bytes: peak resident set of the whole process.
        cuda_allocated_bytes: peak of bytes in tensors, what lived before included.
        cuda_reserved_bytes: peak of bytes that the allocator held.
    """

    tensor_bytes: int | None = None
    base_bytes: int | None = None
    rss_bytes: int | None = None
    cuda_allocated_bytes: int | None = None
    cuda_reserved_bytes: int | None = None

    def columns(self) -> dict[str, int | None]:
        """The memory columns of the `runs` table."""
        return {
            "peak_tensor_bytes": self.tensor_bytes,
            "peak_rss_bytes": self.rss_bytes,
            "cuda_peak_allocated_bytes": self.cuda_allocated_bytes,
            "cuda_peak_reserved_bytes": self.cuda_reserved_bytes,
        }


@contextmanager
def peak_memory(
    device: torch.device | str, *, base: Iterable[torch.Tensor] = (), tensors: bool = True
) -> Iterator[PeakMemory]:
    """Measure the peaks of a block.

    Every mark is reset on entry, after a garbage collection, so nothing of an earlier cell is counted; on CUDA the
    allocator's cache is emptied as well, or what an earlier cell reserved would count as reserved here.

    Args:
        device: `cpu` or `cuda`; decides which readings exist.
        base: tensors that live before the block and count even if no operator touches them; others are discovered.
        tensors: False leaves tensor bytes out on a CPU: what sees them keeps compiled programs from running.

    Raises:
        ValueError: another kind of device.
    """
    device = torch.device(device)
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"memory cannot be measured on device {str(device)!r}; it can on cpu and cuda")
    peaks = PeakMemory()
    gc.collect()
    with ExitStack() as stack:
        tracker = None
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
        elif tensors:
            tracker = _StorageTracker(base)
            stack.callback(tracker.stop)
            stack.enter_context(tracker)
        del base  # or it would keep alive what the block frees
        rss_was_reset = _reset_peak_rss()
        yield peaks
        peaks.rss_bytes = _peak_rss() if rss_was_reset else None
        if tracker is not None:
            peaks.tensor_bytes, peaks.base_bytes = tracker.peak_bytes, tracker.base_bytes
        elif device.type == "cuda":
            torch.cuda.synchronize(device)
            peaks.cuda_allocated_bytes = torch.cuda.max_memory_allocated(device)
            peaks.cuda_reserved_bytes = torch.cuda.max_memory_reserved(device)


class _StorageTracker(TorchDispatchMode):
    """Live CPU storage, by the address of its implementation object, which is unique as long as it lives.

    `_grown_bytes` counts from zero at entry: storage born inside adds to it, storage that dies takes from it. The base
    was there from the start, so it is added to the peak as a whole, even when an operator reveals it late.
    """

    def __init__(self, base: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.base_bytes = 0
        self._grown_bytes = 0
        self._peak_grown_bytes = 0
        self._sizes: dict[int, int] = {}
        self._finalizers: dict[int, Any] = {}
        for tensor in base:
            self._see(tensor, is_new=False)

    @property
    def peak_bytes(self) -> int:
        return self.base_bytes + self._peak_grown_bytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        is_composite, makes_operand, may_resize = _traits(func)
        if is_composite:
            with self:  # in inference mode composite operators come whole: look at what they are made of
                return func._op_dk(_COMPOSITE, *args, **kwargs)
        operands = _tensors((*args, *kwargs.values()))
        for tensor in operands:
            self._see(tensor, is_new=makes_operand or tensor.dim() == 0)  # a Python number is born as an operand
        result = func(*args, **kwargs)
        for tensor in _tensors((result,)):
            self._see(tensor, is_new=True)
        if may_resize:
            for tensor in operands:
                self._see(tensor, is_new=True)
        return result

    def stop(self) -> None:
        """Let go of the storages that outlive the block."""
        for finalizer in self._finalizers.values():
            finalizer.detach()

    def _see(self, tensor: torch.Tensor, *, is_new: bool) -> None:
        if not tensor.is_cpu or tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        address, size = storage._cdata, storage.nbytes()
        known = self._sizes.get(address)
        if known == size:
            return
        if known is None:
            finalizer = weakref.finalize(storage, self._forget, address)
            finalizer.atexit = False
            self._finalizers[address] = finalizer
        self._sizes[address] = size
        if known is None and not is_new:
            self.base_bytes += size
        else:
            self._grown_bytes += size - (known or 0)
            self._peak_grown_bytes = max(self._peak_grown_bytes, self._grown_bytes)

    def _forget(self, address: int) -> None:
        self._grown_bytes -= self._sizes.pop(address)
        del self._finalizers[address]


@cache
def _traits(func: Any) -> tuple[bool, bool, bool]:
    """Whether an operator is a mere sequence of others, is given what was just made, may resize its operands."""
    is_composite = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), _COMPOSITE)
    wraps_literal = func is torch.ops.aten.lift_fresh.default  # how torch.tensor ends
    return is_composite, wraps_literal, func._schema.is_mutable


def _tensors(values: Iterable[Any]) -> list[torch.Tensor]:
    """Tensors among an operator's operands or results, which hold at most lists of them."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(item for item in value if isinstance(item, torch.Tensor))
    return found


def _reset_peak_rss() -> bool:
    """Start the high-water mark anew; False where the system does not let us."""
    try:
        _CLEAR_REFS.write_text("5")
    except OSError:
        return False
    return True


def _peak_rss() -> int | None:
    try:
        status = _STATUS.read_text()
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None
