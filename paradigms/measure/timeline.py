"""The loop that is timed: a stamp for every event of a run, and nothing else while the clock runs.

`device` appends a stamp and an event, about a microsecond a step. `delivered` also copies the tokens to the host and
detokenises them in stream order before the stamp is taken, as a server must. The two never mix in one comparison.

How events are read: a position is committed by the event that marks it final. The event that ends a row still commits
what it marks final, unless it cuts the row shorter; later ones commit nothing for that row. With `device`, tensors are
read when the run is over, so a decoder hands out tensors that nobody writes to again where they are final, and masks
that nobody writes to at all.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from paradigms.measure.clock import Clock
from paradigms.measure.conservation import ConservationError, check_cut, check_end, check_events
from paradigms.measure.recording import Committed, Recording, derive
from paradigms.paradigm import Event, Paradigm, Request
from paradigms.workload import TIMELINES


class StreamDecoder(Protocol):
    """Detokenises one row while its tokens arrive."""

    def feed(self, ids: Sequence[int]) -> str:
        """Text that has become certain."""
        ...

    def finish(self) -> str:
        """Text that was held back, when no more tokens come."""
        ...


def record(
    paradigm: Paradigm,
    requests: Sequence[Request],
    *,
    clock: Clock,
    timeline: str = "device",
    stream_decoder: Callable[[], StreamDecoder] | None = None,
) -> Recording:
    """Run the requests as one batch, time every event, check that all adds up and derive the figures.

    Args:
        timeline: `device` or `delivered`.
        stream_decoder: makes the detokeniser of a row; for `delivered`, and only for it.

    Raises:
        ValueError: no requests, an unknown timeline, or a stream decoder that does not go with it.
        ConservationError: tokens, steps or times of the run do not add up.
    """
    if not requests:
        raise ValueError("there are no requests to run; give at least one")
    if timeline not in TIMELINES:
        raise ValueError(f"timeline={timeline!r} is unknown; it is one of {', '.join(TIMELINES)}")
    reader = _Reader(len(requests))
    texts = None
    if timeline == "device":
        if stream_decoder is not None:
            raise ValueError("timeline='device' detokenises nothing; leave stream_decoder out or take 'delivered'")
        stamps, events = _run_device(paradigm, requests, clock)
        for event in events:
            reader.take(event)
    else:
        if stream_decoder is None:
            raise ValueError("timeline='delivered' detokenises as it goes; give it a stream_decoder")
        delivery = _Delivery(reader, stream_decoder)
        stamps, events = _run_delivered(paradigm, requests, clock, delivery)
        texts = delivery.texts()
    times_s = clock.read(stamps)
    check_events(events, times_s)
    return derive(requests, events, times_s[1:], reader.rows, texts)


def _run_device(paradigm: Paradigm, requests: Sequence[Request], clock: Clock) -> tuple[list[Any], list[Event]]:
    stamps: list[Any] = []
    events: list[Event] = []
    add_stamp, add_event, mark = stamps.append, events.append, clock.mark
    with short_garbage_collections():
        clock.synchronize()
        add_stamp(mark())
        for event in paradigm.run(requests):
            add_stamp(mark())
            add_event(event)
    return stamps, events


def _run_delivered(
    paradigm: Paradigm, requests: Sequence[Request], clock: Clock, delivery: _Delivery
) -> tuple[list[Any], list[Event]]:
    stamps: list[Any] = []
    events: list[Event] = []
    with short_garbage_collections():
        clock.synchronize()
        stamps.append(clock.mark())
        for event in paradigm.run(requests):
            delivery.take(event)
            stamps.append(clock.mark())
            events.append(event)
    return stamps, events


@contextmanager
def short_garbage_collections() -> Iterator[None]:
    """Keep collections away from what lived before: walking the objects of large libraries takes many steps' time."""
    thaw = gc.get_freeze_count() == 0
    gc.freeze()
    try:
        yield
    finally:
        if thaw:
            gc.unfreeze()


class _Reader:
    """Commits what events mark final, event by event."""

    def __init__(self, num_rows: int) -> None:
        self.rows = [Committed({}, {}) for _ in range(num_rows)]
        self._step = 0

    def take(self, event: Event) -> None:
        if event.token_ids_BK is not None:
            if event.positions_K is None:
                raise ConservationError(f"event {self._step} carries tokens but says no positions")
            self._commit(event.positions_K, event.token_ids_BK, event.final_BK)
        for index, reason in event.finished.items():
            check_end(index, reason, self._step, end_steps=[row.end_step for row in self.rows])
            self.rows[index].end_step, self.rows[index].reason = self._step, reason
        for index, num_tokens in event.num_committed.items():
            check_cut(index, num_tokens, self._step, finished=event.finished, positions=self.rows[index].ids)
            self.rows[index].cut(num_tokens)
        self._step += 1

    def _commit(self, positions_K: Sequence[int], token_ids_BK: torch.Tensor, final_BK: torch.Tensor | None) -> None:
        shape = (len(self.rows), len(positions_K))
        for name, tensor in (("token_ids_BK", token_ids_BK), ("final_BK", final_BK)):
            if tensor is not None and tuple(tensor.shape) != shape:
                raise ConservationError(
                    f"event {self._step}: {name} has shape {tuple(tensor.shape)}, but rows and positions are {shape}"
                )
        if final_BK is None:
            for index, ids in enumerate(token_ids_BK.tolist()):
                for position, token_id in zip(positions_K, ids, strict=True):
                    self._commit_one(index, int(position), token_id)
            return
        final_BK = final_BK.cpu()
        chosen = token_ids_BK.cpu()[final_BK].tolist()
        for (index, k), token_id in zip(final_BK.nonzero().tolist(), chosen, strict=True):
            self._commit_one(index, int(positions_K[k]), token_id)

    def _commit_one(self, index: int, position: int, token_id: int) -> None:
        row = self.rows[index]
        if row.end_step is not None:
            return
        if position in row.ids:
            first = row.steps[position]
            raise ConservationError(
                f"row {index}: position {position} is final in event {first} and again in event {self._step}"
            )
        row.ids[position], row.steps[position] = token_id, self._step


class _Delivery:
    """Detokenises, after each event, the next stretch of each row that has no hole before it."""

    def __init__(self, reader: _Reader, stream_decoder: Callable[[], StreamDecoder]) -> None:
        self.reader, self.make_decoder = reader, stream_decoder
        self.decoders = [stream_decoder() for _ in reader.rows]
        self.pieces: list[list[str]] = [[] for _ in reader.rows]
        self._num_streamed = [0] * len(reader.rows)

    def take(self, event: Event) -> None:
        self.reader.take(event)
        for row, state in enumerate(self.reader.rows):
            start = end = self._num_streamed[row]
            while end in state.ids:
                end += 1
            if end > start:
                ids = [state.ids[position] for position in range(start, end)]
                self.pieces[row].append(self.decoders[row].feed(ids))
                self._num_streamed[row] = end
            if row in event.finished:
                self.pieces[row].append(self.decoders[row].finish())

    def texts(self) -> list[str]:
        """Each row's text; where more was streamed than the row's end let stand, that of the tokens which stand."""
        texts = []
        for state, pieces, num_streamed in zip(self.reader.rows, self.pieces, self._num_streamed, strict=True):
            if num_streamed > len(state.ids):
                decoder = self.make_decoder()
                pieces = [decoder.feed([state.ids[position] for position in sorted(state.ids)]), decoder.finish()]
            texts.append("".join(pieces))
        return texts
