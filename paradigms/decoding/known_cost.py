"""A decoder that runs no model: each token costs work of known time, to test a measurement from end to end.

- `cpu_time` spins until this thread has computed for so long by its own clock. While the thread is made to wait, or
  stolen from, that clock stands still: a core shared with others shows as wall time, caches and clock rates do not.
- `arithmetic` multiplies a vector that stays in the first cache; a slower core shows too.
- `memory` reads through 64 MB, beyond most caches; a neighbour that reads memory shows as well, on any core.

The last two are whole operations, whose time must be measured beforehand (`time_of_operation`) on a machine that is
quiet. `paradigms.known_costs` does so, sweeps over costs, and holds what the records say against them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np
import torch

from paradigms.decoding.stopping import Vocabulary
from paradigms.models.network import NetworkConfig
from paradigms.models.stack import Model
from paradigms.paradigm import Event, Request
from paradigms.work import BatchShape, ForwardShape

KINDS = ("cpu_time", "arithmetic", "memory")
_VECTOR_LEN = 4096  # float32: 16 KB
_MEMORY_BYTES, _READ_BYTES = 64 * 2**20, 2**20
_SLICE_S = 0.02  # of calibration


@dataclass(frozen=True, kw_only=True)
class KnownCost:
    """One token of every row a step.

    Attributes:
        kind: of work.
        step_s: seconds of a step; of whole operations, the nearest number of them.
        prefill_steps: what the first step costs, in steps.
        operation_s: seconds of one operation, of `arithmetic` and `memory`.
    """

    kind: str
    step_s: float
    prefill_steps: int = 8
    operation_s: float | None = None
    engine: ClassVar[str] = "native"
    depends_on_values: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"decoder.kind={self.kind!r} is unknown; it is one of {', '.join(KINDS)}")
        if self.step_s <= 0 or self.prefill_steps < 1:
            raise ValueError(
                f"decoder.step_s={self.step_s} and decoder.prefill_steps={self.prefill_steps}: a step takes some time, "
                "and the first costs at least one"
            )
        if (self.operation_s is None) != (self.kind == "cpu_time"):
            raise ValueError(
                f"decoder.operation_s={self.operation_s} with decoder.kind={self.kind}: whole operations have a time, "
                "and cpu_time has none"
            )

    @property
    def operations(self) -> int:
        """Of a step; 0 for cpu_time, which has none."""
        return 0 if self.operation_s is None else max(1, round(self.step_s / self.operation_s))

    @property
    def exact_step_s(self) -> float:
        """What a step costs, whole operations counted."""
        return self.step_s if self.operation_s is None else self.operations * self.operation_s

    def check(self, model: NetworkConfig, *, output_len: int) -> None:
        """Any model will do: none is run."""

    def forwards(
        self, model: NetworkConfig, batch: BatchShape, *, tokens_per_forward: float | None = None
    ) -> Iterator[ForwardShape]:
        """None of the model."""
        return iter(())

    @torch.inference_mode()
    def decode(self, model: Model, requests: Sequence[Request], vocabulary: Vocabulary) -> Iterator[Event]:
        """Token 0 at every position, for requests of one length."""
        num_steps = requests[0].max_new_tokens
        token_B1 = torch.zeros(len(requests), 1, dtype=torch.long)
        work = self._work()
        for step in range(num_steps):
            for _ in range(self.prefill_steps if step == 0 else 1):
                work()
            yield Event(
                phase="decode" if step else "prefill",
                positions_K=(step,),
                token_ids_BK=token_B1,
                forwards={"known_cost": 1},
                positions_computed=len(requests),
                finished=dict.fromkeys(range(len(requests)), "length") if step == num_steps - 1 else {},
            )

    def _work(self) -> Callable[[], None]:
        if self.kind == "cpu_time":
            return _spinning(round(self.step_s * 1e9))
        operate, operations = operation(self.kind), self.operations

        def work() -> None:
            for _ in range(operations):
                operate()

        return work


@cache
def operation(kind: str) -> Callable[[], object]:
    """One operation of `arithmetic` or `memory`; made once, or the first token would pay for it."""
    with torch.inference_mode(False):
        vector, factor, memory = torch.ones(_VECTOR_LEN), torch.tensor(1.0), torch.ones(_MEMORY_BYTES // 4)
    if kind == "arithmetic":
        return lambda: vector.mul_(factor)
    parts, place = memory.split(_READ_BYTES // 4), 0

    def read() -> None:
        nonlocal place
        parts[place].sum()
        place = (place + 1) % len(parts)

    return read


@dataclass(frozen=True, slots=True)
class OperationTime:
    """Of one operation on this machine.

    Attributes:
        seconds: median over slices.
        spread: upper quartile of the slices over the lower one, minus 1: how well the machine keeps to it.
    """

    seconds: float
    spread: float


def time_of_operation(kind: str, *, for_s: float) -> OperationTime:
    """Time operations, called as a step calls them, in slices of 20 ms by this thread's clock, which waiting for a core
    does not move.

    Args:
        for_s: how long to try.
    """
    with torch.inference_mode():
        operate, slices_s = operation(kind), []
        end, count = time.perf_counter() + for_s, 16
        while time.perf_counter() < end or not slices_s:
            start = time.thread_time()
            for _ in range(count):
                operate()
            took_s = time.thread_time() - start
            if took_s < _SLICE_S / 2:  # find out first how many a slice holds: reading the clock costs as well
                count *= 2
            else:
                slices_s.append(took_s / count)
    low_s, median_s, high_s = np.quantile(slices_s, (0.25, 0.5, 0.75)).tolist()
    return OperationTime(median_s, high_s / low_s - 1)


def _spinning(nanoseconds: int) -> Callable[[], None]:
    read = time.thread_time_ns

    def spin() -> None:
        end = read() + nanoseconds
        while read() < end:
            pass

    return spin
