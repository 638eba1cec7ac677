"""Which attempt is kept, by attempts whose times and readings are written down beforehand; nothing waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from paradigms.measure.attempts import WAIT_S, until_quiet


class Script:
    """Attempts of known seconds and contention, and a log of what is done in which order."""

    def __init__(self, attempts: Sequence[tuple[float, float]]) -> None:
        self.attempts = iter(attempts)
        self.log: list[str] = []
        self.contention = 0.0

    def before(self) -> None:
        self.log.append("before")

    def measure(self) -> float:
        seconds, self.contention = next(self.attempts)
        self.log.append("measure")
        return seconds

    def after(self, uneven: Callable[[], float | None]) -> dict[str, Any]:
        self.log.append(f"after {uneven()}")
        return {"contended": self.contention > 1, "contention": self.contention}

    def run(self, retries: int) -> tuple[float, dict[str, Any]]:
        return until_quiet(
            self.measure,
            self,
            retries=retries,
            wall_s=lambda seconds: seconds,
            uneven=lambda seconds: seconds / 100,
            ready=lambda: self.log.append("ready"),
            wait=lambda seconds: self.log.append(f"wait {seconds}"),
        )


@pytest.mark.parametrize(
    ("attempts", "retries", "kept", "made"),
    [
        ([(9.0, 0.3)], 2, 0, 1),  # quiet at once
        ([(1.0, 1.0)], 2, 0, 1),  # at its limit
        ([(1.0, 3.0), (9.0, 0.9)], 2, 1, 2),  # the first quiet one, though it is slower
        ([(1.0, 3.0), (2.0, 5.0), (9.0, 0.9)], 2, 2, 3),
        ([(1.0, 3.0), (9.0, 2.0), (2.0, 5.0)], 2, 1, 3),  # none quiet: the quietest, though it is the slowest
        ([(1.0, 3.0), (9.0, 3.0), (2.0, 3.0)], 2, 0, 3),  # all alike: the first
        ([(5.0, 9.0)], 0, 0, 1),  # not repeated
        ([(5.0, 9.0), (4.0, 8.0)], 1, 1, 2),
    ],
)
def test_the_first_quiet_attempt_is_kept_or_else_the_quietest(
    attempts: list[tuple[float, float]], retries: int, kept: int, made: int
) -> None:
    value, readings = Script(attempts).run(retries)
    assert (value, readings["contention"]) == attempts[kept]
    assert (readings["attempt_kept"], readings["attempts"]) == (kept, made)
    assert readings["contended"] == (attempts[kept][1] > 1)
    assert list(zip(readings["attempt_wall_s"], readings["attempt_contention"], strict=True)) == attempts[:made]


def test_times_have_no_say() -> None:
    """Whatever the attempts take, the same one is kept."""
    contention = [4.0, 2.0, 3.0]
    for seconds in ([1.0, 2.0, 3.0], [3.0, 2.0, 1.0], [2.0, 9.0, 1.0]):
        assert Script(list(zip(seconds, contention, strict=True))).run(2)[1]["attempt_kept"] == 1


def test_each_attempt_is_read_around_and_a_further_one_waits_and_warms_up() -> None:
    script = Script([(1.0, 2.0), (1.0, 0.0)])
    script.run(2)
    attempt = ["before", "measure", "after 0.01"]
    assert script.log == [*attempt, f"wait {WAIT_S}", "ready", *attempt]
