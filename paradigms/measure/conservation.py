"""What must add up in every run, checked in every run: a benchmark that loses a token or a step misleads quietly."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from paradigms.paradigm import FINISH_REASONS, Event, Request

_TOLERANCE = 1e-9


class ConservationError(RuntimeError):
    """Tokens, steps or times of a run do not add up: decoder or benchmark is wrong, and the figures are worthless."""


def check_end(row: int, reason: str, step: int, *, end_steps: Sequence[int | None]) -> None:
    """The end of a row, as an event announces it: a row that exists, once, for a known reason.

    Args:
        step: index of the event.
        end_steps: of each row, the event that ended it so far.
    """
    if not 0 <= row < len(end_steps):
        raise ConservationError(f"event {step} ends row {row}, but rows are 0..{len(end_steps) - 1}")
    if end_steps[row] is not None:
        raise ConservationError(f"row {row} ends in event {end_steps[row]} and again in event {step}")
    if reason not in FINISH_REASONS:
        raise ConservationError(f"row {row}: finish reason {reason!r} is not one of {', '.join(FINISH_REASONS)}")


def check_cut(
    row: int, num_tokens: int, step: int, *, finished: Mapping[int, str], positions: Mapping[int, object]
) -> None:
    """The length of a row that ends before what was final: said by the event that ends it, and no longer than what was.

    Args:
        finished: rows that the event ends.
        positions: of the row, final so far.
    """
    if row not in finished:
        raise ConservationError(f"event {step} commits {num_tokens} tokens of row {row}, which it does not end")
    missing = next((position for position in range(num_tokens) if position not in positions), None)
    if num_tokens < 0 or missing is not None:
        raise ConservationError(
            f"event {step} commits {num_tokens} tokens of row {row}, but position {missing} is not final"
        )


def check_events(events: Sequence[Event], times_s: Sequence[float]) -> None:
    """A stamp before the first event and one for each; time never goes back; somebody has worked.

    Args:
        times_s: of the start (0) and of every event.
    """
    if not events:
        raise ConservationError("the run gave no event")
    if len(times_s) != len(events) + 1 or times_s[0] != 0:
        raise ConservationError(f"{len(events)} events need {len(events) + 1} times from 0 on, not {len(times_s)}")
    for step, (earlier_s, later_s) in enumerate(pairwise(times_s)):
        if not later_s >= earlier_s:
            raise ConservationError(f"event {step} comes at {later_s} s, before the one at {earlier_s} s")
    for step, event in enumerate(events):
        if min(event.forwards.values(), default=0) < 0 or event.positions_computed < 0:
            raise ConservationError(
                f"event {step} counts backwards: forwards {event.forwards}, positions {event.positions_computed}"
            )
    if sum(sum(event.forwards.values()) for event in events) < 1:
        raise ConservationError("the run counts no forward; at least one model must have run")


def check_row(row: int, request: Request, positions: Mapping[int, object], reason: str | None) -> None:
    """Positions without holes, as many as were asked for, and an end."""
    num_tokens = len(positions)
    missing = [position for position in range(num_tokens) if position not in positions]
    if missing:
        raise ConservationError(
            f"row {row}: {num_tokens} positions are final, up to {max(positions)}, but position {missing[0]} is not"
        )
    if reason is None:
        raise ConservationError(f"row {row} has no finish reason after {num_tokens} tokens")
    if num_tokens > request.max_new_tokens:
        raise ConservationError(f"row {row}: {num_tokens} tokens committed, {request.max_new_tokens} allowed")
    if request.ignore_eos and reason != "length":
        raise ConservationError(f"row {row} ends by {reason!r} although its length is fixed")
    if reason == "length" and num_tokens != request.max_new_tokens:
        raise ConservationError(f"row {row}: {num_tokens} tokens committed, {request.max_new_tokens} requested")


def check_work_ends(events: Sequence[Event], last_end: int) -> None:
    """No work after the last row has ended: nobody's figures would contain it."""
    for step in range(last_end + 1, len(events)):
        if events[step].positions_computed or sum(events[step].forwards.values()):
            raise ConservationError(f"event {step} works although every row has ended by event {last_end}")


def check_times(
    row: int,
    *,
    num_tokens: int,
    arrivals_s: Sequence[float],
    itl_s: Sequence[float],
    chunk_tokens: Sequence[int],
    tpot_s: float | None,
    e2e_s: float,
) -> None:
    """The derived times of a row sum to its end, its chunks to its tokens."""
    if sum(chunk_tokens) != num_tokens:
        raise ConservationError(f"row {row}: chunks of {sum(chunk_tokens)} tokens, but {num_tokens} committed")
    if not arrivals_s:
        return
    ttft_s, last_s = arrivals_s[0], arrivals_s[-1]
    if last_s > e2e_s:
        raise ConservationError(f"row {row}: a token arrives at {last_s} s, after the row's end at {e2e_s} s")
    sums_s = {"TTFT + ITL + wait for the end": ttft_s + math.fsum(itl_s) + (e2e_s - last_s)}
    if tpot_s is not None:
        sums_s["TTFT + (n - 1) TPOT"] = ttft_s + (num_tokens - 1) * tpot_s
    for name, sum_s in sums_s.items():
        if not math.isclose(sum_s, e2e_s, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE):
            raise ConservationError(f"row {row}: {name} = {sum_s} s, but E2E = {e2e_s} s")
