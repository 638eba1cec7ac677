"""Sums the forwards of a cell into the figures that a benchmark would measure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from paradigms.costs.thinning import thinned
from paradigms.models.config import ModelConfig
from paradigms.work import BatchShape, ForwardShape

ITEMSIZE = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


class DeviceModel(Protocol):
    """A machine as the cost model knows it: calibrated here, or read off a datasheet.

    Attributes:
        name: for people.
        memory_bytes: what weights, state and activations must fit into.
        spread: relative error of its predictions on cells that it was not fitted on: 90 % lie within 1 ± spread; None
            where nobody has looked.
    """

    @property
    def name(self) -> str: ...

    @property
    def memory_bytes(self) -> int: ...

    @property
    def spread(self) -> float | None: ...

    def forward_s(self, model: ModelConfig, shape: ForwardShape, *, dtype: str, execution: str) -> float:
        """Seconds of one forward of this shape (`shape.times` is not looked at).

        Raises:
            ValueError: a dtype, execution or kind of layer that it knows nothing about.
        """
        ...

    def decoder_s(self, decoder: Any, vocab_size: int, shape: ForwardShape, batch: BatchShape) -> float:
        """Seconds that the decoder itself takes beside one forward: draws, ranking, filling of the canvas."""
        ...

    def bound_by(self, model: ModelConfig, shape: ForwardShape, *, dtype: str, execution: str) -> str:
        """What takes most of a forward: `compute`, `bandwidth` or `overhead`."""
        ...


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a cell is expected to show. Seconds and bytes of one batch, as the records have them.

    Attributes:
        ttft_s: to the first token; None for denoisers, where the text decides which position is final first.
        tpot_s: (E2E - TTFT) / (output_len - 1); None where TTFT is, or for a single token.
        e2e_s: the whole.
        spread: see `DeviceModel`.
        nfe: forwards, of all models.
        state_bytes: between two forwards, when most is kept, of all rows.
        peak_bytes: weights, state and the widest activations.
        bound_by: phase -> `compute`, `bandwidth` or `overhead`.
    """

    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float
    spread: float | None
    nfe: float
    state_bytes: int
    peak_bytes: int
    bound_by: dict[str, str]


def predict(
    model: ModelConfig,
    decoder: Any,
    batch: BatchShape,
    device: DeviceModel,
    *,
    dtype: str = "float32",
    execution: str = "eager",
    tokens_per_forward: float | None = None,
) -> Prediction:
    """Predict a cell from its config.

    Args:
        tokens_per_forward: for decoders whose number of forwards depends on the text: tokens that become final by one
            forward, on average.

    Raises:
        ValueError: what the decoder or the device cannot tell.
    """
    shapes = list(thinned(decoder.forwards(model, batch, tokens_per_forward=tokens_per_forward)))
    seconds = [
        device.forward_s(model, shape, dtype=dtype, execution=execution)
        + device.decoder_s(decoder, model.vocab_size, shape, batch)
        for shape in shapes
    ]
    e2e_s = sum(each * shape.times for each, shape in zip(seconds, shapes, strict=True))
    ttft_s = seconds[0] if shapes[0].phase == "prefill" else None
    return Prediction(
        ttft_s=ttft_s,
        tpot_s=None if ttft_s is None or batch.output_len < 2 else (e2e_s - ttft_s) / (batch.output_len - 1),
        e2e_s=e2e_s,
        spread=device.spread,
        nfe=sum(shape.times for shape in shapes),
        state_bytes=max(
            _state_bytes(model, shape, shape.kept + shape.written - shape.forgotten, ITEMSIZE[dtype])
            for shape in shapes
        ),
        peak_bytes=peak_bytes(model, shapes, dtype=dtype),
        bound_by=_bounds(model, shapes, device, dtype, execution),
    )


def peak_bytes(model: ModelConfig, shapes: Iterable[ForwardShape], *, dtype: str) -> int:
    """Weights, the state and the activations of the widest forward."""
    size = ITEMSIZE[dtype]
    weights = model.num_parameters() * size
    return weights + max(
        _state_bytes(model, shape, shape.kept + shape.written, size) + model.activation_bytes(shape, itemsize=size)
        for shape in shapes
    )


def _state_bytes(model: ModelConfig, shape: ForwardShape, slots: int, itemsize: int) -> int:
    """Of all rows; none without slots."""
    return model.state_bytes(batch_size=shape.rows, length=slots, itemsize=itemsize) if slots else 0


def _bounds(
    model: ModelConfig, shapes: list[ForwardShape], device: DeviceModel, dtype: str, execution: str
) -> dict[str, str]:
    """Of the forward in the middle of each phase."""
    phases: dict[str, list[ForwardShape]] = {}
    for shape in shapes:
        phases.setdefault(shape.phase, []).append(shape)
    return {
        phase: device.bound_by(model, of[len(of) // 2], dtype=dtype, execution=execution)
        for phase, of in phases.items()
    }
