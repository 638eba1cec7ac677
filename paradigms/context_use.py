"""`python -m paradigms.context_use`: bits per byte by position in held-out windows, paradigms side by side.

Takes the overrides of `python -m paradigms`; values separated by commas compose a cell each: `python -m
paradigms.context_use paradigm=ar,ssm,diffusion`. A causal model's curve falls as far as it uses what stands before; a
denoiser's is no curve over context, since it sees both sides, and is marked as a bound (see `quality.by_position`).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch

from paradigms.bench import torch_device
from paradigms.build import build
from paradigms.cell import Cell
from paradigms.cli import exit_code, planned_cells
from paradigms.heldout import heldout_windows
from paradigms.measure.environment import set_threads
from paradigms.quality.by_position import PositionBits, by_position
from paradigms.training.printed import Printed
from paradigms.weights import load_corpus


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m paradigms.context_use", description=(__doc__ or "").partition(": ")[2].partition("\n\n")[0]
    )
    parser.add_argument("--masks", type=int, default=8, help="masks of each window, of denoisers (default 8)")
    parser.add_argument("--windows", type=int, help="of the held-out text, evenly spread (default: all)")
    parser.add_argument("overrides", nargs="*", help="hydra overrides, such as paradigm=ar,ssm")
    options, unknown = parser.parse_known_args(arguments)
    for name, value in (("--masks", options.masks), ("--windows", options.windows)):
        if value is not None and value < 1:
            parser.error(f"{name}={value} must be at least 1")

    def run() -> None:
        _, cells = planned_cells([*options.overrides, *unknown])
        found = {
            cell.name: measure(build(cell.config), num_masks=options.masks, num_windows=options.windows)
            for cell in cells
        }
        print(table(found))

    return exit_code(run)


def measure(cell: Cell, *, num_masks: int, num_windows: int | None = None) -> list[PositionBits]:
    """Bits per byte by position of a cell's model on its held-out text.

    Raises:
        ValueError: weights that nobody trained.
    """
    if cell.train.source == "random":
        raise ValueError("train=random has learnt nothing that a position could show; use trained weights (train=zoo)")
    set_threads(cell.device.threads)
    corpus = load_corpus(cell.corpus)
    weights = cell.train.load(cell.wanted, report=Printed(str(cell.paradigm["name"])))
    dtype = getattr(torch, cell.device.dtype)
    model = weights.model.to(device=torch_device(cell.device.name), dtype=dtype).eval().requires_grad_(False)
    windows = heldout_windows(weights, corpus, count=num_windows)
    tokenizer = weights.tokenizer
    return by_position(model, windows, tokenizer.token_bytes, mask_id=tokenizer.mask_id, num_masks=num_masks)


def table(found: dict[str, list[PositionBits]]) -> str:
    """Markdown, a row a stretch of positions, a column a cell; ± is two standard errors over windows."""
    stretches = sorted({(part.first, part.last) for parts in found.values() for part in parts})
    lines = [["tokens before", *found], ["---:", *["---:"] * len(found)]]
    for first, last in stretches:
        by_cell = {name: {(part.first, part.last): part for part in parts} for name, parts in found.items()}
        cells = [_cell(parts.get((first, last))) for parts in by_cell.values()]
        lines.append([f"{first}" if first == last else f"{first:,} to {last:,}", *cells])
    rows = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join(
        [*rows, "", "bits per byte of the tokens there; ±: two standard errors over windows; ≤: of a bound"]
    )


def _cell(part: PositionBits | None) -> str:
    if part is None:
        return "–"
    bits = part.bits_per_byte
    return f"{'≤ ' if part.is_bound else ''}{bits.value:.3f} ± {2 * bits.se:.3f}"


if __name__ == "__main__":
    raise SystemExit(main())
