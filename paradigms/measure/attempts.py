"""A stretch that was timed beside something else is timed again, a few times at most.

The first quiet attempt is kept, or else the one whose readings were quietest. Never the fastest: to choose by what is
measured would shift every figure downwards. What all attempts took is kept beside it, so that nothing is hidden.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

WAIT_S = 0.5  # for the other to end, before trying again

T = TypeVar("T")


class Watch(Protocol):
    """Reads the machine around a stretch of work: `paradigms.measure.noise.NoiseReader`."""

    def before(self) -> None: ...

    def after(self, uneven: Callable[[], float | None]) -> dict[str, Any]: ...


def until_quiet(
    measure: Callable[[], T],
    watch: Watch,
    *,
    retries: int,
    wall_s: Callable[[T], float],
    uneven: Callable[[T], float | None],
    ready: Callable[[], Any],
    wait: Callable[[float], None] = time.sleep,
) -> tuple[T, dict[str, Any]]:
    """Measure until the machine was quiet, at most `1 + retries` times.

    Args:
        measure: the work, timed.
        watch: its `after()` says `contended`, and `contention`, which is larger when it is worse.
        retries: further attempts at most; 0 keeps the first.
        wall_s: seconds that a run of the work took, of what `measure` returned.
        uneven: how far its steps were from taking equal times (`measure.unevenness`), for `watch` to judge.
        ready: run after the wait and ahead of each further attempt: what the first one had ahead of it.

    Returns:
        What the kept attempt measured, and its readings with these columns: `attempts`, how many there were;
        `attempt_kept`, which is kept, from 0; `attempt_wall_s` and `attempt_contention`, of each.
    """
    tried: list[tuple[T, dict[str, Any]]] = []
    while True:
        watch.before()
        value = measure()
        tried.append((value, watch.after(partial(uneven, value))))
        if not tried[-1][1]["contended"] or len(tried) > retries:
            break
        wait(WAIT_S)
        ready()
    contention = [readings["contention"] for _, readings in tried]
    kept = min(range(len(tried)), key=contention.__getitem__)
    value, readings = tried[kept]
    return value, {
        **readings,
        "attempts": len(tried),
        "attempt_kept": kept,
        "attempt_wall_s": [wall_s(value) for value, _ in tried],
        "attempt_contention": contention,
    }
