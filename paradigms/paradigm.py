"""The contract between what generates and what measures.

A paradigm turns requests into a stream of events; the benchmark consumes the events and reads the clock. Native
decoders, `transformers` generate and, later, HTTP endpoints all look like this, so that none is measured by a different
loop. Nothing here times, synchronises or prints, and this module imports nothing else of the package.

Dimension letters: B requests of a batch, K positions of one event.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch

FINISH_REASONS = ("length", "eos", "stop_string")


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One request for text.

    Attributes:
        id: name of the request, unique within a run.
        prompt: token ids, begin-of-text included.
        max_new_tokens: committed at most; exactly this many when `ignore_eos`.
        canvas: what stands after the prompt: a token id where the text is given, None at open positions, of which there
            are max_new_tokens. None: nothing is given. The output are the open positions, in order; given tokens never
            count as output. A canvas ends with its last position, given or open.
        in_order: what the canvas gives is reached from left to right, as questions are; nobody who reads from left to
            right is to read it ahead.
        seed: every random draw for this request is a function of (seed, position, step, purpose).
        ignore_eos: latency sweeps fix the length; task quality needs the natural stop.
        stop_strings: generation ends when the text contains one of them (natural stop only).
    """

    id: str
    prompt: tuple[int, ...]
    max_new_tokens: int
    seed: int = 0
    ignore_eos: bool = True
    stop_strings: tuple[str, ...] = ()
    canvas: tuple[int | None, ...] | None = None
    draft: tuple[int, ...] = ()
    in_order: bool = False

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ValueError(f"request {self.id!r} has an empty prompt; give at least the begin-of-text token")
        if self.max_new_tokens < 1:
            raise ValueError(f"request {self.id!r} asks for max_new_tokens={self.max_new_tokens}; at least 1 is needed")
        if len(self.draft) >= self.max_new_tokens:
            raise ValueError(
                f"request {self.id!r} has a draft of {len(self.draft)} tokens, which leaves nothing to decide of "
                f"max_new_tokens={self.max_new_tokens}"
            )
        if self.canvas is not None and self.canvas.count(None) != self.max_new_tokens:
            raise ValueError(
                f"request {self.id!r} has {self.canvas.count(None)} open positions (None) in its canvas and asks for "
                f"max_new_tokens={self.max_new_tokens}; these must be equal"
            )
        if self.canvas is not None and self.stop_strings and any(token is not None for token in self.canvas):
            raise ValueError(
                f"request {self.id!r} has stop strings and given text in its canvas; a stop string ends a text that is "
                "written left to right, so leave one of them out"
            )

    @property
    def layout(self) -> tuple[int | None, ...]:
        """The canvas, spelled out where nothing is given."""
        return (None,) * self.max_new_tokens if self.canvas is None else self.canvas


@dataclass(frozen=True, slots=True)
class StateBytes:
    """Bytes of the state carried between steps, summed over the batch.

    Attributes:
        used: bytes that hold something that is still needed, read off the tensors.
        allocated: bytes of the tensors that were reserved for it.
    """

    used: int
    allocated: int


@dataclass(slots=True)
class Event:
    """What one step made known. Positions count output tokens from 0: neither the prompt nor given tokens.

    Attributes:
        phase: "prefill", "decode" or "denoise".
        positions_K: output positions this event speaks of, the same for every row (a range or a list), or None.
        token_ids_BK: their tokens, on the device that computed them, or None when the event carries no tokens.
        final_BK: True where a token can no longer change; None means that all of them are final.
        forwards: model name -> forwards run since the previous event (fill and encoder passes included).
        positions_computed: positions pushed through the model since the previous event, summed over the batch.
        finished: row -> finish reason, for rows that ended with this event.
        num_committed: row -> tokens committed, for finished rows whose text is cut before positions that were already
            final (a canvas that holds end-of-text); a row that is not named commits every position it reported final.
        state: bytes carried after this event, a callable so that nobody pays who does not ask; None when there is none.
    """

    phase: str
    positions_K: Sequence[int] | None = None
    token_ids_BK: torch.Tensor | None = None
    final_BK: torch.Tensor | None = None
    forwards: dict[str, int] = field(default_factory=dict)
    positions_computed: int = 0
    finished: dict[int, str] = field(default_factory=dict)
    num_committed: dict[int, int] = field(default_factory=dict)
    state: Any = None  # Callable[[], StateBytes] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """What is known of a run before it is made, where its course does not depend on which tokens come out.

    Attributes:
        num_events: events of the whole run, each of one forward.
        grows: event n (from 0) reads n tokens more than the first, so that the same request with n tokens moved from
            its output to its prompt begins there; otherwise all events do the same work.
    """

    num_events: int
    grows: bool


@runtime_checkable
class Paradigm(Protocol):
    """A way to generate text: a model and a decoder, or an outside engine."""

    parameters: int
    weight_bytes: int

    def run(self, requests: Sequence[Request]) -> Iterator[Event]:
        """Generate for all requests as one batch.

        The iterator may be closed early (warm-up does so); it must then leave nothing running. After the last event
        every row has a finish reason and every committed position has been reported final exactly once. A row that
        finished early commits nothing after its last position; tokens reported for it later are ignored by the reader.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """Facts for the records that the config does not tell: kernels, execution mode, dtype, state formula."""
        ...
