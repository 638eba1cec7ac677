"""What decoding, prefill and denoising of a billion parameters make of the device.

    MBU   bytes that a step must read (weights once, the state in the middle of the output once) / its time / copy rate
    MFU   operations of the matrix products of a forward, attention included / its time / matmul rate

Times are the shortest repeat's of the main path, on random weights and prompts, batch 1; the counts are formulas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paradigms.bench import run_unit
from paradigms.build import build
from paradigms.cell import Cell
from paradigms.cli import compose

LENGTH = 2048  # of prefill and of the canvas


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A share of a rate.

    Attributes:
        name: of the figure.
        kind: `mbu` of a decode step, `prefill_mfu` or `denoise_mfu`.
        paradigm, prompt_len, output_len: the cell.
        graphed: run as CUDA graphs.
    """

    name: str
    kind: str
    paradigm: str
    prompt_len: int = 128
    output_len: int = 128
    graphed: bool = False

    def overrides(self, tiny: bool) -> list[str]:
        """The cell, as the command line takes it."""
        share = 8 if tiny else 1
        lengths = (f"workload.prompt_len={self.prompt_len // share}", f"workload.output_len={self.output_len // share}")
        return [f"paradigm={self.paradigm}", *lengths]


_DENOISE: dict[str, Any] = {"kind": "denoise_mfu", "paradigm": "diffusion_16", "output_len": LENGTH - 128}
FIGURES = (
    Figure(name="ar_decode_graphed", kind="mbu", paradigm="ar", graphed=True),
    Figure(name="ssm_decode_graphed", kind="mbu", paradigm="ssm", graphed=True),
    Figure(name="denoise_graphed", **_DENOISE, graphed=True),
    Figure(name="ar_prefill", kind="prefill_mfu", paradigm="ar", prompt_len=LENGTH, output_len=16),
    Figure(name="ar_decode", kind="mbu", paradigm="ar"),
    Figure(name="ssm_decode", kind="mbu", paradigm="ssm"),
    Figure(name="denoise", **_DENOISE),
)


def common(device: str, tiny: bool) -> list[str]:
    """What all cells of the check have in common."""
    shared = ["train=random", "measure=latency", "workload=random_prompts", f"device={device}", "measure.rounds=1"]
    if tiny:
        return [*shared, "model.d_model=192", "model.num_blocks=2", "model.target_parameters=null",
                "model.max_positions=4096", "measure.max_repeats=1", "measure.max_warmups=1"]  # fmt: skip
    return [*shared, "size=1b", "device.dtype=bfloat16", "measure.max_repeats=3"]


def measure(figure: Figure, overrides: Sequence[str], rates: Mapping[str, float]) -> dict[str, Any]:
    """Run the figure's cell and set it against the rates.

    Raises:
        ValueError: a cell that this machine cannot run.
    """
    cell = build(compose(overrides))
    cell.check()
    run, tables = run_unit(cell, 0)
    requests = tables["requests"]
    time_s = min(row["prefill_s" if figure.kind == "prefill_mfu" else "step_time_s"] for row in requests)
    found = {"name": figure.name, "kind": figure.kind, "time_s": time_s, "overrides": list(overrides)}
    found |= {name: run[name] for name in ("parameters", "weight_bytes", "kernels", "execution")}
    if figure.kind == "mbu":
        middle = cell.workload.prompt_len + cell.workload.output_len // 2
        itemsize = run["weight_bytes"] // run["parameters"]
        state = cell.model.state_bytes(batch_size=1, length=middle, itemsize=itemsize)
        found |= {"state_bytes": state, "state_used_bytes": run["state_used_bytes"]}
        rate = (run["weight_bytes"] + state) / time_s
        return found | {"bytes_per_s": rate, "mbu": rate / rates["copy_bytes_per_s"]}
    length = cell.workload.prompt_len if figure.kind == "prefill_mfu" else cell.workload.total_len
    flops = forward_flops(cell, length, run["parameters"])
    return found | {
        "forward_flops": flops,
        "flops_per_s": flops / time_s,
        "mfu": flops / time_s / rates["matmul_flops_per_s"],
    }


def forward_flops(cell: Cell, length: int, parameters: int) -> float:
    """Of the layers' matrix products over `length` positions of a Transformer: two a weight and position, and attention
    over half of the pairs when it is causal. The head, which looks at few positions, is left out.
    """
    model: Any = cell.model
    width = model.attention.num_heads * model.attention.head_width(model.d_model)
    pairs = length**2 / (2 if model.causal else 1)
    return 2 * (parameters - model.vocab_size * model.d_model) * length + 4 * pairs * width * model.layers.count("A")
