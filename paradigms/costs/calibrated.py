"""This machine as the cost model knows it: laws fitted to timed layers and decoders of its calibration.

Only shapes are asked for: any network of calibrated kinds of layers, any width, length and batch. Within the widths and
lengths that were timed a law interpolates; beyond them it goes on as its features do, operations and bytes at the rates
and bandwidths of the calibration, and weights larger than all that were timed are read no faster than memory can.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from paradigms.costs import decoder_cells, layer_cells
from paradigms.costs.fitting import Law
from paradigms.costs.layer_laws import BANDWIDTH, COMPUTE, ENDS, Laws, fit_laws, smoothed
from paradigms.costs.prediction import ITEMSIZE
from paradigms.measure.calibration import Calibration
from paradigms.models.config import ModelConfig
from paradigms.work import BatchShape, ForwardShape

CALIBRATE = "python -m paradigms.costs calibrate"
COVERED = 0.9  # share of left-out cells within the spread


class Residual(NamedTuple):
    """A cell of the calibration and its law.

    Attributes:
        law: kind and mode.
        cell: for people.
        seconds: measured.
        error, left_out: of the law, and of the law fitted without it; relative.
    """

    law: str
    cell: str
    seconds: float
    error: float
    left_out: float


class CalibratedDevice:
    """See `prediction.DeviceModel`.

    Raises:
        ValueError: a calibration without layers or decoders.
    """

    def __init__(self, calibration: Calibration, *, memory_bytes: int) -> None:
        if not calibration.layers or not calibration.decoders:
            raise ValueError(f"the calibration of {calibration.device_name} has no layers or decoders; run {CALIBRATE}")
        self.calibration, self.memory_bytes = smoothed(calibration), memory_bytes
        self.name = f"{calibration.device_name}, {calibration.threads} thread{'s' * (calibration.threads > 1)}"
        self.dtype: str = calibration.layers["dtype"]
        self.execution: str = calibration.layers["execution"]
        cells = layer_cells.from_json(calibration.layers)
        self.laws: Laws = fit_laws(cells, self.calibration, dtype=self.dtype, itemsize=ITEMSIZE[self.dtype])
        self._decoder_cells = decoder_cells.from_json(calibration.decoders)
        self.decoder_laws, self._decoders_of = decoder_cells.fit_decoders(self._decoder_cells)
        self._parts = cache(self._parts_of)
        missed = [abs(error) for (kind, _), law in self.laws.laws.items() if kind != ENDS for error in law.left_out]
        self._spread = float(np.nanquantile(missed, COVERED))
        self._largest_bytes = max(cell.model.num_parameters() for cell in cells) * ITEMSIZE[self.dtype]

    @property
    def spread(self) -> float:
        """Error that 90 % of the layers' cells stay within when their laws are fitted without them."""
        return self._spread

    def forward_s(self, model: ModelConfig, shape: ForwardShape, *, dtype: str, execution: str) -> float:
        """See `prediction.DeviceModel`.

        Raises:
            ValueError: a network, dtype, execution or kind of layer that was not calibrated.
        """
        return sum(self.parts_s(model, shape, dtype=dtype, execution=execution).values())

    def parts_s(self, model: ModelConfig, shape: ForwardShape, *, dtype: str, execution: str) -> dict[str, float]:
        """Seconds of one forward by feature; see `layer_laws`."""
        if not isinstance(model, ModelConfig):
            raise ValueError(
                f"{type(model).__name__} is run by a library, whose layers are not calibrated; give a model of the "
                "native stack (model=pretrained for checkpoints of others)"
            )
        if model.conditioning is not None:
            raise ValueError("model.conditioning is not calibrated; predict a model without it")
        if (dtype, execution) != (self.dtype, self.execution):
            raise ValueError(
                f"dtype={dtype}, execution={execution} is not calibrated on {self.name}, only dtype={self.dtype}, "
                f"execution={self.execution}"
            )
        return dict(self._parts(model, _once(shape)))

    def _parts_of(self, model: ModelConfig, shape: ForwardShape) -> dict[str, float]:
        """By the laws; of weights larger than any that were timed, never faster than memory and products can be."""
        itemsize = ITEMSIZE[self.dtype]
        parts = self.laws.parts(model, shape, self.calibration, dtype=self.dtype, itemsize=itemsize)
        counts = model.counts(shape, itemsize=itemsize)
        if counts.weight_bytes > self._largest_bytes:
            roofs = {
                "weights": counts.weight_bytes / self.calibration.bandwidth_at(counts.weight_bytes),
                "products": (counts.matmul_flops - counts.hidden_flops) / self.calibration.peak_flops_per_s(self.dtype),
            }
            parts |= {name: max(roof_s, parts.get(name, 0.0)) for name, roof_s in roofs.items()}
        return parts

    def decoder_s(self, decoder: Any, vocab_size: int, shape: ForwardShape, batch: BatchShape) -> float:
        """See `prediction.DeviceModel`.

        Raises:
            ValueError: a decoder, sampler, cache or way to draw that was not calibrated.
        """
        features = decoder_cells.decoder_features(decoder, vocab_size, shape, batch)
        return decoder_cells.seconds(self.decoder_laws, decoder, features)

    def bound_by(self, model: ModelConfig, shape: ForwardShape, *, dtype: str, execution: str) -> str:
        """See `prediction.DeviceModel`."""
        parts = self.parts_s(model, shape, dtype=dtype, execution=execution)
        groups = {
            "compute": sum(parts.get(name, 0.0) for name in COMPUTE),
            "bandwidth": sum(parts.get(name, 0.0) for name in BANDWIDTH),
            "overhead": parts["overhead"],
        }
        return max(groups, key=lambda name: groups[name])

    def residuals(self) -> list[Residual]:
        """Every cell of the calibration against its law, worst first."""
        layers = [
            found
            for (kind, mode), law in self.laws.laws.items()
            if kind != ENDS
            for found in _residuals(f"{kind}, {mode}", self.laws.cells[kind, mode], law)
        ]
        decoders = [
            found for kind, law in self.decoder_laws.items() for found in _residuals(kind, self._decoders_of[kind], law)
        ]
        return sorted([*layers, *decoders], key=lambda each: -abs(each.error))


def _residuals(name: str, cells: list[Any], law: Law) -> Iterator[Residual]:
    for cell, error, left_out in zip(cells, law.errors, law.left_out, strict=True):
        yield Residual(name, cell.name, cell.seconds, error, left_out)


def _once(shape: ForwardShape) -> ForwardShape:
    """The same forward, whoever makes it and how often."""
    return ForwardShape(
        phase="decode",
        rows=shape.rows,
        tokens=shape.tokens,
        seen=shape.seen,
        kept=shape.kept,
        written=shape.written,
        logits=shape.logits,
    )
