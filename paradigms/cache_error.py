"""`python -m paradigms.cache_error`: how far a diffusion decoder's cache is from the uncached model, look by look.

Takes the same overrides as `python -m paradigms` and composes one cell: `python -m paradigms.cache_error
paradigm=diffusion decoder/cache=dual decoder.block_len=32 workload.output_len=128`. Nothing is timed or recorded.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from paradigms.bench import make_requests, torch_device
from paradigms.build import build
from paradigms.cell import Cell
from paradigms.cli import compose, exit_code, explain
from paradigms.decoding.diffusion.caches.error import CacheError, cache_error
from paradigms.decoding.diffusion.decoder import MaskedDiffusion
from paradigms.measure.environment import set_threads
from paradigms.training.printed import Printed
from paradigms.weights import load_corpus

COLUMNS = ("step", "looks", "positions", "max |diff|", "KL (nats)", "other argmax")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m paradigms.cache_error", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--batches", type=int, default=8, help="batches of workload.batch_size requests")
    parser.add_argument("overrides", nargs="*", help="hydra overrides, such as decoder/cache=dual")
    options, unknown = parser.parse_known_args(arguments)

    def run() -> None:
        print(table(measure([*options.overrides, *unknown], num_batches=options.batches)))

    return exit_code(run)


def measure(overrides: Sequence[str], *, num_batches: int) -> CacheError:
    """Errors of the cache of a composed cell, on its own requests.

    Raises:
        ValueError: an impossible cell, one whose decoder has no such cache, or no batches.
    """
    if num_batches < 1:
        raise ValueError(f"--batches={num_batches} is too few; give at least 1")
    try:
        config = compose(overrides)
    except Exception as error:
        raise ValueError(explain(error)) from error
    cell: Cell = build(config)
    cell.check()
    if not isinstance(cell.decoder, MaskedDiffusion):
        raise ValueError(f"paradigm={cell.paradigm['name']} is no masked diffusion; choose a paradigm=diffusion...")
    set_threads(cell.device.threads)
    corpus = load_corpus(cell.corpus)
    weights = cell.train.load(cell.wanted, report=Printed(str(cell.paradigm["name"])))
    model = weights.model.to(device=torch_device(cell.device.name)).eval().requires_grad_(False)
    batches = [
        make_requests(cell, 0, repeat, corpus=corpus, tokenizer=weights.tokenizer) for repeat in range(num_batches)
    ]
    return cache_error(cell.decoder, model, batches, weights.tokenizer)


def table(error: CacheError) -> str:
    """Markdown; steps count from 1 within the block."""
    lines = [" | ".join(COLUMNS), " | ".join("---:" for _ in COLUMNS)]
    for look, found in sorted(error.by_look.items()):
        positions = max(1, found.positions)
        cells = (
            f"{look + 1}",
            f"{found.looks}",
            f"{found.positions}",
            f"{found.largest_difference:.2g}",
            f"{found.kl_nats_sum / positions:.2g}",
            f"{100 * found.other_argmax / positions:.1f} %",
        )
        lines.append(" | ".join(cells))
    overall = error.columns()
    return "\n".join(
        [
            *(f"| {line} |" for line in lines),
            "",
            f"all positions: KL {overall['cache_kl_nats']:.2g} nats, another argmax at "
            f"{100 * overall['cache_other_argmax_share']:.1f} %",
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main())
