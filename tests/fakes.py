"""Paradigms of known cost on a clock that only they move, so that every figure has a known answer.

All share `token(request, position)`, so what they commit is known as well. B rows, L canvas positions, K of one event.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from paradigms.measure.clock import FakeClock
from paradigms.paradigm import Event, Request

VOCAB_SIZE = 97


def token(request: Request, position: int) -> int:
    """The token that every fake commits there."""
    return (31 * request.seed + 7 * position + 3) % VOCAB_SIZE


def tokens_BK(requests: Sequence[Request], positions_K: Sequence[int]) -> torch.Tensor:
    return torch.tensor([[token(request, position) for position in positions_K] for request in requests])


def make_requests(
    batch_size: int = 1, *, output_len: int = 8, prompt_len: int = 4, ignore_eos: bool = True
) -> list[Request]:
    return [
        Request(
            id=f"request-{row}",
            prompt=tuple(range(1, prompt_len + 1)),
            max_new_tokens=output_len,
            seed=row,
            ignore_eos=ignore_eos,
        )
        for row in range(batch_size)
    ]


@dataclass(kw_only=True)
class FakeParadigm:
    """What the fakes have in common.

    Attributes:
        num_runs: iterators that were started.
        num_closed: those of them that were closed before their end.
    """

    clock: FakeClock
    parameters: int = 1000
    weight_bytes: int = 4000
    num_runs: int = 0
    num_closed: int = 0

    def run(self, requests: Sequence[Request]) -> Iterator[Event]:
        self.num_runs += 1
        try:
            yield from self.events(requests)
        except GeneratorExit:
            self.num_closed += 1
            raise

    def events(self, requests: Sequence[Request]) -> Iterator[Event]:
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        return {"kernels": "fake", "execution": "eager"}


@dataclass(kw_only=True)
class FakeAutoregressive(FakeParadigm):
    """One token a step, the first with the prefill. All requests ask for the same length.

    Attributes:
        growth_s, bend_s: what a step costs more for each token read before it, and for the square of their number.
        eos_at: row -> position of its end-of-text token, which is its last one.
    """

    prefill_s: float = 0.5
    step_s: float = 0.1
    growth_s: float = 0.0
    bend_s: float = 0.0
    eos_at: Mapping[int, int] = field(default_factory=dict)

    def events(self, requests: Sequence[Request]) -> Iterator[Event]:
        length = requests[0].max_new_tokens
        ended: set[int] = set()
        for position in range(length):
            prefill = position == 0
            read = len(requests[0].prompt) + position
            step_s = self.step_s + self.growth_s * read + self.bend_s * read**2
            self.clock.advance(self.prefill_s if prefill else step_s)
            finished = {row: "eos" for row, end in self.eos_at.items() if end == position}
            ended.update(finished)
            if position == length - 1:
                finished.update({row: "length" for row in range(len(requests)) if row not in ended})
            yield Event(
                phase="prefill" if prefill else "decode",
                positions_K=range(position, position + 1),
                token_ids_BK=tokens_BK(requests, [position]),
                forwards={"model": 1},
                positions_computed=len(requests) * (len(requests[0].prompt) if prefill else 1),
                finished=finished,
            )
            if len(ended) == len(requests):
                return


@dataclass(kw_only=True)
class FakeDiffusion(FakeParadigm):
    """A canvas of L positions that become final in random order over a fixed number of steps.

    Attributes:
        num_steps: at most L.
        seed: of the order.
        eos_at: row -> position of its end-of-text token; the row is cut behind it when the canvas is full.
    """

    num_steps: int = 4
    step_s: float = 0.2
    seed: int = 0
    eos_at: Mapping[int, int] = field(default_factory=dict)

    def order(self, length: int) -> list[int]:
        """Step in which each position becomes final."""
        positions = random.Random(self.seed).sample(range(length), length)
        step_of = [0] * length
        for rank, position in enumerate(positions):
            step_of[position] = rank * self.num_steps // length
        return step_of

    def events(self, requests: Sequence[Request]) -> Iterator[Event]:
        length = requests[0].max_new_tokens
        step_of = torch.tensor(self.order(length))
        canvas_BL = tokens_BK(requests, range(length))
        total_len = len(requests[0].prompt) + length
        for step in range(self.num_steps):
            self.clock.advance(self.step_s)
            last = step == self.num_steps - 1
            yield Event(
                phase="denoise",
                positions_K=range(length),
                token_ids_BK=canvas_BL,
                final_BK=(step_of == step).expand(len(requests), length),
                forwards={"model": 1},
                positions_computed=len(requests) * total_len,
                finished={row: "eos" if row in self.eos_at else "length" for row in range(len(requests))}
                if last
                else {},
                num_committed={row: end + 1 for row, end in self.eos_at.items()} if last else {},
            )


@dataclass(kw_only=True)
class FakeBlocks(FakeParadigm):
    """Blocks left to right: a draft of the block, then one check by the target; a block arrives as a whole."""

    block_len: int = 4
    prefill_s: float = 0.3
    block_s: float = 0.4

    def events(self, requests: Sequence[Request]) -> Iterator[Event]:
        length = requests[0].max_new_tokens
        self.clock.advance(self.prefill_s)
        yield Event(
            phase="prefill",
            forwards={"target": 1, "draft": 1},
            positions_computed=2 * len(requests) * len(requests[0].prompt),
        )
        for start in range(0, length, self.block_len):
            end = min(start + self.block_len, length)
            self.clock.advance(self.block_s)
            yield Event(
                phase="decode",
                positions_K=range(start, end),
                token_ids_BK=tokens_BK(requests, range(start, end)),
                forwards={"target": 1, "draft": end - start},
                positions_computed=2 * len(requests) * (end - start),
                finished=dict.fromkeys(range(len(requests)), "length") if end == length else {},
            )


@dataclass(kw_only=True)
class FakeFaulty(FakeParadigm):
    """Another fake whose events are spoiled on their way.

    Attributes:
        spoil: gets an event's index and the event, and gives the events that come in its place.
    """

    inner: FakeParadigm
    spoil: Callable[[int, Event], list[Event]]

    def events(self, requests: Sequence[Request]) -> Iterator[Event]:
        for index, event in enumerate(self.inner.events(requests)):
            yield from self.spoil(index, event)


@dataclass(kw_only=True)
class FakeAllocator(FakeParadigm):
    """Allocates known tensors: weights from the start, a cache that grows by a row a step, a temporary in each step.

    Attributes:
        weight_len, row_len, spare_len: numbers of float32.
    """

    weight_len: int = 1000
    row_len: int = 100
    spare_len: int = 500

    def __post_init__(self) -> None:
        self.weights = torch.ones(self.weight_len)

    def peak_bytes(self, requests: Sequence[Request]) -> int:
        """All rows, the temporary of the last step, and the ids of all rows and positions."""
        length = requests[0].max_new_tokens
        return 4 * (self.weight_len + length * self.row_len + self.spare_len) + 8 * len(requests) * length

    def events(self, requests: Sequence[Request]) -> Iterator[Event]:
        length = requests[0].max_new_tokens
        ids_BL = tokens_BK(requests, range(length))
        rows: list[torch.Tensor] = []
        for position in range(length):
            rows.append(self.weights[: self.row_len].clone())
            spare = torch.zeros(self.spare_len)
            del spare
            yield Event(
                phase="decode",
                positions_K=[position],
                token_ids_BK=ids_BL[:, position : position + 1],
                forwards={"model": 1},
                finished=dict.fromkeys(range(len(requests)), "length") if position == length - 1 else {},
            )


class SpellingDecoder:
    """One letter a token; holds the last one back until more comes or the end."""

    def __init__(self):
        self.held = ""

    def feed(self, ids):
        text = self.held + "".join(chr(0x4E00 + token_id) for token_id in ids)
        self.held = text[-1]
        return text[:-1]

    def finish(self):
        return self.held


def spell(request, num_tokens):
    return "".join(chr(0x4E00 + token(request, position)) for position in range(num_tokens))
