"""From a grid to records: plan, launch, tell.

Hydra's own sweeper starts one job a cell, prints the first failure only and cannot resume. This one checks all cells
first, orders (cell, round) units, deals them to lanes and hands each lane to hydra's launcher as one job, so that a
unit costs a fork and not a hydra job, and any launcher works: basic, joblib, submitit.

An experiment brings its own grid, folder and launcher, which hydra ignores when experiments are themselves swept
(hydra issue 2946): here, `experiment=a,b` is two sweeps, one after the other.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, RunMode, TaskFunction
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from paradigms.build import build
from paradigms.folder_lock import sweep_lock
from paradigms.grid import Composer, expand, plan_cells
from paradigms.isolate import one_line
from paradigms.lane import LaneSummary
from paradigms.overview import overview
from paradigms.plan import MEASURE, PREPARE, Plan, SweepOptions, order_units, split_lanes
from paradigms.progress import count, shown
from paradigms.records import drop_unfinished, read_table

FAILED, INTERRUPTED = 1, 130
WIDTH = 160  # of the table where there is no terminal


def run_sweeps(config: DictConfig, context: HydraContext, task: TaskFunction, arguments: Sequence[str]) -> int:
    """Run what was asked for; the worst exit code of its sweeps.

    Args:
        config: master config, composed without what is swept.
        context, task: of hydra, for its launchers.
        arguments: overrides from the command line, sweeps among them.

    Raises:
        ValueError: cells that are impossible; nothing was run.
    """
    loader = context.config_loader
    masters = list(_masters(config, loader, arguments))
    # all are checked before one runs
    sweeps = [_Sweep(master, loader, own_arguments) for master, own_arguments in masters]
    launchers = [sweep.launcher(context, task) for sweep in sweeps]
    codes = []
    for sweep, launcher in zip(sweeps, launchers, strict=True):
        codes.append(sweep.run(launcher))
        if codes[-1] == INTERRUPTED:
            break
    return max(codes)


def _masters(
    config: DictConfig, loader: ConfigLoader, arguments: Sequence[str]
) -> Iterator[tuple[DictConfig, list[str]]]:
    """One master config for each experiment asked for, with the arguments that belong to it."""
    parsed = OverridesParser.create(config_loader=loader).parse_overrides(list(arguments))
    experiments = [one for one in parsed if one.get_key_element() == "experiment" and one.is_sweep_override()]
    if not experiments:
        yield config, list(arguments)
        return
    rest = [line for line, one in zip(arguments, parsed, strict=True) if one not in experiments]
    hydra_overrides = OmegaConf.to_container(config.hydra.overrides.hydra)
    assert isinstance(hydra_overrides, list)
    for value in experiments[-1].sweep_string_iterator():
        own = [f"experiment={value}", *rest]
        master = loader.load_configuration(
            config.hydra.job.config_name, [*map(str, hydra_overrides), *own], run_mode=RunMode.MULTIRUN
        )
        yield master, own


class _Sweep:
    """One grid in one folder."""

    def __init__(self, master: DictConfig, loader: ConfigLoader, arguments: Sequence[str]) -> None:
        self.master = master
        HydraConfig.instance().set_config(master)
        self.options = _section(master, "sweep", SweepOptions)
        self.num_lanes = _lanes(master)
        self.folder = Path(self.options.dir).absolute()
        self.console = Console() if sys.stdout.isatty() else Console(width=WIDTH)
        self.say(f"check: the cells of {self.options.name}")
        params = OmegaConf.to_container(master.hydra.sweeper.params) if master.hydra.sweeper.params else {}
        assert isinstance(params, dict)
        self.grid = expand(loader, {str(key): value for key, value in params.items()}, arguments)
        self.cells = plan_cells(Composer(loader, master), self.grid, self.options.exclude, self.options.also)

    def launcher(self, context: HydraContext, task: TaskFunction) -> Launcher:
        """What starts the lanes.

        Raises:
            ValueError: it needs a package that is not installed.
        """
        HydraConfig.instance().set_config(self.master)
        return Plugins.instance().instantiate_launcher(hydra_context=context, task_function=task, config=self.master)

    def run(self, launcher: Launcher) -> int:
        """Measure, report, list what failed.

        Raises:
            OSError: the folder cannot be written.
        """
        with sweep_lock(self.folder, self.say) as self.owner:
            dropped = drop_unfinished(self.folder)
            if dropped:
                self.say(f"{count(dropped, 'line')} of a unit that was cut short: taken out, it is measured again")
            plans = self.plans()
            units = sum(len(plan.units) for plan in plans if MEASURE in plan.stages)
            size = f"{count(len(self.cells), 'cell')}, {count(units, 'unit')}"
            self.say(f"{self.options.name}: {size}, records in {shown(self.folder)}")
            if "submitit_folder" in self.master.hydra.launcher:
                self.say(f"lanes tell of their work in {shown(self.folder)}/.submitit/*/*.out")
            HydraConfig.instance().set_config(self.master)
            try:
                summaries = self.launch(launcher, plans)
            except KeyboardInterrupt:
                done = self.num_done()
                self.say(f"interrupted: {done} of {units} units are measured and kept; the same command resumes")
                return INTERRUPTED
            return self.tell(summaries)

    def plans(self) -> list[Plan]:
        """One plan a lane; before several lanes, as many that prepare the checkpoints for all of them."""
        rounds = [int(cell.factors.get("measure.rounds", 1)) for cell in self.cells]
        shares = self.options.units_per_process > 1
        units = order_units(
            rounds,
            self.options.seed,
            work=[cell.work for cell in self.cells],
            together=[cell.weights for cell in self.cells] if shares else None,
        )
        lanes = split_lanes(units, self.num_lanes)
        if len(lanes) == 1:
            return [self.plan(lanes[0], 0, 1, (PREPARE, MEASURE))]
        prepare = [
            self.plan(share, index, len(lanes), (PREPARE,))
            for index, share in enumerate(self.shares(units, len(lanes)))
        ]
        return [*prepare, *(self.plan(lane, index, len(lanes), (MEASURE,)) for index, lane in enumerate(lanes))]

    def shares(self, units: Sequence[tuple[int, int]], count: int) -> list[list[tuple[int, int]]]:
        """Units by what is to be prepared for them, dealt out in turn: seeds of one training share its trials, and stay
        together.
        """
        families = {name: turn for turn, name in enumerate(dict.fromkeys(self.cells[cell].family for cell, _ in units))}
        shares: list[list[tuple[int, int]]] = [[] for _ in range(min(count, len(families)))]
        for cell, round_index in units:
            shares[families[self.cells[cell].family] % len(shares)].append((cell, round_index))
        return shares

    def plan(self, units: Sequence[tuple[int, int]], lane: int, num_lanes: int, stages: tuple[str, ...]) -> Plan:
        return Plan(
            sweep=self.options.name,
            folder=str(self.folder),
            owner=self.owner,
            runner=self.options.runner,
            preparer=self.options.preparer,
            preload=tuple(self.options.preload),
            unit_timeout_s=self.options.unit_timeout_s,
            prepare_timeout_s=self.options.prepare_timeout_s,
            units_per_process=self.options.units_per_process,
            lane=lane,
            num_lanes=num_lanes,
            stages=stages,
            cells=tuple(self.cells),
            units=tuple(units),
        )

    def launch(self, launcher: Launcher, plans: Sequence[Plan]) -> list[LaneSummary]:
        """Hand the lanes to hydra's launcher; a preparing job goes first and tells the others what is broken."""
        prepare = [plan for plan in plans if MEASURE not in plan.stages]
        measure = [plan for plan in plans if MEASURE in plan.stages]
        first = self.launch_all(launcher, prepare, 0) if prepare else []
        for summary in first:
            if summary.fatal:
                return first
        broken = {checkpoint: why for summary in first for checkpoint, why in summary.broken.items()}
        for plan in measure:
            plan.broken.update(broken)
        told = [LaneSummary(failures=summary.failures) for summary in first]
        return told + self.launch_all(launcher, measure, len(prepare))

    def launch_all(self, launcher: Launcher, plans: Sequence[Plan], first_index: int) -> list[LaneSummary]:
        jobs = []
        for plan in plans:
            path = self.folder / "plan" / f"{'-'.join(plan.stages)}-{plan.lane}.json"
            plan.save(path)
            quoted = str(path).replace("\\", "\\\\").replace("'", "\\'")
            jobs.append([*self.grid[0], f"sweep.plan='{quoted}'"])
        try:
            returned = launcher.launch(jobs, initial_job_idx=first_index)
        except Exception as error:  # of the launcher, or of a worker process that died: the records are what counts
            return [LaneSummary(fatal=f"the launcher stopped: {one_line(error)}")]
        return [_summary(job) for job in returned]

    def tell(self, summaries: Sequence[LaneSummary]) -> int:
        """Table, report, failures; the exit code."""
        measured = sum(summary.measured for summary in summaries)
        reused = sum(summary.reused for summary in summaries)
        self.console.print(overview(self.folder, [cell.key for cell in self.cells], self.swept()))
        self.say(f"measured {count(measured, 'unit')}, reused {reused}; records in {shown(self.folder)}")
        problems = [line for summary in summaries for line in summary.failures]
        stopped = [summary.fatal for summary in summaries if summary.fatal]
        problems += stopped
        if self.options.report and measured + reused and not stopped:
            problems += self.report()
        if problems:
            print(f"{len(problems)} failed:", *problems, sep="\n  ", file=sys.stderr)
        return FAILED if problems else 0

    def report(self) -> list[str]:
        """Build figures and pages in a process of its own; what went wrong, if anything."""
        code = subprocess.run([sys.executable, "-m", "analysis.report", str(self.folder)], check=False).returncode
        return [f"the report could not be built (exit code {code}); the records are whole"] if code else []

    def swept(self) -> list[str]:
        """Factors in which the cells differ."""
        names = dict.fromkeys(name for cell in self.cells for name in cell.factors)
        return [name for name in names if len({repr(cell.factors.get(name)) for cell in self.cells}) > 1]

    def num_done(self) -> int:
        keys = {cell.key for cell in self.cells}
        with contextlib.suppress(OSError):
            done = (run for run in read_table(self.folder, "runs") if run.get("status") == "ok")
            return len({run["key"] for run in done if run.get("cell_key") in keys})
        return 0

    def say(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)


def _section(master: DictConfig, key: str, kind: type) -> Any:
    values = OmegaConf.to_container(master[key], resolve=True)
    assert isinstance(values, dict)
    return build({"_target_": f"{kind.__module__}.{kind.__name__}", **values}, key)


def _lanes(master: DictConfig) -> int:
    num_lanes = master.launch.lanes
    if not isinstance(num_lanes, int) or num_lanes < 1:
        raise ValueError(f"launch.lanes={num_lanes!r} must be a whole number of at least 1")
    return num_lanes


def _summary(job: JobReturn) -> LaneSummary:
    if job.status == JobStatus.COMPLETED:
        return job.return_value
    # not through the property, which would print it a second time
    return LaneSummary(fatal=f"a lane stopped: {one_line(job._return_value)}")
