"""Warm-up on the real work, until it is steady: what happens only once must not enter a figure.

A warm-up run takes the first few events of the work that is measured next (same shapes, so the same kernels, caches and
allocations) and is then closed. It ends early for long outputs and repeats as often as the machine needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from paradigms.measure.clock import Clock
from paradigms.paradigm import Paradigm, Request

AGREEMENT = 0.1


@dataclass(frozen=True, slots=True)
class Warmup:
    """How warming up went.

    Attributes:
        num_runs: runs made.
        seconds: their time in sum.
        steady: whether the last two agree within 10 %; one run alone cannot tell and counts as not steady.
        runs_s: time of each run.
    """

    num_runs: int
    seconds: float
    steady: bool
    runs_s: tuple[float, ...]


def warm_up(
    paradigm: Paradigm,
    make_requests: Callable[[], Sequence[Request]],
    *,
    clock: Clock,
    max_warmups: int,
    num_events: int,
) -> Warmup:
    """Run the first `num_events` events of the work until two runs in a row agree within 10 %.

    It ends after `max_warmups` runs, steady or not.

    Args:
        make_requests: gives the requests of one run.

    Raises:
        ValueError: max_warmups or num_events below 1.
    """
    for name, value in (("max_warmups", max_warmups), ("num_events", num_events)):
        if value < 1:
            raise ValueError(f"{name}={value} is too small; it must be at least 1")
    runs_s: list[float] = []
    while len(runs_s) < max_warmups and not _steady(runs_s):
        runs_s.append(_run_briefly(paradigm, make_requests(), clock, num_events))
    return Warmup(len(runs_s), sum(runs_s), _steady(runs_s), tuple(runs_s))


def _run_briefly(paradigm: Paradigm, requests: Sequence[Request], clock: Clock, num_events: int) -> float:
    clock.synchronize()
    start = clock.mark()
    events = iter(paradigm.run(requests))
    try:
        for _ in islice(events, num_events):
            pass
        end = clock.mark()
    finally:
        close = getattr(events, "close", None)
        if close is not None:
            close()
    return clock.read([start, end])[1]


def _steady(runs_s: Sequence[float]) -> bool:
    return len(runs_s) > 1 and abs(runs_s[-1] - runs_s[-2]) <= AGREEMENT * max(runs_s[-2:])
