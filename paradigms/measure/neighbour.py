"""`python -m paradigms.measure.neighbour`: a process that keeps a machine busy, now and then, to test what notices it.

Bursts of a second or two, with pauses as long, alternately spinning on a core and copying memory that no cache holds.
It ends with the process that started it.
"""

from __future__ import annotations

import argparse
import os
import random
import time

import numpy as np

MEMORY_BYTES = 128 * 2**20


def keep_busy(seed: int, mean_burst_s: float, mean_pause_s: float) -> None:
    """Until the parent is gone; bursts are between half and one and a half times their mean, pauses likewise."""
    draw, parent = random.Random(seed), os.getppid()
    source, target = np.ones(MEMORY_BYTES // 8), np.empty(MEMORY_BYTES // 8)
    copies = False
    while os.getppid() == parent:
        end = time.monotonic() + mean_burst_s * draw.uniform(0.5, 1.5)
        while time.monotonic() < end and os.getppid() == parent:
            if copies:
                np.copyto(target, source)
            else:
                sum(range(200_000))
        copies = not copies
        time.sleep(mean_pause_s * draw.uniform(0.5, 1.5))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m paradigms.measure.neighbour", description=(__doc__ or "").split(": ")[1].split("\n")[0]
    )
    parser.add_argument("--seed", type=int, default=0, help="of the lengths of bursts and pauses")
    parser.add_argument("--burst-s", type=float, default=2.0, help="mean seconds of a burst")
    parser.add_argument("--pause-s", type=float, default=2.0, help="mean seconds between bursts; 0 never rests")
    options = parser.parse_args()
    keep_busy(options.seed, options.burst_s, options.pause_s)


if __name__ == "__main__":
    main()
