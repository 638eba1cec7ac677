"""A run that was timed, and its figures: what every token waited for, derived after the clock has stopped.

For row b, position l (from 0) and n committed tokens, all times in seconds from the start of the run:

    t_final[b, l]    when the position became final
    t_stream[b, l]   max of t_final[b, 0..l]: when a reader could have had it
    TTFT             t_stream[b, 0]
    E2E              when the row's end was announced
    TPOT             (E2E - TTFT) / (n - 1); undefined for n < 2 and when all tokens arrive at once
    ITL              gaps between distinct arrivals; the tokens of one arrival are a chunk
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import median
from typing import Any

from paradigms.measure.conservation import check_row, check_times, check_work_ends
from paradigms.paradigm import Event, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRecording:
    """What became of one request.

    Attributes:
        token_ids: the n committed tokens.
        steps: per position, index of the event that made it final.
        t_final_s, t_stream_s: per position.
        ttft_s: None when nothing was committed.
        tpot_s: None when undefined.
        itl_s: gaps between distinct arrivals, one fewer than chunks.
        chunk_tokens: tokens of each arrival.
        nfe: forwards of each model until the row ended.
        positions_computed: the row's share, each event's positions divided among the rows that had not ended before it.
        text: what was delivered, with timeline `delivered`; else None.
    """

    request: Request
    finish_reason: str
    token_ids: tuple[int, ...]
    steps: tuple[int, ...]
    t_final_s: tuple[float, ...]
    t_stream_s: tuple[float, ...]
    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float
    itl_s: tuple[float, ...]
    chunk_tokens: tuple[int, ...]
    nfe: dict[str, int]
    positions_computed: float
    text: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """One run of a batch, checked for conservation.

    Attributes:
        rows: one a request, in order.
        phases: of each event.
        event_kinds: of each event, equal where the same kind of work was done: phase, forwards, positions computed.
        event_s: time of each event.
        wall_s: time of the last event.
        prefill_s: time of the first event.
        step_time_s: median time that an event after the first takes, prefill left out; None when there is none.
        nfe: forwards of the whole run, by model.
        positions_computed: of the whole run, summed over the batch.
    """

    rows: tuple[RowRecording, ...]
    phases: tuple[str, ...]
    event_kinds: tuple[tuple[Any, ...], ...]
    event_s: tuple[float, ...]
    wall_s: float
    prefill_s: float
    step_time_s: float | None
    nfe: dict[str, int]
    positions_computed: int

    @property
    def token_ids(self) -> tuple[tuple[int, ...], ...]:
        """Committed tokens of each row."""
        return tuple(row.token_ids for row in self.rows)

    def request_rows(self) -> list[dict[str, Any]]:
        """A record a row for the `requests` table, without key, repeat and quality.

        Where several models run, `nfe_<model>` stands beside their sum.
        """
        return [
            {
                "row": index,
                "request_id": row.request.id,
                "seed": row.request.seed,
                "prompt_tokens": len(row.request.prompt),
                "requested_tokens": row.request.max_new_tokens,
                "committed_tokens": len(row.token_ids),
                "finish_reason": row.finish_reason,
                "ttft_s": row.ttft_s,
                "tpot_s": row.tpot_s,
                "e2e_s": row.e2e_s,
                "itl_median_s": median(row.itl_s) if row.itl_s else None,
                "itl_max_s": max(row.itl_s, default=None),
                "num_chunks": len(row.chunk_tokens),
                "max_chunk_tokens": max(row.chunk_tokens, default=0),
                "nfe": sum(row.nfe.values()),
                **({f"nfe_{model}": count for model, count in row.nfe.items()} if len(row.nfe) > 1 else {}),
                "positions_computed": row.positions_computed,
                "step_time_s": self.step_time_s,
                "prefill_s": self.prefill_s,
            }
            for index, row in enumerate(self.rows)
        ]

    def token_rows(self) -> list[dict[str, Any]]:
        """A record a committed token for the `tokens` table, without key and repeat."""
        return [
            {
                "row": index,
                "position": position,
                "step": step,
                "phase": self.phases[step],
                "t_final_s": row.t_final_s[position],
                "t_stream_s": row.t_stream_s[position],
            }
            for index, row in enumerate(self.rows)
            for position, step in enumerate(row.steps)
        ]


@dataclass(slots=True)
class Committed:
    """What the events committed for one row, as they were read.

    Attributes:
        ids, steps: position -> token id, and the index of the event that made it final.
        end_step, reason: index of the event that ended the row, and the finish reason.
    """

    ids: dict[int, int]
    steps: dict[int, int]
    end_step: int | None = None
    reason: str | None = None

    def cut(self, num_tokens: int) -> None:
        """Take back what stands behind the first `num_tokens` positions."""
        for position in [position for position in self.ids if position >= num_tokens]:
            del self.ids[position], self.steps[position]


def derive(
    requests: Sequence[Request],
    events: Sequence[Event],
    event_s: Sequence[float],
    rows: Sequence[Committed],
    texts: Sequence[str] | None,
) -> Recording:
    """All figures of a run.

    Args:
        event_s: time of each event.
        texts: delivered text of each row, if it was delivered.

    Raises:
        ConservationError: tokens, steps or times do not add up.
    """
    ends: list[int] = []
    for index, (request, row) in enumerate(zip(requests, rows, strict=True)):
        check_row(index, request, row.ids, row.reason)
        ends.append(-1 if row.end_step is None else row.end_step)
    check_work_ends(events, max(ends))
    nfe_at = list(accumulate((Counter(event.forwards) for event in events), lambda total, more: total + more))
    shares = _positions_by_row(events, ends)
    gaps_s = [event_s[step] - event_s[step - 1] for step in range(1, len(events)) if events[step].phase != "prefill"]
    return Recording(
        rows=tuple(
            _derive_row(
                index,
                request,
                rows[index],
                event_s,
                end_step=ends[index],
                nfe=nfe_at[ends[index]],
                positions_computed=shares[index],
                text=None if texts is None else texts[index],
            )
            for index, request in enumerate(requests)
        ),
        phases=tuple(event.phase for event in events),
        event_kinds=tuple((event.phase, *sorted(event.forwards.items()), event.positions_computed) for event in events),
        event_s=tuple(event_s),
        wall_s=event_s[-1],
        prefill_s=event_s[0],
        step_time_s=median(gaps_s) if gaps_s else None,
        nfe=dict(nfe_at[-1]),
        positions_computed=sum(event.positions_computed for event in events),
    )


def _derive_row(
    index: int,
    request: Request,
    row: Committed,
    event_s: Sequence[float],
    *,
    end_step: int,
    nfe: Mapping[str, int],
    positions_computed: float,
    text: str | None,
) -> RowRecording:
    num_tokens = len(row.ids)
    steps = [row.steps[position] for position in range(num_tokens)]
    stream_steps = list(accumulate(steps, max))
    chunks = Counter(stream_steps)  # its keys stand in order of arrival
    arrivals_s = [event_s[step] for step in chunks]
    itl_s = tuple(later - earlier for earlier, later in pairwise(arrivals_s))
    e2e_s = event_s[end_step]
    tpot_s = (e2e_s - arrivals_s[0]) / (num_tokens - 1) if len(chunks) > 1 else None
    check_times(
        index,
        num_tokens=num_tokens,
        arrivals_s=arrivals_s,
        itl_s=itl_s,
        chunk_tokens=list(chunks.values()),
        tpot_s=tpot_s,
        e2e_s=e2e_s,
    )
    return RowRecording(
        request=request,
        finish_reason=row.reason or "",
        token_ids=tuple(row.ids[position] for position in range(num_tokens)),
        steps=tuple(steps),
        t_final_s=tuple(event_s[step] for step in steps),
        t_stream_s=tuple(event_s[step] for step in stream_steps),
        ttft_s=arrivals_s[0] if arrivals_s else None,
        tpot_s=tpot_s,
        e2e_s=e2e_s,
        itl_s=itl_s,
        chunk_tokens=tuple(chunks.values()),
        nfe=dict(nfe),
        positions_computed=positions_computed,
        text=text,
    )


def _positions_by_row(events: Sequence[Event], ends: Sequence[int]) -> list[float]:
    shares = [0.0] * len(ends)
    for step, event in enumerate(events):
        running = [row for row, end in enumerate(ends) if end >= step]
        for row in running:
            shares[row] += event.positions_computed / len(running)
    return shares
