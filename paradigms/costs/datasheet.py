"""Devices that nobody has at hand: their datasheet, and efficiencies that were published of others.

    datasheet("h200")                       one of them
    datasheet("h200", num_devices=2)        two that share every layer: bytes and operations halved, all-reduces added

The efficiencies are derived when they are asked for, from rows of `reference/` (`reference.derived` says which), so a
prediction of those very rows brings its own (`DataSheet(sheet, efficiencies=...)`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paradigms.costs.law import Efficiency, Seconds, seconds
from paradigms.costs.prediction import ITEMSIZE
from paradigms.costs.sheets import Sheet, sheet_of
from paradigms.models.config import ModelConfig
from paradigms.work import BatchShape, ForwardShape

SPREAD = 0.6  # nine of ten timed rows of the reference that gave no constant lie within; tests/costs holds it
SAMPLING_PASSES = 6  # over float32 logits: temperature, softmax (two), cumulation, comparison, reading the choice
SAMPLING_OPERATORS = 12


def datasheet(name: str, *, num_devices: int = 1) -> DataSheet:
    """A device, or a tensor-parallel group of them, by the name of its sheet.

    Raises:
        ValueError: no such sheet, or a group of devices without links.
    """
    from paradigms.costs.reference.derived import published

    sheet = sheet_of(name)
    return DataSheet(sheet=sheet, efficiencies=published(sheet.kind), num_devices=num_devices)


@dataclass(frozen=True, kw_only=True)
class DataSheet:
    """See `prediction.DeviceModel`.

    Attributes:
        sheet: what the vendor says.
        efficiencies: execution -> what of it is reached.
        num_devices: of a tensor-parallel group.
    """

    sheet: Sheet
    efficiencies: Mapping[str, Efficiency]
    num_devices: int = 1

    def __post_init__(self) -> None:
        if self.num_devices < 1:
            raise ValueError(f"num_devices={self.num_devices} is too small; it must be at least 1")
        if self.num_devices > 1 and self.sheet.link_bytes_per_s is None:
            raise ValueError(f"num_devices={self.num_devices}: {self.sheet.label} has no link; set num_devices=1")

    @property
    def name(self) -> str:
        return self.sheet.label if self.num_devices == 1 else f"{self.num_devices} x {self.sheet.label}"

    @property
    def memory_bytes(self) -> int:
        """Of all devices together: what a model is divided over."""
        return self.num_devices * self.sheet.memory_bytes

    @property
    def spread(self) -> float | None:
        """That of the reference, whose rows are of single GPUs; None for what nobody has looked at."""
        return SPREAD if self.sheet.kind == "gpu" and self.num_devices == 1 else None

    def forward_s(self, model: ModelConfig, shape: ForwardShape, *, dtype: str, execution: str) -> float:
        """Seconds of one forward.

        Raises:
            ValueError: a dtype that is not on the sheet, an execution without efficiencies, or a model without
                formulas.
        """
        return self.parts(model, shape, dtype=dtype, execution=execution).total

    def bound_by(self, model: ModelConfig, shape: ForwardShape, *, dtype: str, execution: str) -> str:
        """What takes most of it: `compute`, `bandwidth` or `overhead`."""
        return self.parts(model, shape, dtype=dtype, execution=execution).bound_by

    def parts(self, model: ModelConfig, shape: ForwardShape, *, dtype: str, execution: str) -> Seconds:
        """What it is made of; see `forward_s`."""
        efficiency = self._efficiency(execution)
        self._check(model, dtype)
        return seconds(
            model,
            shape,
            self.sheet,
            efficiency,
            dtype=dtype,
            itemsize=ITEMSIZE[dtype],
            num_devices=self.num_devices,
        )

    def decoder_s(self, decoder: Any, vocab_size: int, shape: ForwardShape, batch: BatchShape) -> float:
        """Passes over the logits of one forward, and a dozen small operators: the same for every decoder."""
        eager = self._efficiency("eager")
        passes = 4 * SAMPLING_PASSES * shape.logits * vocab_size / (eager.bandwidth * self.sheet.bytes_per_s)
        each = eager.operator_s if self.sheet.kind == "cpu" else eager.small_kernel_s
        return passes + SAMPLING_OPERATORS * each

    def _efficiency(self, execution: str) -> Efficiency:
        if execution not in self.efficiencies:
            allowed = " or ".join(self.efficiencies)
            raise ValueError(f"execution={execution}: nothing is known of it on {self.sheet.label}; use {allowed}")
        return self.efficiencies[execution]

    def _check(self, model: ModelConfig, dtype: str) -> None:
        if dtype not in self.sheet.flops_per_s:
            allowed = ", ".join(self.sheet.flops_per_s)
            raise ValueError(f"dtype={dtype} is not on the datasheet of {self.sheet.label}; it has {allowed}")
        if not isinstance(model, ModelConfig):
            raise ValueError(
                f"{type(model).__name__} is computed by a library, whose operators are not counted; use a model of the "
                "native stack (model=pretrained for checkpoints of others)"
            )
