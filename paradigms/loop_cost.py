"""`python -m paradigms.loop_cost`: what it costs to time a run, against the same run that nobody times.

Pairs of runs of the same requests in one process, in turn first and second: the events taken and dropped, and
`measure.timeline.record`. Two ratios, the median over pairs with its 95 % interval: the loop that is timed against the
bare one, which must stay below 1.01 at 5 million parameters, and the whole of `record`, which reads the tokens, checks
and derives figures when the clock has stopped. Overrides as for `python -m paradigms`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch
from scipy.stats import binom

from paradigms.bench import make_requests, torch_device
from paradigms.build import build
from paradigms.cell import Cell
from paradigms.cli import BAD_INPUT, INTERRUPTED, compose, explain
from paradigms.decoding.native import NativeParadigm
from paradigms.measure.clock import Clock, clock_for
from paradigms.measure.environment import keep_freed_memory, set_threads
from paradigms.measure.timeline import record, short_garbage_collections
from paradigms.measure.warmup import warm_up
from paradigms.models.execution import execute
from paradigms.paradigm import Paradigm, Request
from paradigms.weights import load_corpus

LIMIT = 1.01
DEFAULTS = ("paradigm=ar", "size=5m", "train=random", "measure=latency", "workload=random_prompts")
FEWEST_PAIRS = 6  # below this no pair of ranks makes a 95 % interval


@dataclass(frozen=True, slots=True)
class Pair:
    """Seconds of the bare loop, of the timed one as it says itself, and of all of `record`."""

    bare_s: float
    loop_s: float
    record_s: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code: 0 below the limit, 1 above it."""
    parser = argparse.ArgumentParser(
        prog="python -m paradigms.loop_cost", description=(__doc__ or "").partition(": ")[2].partition("\n")[0]
    )
    parser.add_argument("--pairs", type=int, default=60, help="of runs (default 60)")
    parser.add_argument("overrides", nargs="*", help=f"hydra overrides, after {' '.join(DEFAULTS)}")
    options = parser.parse_args(arguments)
    try:
        pairs = measure(options.overrides, num_pairs=options.pairs)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    ratio, low, high = interval([pair.loop_s / pair.bare_s for pair in pairs])
    whole = interval([pair.record_s / pair.bare_s for pair in pairs])
    print(f"{len(pairs)} pairs, bare run {median(pair.bare_s for pair in pairs) * 1e3:.3g} ms")
    print(f"timed loop / bare loop: {ratio:.4f} [{low:.4f}, {high:.4f}] (below {LIMIT})")
    print("record / bare loop: {:.4f} [{:.4f}, {:.4f}], after the clock has stopped included".format(*whole))
    return 0 if ratio < LIMIT else 1


def measure(overrides: Sequence[str], *, num_pairs: int) -> list[Pair]:
    """Pairs of runs of a composed cell.

    Raises:
        ValueError: an impossible cell, or too few pairs.
    """
    if num_pairs < FEWEST_PAIRS:
        raise ValueError(f"--pairs={num_pairs} is too few for an interval; give at least {FEWEST_PAIRS}")
    try:
        config = compose([*DEFAULTS, *overrides])
    except Exception as error:
        raise ValueError(explain(error)) from error
    cell: Cell = build(config)
    cell.check()
    set_threads(cell.device.threads)
    keep_freed_memory()
    device = torch_device(cell.device.name)
    weights = cell.train.load(cell.wanted, report=lambda what, done, total: None)
    model = weights.model.to(device=device, dtype=getattr(torch, cell.device.dtype)).eval().requires_grad_(False)
    paradigm = NativeParadigm(execute(model, cell.device.execution), cell.decoder, weights.tokenizer)
    requests = make_requests(cell, 0, 0, corpus=load_corpus(cell.corpus), tokenizer=weights.tokenizer)
    clock = clock_for(device, "device")
    warm_up(paradigm, lambda: requests, clock=clock, max_warmups=5, num_events=cell.workload.output_len)
    timed = partial(_timed_s, paradigm, requests, clock)
    bare = partial(_bare_s, paradigm, requests, clock)
    pairs = []
    for index in range(num_pairs):
        if index % 2:
            loop_s, record_s = timed()
            pairs.append(Pair(bare(), loop_s, record_s))
        else:
            bare_s = bare()
            pairs.append(Pair(bare_s, *timed()))
    return pairs


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """The median, and the ranks between which it lies with at least 95 %, whatever the distribution."""
    ordered = sorted(ratios)
    rank = int(binom.ppf(0.025, len(ordered), 0.5))  # fewer than `rank` of them on one side: at most 2.5 %
    return median(ordered), ordered[rank - 1], ordered[-rank]


def _bare_s(paradigm: Paradigm, requests: Sequence[Request], clock: Clock) -> float:
    with short_garbage_collections():
        clock.synchronize()
        start = time.perf_counter()
        for _ in paradigm.run(requests):
            pass
        clock.synchronize()
        return time.perf_counter() - start


def _timed_s(paradigm: Paradigm, requests: Sequence[Request], clock: Clock) -> tuple[float, float]:
    start = time.perf_counter()
    recording = record(paradigm, requests, clock=clock)
    return recording.wall_s, time.perf_counter() - start


if __name__ == "__main__":
    raise SystemExit(main())
