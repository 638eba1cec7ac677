"""Efficiencies, from a few published rows and vendors' figures; which row a constant came from is part of it.

    eager       p and b from two rows of LLaDA-8B, the shortest and the longest of at least 1,000 positions: two
                equations, two unknowns. The operators of a layer are in them.
                h from the first row of Qwen2.5-0.5B, which is 13 times slower than its weights can be read.
    compile     b = 1 (datasheet), k for fused kernels from the first two rows of gpt-fast.
    cuda_graph  the same, and for what is not fused what NVIDIA measured of short kernels in a graph.

p is taken for all of them: dense products of many rows run the same kernels everywhere. A CPU gets p, b and h of eager,
for want of any of its own.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from paradigms.costs.datasheet import DataSheet
from paradigms.costs.law import Efficiency, dense_flops, work
from paradigms.costs.operators import fused
from paradigms.costs.reference.models import LLADA_8B, LLAMA2_7B, QWEN25
from paradigms.costs.reference.rows import rows
from paradigms.costs.sheets import sheet_of
from paradigms.work import ForwardShape

LONG = 1_000  # positions
QWEN = "qwen25-instruct"
# transformers 5.24 calls so many operators for a token of Qwen2 or Llama: of a layer, and around them (tests/costs
# counts them).
THEIR_OPERATORS, THEIR_OPERATORS_AROUND = 40, 22
# "Getting Started with CUDA Graphs" (NVIDIA technical blog, 2019, V100): a kernel of 2.9 us takes 3.4 us in a graph.
SMALL_KERNEL_S, KERNEL_GAP_S = 3.4e-6, 0.5e-6
GPT_FAST_PROMPT, GPT_FAST_OUTPUT = 5, 200  # its defaults; the static cache is read whole
BYTES_PER_WEIGHT = {"bf16": 2.0, "int8": 1.0, "int4": 0.5 + 4 / 32}  # int4: a scale and a zero in bf16 for 32 weights


def published(kind: str) -> dict[str, Efficiency]:
    """Efficiencies of a kind of device (`Sheet.kind`)."""
    if kind == "cpu":
        return {"eager": eager()}
    return {"eager": eager(), "compile": compiled(), "cuda_graph": graphed()}


@cache
def eager() -> Efficiency:
    """p, b and h."""
    base = eager_of_llada()
    return Efficiency(
        products=base.products,
        bandwidth=base.bandwidth,
        operator_s=operator_s(),
        source=f"{base.source}; operators: {QWEN}, first row",
    )


@cache
def eager_of_llada() -> Efficiency:
    """p and b of two rows of LLaDA-8B on an A6000: t = x / p + y / b, twice."""
    sheet = sheet_of("a6000")
    first, last = llada_ends()
    x1, y1, t1 = _equation(first, sheet)
    x2, y2, t2 = _equation(last, sheet)
    determinant = x1 * y2 - x2 * y1
    inverse_p, inverse_b = (t1 * y2 - t2 * y1) / determinant, (x1 * t2 - x2 * t1) / determinant
    return Efficiency(
        products=1 / inverse_p,
        bandwidth=1 / inverse_b,
        source=f"llada_8b_step_time, {llada_length(first):,} and {llada_length(last):,} positions; RTX A6000 datasheet"
        "; attention's ratio: 2307.08691",
    )


@cache
def eager_of_gpt_fast() -> Efficiency:
    """A second opinion on b: the share of an A100's bandwidth that gpt-fast states for bf16."""
    stated = rows("gpt_fast_decode")[0]["achieved_gb_per_s"] * 1e9
    return Efficiency(
        products=eager_of_llada().products,
        bandwidth=stated / sheet_of("a100").bytes_per_s,
        source="gpt_fast_decode, bf16: its share of the A100's bandwidth; RTX A6000 datasheet; dense products: "
        "llada_8b_step_time, two rows",
    )


def llada_ends() -> tuple[dict[str, Any], dict[str, Any]]:
    """The shortest and the longest of the long rows."""
    long = sorted((row for row in rows("llada_8b_step_time") if llada_length(row) >= LONG), key=llada_length)
    return long[0], long[-1]


def llada_length(row: dict[str, Any]) -> int:
    """Positions of a canvas, prompt included."""
    return row["prompt_len"] + row["output_len"]


def llada_shape(row: dict[str, Any]) -> ForwardShape:
    """A step: the whole canvas, its logits included."""
    length = llada_length(row)
    return ForwardShape(phase="denoise", rows=1, tokens=length, seen=length, logits=length)


def _equation(row: dict[str, Any], sheet: Any) -> tuple[float, float, float]:
    """Seconds of products at the peak, of bytes at full bandwidth, and what is left of a step for them."""
    shape = llada_shape(row)
    counts, attention = work(LLADA_8B, shape, 2)
    other_s = counts.other_flops / sheet.vector_flops_per_s
    products_s = dense_flops(counts, attention, shape) / sheet.flops_per_s["bfloat16"]
    return products_s, counts.bytes_moved / sheet.bytes_per_s, row["step_ms"] / 1e3 - other_s


@cache
def operator_s() -> float:
    """h: of the first row of Qwen2.5-0.5B by transformers, where the host alone decides."""
    row = next(row for row in rows("ssm_scope_generation_time") if row["model"] == QWEN)
    return row["tpot_s"] / (THEIR_OPERATORS_AROUND + THEIR_OPERATORS * QWEN25[QWEN].num_blocks)


@cache
def compiled() -> Efficiency:
    """k: what a token of Llama-2-7B takes beside reading its bytes at the bandwidth of the A100's datasheet; the mean
    of the first two rows of gpt-fast.
    """
    sheet = sheet_of("a100")
    fitted = rows("gpt_fast_decode")[:2]
    left_s = [1 / row["tokens_per_s"] - gpt_fast_bytes(row["dtype"]) / sheet.bytes_per_s for row in fitted]
    return Efficiency(
        products=eager_of_llada().products,
        bandwidth=1.0,
        fused_kernel_s=sum(left_s) / len(left_s) / fused(LLAMA2_7B),
        source="gpt_fast_decode, bf16 and int8; A100 datasheet; dense products: llada_8b_step_time, two rows",
    )


@cache
def graphed() -> Efficiency:
    """The same where only launches are saved: short kernels stay."""
    base = compiled()
    return Efficiency(
        products=base.products,
        bandwidth=base.bandwidth,
        fused_kernel_s=base.fused_kernel_s,
        small_kernel_s=SMALL_KERNEL_S,
        source=f"{base.source}; short kernels in a graph: NVIDIA blog on CUDA graphs, 2019",
    )


def gpt_fast_bytes(dtype: str) -> float:
    """Bytes that a token reads: weights in `dtype`, keys and values in bf16."""
    slots = GPT_FAST_PROMPT + GPT_FAST_OUTPUT
    shape = ForwardShape(phase="decode", rows=1, tokens=1, seen=slots + 1, kept=slots, written=1, logits=1)
    counts = LLAMA2_7B.counts(shape, itemsize=2)
    return counts.weight_bytes / 2 * BYTES_PER_WEIGHT[dtype] + counts.state_read_bytes


def on(name: str, efficiency: Efficiency, execution: str = "eager") -> DataSheet:
    """A device with one efficiency of one's own."""
    return DataSheet(sheet=sheet_of(name), efficiencies={execution: efficiency})
