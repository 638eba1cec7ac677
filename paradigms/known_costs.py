"""`python -m paradigms.known_costs`: does a whole sweep recover costs that are known, and does it notice a neighbour?

Cells whose steps take a known time by known work (`decoding.known_cost`) go the whole way: the command line, children
of the fork server, warm-up, timed repeats, records, analysis. On a quiet machine

- nearly all units of `cpu_time` and the median over rounds of nearly all cells must come out within 2 %;
- at most 5 % of the units may be marked as contended.

With `--neighbour N` that many processes keep the machine busy in bursts (`measure.neighbour`), and of the units that
are off by more than 5 %, either way, at least 90 % must be marked.

What a whole operation costs changes with the machine's other guests, so each round of a kind is a sweep of its own
(which resumes the last), and an operation is timed right before and right after it, the neighbours stopped; the smaller
of the two counts. How well the machine by itself keeps to it is said beside it.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pandas as pd

import analysis
from paradigms.cli import INTERRUPTED
from paradigms.decoding.known_cost import KINDS, KnownCost, OperationTime, time_of_operation
from paradigms.measure.environment import set_threads

RECOVERED, OFF = 0.02, 0.05
MOST, MOST_MARKED, FEWEST_NOTICED = 0.95, 0.05, 0.90
FIGURES = ("e2e_s", "ttft_s", "tpot_s")
QUIET_KINDS = ("cpu_time", "arithmetic")  # what memory takes depends on the host's other guests too
STEPS_S, LENGTHS, ROUNDS = (0.004, 0.01, 0.025), (8, 24), 6  # a start takes 0.2 ms, a step of the loop 6 µs
CALIBRATION_S = 2.0
GOODBYE_S = 10.0
_CELL = (
    *("paradigm=ar", "train=random", "tokenizer=byte", "workload=random_prompts", "measure=latency"),
    *("model.d_model=32", "model.num_blocks=1", "model.target_parameters=null", "workload.prompt_len=8"),
    *("decoder=known_cost", "device=cpu", "measure.memory=false", "sweep.name=known_costs", "sweep.report=false"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code: 0 when the bounds hold, 1 when they do not."""
    parser = argparse.ArgumentParser(
        prog="python -m paradigms.known_costs", description=(__doc__ or "").partition(": ")[2].partition("\n")[0]
    )
    parser.add_argument("--neighbour", type=int, default=0, metavar="N", help="busy processes beside the sweep")
    parser.add_argument("--pause-s", type=float, default=2.0, help="mean seconds between their bursts; 0 never rests")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of each cell (default {ROUNDS})")
    parser.add_argument("--folder", type=Path, help="for the records (default: a new temporary one)")
    parser.add_argument("overrides", nargs="*", help="hydra overrides, such as measure.contended_retries=0")
    options = parser.parse_args(arguments)
    if options.neighbour < 0 or options.rounds < 1:
        parser.error(f"--neighbour {options.neighbour} --rounds {options.rounds}: at least 0 neighbours and 1 round")
    try:
        return _run(options)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED


def _run(options: argparse.Namespace) -> int:
    folder = options.folder or Path(tempfile.mkdtemp(prefix="known-costs-"))
    kinds = KINDS if options.neighbour else QUIET_KINDS
    set_threads(1)
    planned_s: dict[str, float | None] = {}
    times: dict[tuple[str, int], OperationTime] = {}
    with _neighbours(options.neighbour, options.pause_s) as stopped:
        for round_index in range(options.rounds):
            for kind in kinds:
                with stopped():
                    before = _timed(kind)
                planned_s.setdefault(kind, before.seconds if before else None)  # part of what identifies a cell
                overrides = overrides_of(kind, planned_s[kind], round_index + 1, folder)
                if failed := _swept([*overrides, *options.overrides]):
                    return failed
                with stopped():
                    after = _timed(kind)
                if before and after:
                    times[kind, round_index] = min(
                        before, after, key=lambda time: time.seconds
                    )  # others only add to it
    units = judged(folder, {at: time.seconds for at, time in times.items()})
    print(table(units), "", *_described(times), *verdict(units, options.neighbour), f"records: {folder}", sep="\n")
    return 0 if holds(units, options.neighbour) else 1


def _described(times: Mapping[tuple[str, int], OperationTime]) -> list[str]:
    lines = []
    for kind in dict.fromkeys(kind for kind, _ in times):
        own = [time for (other, _), time in times.items() if other == kind]
        low_us, high_us = (pick(time.seconds for time in own) * 1e6 for pick in (min, max))
        spread = max(time.spread for time in own)
        lines.append(
            f"{kind}: {low_us:.3g} to {high_us:.3g} µs an operation over rounds, "
            f"the middle half of a round's times within {spread:.1%}"
        )
    return lines


def overrides_of(kind: str, operation_s: float | None, rounds: int, folder: Path) -> list[str]:
    """The command line of the cells of one kind."""
    return [
        *_CELL,
        f"decoder.kind={kind}",
        f"decoder.operation_s={'null' if operation_s is None else operation_s}",
        f"decoder.step_s={','.join(map(str, STEPS_S))}",
        f"workload.output_len={','.join(map(str, LENGTHS))}",
        f"paradigm.name={kind}",
        f"paradigm.label={kind}",
        f"measure.rounds={rounds}",
        f"sweep.dir='{folder}'",
    ]


def judged(folder: Path, operations_s: Mapping[tuple[str, int], float]) -> pd.DataFrame:
    """A row a unit: kind, cell, round, whether it is marked, and of each figure the ratio to its known cost.

    Args:
        operations_s: (kind, round) -> seconds of an operation then, where they differ from what the cell was made with.
    """
    frames = analysis.load(folder)
    figures = frames.timed.groupby("key")[list(FIGURES)].median()
    units = frames.ok.merge(figures, left_on="key", right_index=True, validate="one_to_one")
    rows = []
    for _, unit in units.iterrows():
        operation_s = unit["decoder.operation_s"]
        decoder = KnownCost(
            kind=unit["decoder.kind"],
            step_s=unit["decoder.step_s"],
            prefill_steps=int(unit["decoder.prefill_steps"]),
            operation_s=None if pd.isna(operation_s) else float(operation_s),
        )
        known_s = known(decoder, int(unit["workload.output_len"]))
        then_s = operations_s.get((decoder.kind, int(unit["round"])))
        cost = then_s / decoder.operation_s if then_s and decoder.operation_s else 1.0
        ratios = {name: unit[name] / known_s[name] / cost for name in FIGURES}
        rows.append({"kind": decoder.kind, "cell": unit["cell"], "round": unit["round"], "marked": unit["contended"],
                     "contended_by": unit["contended_by"], "attempts": unit["attempts"], **ratios})  # fmt: skip
    return pd.DataFrame(rows)


def known(decoder: KnownCost, output_len: int) -> dict[str, float]:
    """Seconds of each figure by the decoder's costs alone."""
    step_s = decoder.exact_step_s
    first_s = decoder.prefill_steps * step_s
    return {"ttft_s": first_s, "tpot_s": step_s, "e2e_s": first_s + (output_len - 1) * step_s}


def off_by(ratio: pd.Series) -> pd.Series:
    """Distance from 1."""
    return (ratio - 1).abs()


def table(units: pd.DataFrame) -> str:
    """Markdown, a row a kind."""
    head = ["kind", "units", *(f"{name}, median / known" for name in FIGURES), "within 2 %", "off by > 5 %", "marked",
            "off and marked", "timed again"]  # fmt: skip
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for kind, own in units.groupby("kind"):
        off = off_by(own["e2e_s"]) > OFF
        shares = [off_by(own["e2e_s"]) <= RECOVERED, off, own["marked"], off & own["marked"], own["attempts"] > 1]
        medians = [f"{own[name].median():.4f}" for name in FIGURES]
        lines.append([str(kind), str(len(own)), *medians, *(f"{int(share.sum())}" for share in shares)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def shares(units: pd.DataFrame) -> dict[str, float]:
    """What the bounds are about; NaN where there is nothing to judge."""
    by_cell = units.groupby("cell")[list(FIGURES)].median()
    off = units[off_by(units["e2e_s"]) > OFF]
    spun = units[units["kind"] == "cpu_time"]
    return {
        "units": float((off_by(spun["e2e_s"]) <= RECOVERED).mean()),
        "cells": float((by_cell.sub(1).abs() <= RECOVERED).all(axis=1).mean()),
        "marked": float(units["marked"].mean()),
        "noticed": float(off["marked"].mean()) if len(off) else float("nan"),
    }


def verdict(units: pd.DataFrame, num_neighbours: int) -> list[str]:
    """Sentences with the bounds."""
    share = shares(units)
    if num_neighbours:
        num_off = int((off_by(units["e2e_s"]) > OFF).sum())
        if not num_off:
            return ["no unit was off by more than 5 %, so there was nothing to notice: raise --neighbour or --rounds"]
        return [
            f"units off by more than 5 %: {num_off} of {len(units)}; "
            f"marked of those: {share['noticed']:.1%} (at least {FEWEST_NOTICED:.0%})"
        ]
    return [
        f"units of cpu_time within 2 %: {share['units']:.1%} (at least {MOST:.0%})",
        f"cells with every figure within 2 %, median over rounds: {share['cells']:.1%} (at least {MOST:.0%})",
        f"units marked as contended: {share['marked']:.1%} (at most {MOST_MARKED:.0%})",
    ]


def holds(units: pd.DataFrame, num_neighbours: int) -> bool:
    """Whether the bounds do."""
    share = shares(units)
    if num_neighbours:
        return share["noticed"] >= FEWEST_NOTICED
    return share["units"] >= MOST and share["cells"] >= MOST and share["marked"] <= MOST_MARKED


def _timed(kind: str) -> OperationTime | None:
    """What an operation takes right now; None for what has none."""
    return None if kind == "cpu_time" else time_of_operation(kind, for_s=CALIBRATION_S)


def _swept(overrides: Sequence[str]) -> int:
    """Run a sweep; its exit code. Ctrl-C reaches it, too, and is given back when it has said goodbye."""
    process = subprocess.Popen([sys.executable, "-m", "paradigms", *overrides])
    try:
        return process.wait()
    finally:
        if process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(GOODBYE_S)
            process.kill()
            process.wait()


@contextmanager
def _neighbours(number: int, pause_s: float) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Busy processes beside the block; what it is given makes them hold still beside a block of its own."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "paradigms.measure.neighbour", f"--seed={seed}", f"--pause-s={pause_s}"],
            start_new_session=True,  # Ctrl-C is for us, who then end them
        )
        for seed in range(number)
    ]

    @contextmanager
    def stopped() -> Iterator[None]:
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        yield
        for process in processes:
            process.send_signal(signal.SIGCONT)

    try:
        yield stopped
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    raise SystemExit(main())
