"""A function that calls back, turned into an iterator that hands out what it calls back with."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import torch
from greenlet import GreenletExit, getcurrent, greenlet


def stream(generate: Callable[[Callable[[Any], None]], None]) -> Generator[Any, None, None]:
    """What `generate(hand_out)` hands out, one after another.

    generate calls back, a reader asks for the next: a greenlet turns the one into the other within one thread, at less
    than a microsecond a step, where a second thread would fight for the interpreter. Closing the iterator ends generate
    where it stands.
    """

    def work() -> None:
        with torch.inference_mode():
            generate(reader.switch)

    reader = getcurrent()
    worker = greenlet(work)
    try:
        while True:
            value = worker.switch()
            if worker.dead:
                return
            yield value
    finally:
        if not worker.dead:
            worker.throw(GreenletExit)
