"""Datasheets: what vendors say of their devices, dense peaks without sparsity.

Latencies of an all-reduce are on no sheet: 10 and 20 microseconds are what small messages usually take over NVLink and
over PCIe (nccl-tests), and an assumption here.
"""

from __future__ import annotations

from dataclasses import dataclass

from paradigms.build import suggest

GB, TERA = 1e9, 1e12


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A device on paper.

    Attributes:
        name: as it is typed; label: as it is read.
        kind: `gpu` or `tpu`, which is handed kernels and runs ahead of its host, or `cpu`.
        flops_per_s: dtype -> peak of dense matrix products; a dtype that it lacks has no fast form there.
        vector_flops_per_s: peak of float32 arithmetic that is no matrix product.
        bytes_per_s: of its memory.
        memory_bytes: of one device.
        link_bytes_per_s: to its neighbours, one way; None where there is no link to speak of.
        link_latency_s: of an all-reduce of next to nothing.
        dtype: what it is predicted in unless somebody says otherwise.
        source: where the figures are printed.
    """

    name: str
    label: str
    kind: str
    flops_per_s: dict[str, float]
    vector_flops_per_s: float
    bytes_per_s: float
    memory_bytes: int
    link_bytes_per_s: float | None
    link_latency_s: float
    dtype: str = "bfloat16"
    source: str


def _tensor(bfloat16: float, float32: float, float64: float) -> dict[str, float]:
    """Peaks of a GPU in TFLOP/s; float32 without TF32, as torch computes it by default."""
    return {name: value * TERA for name, value in
            {"bfloat16": bfloat16, "float16": bfloat16, "float32": float32, "float64": float64}.items()}  # fmt: skip


SHEETS: dict[str, Sheet] = {
    sheet.name: sheet
    for sheet in (
        Sheet(
            name="h200", label="NVIDIA H200 SXM", kind="gpu", flops_per_s=_tensor(989.5, 67.0, 34.0),
            vector_flops_per_s=67.0 * TERA, bytes_per_s=4800 * GB, memory_bytes=int(141 * GB),
            link_bytes_per_s=450 * GB, link_latency_s=10e-6,
            source="NVIDIA H200 datasheet (2024): BF16 1,979 TFLOP/s with sparsity, 4.8 TB/s, 141 GB, NVLink 900 GB/s",
        ),
        Sheet(
            name="h100", label="NVIDIA H100 SXM", kind="gpu", flops_per_s=_tensor(989.5, 67.0, 34.0),
            vector_flops_per_s=67.0 * TERA, bytes_per_s=3350 * GB, memory_bytes=int(80 * GB),
            link_bytes_per_s=450 * GB, link_latency_s=10e-6,
            source="NVIDIA H100 datasheet (2023): BF16 1,979 TFLOP/s with sparsity, 3.35 TB/s, 80 GB, NVLink 900 GB/s",
        ),
        Sheet(
            name="a100", label="NVIDIA A100 SXM 80GB", kind="gpu", flops_per_s=_tensor(312.0, 19.5, 9.7),
            vector_flops_per_s=19.5 * TERA, bytes_per_s=2039 * GB, memory_bytes=int(80 * GB),
            link_bytes_per_s=300 * GB, link_latency_s=10e-6,
            source="NVIDIA A100 datasheet (2021): BF16 312 TFLOP/s, 2,039 GB/s, 80 GB, NVLink 600 GB/s",
        ),
        Sheet(
            name="a6000", label="NVIDIA RTX A6000", kind="gpu", flops_per_s=_tensor(154.8, 38.7, 0.6),
            vector_flops_per_s=38.7 * TERA, bytes_per_s=768 * GB, memory_bytes=int(48 * GB),
            link_bytes_per_s=56.25 * GB, link_latency_s=10e-6,
            source="NVIDIA RTX A6000 datasheet (2021) and GA102 whitepaper: BF16 309.7 TFLOP/s with sparsity, 768 "
            "GB/s, 48 GB, NVLink 112.5 GB/s",
        ),
        Sheet(
            name="rtx4090", label="NVIDIA GeForce RTX 4090", kind="gpu", flops_per_s=_tensor(165.2, 82.6, 1.3),
            vector_flops_per_s=82.6 * TERA, bytes_per_s=1008 * GB, memory_bytes=int(24 * GB),
            link_bytes_per_s=31.5 * GB, link_latency_s=20e-6,
            source="NVIDIA Ada whitepaper (2022), appendix A: BF16 with FP32 accumulation 165.2 TFLOP/s, 1,008 GB/s, "
            "24 GB; PCIe 4.0 x16, no NVLink",
        ),
        Sheet(
            name="tpu_v4", label="Google TPU v4", kind="tpu", flops_per_s={"bfloat16": 275 * TERA},
            vector_flops_per_s=4.3 * TERA, bytes_per_s=1228 * GB, memory_bytes=32 * 2**30,
            link_bytes_per_s=50 * GB, link_latency_s=10e-6,
            source="Google Cloud documentation of TPU v4: 275 TFLOP/s, 1,228 GB/s, 32 GiB; vector units as in arXiv "
            "2304.01433",
        ),
        Sheet(
            name="cpu-sheet", label="AMD EPYC 7763, one socket", kind="cpu",
            flops_per_s={"float32": 64 * 2.45e9 * 32, "float64": 64 * 2.45e9 * 16},
            vector_flops_per_s=64 * 2.45e9 * 16, bytes_per_s=204.8 * GB, memory_bytes=256 * 2**30,
            link_bytes_per_s=None, link_latency_s=0.0, dtype="float32",
            source="AMD EPYC 7003 datasheet: 64 cores at 2.45 GHz, two 256-bit FMA a cycle, 8 channels DDR4-3200; 256 "
            "GiB of memory assumed",
        ),
    )
}  # fmt: skip


def sheet_of(name: str) -> Sheet:
    """The sheet of a device.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in SHEETS:
        raise ValueError(f"device={name} is on no datasheet here ({suggest(name, list(SHEETS))})")
    return SHEETS[name]
