"""Work of known cost is as much as it says, by clocks that only it moves."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from fakes import make_requests
from tiny import MODELS

from paradigms.data.tokenizers import ByteTokenizer
from paradigms.decoding import known_cost
from paradigms.decoding.known_cost import KnownCost, operation, time_of_operation
from paradigms.measure.clock import FakeClock
from paradigms.measure.timeline import record
from paradigms.paradigm import Event, Request
from paradigms.work import BatchShape

READ_NS = 250  # what looking at the clock costs


class Paradigm:
    """The decoder without a model, as what is measured."""

    parameters = weight_bytes = 0

    def __init__(self, decoder: KnownCost) -> None:
        self.decoder = decoder

    def run(self, requests: list[Request]) -> Any:
        return self.decoder.decode(None, requests, ByteTokenizer())  # type: ignore[arg-type]

    def describe(self) -> dict[str, Any]:
        return {}


def events(decoder: KnownCost, batch_size: int = 2, output_len: int = 5) -> list[Event]:
    return list(Paradigm(decoder).run(make_requests(batch_size, output_len=output_len)))


@pytest.fixture
def cpu_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """A thread's clock that goes on while it is looked at, and stands still otherwise."""
    now = 0

    def read() -> int:
        nonlocal now
        now += READ_NS
        return now

    monkeypatch.setattr(known_cost.time, "thread_time_ns", read)
    return lambda: now


def test_a_step_spins_until_its_cpu_time_is_over(cpu_clock: Callable[[], int]) -> None:
    decoder = KnownCost(kind="cpu_time", step_s=1e-4, prefill_steps=3)
    times = [0]
    for _ in Paradigm(decoder).run(make_requests(1, output_len=4)):
        times.append(cpu_clock())
    first_ns, *steps_ns = [later - earlier for earlier, later in pairwise(times)]
    assert all(100_000 <= step_ns <= 100_000 + 2 * READ_NS for step_ns in steps_ns) and len(steps_ns) == 3
    assert 300_000 <= first_ns <= 300_000 + 6 * READ_NS


def test_a_recording_recovers_the_costs(cpu_clock: Callable[[], int]) -> None:
    """Through the loop that is timed, on the clock that the work moves."""

    class Clock(FakeClock):
        def mark(self) -> float:
            return cpu_clock() * 1e-9

    decoder = KnownCost(kind="cpu_time", step_s=2e-4)
    recording = record(Paradigm(decoder), make_requests(2, output_len=16), clock=Clock())
    for row in recording.rows:
        assert row.ttft_s == pytest.approx(8 * 2e-4, rel=0.01)
        assert row.tpot_s == pytest.approx(2e-4, rel=0.01)
        assert row.e2e_s == pytest.approx((8 + 15) * 2e-4, rel=0.01)


def test_whole_operations_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 ms of 0.3 ms operations are three, which is 0.9 ms."""
    made: list[str] = []
    monkeypatch.setattr(known_cost, "operation", lambda kind: lambda: made.append(kind))
    decoder = KnownCost(kind="arithmetic", step_s=1e-3, operation_s=3e-4, prefill_steps=2)
    assert (decoder.operations, decoder.exact_step_s) == (3, pytest.approx(9e-4))
    assert len(events(decoder, output_len=5)) == 5
    assert made == ["arithmetic"] * 3 * (2 + 4)


def test_a_step_is_at_least_one_operation() -> None:
    assert KnownCost(kind="memory", step_s=1e-6, operation_s=1e-3).exact_step_s == 1e-3


@pytest.mark.parametrize("kind", ["arithmetic", "memory"])
def test_real_operations_take_time(kind: str) -> None:
    for _ in range(100):  # past the end of the memory, and on from its beginning
        operation(kind)()
    time = time_of_operation(kind, for_s=0.0)
    assert time.seconds > 0 and time.spread >= 0


def test_no_forward_of_the_model_is_made() -> None:
    decoder = KnownCost(kind="cpu_time", step_s=1e-6)
    assert not list(decoder.forwards(MODELS["ar"], BatchShape(rows=1, prompt_len=8, output_len=4)))
    assert {name for event in events(decoder) for name in event.forwards} == {"known_cost"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"kind": "sleep", "step_s": 1.0}, "cpu_time, arithmetic, memory"),
        ({"kind": "cpu_time", "step_s": 0.0}, "step_s=0.0"),
        ({"kind": "cpu_time", "step_s": 1.0, "prefill_steps": 0}, "prefill_steps=0"),
        ({"kind": "cpu_time", "step_s": 1.0, "operation_s": 1.0}, "operation_s=1.0"),
        ({"kind": "memory", "step_s": 1.0}, "operation_s=None"),
    ],
)
def test_impossible_costs(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        KnownCost(**fields)
