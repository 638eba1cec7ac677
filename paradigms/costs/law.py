"""How long a forward takes on a device that is known from its datasheet.

    device  = (products + attention / r(S)) / (p · peak) + other / vector peak + bytes / (b · bandwidth) + kernels · k
    forward = max(device, operators · h)        on a device that runs ahead of its host
              device + operators · h            on a CPU

The parts are added and not hidden behind each other: a kernel that waits for weights computes nothing, and the next one
waits for it. Attention has an efficiency r of its own, beside that of dense products, which rises with length. p, b, k
and h are an `Efficiency`, one for each way of running.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from paradigms.costs.operators import eager, fused
from paradigms.costs.sheets import Sheet
from paradigms.models.attention import AttentionConfig
from paradigms.models.config import ModelConfig
from paradigms.models.counts import Counts
from paradigms.models.forward_pass import ForwardPass
from paradigms.models.parallel_heads import ParallelHeadsConfig
from paradigms.work import ForwardShape

# FlashAttention-2 (2307.08691) on an A100: 50 to 73 % of peak over 512 to 16,384 positions, where dense products reach
# 80 to 90 %. A curve of saturation through both ends.
_LENGTHS, _SHARES, _DENSE = (512, 16_384), (0.50, 0.73), 0.85
_HALF = (_SHARES[1] - _SHARES[0]) / (_SHARES[0] / _LENGTHS[0] - _SHARES[1] / _LENGTHS[1])
_LIMIT = _SHARES[0] * (1 + _HALF / _LENGTHS[0])
RING = 2  # an all-reduce on a ring sends 2 (N - 1) / N of its bytes over each link


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """What of a datasheet a way of running reaches.

    Attributes:
        products: p, share of the peak in dense products.
        bandwidth: b, share of the memory's bandwidth.
        fused_kernel_s, small_kernel_s: k: seconds that each kernel takes beside its work, of those that remain when all
            is fused, and of those that are not fused.
        operator_s: h, seconds of the host for an operator.
        source: where these come from.
    """

    products: float
    bandwidth: float
    fused_kernel_s: float = 0.0
    small_kernel_s: float = 0.0
    operator_s: float = 0.0
    source: str


@dataclass(frozen=True, kw_only=True)
class Seconds:
    """Parts of a forward; of the seconds of its host, `exposed` is what nothing hides."""

    compute: float
    bandwidth: float
    kernels: float
    links: float
    host: float
    exposed: float

    @property
    def total(self) -> float:
        return self.compute + self.bandwidth + self.kernels + self.links + self.exposed

    @property
    def bound_by(self) -> str:
        """The largest part; links count as overhead, and so does a host that the device waits for."""
        parts = {
            "compute": self.compute,
            "bandwidth": self.bandwidth,
            "overhead": self.kernels + self.links + (self.host if self.exposed else 0.0),
        }
        return max(parts, key=lambda name: parts[name])


def attention_ratio(seen: float) -> float:
    """r(S): efficiency of attention over S positions, relative to that of dense products."""
    return _LIMIT * seen / (seen + _HALF) / _DENSE


@lru_cache(maxsize=4096)
def work(model: ModelConfig, shape: ForwardShape, itemsize: int) -> tuple[Counts, int]:
    """Counts of a forward, and those of its `matmul_flops` that are attention's, as a kernel computes them that skips
    what a mask hides.
    """
    shape = replace(shape, times=1)
    run = ForwardPass(model=model, shape=shape, itemsize=itemsize)
    attention = model.num_blocks * sum(_visible_attention(run, part) for part in model.block_parts)
    return model.counts(shape, itemsize=itemsize), attention


def _visible_attention(run: ForwardPass, part: Any) -> int:
    """Operations of one layer that grow with what is seen, without the hidden ones; 0 of a layer that looks nowhere."""
    heads = part.heads(run.d_model) if isinstance(part, ParallelHeadsConfig) else part
    if isinstance(heads, AttentionConfig):  # a window sees a number of its own
        looked = heads.looked(run)
        return 4 * heads.num_heads * heads.head_width(run.d_model) * looked.visible
    blind = replace(run, shape=replace(run.shape, seen=0))
    attention = part.matmul_flops(run) - part.matmul_flops(blind)
    return max(0, attention - part.hidden_flops(run)) if attention else 0


def dense_flops(counts: Counts, attention: int, shape: ForwardShape) -> float:
    """Operations as long as dense ones: attention's count for more, as it is less efficient."""
    products = counts.matmul_flops - counts.hidden_flops - attention
    return products + (attention / attention_ratio(shape.seen) if attention else 0.0)


def seconds(
    model: ModelConfig,
    shape: ForwardShape,
    sheet: Sheet,
    efficiency: Efficiency,
    *,
    dtype: str,
    itemsize: int,
    num_devices: int = 1,
) -> Seconds:
    """The parts of one forward on a group of devices that share every layer between them (tensor parallel)."""
    counts, attention = work(model, shape, itemsize)
    peak, N = sheet.flops_per_s[dtype], num_devices
    compute = dense_flops(counts, attention, shape) / (efficiency.products * peak)
    compute = (compute + counts.other_flops / sheet.vector_flops_per_s) / N
    bandwidth = counts.bytes_moved / (efficiency.bandwidth * sheet.bytes_per_s) / N
    num_fused, num_eager = fused(model), eager(model)
    kernels = num_fused * efficiency.fused_kernel_s + max(0, num_eager - num_fused) * efficiency.small_kernel_s
    links = 0.0 if N == 1 else len(model.layers) * all_reduce_s(sheet, shape.positions * model.d_model * itemsize, N)
    host, device = num_eager * efficiency.operator_s, compute + bandwidth + kernels + links
    exposed = host if sheet.kind == "cpu" else max(0.0, host - device)
    return Seconds(compute=compute, bandwidth=bandwidth, kernels=kernels, links=links, host=host, exposed=exposed)


def all_reduce_s(sheet: Sheet, num_bytes: float, num_devices: int) -> float:
    """Sum of so many bytes over a ring of devices. A Transformer layer needs two: behind attention, behind the
    feed-forward; a layer of one letter needs one.
    """
    assert sheet.link_bytes_per_s is not None
    sent = RING * (num_devices - 1) / num_devices * num_bytes
    return sheet.link_latency_s + sent / sheet.link_bytes_per_s
