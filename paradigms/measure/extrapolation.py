"""Runs too long to be made whole: the first forward and eight others are timed, the rest is summed by a rule.

Where a step grows with what was read, steps near the start say too little. So the eight stand at the start, in the
middle and at the end, and a parabola through the three carries the sum; it is exact for steps that cost a constant, a
part in proportion to the length, and one to its square. The middle and the end are reached by the paradigm's own way
of getting there: the same request with as many tokens moved from its output to its prompt, so that length and capacity
are those of the whole run. Where all steps do the same work, eight in a row are timed.

Before the steps of a place the device is let idle, or a long prefill would give the host a head start that it does not
have in the middle of a run; and one step is left out, which may choose kernels. What is not in the sum: copies of a
growing cache, 2 / 128 of what attention reads.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from statistics import fmean, median
from typing import Any

from paradigms.measure.clock import Clock
from paradigms.measure.timeline import short_garbage_collections
from paradigms.paradigm import Event, Outline, Paradigm, Request

NUM_TIMED = 8  # forwards after the first
SETTLING = 1  # forwards left out before those that are timed
_SHARES = (2, 4, 2)  # of the start, the middle and the end
FEWEST_EVENTS = 1 + SETTLING + NUM_TIMED  # a run of fewer is made whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Steps of a run that are timed together.

    Attributes:
        moved: tokens moved from the output to the prompt to get there.
        num_steps: steps that are timed.
    """

    moved: int
    num_steps: int

    @property
    def num_events(self) -> int:
        return 1 + SETTLING + self.num_steps

    @property
    def first_index(self) -> int:
        """Event of the whole run that the first timed step is."""
        return self.moved + 1 + SETTLING

    @property
    def centre(self) -> float:
        """Mean event that the timed steps are."""
        return self.first_index + (self.num_steps - 1) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Extrapolation:
    """A run of a batch that was not made whole.

    Attributes:
        wall_s: what the whole would take.
        first_s: the first event, timed.
        step_s: median step of the whole.
        positions_computed: of the whole, summed over the batch.
        spent_s: seconds that the timing took.
    """

    requests: tuple[Request, ...]
    outline: Outline
    wall_s: float
    first_s: float
    step_s: float
    positions_computed: float
    spent_s: float

    @property
    def forwards_timed(self) -> int:
        return 1 + NUM_TIMED

    def request_rows(self) -> list[dict[str, Any]]:
        """Records for the `requests` table, without key and repeat; None for what only a whole run tells.

        Tokens and forwards are those of the whole. When the first token of a canvas is final is decided on the way, so
        only token by token is there a time to first token.
        """
        ttft_s = self.first_s if self.outline.grows else None
        return [
            {
                "row": index,
                "request_id": request.id,
                "seed": request.seed,
                "prompt_tokens": len(request.prompt),
                "requested_tokens": request.max_new_tokens,
                "committed_tokens": request.max_new_tokens,
                "finish_reason": "length",
                "ttft_s": ttft_s,
                "tpot_s": None if ttft_s is None else (self.wall_s - ttft_s) / (request.max_new_tokens - 1),
                "e2e_s": self.wall_s,
                "itl_median_s": None if ttft_s is None else self.step_s,
                "itl_max_s": None,
                "num_chunks": None,
                "max_chunk_tokens": None,
                "nfe": self.outline.num_events,
                "positions_computed": self.positions_computed / len(self.requests),
                "step_time_s": self.step_s,
                "prefill_s": self.first_s,
                "extrapolated": True,
                "forwards_timed": self.forwards_timed,
            }
            for index, request in enumerate(self.requests)
        ]


def places(outline: Outline) -> tuple[Place, ...]:
    """Where steps are timed: at the start, in the middle and at the end, or once where all are equal."""
    if not outline.grows:
        return (Place(moved=0, num_steps=NUM_TIMED),)
    num_steps = outline.num_events - 1
    start, middle, end = _SHARES
    return (
        Place(moved=0, num_steps=start),
        Place(moved=(num_steps - middle) // 2 - SETTLING, num_steps=middle),
        Place(moved=num_steps - end - SETTLING, num_steps=end),
    )


def at(requests: Sequence[Request], place: Place) -> list[Request]:
    """The requests, with tokens moved from output to prompt: its own again, since only their number matters."""
    moved = place.moved
    return [
        replace(
            request,
            prompt=request.prompt + tuple(request.prompt[-1 - i % len(request.prompt)] for i in range(moved)),
            max_new_tokens=request.max_new_tokens - moved,
        )
        for request in requests
    ]


def extrapolate(paradigm: Paradigm, requests: Sequence[Request], outline: Outline, *, clock: Clock) -> Extrapolation:
    """Time the first forward and eight others, and sum the rest.

    Args:
        requests: all of one length, which they reach whatever comes out.
        outline: what the paradigm says of their run.

    Raises:
        ValueError: a run of so few events that it ought to be made whole.
    """
    if outline.num_events < FEWEST_EVENTS:
        raise ValueError(
            f"a run of {outline.num_events} forwards is no longer than the {FEWEST_EVENTS} that would be timed: make it"
        )
    stretches = [_time(paradigm, requests, place, clock) for place in places(outline)]
    first_s, first_event = stretches[0].first_s, stretches[0].first_event
    centres = [stretch.place.centre for stretch in stretches]
    step_s = _Curve(centres, [median(stretch.steps_s) for stretch in stretches])
    positions = _Curve(centres, [fmean(stretch.positions) for stretch in stretches])
    num_steps = outline.num_events - 1
    return Extrapolation(
        requests=tuple(requests),
        outline=outline,
        wall_s=first_s + step_s.sum(num_steps),
        first_s=first_s,
        step_s=step_s(1 + (num_steps - 1) / 2),
        positions_computed=first_event.positions_computed + positions.sum(num_steps),
        spent_s=sum(stretch.spent_s for stretch in stretches),
    )


def events_at(paradigm: Paradigm, requests: Sequence[Request], place: Place) -> Generator[Event, None, None]:
    """The events of a place, the one that gets there first; the run is closed behind them."""
    events = iter(paradigm.run(at(requests, place)))
    try:
        yield from islice(events, place.num_events)
    finally:
        close = getattr(events, "close", None)
        if close is not None:
            close()


@dataclass(frozen=True, slots=True)
class _Stretch:
    place: Place
    first_s: float
    first_event: Event
    steps_s: list[float]
    positions: list[int]
    spent_s: float


def _time(paradigm: Paradigm, requests: Sequence[Request], place: Place, clock: Clock) -> _Stretch:
    """One run to a place, closed there."""
    stamps, seen = [], []
    with short_garbage_collections(), closing(events_at(paradigm, requests, place)) as events:
        clock.synchronize()
        start = clock.mark()
        first_event = next(events)
        first = clock.mark()
        clock.synchronize()
        stamps.append(clock.mark())
        for event in events:
            stamps.append(clock.mark())
            seen.append(event)
    times_s = clock.read([start, first, *stamps])
    steps_s = [later - earlier for earlier, later in pairwise(times_s[2:])]
    assert len(seen) == place.num_events - 1, "the outline promised more events"
    return _Stretch(
        place,
        times_s[1],
        first_event,
        steps_s[SETTLING:],
        [event.positions_computed for event in seen[SETTLING:]],
        times_s[-1],
    )


class _Curve:
    """Lagrange's polynomial through one or three points, over events 1, 2, ..."""

    def __init__(self, x: Sequence[float], y: Sequence[float]) -> None:
        self.x, self.y = x, y

    def __call__(self, x: float) -> float:
        value = 0.0
        for i, (xi, yi) in enumerate(zip(self.x, self.y, strict=True)):
            for j, xj in enumerate(self.x):
                yi *= (x - xj) / (xi - xj) if i != j else 1.0
            value += yi
        return value

    def sum(self, num_steps: int) -> float:
        return sum(self(index) for index in range(1, num_steps + 1))
