"""What a forward costs, as a sum over its layers and its ends: features of each, and the laws fitted to timed cells.

    overhead      one: operators are launched, spans and states looked after
    steps         work that is done one piece after the other: tokens of a scan, experts that are touched
    products      operations of weights, over the rate that such a product has been calibrated to reach
    inner         other products (attention, chunks of a scan) that are not hidden, over the best rate
    hidden        those that a mask or a window throws away
    other         operations that are no product, over the best rate
    weights       bytes of weights over the bandwidth of the working set
    state         bytes of the state, read and written, likewise
    activations   bytes that the layer writes, over the best bandwidth
    gathered      embedding rows: each number lies in a cache line of its own (the table is laid out for the head)

A layer's law is that of its kind and mode (`layer_cells`), the ends have one a mode, under the kind `ends`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from paradigms.costs.fitting import Features, Law, fit
from paradigms.costs.layer_cells import LayerCell, kind_of, mode_of
from paradigms.measure.calibration import BandwidthPoint, Calibration, MatmulPoint
from paradigms.models.config import ModelConfig
from paradigms.models.forward_pass import ForwardPass
from paradigms.work import ForwardShape

ENDS = "ends"
CACHE_LINE_BYTES = 64
COMPUTE = ("products", "inner", "hidden", "other", "steps")
BANDWIDTH = ("weights", "state", "activations", "gathered")
# Features of each mode: where one row or a few meet each weight once, operations follow the bytes.
OF_MODE = {
    "token": ("overhead", "steps", "weights", "state", "other", "gathered"),
    "rows": ("overhead", "steps", "products", "weights", "state", "inner", "other", "activations", "gathered"),
    "tokens": (
        "overhead",
        "steps",
        "products",
        "weights",
        "state",
        "inner",
        "hidden",
        "other",
        "activations",
        "gathered",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Laws:
    """Laws by (kind, mode), and the cells that each was fitted to."""

    laws: dict[tuple[str, str], Law]
    cells: dict[tuple[str, str], list[LayerCell]]

    def of(self, kind: str, mode: str) -> Law:
        """Raise ValueError for a kind that was not calibrated."""
        if (kind, mode) not in self.laws:
            known = ", ".join(sorted({kind for kind, _ in self.laws} - {ENDS}))
            raise ValueError(
                f"layers of kind {kind} are not calibrated as {mode}; calibrated: {known}. Add the kind to KINDS in "
                "paradigms/costs/layer_cells.py and run python -m paradigms.costs calibrate"
            )
        return self.laws[kind, mode]

    def parts(
        self, model: ModelConfig, shape: ForwardShape, calibration: Calibration, *, dtype: str, itemsize: int
    ) -> dict[str, float]:
        """Seconds of a forward by feature."""
        mode = mode_of(model, shape, dtype=dtype)
        run = ForwardPass(model=model, shape=shape, itemsize=itemsize)
        near = Surroundings.of(run, calibration, dtype)
        sums = self.of(ENDS, mode).parts(ends_features(run, near, mode))
        for part in model.block_parts:
            for name, seconds in self.of(kind_of(part), mode).parts(layer_features(run, part, near, mode)).items():
                sums[name] = sums.get(name, 0.0) + model.num_blocks * seconds
        return sums


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What all layers of a forward share.

    Attributes:
        peak: operations a second.
        bandwidth: bytes a second of what every forward walks again: all weights and the state.
    """

    calibration: Calibration
    dtype: str
    peak: float
    bandwidth: float

    @classmethod
    def of(cls, run: ForwardPass, calibration: Calibration, dtype: str) -> Surroundings:
        counts = run.model.counts(run.shape, itemsize=run.itemsize)
        return cls(
            calibration=calibration,
            dtype=dtype,
            peak=calibration.peak_flops_per_s(dtype),
            bandwidth=calibration.bandwidth_at(counts.weight_bytes + counts.state_read_bytes + 1),
        )

    def product_s(self, flops: float, rows: float, k: int) -> float:
        """Seconds of weights [k, n] that `rows` rows pass, at the calibrated rate."""
        if not flops:
            return 0.0
        n = max(1, round(flops / (2 * rows * k)))
        return flops / self.calibration.matmul_flops_per_s(self.dtype, max(1, round(rows)), k, n)

    def stream_s(self, num_bytes: float) -> float:
        """Seconds of bytes that are written and read back at once, at the best bandwidth: operators work through them
        in pieces, so that time stays in proportion however many there are.
        """
        return num_bytes / self.calibration.peak_bytes_per_s()


def smoothed(calibration: Calibration) -> Calibration:
    """The same peaks without dips: more rows never make a product slower a row, nor a smaller working set a read."""

    def at_least(point: MatmulPoint) -> float:
        same = (point.dtype, point.k, point.n)
        fewer = [other for other in calibration.matmul if (other.dtype, other.k, other.n) == same]
        return max(other.flops_per_s for other in fewer if other.rows <= point.rows)

    def as_larger(point: BandwidthPoint) -> float:
        return max(
            other.bytes_per_s for other in calibration.bandwidth if other.working_set_bytes >= point.working_set_bytes
        )

    return replace(
        calibration,
        matmul=tuple(replace(point, flops_per_s=at_least(point)) for point in calibration.matmul),
        bandwidth=tuple(replace(point, bytes_per_s=as_larger(point)) for point in calibration.bandwidth),
    )


def layer_features(run: ForwardPass, part: Any, near: Surroundings, mode: str) -> Features:
    """Of one layer."""
    d_model, positions = run.d_model, run.positions
    experts = part.touched_by(positions) if part.key == "experts" else 0.0
    idle = part.idle_parameters(d_model, None)
    active = part.num_parameters(d_model) + part.shared_parameters(d_model) - idle
    read = part.num_parameters(d_model) + part.shared_parameters(d_model)
    read -= part.idle_parameters(d_model, experts) if experts else idle
    matmul, hidden = part.matmul_flops(run), part.hidden_flops(run)
    products = min(matmul, 2 * positions * active)
    inner = matmul - products
    state = part.state_read_bytes(run) + part.state_written_bytes(run)
    found = {
        "overhead": 1.0,
        "steps": experts + (run.tokens if part.recurrent and not run.is_step else 0),
        "products": near.product_s(products, positions, d_model),
        "inner": max(0, inner - hidden) / near.peak,
        "hidden": hidden / near.peak,
        "other": part.other_flops(run) / near.peak,
        "weights": read * run.itemsize / near.bandwidth,
        "state": state / near.bandwidth,
        "activations": near.stream_s(positions * (d_model + active / d_model) * run.itemsize),
    }
    return {name: found[name] for name in OF_MODE[mode] if name in found}


def ends_features(run: ForwardPass, near: Surroundings, mode: str) -> Features:
    """Of everything but the layers: embedding, span and state, last norm and head."""
    model, logits = run.model, run.shape.logits
    head = 2 * logits * model.d_model * model.vocab_size
    table_bytes = model.vocab_size * model.d_model * run.itemsize
    lines = run.positions * model.d_model * min(CACHE_LINE_BYTES, table_bytes / model.d_model)
    found = {
        "overhead": 1.0,
        "products": near.product_s(head, logits, model.d_model) if logits else 0.0,
        "weights": table_bytes / near.bandwidth if logits else 0.0,
        "activations": near.stream_s((run.positions * model.d_model + logits * model.vocab_size) * run.itemsize),
        "gathered": lines / near.calibration.bandwidth_at(table_bytes),
    }
    return {name: found[name] for name in OF_MODE[mode] if name in found}


def fit_laws(cells: Sequence[LayerCell], calibration: Calibration, *, dtype: str, itemsize: int) -> Laws:
    """Laws of all kinds among the cells: the ends' and feed-forward's together, then each kind's given the ends'."""
    sorted_cells: dict[tuple[str, str], list[LayerCell]] = {}
    for cell in cells:
        sorted_cells.setdefault((cell.kind, mode_of(cell.model, cell.shape, dtype=dtype)), []).append(cell)

    def of_layers(cell: LayerCell, mode: str) -> dict[str, float]:
        run = ForwardPass(model=cell.model, shape=cell.shape, itemsize=itemsize)
        near = Surroundings.of(run, calibration, dtype)
        sums: dict[str, float] = {}
        for part in cell.model.parts:
            for name, value in layer_features(run, part, near, mode).items():
                sums[name] = sums.get(name, 0.0) + value
        return sums

    def of_ends(cell: LayerCell, mode: str) -> Features:
        run = ForwardPass(model=cell.model, shape=cell.shape, itemsize=itemsize)
        return ends_features(run, Surroundings.of(run, calibration, dtype), mode)

    laws: dict[tuple[str, str], Law] = {}
    for (kind, mode), group in sorted_cells.items():
        if kind != "F":
            continue
        both = [
            {(kind, name): value for name, value in of_layers(cell, mode).items()}
            | {(ENDS, name): value for name, value in of_ends(cell, mode).items()}
            for cell in group
        ]
        joined = fit([{":".join(key): value for key, value in cell.items()} for cell in both], _seconds(group))
        for owner in (kind, ENDS):
            own = {
                name.partition(":")[2]: factor
                for name, factor in joined.factors.items()
                if name.startswith(owner + ":")
            }
            laws[owner, mode] = Law(factors=own, errors=joined.errors, left_out=joined.left_out)
    for (kind, mode), group in sorted_cells.items():
        if kind == "F":
            continue
        ends = laws[ENDS, mode]
        known_s = [ends.seconds(of_ends(cell, mode)) for cell in group]
        laws[kind, mode] = fit([of_layers(cell, mode) for cell in group], _seconds(group), known_s)
    return Laws(laws=laws, cells=sorted_cells)


def _seconds(cells: Sequence[LayerCell]) -> list[float]:
    return [cell.seconds for cell in cells]
