"""A lane: units one after the other on one device, each in a child of its own, or a few over the same weights in one.

The lane alone writes records, after a child has answered in whole; a unit that raises, runs out of memory, hangs or
is killed becomes a record that says so, and the next one runs. What is finished is skipped here and not when the plan
is made, because the key of a unit names the machine that measures it, and a launcher may have brought the lane to
another one. Each measured child has its device for itself (`paradigms.turns`); waiting for it is recorded, never timed.
"""

from __future__ import annotations

import json
import os
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

from paradigms.build import build, find
from paradigms.folder_lock import lane_lock
from paradigms.isolate import Outcome, call, one_line, start_server
from paradigms.plan import MEASURE, PREPARE, Plan, PlannedCell
from paradigms.progress import Progress, TimeLeft, shown
from paradigms.records import RecordWriter, canonical_json, finished_keys, read_table, unit_key
from paradigms.turns import Place, Turn, place_for, take_turn


@dataclass
class LaneSummary:
    """What became of a lane.

    Attributes:
        measured, reused: units that ended well in this run, and in an earlier one.
        failures: one line each.
        broken: checkpoint -> why it could not be prepared.
        fatal: why the lane could not go on, one line; None when it came to its end.
    """

    measured: int = 0
    reused: int = 0
    failures: list[str] = field(default_factory=list)
    broken: dict[str, str] = field(default_factory=dict)
    fatal: str | None = None


@dataclass(frozen=True)
class Unit:
    """One cell in one round, as the records name it."""

    cell_index: int
    cell: PlannedCell
    round_index: int
    checkpoint: str
    key: str

    @property
    def name(self) -> str:
        return f"{self.cell.name}, round {self.round_index + 1}"


def run_lane(plan: Plan, show: Progress, *, code: str, machine: str) -> LaneSummary:
    """Do what a plan says, but for what is already done.

    Args:
        plan: the lane's cells, units and stages.
        show: where to tell of it.
        code, machine: identities of the code and of this machine; parts of every unit's key.

    Returns:
        What became of it; `fatal` when records cannot be written any more. Those before are whole.

    Raises:
        OSError: the folder cannot be written at all.
        KeyboardInterrupt: Ctrl-C; the running child has ended, what is measured is kept.
    """
    return _Lane(plan, show, code, machine).run()


class _Lane:
    def __init__(self, plan: Plan, show: Progress, code: str, machine: str) -> None:
        self.plan, self.show = plan, show
        self.code, self.machine = code, machine
        self.folder = Path(plan.folder)
        self.summary = LaneSummary(broken=dict(plan.broken))
        shard = f"{datetime.now(UTC):%Y%m%dT%H%M%S.%f}-{uuid.uuid4().hex[:6]}-{plan.lane}"
        self.writer = RecordWriter(self.folder, shard)
        self.log = self.folder / "logs" / f"{shard}.log"
        self.errors = self.folder / "errors"
        self.last_holder = ""
        for folder in (self.log.parent, self.errors):
            folder.mkdir(parents=True, exist_ok=True)

    def run(self) -> LaneSummary:
        units = list(self.unfinished(self.units()))
        try:
            if units:
                self.start_server(units[0])
            if PREPARE in self.plan.stages:
                self.prepare(units)
            if MEASURE in self.plan.stages:
                self.measure(units)
        except OSError as error:
            self.summary.fatal = f"{one_line(error)}; what is measured is kept, the same command resumes"
        return self.summary

    def start_server(self, first: Unit) -> None:
        """Import what children need, in a turn of the lane: seconds of work that would disturb others."""
        with take_turn(self.place(first).name, self.holder, self.tell_of_waiting):
            start_server([self.plan.runner.rpartition(".")[0], *self.plan.preload, "paradigms.lane"])
            call("paradigms.lane.nothing", log=self.log)

    # ------------------------------------------------------------ which units

    def units(self) -> list[Unit]:
        wanted = dict.fromkeys(index for index, _ in self.plan.units)
        checkpoints = {index: build(self.plan.cells[index].config).checkpoint_id() for index in wanted}
        units = []
        for index, round_index in self.plan.units:
            cell, checkpoint = self.plan.cells[index], checkpoints[index]
            key = unit_key(
                cell=cell.identity, round_index=round_index, code=self.code, checkpoint=checkpoint, machine=self.machine
            )
            units.append(Unit(index, cell, round_index, checkpoint, key))
        return units

    def unfinished(self, units: Sequence[Unit]) -> Iterator[Unit]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            finished = finished_keys(self.folder)
            self.known_curves = {row.get("checkpoint") for row in read_table(self.folder, "training")}
        for warning in caught:
            self.show.say(f"warning: {warning.message}")
        for unit in units:
            if unit.key in finished:
                self.summary.reused += 1
            else:
                yield unit
        if self.summary.reused and MEASURE in self.plan.stages:
            self.show.say(f"{self.summary.reused} of {len(units)} units are finished already and reused")

    # ------------------------------------------------------------ prepare

    def prepare(self, units: Sequence[Unit]) -> None:
        """Once per checkpoint, before any clock runs: load or train it, fill caches, score held-out text."""
        first_of = {unit.checkpoint: unit for unit in reversed(units)}
        wanted = list(dict.fromkeys(unit.checkpoint for unit in units))
        if wanted:
            self.show.stage("prepare", len(wanted))
        for checkpoint in wanted:
            unit = first_of[checkpoint]
            self.show.start(unit.cell.name)
            outcome = self.call(
                "paradigms.lane.prepare_in_child", self.plan.preparer, [unit], self.plan.prepare_timeout_s
            )
            if outcome.status != "ok":
                self.summary.broken[checkpoint] = f"preparing failed: {outcome.error}"
                where, affected = self.keep_traceback(unit, outcome), sum(u.checkpoint == checkpoint for u in units)
                self.summary.failures.append(f"prepare {unit.cell.name}, for {affected} units: {outcome.error}{where}")
            self.show.done(unit.cell.name, outcome.seconds, outcome.error or "")

    # ------------------------------------------------------------ measure

    def measure(self, units: Sequence[Unit]) -> None:
        left = TimeLeft([unit.cell_index for unit in units])
        num_rounds = 1 + max((unit.round_index for unit in units), default=0)
        waiting = list(units)
        previous_round = -1
        while waiting:
            unit = waiting[0]
            if unit.round_index != previous_round:
                previous_round = unit.round_index
                in_round = sum(other.round_index == previous_round for other in waiting)
                self.show.stage(f"measure, round {previous_round + 1} of {num_rounds}", in_round)
            if unit.checkpoint in self.summary.broken:
                started_at = self.begin(unit, left)
                self.end(unit, Outcome("failed", error=self.summary.broken[unit.checkpoint]), started_at, 0.0, left)
                del waiting[0]
            else:
                self.measure_together(waiting, left)

    def measure_together(self, waiting: list[Unit], left: TimeLeft) -> None:
        """Measure the next units that may share a process and take them off the list; after a failure the rest stay."""
        together = self.together(waiting)
        with take_turn(self.place(waiting[0]).name, self.holder, self.tell_of_waiting) as turn:
            waited_s = turn.waited_s
            started_at, started = self.begin(waiting[0], left), time.monotonic()

            def end(outcome: Outcome) -> None:
                nonlocal started_at, started, waited_s
                outcome = replace(outcome, seconds=time.monotonic() - started)
                self.end(waiting.pop(0), outcome, started_at, waited_s, left)
                together.pop(0)
                if together:
                    started_at, started, waited_s = self.begin(waiting[0], left), time.monotonic(), 0.0

            outcome = self.call(
                "paradigms.lane.measure_in_child",
                self.plan.runner,
                list(together),
                self.plan.unit_timeout_s,
                [unit.round_index for unit in together],
                turn,
                on_part=lambda value: end(Outcome("ok", value)),
            )
            if together:  # the one that was running when the process ended
                del together[1:]
                end(outcome)

    @property
    def holder(self) -> str:
        return f"{self.plan.sweep}, lane {self.plan.lane}, process {os.getpid()}"

    def tell_of_waiting(self, holder: str) -> None:
        if holder != self.last_holder:  # two lanes take turns, unit for unit
            self.show.say(f"waiting for the device, which {holder} measures on")
        self.last_holder = holder

    def place(self, unit: Unit) -> Place:
        return place_for(unit.cell.config.get("device", {}).get("name", "cpu"), self.plan.lane)

    def together(self, waiting: Sequence[Unit]) -> list[Unit]:
        """The next units of one round over the same weights, as many as may share a process."""
        first = waiting[0]
        same = takewhile(
            lambda unit: (unit.round_index, unit.cell.weights) == (first.round_index, first.cell.weights), waiting
        )
        return list(islice(same, self.plan.units_per_process))

    def begin(self, unit: Unit, left: TimeLeft) -> str:
        """Tell of the next unit; the time of day."""
        self.show.start(unit.cell.name, left.estimate_s())
        return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"

    def end(self, unit: Unit, outcome: Outcome, started_at: str, waited_s: float, left: TimeLeft) -> None:
        self.record(unit, outcome, started_at, waited_s)
        left.saw(unit.cell_index, outcome.seconds)
        self.show.done(unit.cell.name, outcome.seconds, outcome.error or "")

    def call(
        self,
        entry: str,
        function: str,
        units: Sequence[Unit],
        timeout_s: float | None,
        *more: Any,
        on_part: Callable[[str], None] | None = None,
    ) -> Outcome:
        with open(self.log, "a", encoding="utf-8") as log:
            log.writelines(f"==== {unit.name} ({unit.key})\n" for unit in units)
        on_line: Callable[[str], None] | None = self.show.say if function == self.plan.preparer else None
        configs = [unit.cell.config for unit in units]
        environment = self.place(units[0]).environment
        return call(
            entry,
            environment,
            function,
            configs,
            *more,
            log=self.log,
            timeout_s=timeout_s,
            on_line=on_line,
            on_part=on_part,
        )

    def record(self, unit: Unit, outcome: Outcome, started_at: str, waited_s: float) -> None:
        observed, tables = json.loads(outcome.value) if outcome.status == "ok" else ({}, {})
        run = {
            **unit.cell.factors,
            "sweep.name": self.plan.sweep,
            "key": unit.key,
            "cell_key": unit.cell.key,
            "cell": unit.cell.name,
            "round": unit.round_index,
            "is_anchor": unit.cell_index == self.plan.anchor,
            "code": self.code,
            "machine_id": self.machine,
            "checkpoint": unit.checkpoint,
            **observed,
            "status": outcome.status,
            "error": outcome.error,
            "started_at": started_at,
            "waited_s": waited_s,
        }
        self.writer.write_unit(run, **self.with_keys(unit, tables))
        if outcome.status == "ok":
            self.summary.measured += 1
        elif unit.checkpoint not in self.summary.broken:  # those are told once a checkpoint
            where = self.keep_traceback(unit, outcome)
            self.summary.failures.append(f"{outcome.status} {unit.name}: {outcome.error}{where}")

    def with_keys(self, unit: Unit, tables: Mapping[str, Sequence[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
        """Child records under their unit's key; a loss curve belongs to its checkpoint and is kept once."""
        keyed: dict[str, list[dict[str, Any]]] = {}
        for table, rows in tables.items():
            if table == "training":
                keyed[table] = [row for row in rows if row.get("checkpoint") not in self.known_curves]
                self.known_curves |= {row.get("checkpoint") for row in rows}
            else:
                keyed[table] = [{"key": unit.key, **row} for row in rows]
        return keyed

    def keep_traceback(self, unit: Unit, outcome: Outcome) -> str:
        """Words that say where the traceback of a failure lies."""
        if not outcome.traceback:
            return ""
        path = self.errors / f"{unit.key}.txt"
        path.write_text(f"{unit.name}\n\n{outcome.traceback}", encoding="utf-8")
        return f" (traceback: {shown(path)})"


# ---------------------------------------------------------------- in the child


def nothing() -> None:
    """Answers when the server has imported everything."""


def prepare_in_child(environment: Mapping[str, str], preparer: str, configs: Sequence[dict[str, Any]]) -> None:
    os.environ.update(environment)
    for config in configs:
        find(preparer)(build(config))


def measure_in_child(
    environment: Mapping[str, str], runner: str, configs: Sequence[dict[str, Any]], rounds: Sequence[int], turn: Turn
) -> Iterator[str]:
    """Run units; the records of each as JSON text, so that what cannot be written fails here, with a traceback.

    `unit_in_process` counts those that ran in this process before: with 0 it shared nothing. The turn at the device is
    held for as long as this process lives.
    """
    os.environ.update(environment)  # CUDA, which has not started yet, reads which devices it may see
    for index, (config, round_index) in enumerate(zip(configs, rounds, strict=True)):
        observed, tables = find(runner)(build(config), round_index)
        yield canonical_json([{"unit_in_process": index, **observed}, tables])


def run_planned(plan: Plan, show: Progress) -> LaneSummary:
    """Run a lane on this machine; what stops it becomes its summary's `fatal`, so that every launcher can carry it.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    try:
        with lane_lock(Path(plan.folder), plan.owner):
            code, machine = identities()
            return run_lane(plan, show, code=code, machine=machine)
    except (OSError, ValueError) as error:
        return LaneSummary(fatal=one_line(error))
    finally:
        show.close()


def identities() -> tuple[str, str]:
    """Of the code and of the machine; they cost an import of torch."""
    from paradigms.measure.environment import code_hash, machine_id

    return code_hash(), machine_id()
