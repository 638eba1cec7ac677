"""Every published row, predicted. Rows that gave a constant to their own prediction are left out.

Each function is a group of rows that share a law and its constants.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean
from typing import Any

from paradigms.costs.compared import Compared
from paradigms.costs.datasheet import SPREAD, DataSheet
from paradigms.costs.operators import fused
from paradigms.costs.reference import derived
from paradigms.costs.reference.models import LLADA_8B, LLAMA2_7B, LLAMA3_8B, MAMBA2_780M, QWEN25, T5, T5Decoder
from paradigms.costs.reference.rows import rows
from paradigms.costs.sheets import sheet_of
from paradigms.costs.speculation import speed_up
from paradigms.models.config import ModelConfig
from paradigms.work import ForwardShape

MIB = 2**20
BF16 = {"dtype": "bfloat16", "execution": "eager"}
# Kernels of a layer of a T5 decoder: three norms, three products and an attention each for the text and the encoded
# text, three products and an activation.
T5_KERNELS = 13
# Operators of a layer of mamba-ssm's Mamba-2 step: norm with addition, projection, convolution, state update, gated
# norm, projection, and six small ones (decays, splits and casts).
MAMBA_SSM_OPERATORS = 12


def predictions() -> list[Compared]:
    """All groups."""
    groups = (llada_steps, llama3_decode, llama3_end_to_end, gpt_fast, generation_time, memory, speculation)
    return [row for group in groups for row in group()]


def llada_steps() -> Iterator[Compared]:
    """A step over the whole canvas; constants of the two ends of the long rows."""
    efficiency = derived.eager_of_llada()
    device = derived.on("a6000", efficiency)
    for row in rows("llada_8b_step_time"):
        if row in derived.llada_ends():
            continue
        length = derived.llada_length(row)
        long = "1,000 positions and more" if length >= derived.LONG else "shorter"
        yield _timed(
            "llada_8b_step_time", f"LLaDA-8B step, {long}", f"{row['prompt_len']} + {row['output_len']}", "step_s",
            device.forward_s(LLADA_8B, derived.llada_shape(row), **BF16), row["step_ms"] / 1e3, efficiency.source,
        )  # fmt: skip


def llama3_decode() -> Iterator[Compared]:
    """A token with KV cache, the mean of a run; constants of LLaDA's rows, and once more with those of gpt-fast."""
    for group, efficiency in (
        ("Llama-3-8B decode", derived.eager_of_llada()),
        ("Llama-3-8B decode, by gpt-fast's share", derived.eager_of_gpt_fast()),
    ):
        device = derived.on("a6000", efficiency)
        for row in rows("llama3_8b_decode_time"):
            yield _timed(
                "llama3_8b_decode_time", group, f"{row['prompt_len']} + {row['output_len']}", "tpot_s",
                fmean(_steps(device, LLAMA3_8B, row)), row["tpot_ms"] / 1e3, efficiency.source,
            )  # fmt: skip


def llama3_end_to_end() -> Iterator[Compared]:
    """The prompt and N - 1 tokens; constants of LLaDA's rows."""
    efficiency = derived.eager_of_llada()
    device = derived.on("a6000", efficiency)
    for row in rows("llama3_8b_end_to_end"):
        ttft_s = device.forward_s(LLAMA3_8B, _prompt(row["prompt_len"]), **BF16)
        decode_s = sum(_steps(device, LLAMA3_8B, row))
        for group, metric, predicted, measured in (
            ("Llama-3-8B end to end", "e2e_s", ttft_s + decode_s, row["total_ms"]),
            ("Llama-3-8B end to end", "decode_s", decode_s, row["decode_ms"]),
            ("Llama-3-8B first token", "ttft_s", ttft_s, row["ttft_ms"]),
        ):
            yield _timed(
                "llama3_8b_end_to_end", group, f"{row['prompt_len']} + {row['output_len']}", metric, predicted,
                measured / 1e3, efficiency.source,
            )  # fmt: skip


def gpt_fast() -> Iterator[Compared]:
    """The third row, from the first two."""
    efficiency, sheet = derived.compiled(), sheet_of("a100")
    for row in rows("gpt_fast_decode")[2:]:
        read_s = derived.gpt_fast_bytes(row["dtype"]) / (efficiency.bandwidth * sheet.bytes_per_s)
        step_s = read_s + fused(LLAMA2_7B) * efficiency.fused_kernel_s
        yield _timed(
            "gpt_fast_decode", "gpt-fast, third row", f"Llama-2-7B {row['dtype']}", "tpot_s", step_s,
            1 / row["tokens_per_s"], efficiency.source,
        )  # fmt: skip


def generation_time() -> Iterator[Compared]:
    """Qwen2.5-0.5B and Mamba2-780m on an RTX 4090, where the host decides; its constant is of the first row of Qwen."""
    base = derived.eager()
    device = DataSheet(sheet=sheet_of("rtx4090"), efficiencies={"eager": derived.eager_of_llada()})
    fitted = next(row for row in rows("ssm_scope_generation_time") if row["model"] == derived.QWEN)
    for row in rows("ssm_scope_generation_time"):
        model, layer = (
            (QWEN25[derived.QWEN], derived.THEIR_OPERATORS)
            if row["model"] == derived.QWEN
            else (MAMBA2_780M, MAMBA_SSM_OPERATORS)
        )
        host_s = base.operator_s * (derived.THEIR_OPERATORS_AROUND + layer * model.num_blocks)
        step = _step(row["input_len"] + row["output_len"] // 2)
        figures = (
            ("ttft_s", device.forward_s(model, _prompt(row["input_len"]), **BF16)),
            ("tpot_s", device.forward_s(model, step, **BF16)),
        )
        for metric, device_s in figures:
            if row is fitted and metric == "tpot_s":
                continue
            yield _timed(
                "ssm_scope_generation_time", f"SSM-Scope {row['model']}", f"{row['input_len']} + {row['output_len']}",
                metric, max(device_s, host_s), row[metric], f"{base.source}; RTX 4090 datasheet",
            )  # fmt: skip


def memory() -> Iterator[Compared]:
    """Bytes by formula, from the configs alone."""
    for row in rows("ssm_scope_memory"):
        model = QWEN25.get(row["model"])
        if model is None:
            continue
        shape = ForwardShape(
            phase="prefill",
            rows=1,
            tokens=row["seq_len"],
            seen=row["seq_len"],
            written=row["seq_len"],
            logits=row["seq_len"],
        )
        figures = {
            "kv": ("kv_or_state_mib", model.state_bytes(batch_size=1, length=row["seq_len"], itemsize=2)),
            "weights": ("weights_mib", 2 * model.num_parameters()),
            "activations": ("activations_mib", model.activation_bytes(shape, itemsize=2)),
        }
        for name, (column, predicted) in figures.items():
            yield Compared(
                source="ssm_scope_memory",
                group=f"SSM-Scope memory, {name}",
                cell=f"{row['model']} {row['seq_len']}",
                metric=f"{name}_bytes",
                unit="B",
                predicted=float(predicted),
                measured=row[column] * MIB,
                constants="none: the config",
            )


def speculation() -> Iterator[Compared]:
    """T5-XXL on a TPU v4 with its smaller siblings as drafts; c from bytes, operations and gaps between kernels."""
    target = T5["t5-xxl"]
    constants = (
        "TPU v4 datasheet; gap between kernels: NVIDIA blog on CUDA graphs, 2019; dense products: llada_8b_step_time, "
        "two rows; acceptance: the same row"
    )
    for row in rows("speculative_decoding_t5xxl"):
        num_drafted = row["num_draft_tokens"]
        yield Compared(
            source="speculative_decoding_t5xxl",
            group="Speculation, large draft" if row["draft"] == "t5-large" else "Speculation, small and base drafts",
            cell=f"{row['draft']}, temperature {row['temperature']}, {num_drafted} drafted",
            metric="speed_up",
            unit="",
            predicted=speed_up(
                row["acceptance_rate"],
                num_drafted,
                target_s=_t5_s(target, 1),
                draft_s=_t5_s(T5[row["draft"]], 1),
                verify_s=_t5_s(target, num_drafted + 1),
            ),
            measured=row["speedup"],
            constants=constants,
        )


def _t5_s(decoder: T5Decoder, num_tokens: int) -> float:
    """Seconds of a forward of so many tokens, in bf16."""
    sheet, numbers = sheet_of("tpu_v4"), decoder.weights_read
    compute_s = 2 * numbers * num_tokens / (derived.eager_of_llada().products * sheet.flops_per_s["bfloat16"])
    gaps_s = decoder.layers * T5_KERNELS * derived.KERNEL_GAP_S
    return compute_s + 2 * numbers / sheet.bytes_per_s + gaps_s


def _prompt(length: int) -> ForwardShape:
    return ForwardShape(phase="prefill", rows=1, tokens=length, seen=length, written=length, logits=1)


def _step(length: int) -> ForwardShape:
    """The forward that makes the state `length` positions long."""
    return ForwardShape(phase="decode", rows=1, tokens=1, seen=length, kept=length - 1, written=1, logits=1)


def _steps(device: DataSheet, model: ModelConfig, row: dict[str, Any]) -> list[float]:
    """Seconds of each token after the first."""
    lengths = range(row["prompt_len"] + 1, row["prompt_len"] + row["output_len"])
    return [device.forward_s(model, _step(length), **BF16) for length in lengths]


def _timed(
    source: str, group: str, cell: str, metric: str, predicted: float, measured: float, constants: str
) -> Compared:
    return Compared(
        source=source, group=group, cell=cell, metric=metric, unit="s", predicted=predicted,
        low=predicted / (1 + SPREAD), high=predicted * (1 + SPREAD), measured=measured, constants=constants,
    )  # fmt: skip
