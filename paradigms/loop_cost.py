"""`python -m paradigms.loop_cost`: what it costs to time a run, against the same run that nobody times.

Two looks at it, since a ratio of whole runs drowns in a noisy machine what is to be seen:

- Pairs of runs of the same requests in one process, in turn first and second: the events taken and dropped, and
  `measure.timeline.record`. The median over pairs, with its 95 % interval, of two ratios to the bare loop: of the
  timed loop, and of all of `record`, which reads the tokens, checks and derives figures when the clock has stopped.
- The events of a run, replayed without the model: what the timed loop adds to each, as a share of a real event.

Timing must stay below 1.01 at 5 million parameters. Overrides as for `python -m paradigms`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch

from analysis import intervals
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
from paradigms.paradigm import Event, Paradigm, Request
from paradigms.weights import load_corpus

LIMIT = 1.01
DEFAULTS = (
    "paradigm=ar",
    "size=5m",
    "train=random",
    "measure=latency",
    "workload=random_prompts",
    "workload.output_len=32",
)
REPLAYS = 200
FEWEST_PAIRS = 6  # below this no pair of order statistics makes a 95 % interval


@dataclass(frozen=True, slots=True)
class Pair:
    """Seconds of the bare loop, of the timed one as it says itself, and of all of `record`."""

    bare_s: float
    loop_s: float
    record_s: float


@dataclass(frozen=True, slots=True)
class Cost:
    """What timing costs.

    Attributes:
        pairs: of runs.
        num_events: of a run.
        added_s: seconds that the timed loop adds to an event.
    """

    pairs: list[Pair]
    num_events: int
    added_s: float

    @property
    def bare_s(self) -> float:
        """A bare run."""
        return median(pair.bare_s for pair in self.pairs)

    @property
    def added_share(self) -> float:
        """Of the time of an event."""
        return self.added_s * self.num_events / self.bare_s


class Replay:
    """A paradigm that hands out the events of an earlier run again: a loop over it is all loop."""

    parameters = weight_bytes = 0

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = events

    def run(self, requests: Sequence[Request]) -> Iterator[Event]:
        yield from self.events

    def describe(self) -> dict[str, Any]:
        return {}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code: 0 below the limit, 1 above it."""
    parser = argparse.ArgumentParser(
        prog="python -m paradigms.loop_cost", description=(__doc__ or "").partition(": ")[2].partition("\n")[0]
    )
    parser.add_argument("--pairs", type=int, default=400, help="of runs (default 400)")
    parser.add_argument("overrides", nargs="*", help=f"hydra overrides, after {' '.join(DEFAULTS)}")
    options = parser.parse_args(arguments)
    try:
        cost = measure(options.overrides, num_pairs=options.pairs)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    pairs = cost.pairs
    loop = intervals.median([pair.loop_s / pair.bare_s for pair in pairs])
    whole = intervals.median([pair.record_s / pair.bare_s for pair in pairs])
    print(f"{len(pairs)} pairs of {cost.num_events} events, bare run {cost.bare_s * 1e3:.3g} ms")
    print(f"timed loop / bare loop: {_text(loop)}")
    print(f"record / bare loop: {_text(whole)}, after the clock has stopped included")
    print(f"added to an event: {cost.added_s * 1e6:.2f} us, {cost.added_share:.3%} of it (below {LIMIT - 1:.0%})")
    return 0 if cost.added_share < LIMIT - 1 and loop.low < LIMIT else 1


def _text(ratio: intervals.Estimate) -> str:
    return f"{ratio.value:.4f} [{ratio.low:.4f}, {ratio.high:.4f}] ({ratio.coverage:.1%})"


def measure(overrides: Sequence[str], *, num_pairs: int) -> Cost:
    """What timing a composed cell costs.

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
    replay = Replay(list(paradigm.run(requests)))
    tries = [(_timed_s(replay, requests, clock)[0], _bare_s(replay, requests, clock)) for _ in range(REPLAYS)]
    added_s = median(loop_s - bare_s for loop_s, bare_s in tries) / len(replay.events)
    return Cost(pairs, len(replay.events), added_s)


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
