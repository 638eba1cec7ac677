"""Warm-up on the real work, until it is steady: what happens only once must not enter a figure.

A warm-up run takes the first few events of the work that is measured next (same shapes, so the same kernels, caches and
allocations) and is then closed. It ends early for long outputs and repeats as often as the machine needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from statistics import median

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
        first_s, step_s: of the last run, its first event and the median of those after it; None when there was none.
    """

    num_runs: int
    seconds: float
    steady: bool
    runs_s: tuple[float, ...]
    first_s: float
    step_s: float | None

    def estimate_s(self, num_events: int) -> float:
        """Seconds of a whole run of so many events, if every step were like those seen; 0 when none was."""
        return 0.0 if self.step_s is None else self.first_s + (num_events - 1) * self.step_s


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
    runs_s: list[list[float]] = []
    while len(runs_s) < max_warmups and not _steady(runs_s):
        runs_s.append(_run_briefly(paradigm, make_requests(), clock, num_events))
    totals_s = tuple(events_s[-1] for events_s in runs_s)
    _, first_s, *_ = runs_s[-1]
    steps_s = [later - earlier for earlier, later in pairwise(runs_s[-1][1:])]
    return Warmup(
        num_runs=len(runs_s),
        seconds=sum(totals_s),
        steady=_steady(runs_s),
        runs_s=totals_s,
        first_s=first_s,
        step_s=median(steps_s) if steps_s else None,
    )


def _run_briefly(paradigm: Paradigm, requests: Sequence[Request], clock: Clock, num_events: int) -> list[float]:
    """Times of the start, which is 0, and of each event.

    The host waits behind the first event, or a long prefill would hide what it costs to launch the steps.
    """
    clock.synchronize()
    stamps = [clock.mark()]
    events = iter(paradigm.run(requests))
    try:
        for _ in islice(events, num_events):
            stamps.append(clock.mark())
            if len(stamps) == 2:
                clock.synchronize()
    finally:
        close = getattr(events, "close", None)
        if close is not None:
            close()
    return clock.read(stamps)


def _steady(runs_s: Sequence[Sequence[float]]) -> bool:
    if len(runs_s) < 2:
        return False
    before, last = runs_s[-2][-1], runs_s[-1][-1]
    return abs(last - before) <= AGREEMENT * max(before, last)
