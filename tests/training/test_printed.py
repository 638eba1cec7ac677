"""What a person reads while a model is trained."""

from __future__ import annotations

import pytest

from paradigms.training import printed


@pytest.fixture
def clock(monkeypatch):
    """Seconds, turned by hand."""
    now = [100.0]
    monkeypatch.setattr(printed.time, "monotonic", lambda: now[0])
    return now


def test_each_training_has_a_time_left_of_its_own(clock, capsys):
    """Of one that was taken up again: from where it was; of the next one: nothing of the time of the one before."""
    told = printed.Printed("ar")
    for name, first in (("rate 0.1, 1 of 2, training", 300), ("rate 0.2, 2 of 2, training", 0)):
        for done in range(first + 1, 401, 10):
            told(f"{name}: loss 1.00 nats", done, 400)
            clock[0] += 6.0
        clock[0] += 5000.0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "ar: rate 0.1, 1 of 2, training: loss 1.00 nats, step 311 of 400, 53 s left"
    (second,) = (line for line in lines if "2 of 2" in line and "step 11 " in line)
    assert second.endswith("step 11 of 400, 4 min left"), "389 steps of 0.6 s"
