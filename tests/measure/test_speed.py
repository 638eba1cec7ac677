"""The speed probe repeats the same work, and notices a machine that does less of it."""

from __future__ import annotations

import time

from paradigms.measure import speed


def test_the_probe_is_positive_and_short():
    started = time.perf_counter()
    seconds = speed.probe_s()
    assert 0 < seconds <= time.perf_counter() - started


def test_the_probe_sees_a_slower_machine(monkeypatch):
    """A clock that runs twice as fast is a machine that runs half as fast."""
    now = [0.0]

    def clock(rate):
        def read():
            now[0] += rate
            return now[0]

        return read

    monkeypatch.setattr(speed.time, "perf_counter", clock(1.0))
    normal = speed.probe_s()
    monkeypatch.setattr(speed.time, "perf_counter", clock(2.0))
    assert speed.probe_s() == 2 * normal
