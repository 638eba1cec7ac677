"""Tells a person how a training goes, one line every few seconds."""

from __future__ import annotations

import time

REPORT_EVERY_S = 5.0


class Printed:
    """Tells of a training every few seconds: how far, and how long still. Before its first colon a message names it."""

    def __init__(self, name: str) -> None:
        self.name, self.task, self.started, self.last, self.first_done = name, "", 0.0, 0.0, 0

    def __call__(self, what: str, done: int, total: int) -> None:
        task, now = what.split(":", 1)[0], time.monotonic()
        if task != self.task:
            self.task, self.started, self.last, self.first_done = task, now, now, done
        if done == total or now - self.last >= REPORT_EVERY_S:
            self.last = now
            rate_s = (now - self.started) / max(1, done - self.first_done)
            left = f", {_minutes(rate_s * (total - done))} left" if done > self.first_done else ""
            print(f"{self.name}: {what}, step {done} of {total}{left}", flush=True)


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
