"""What is to be measured, in what order, written down before anything runs.

A unit is one cell in one round. Rounds follow each other and the order within a round is random, so that drift of the
machine hits all cells alike; a lane is a list of units that run one after the other on one device. The plan of a lane
is a JSON file, so that any launcher can start it with one short argument, and so that a person can read afterwards
what was meant to happen.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from paradigms.build import suggest
from paradigms.records import content_hash, flatten, write_whole

PREPARE, MEASURE = "prepare", "measure"
NOT_OF_THE_CELL = ("measure.rounds",)  # more rounds of the same cell are the same cell: what is measured stays valid
UNNAMED = ("StdlibDocs", "DatasetText", "LocalPairs")  # corpora: the usual one, and those that their fields tell apart
SAME_WORK = ("workload", "measure", "device")  # in what cells agree that are compared
OF_THE_WORK = ("paradigm", "decoder", "workload", "measure")  # what cells over the same weights may differ in


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """How a sweep goes about its cells; nothing here changes a cell's figures.

    Attributes:
        name: name of the sweep.
        dir: folder of its records.
        seed: of the order within rounds; None keeps that of the grid, for sweeps that may be stopped halfway.
        exclude: cells to leave out, each a mapping of dotted factor to value or list of values; all of them must match.
        also: cells beside the grid, for comparison: lists of overrides, each set in the place of every cell of the grid
            and combined with those of the cell's overrides that it does not set and has a key for.
        unit_timeout_s: a unit that takes longer is ended and recorded as failed; null waits for ever.
        prepare_timeout_s: the same for preparing a checkpoint, which may train it.
        units_per_process: how many units over the same weights run one after the other in one process, in random order
            among themselves. They share its weights, CUDA context, allocator, compiled kernels and whatever a library
            has chosen or cached; 1 shares nothing. A unit that fails ends its process, and the next begin a new one.
        report: build the report at the end.
        runner, preparer: dotted names of what measures a unit and of what prepares a checkpoint.
        preload: modules that are imported before children are forked, beside the runner's, so that no child has to.
        plan: set by the sweeper for the lanes that it launches.
    """

    name: str
    dir: str
    seed: int | None = 0
    exclude: list[dict[str, Any]] = field(default_factory=list)
    also: list[list[str]] = field(default_factory=list)
    unit_timeout_s: float | None = 1800.0
    prepare_timeout_s: float | None = None
    units_per_process: int = 1
    report: bool = True
    runner: str = "paradigms.bench.run_unit"
    preparer: str = "paradigms.bench.prepare"
    preload: tuple[str, ...] = ()
    plan: str | None = None

    def __post_init__(self) -> None:
        if not self.name or self.name != Path(self.name).name:
            raise ValueError(f"sweep.name={self.name!r} must be a plain name, since it names a folder")
        if self.units_per_process < 1:
            raise ValueError(f"sweep.units_per_process={self.units_per_process} must be at least 1")
        for name in ("unit_timeout_s", "prepare_timeout_s"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"sweep.{name}={value} must be above 0, or null for no limit")


@dataclass(frozen=True)
class PlannedCell:
    """A cell of the grid.

    Attributes:
        name: short, for people: what was swept.
        config: resolved and JSON-able, `_target_` entries included.
    """

    name: str
    config: dict[str, Any]

    @cached_property
    def factors(self) -> dict[str, Any]:
        """Flat factors for the records, without the entries that only say how to build the cell.

        A part of a part is also a factor as a whole, named by the module of its class: `decoder.sampler: margin`. So is
        a corpus, such as a task or a known process, that its fields alone do not tell from others.
        """
        flat = flatten(self.config)
        kinds = {key.removesuffix("._target_"): value for key, value in flat.items() if key.endswith("._target_")}
        corpus = str(kinds.pop("corpus", "")).rpartition(".")
        kinds = {key: str(target).split(".")[-2] for key, target in kinds.items() if "." in key}
        if corpus[1] and corpus[2] not in UNNAMED:
            kinds["corpus"] = corpus[2] if corpus[0].endswith(".corpora") else corpus[0].rpartition(".")[2]
        plain = {key: value for key, value in flat.items() if not key.rpartition(".")[2].startswith("_")}
        return plain | kinds

    @property
    def identity(self) -> dict[str, Any]:
        """The factors that determine the figures."""
        return {key: value for key, value in self.factors.items() if key not in NOT_OF_THE_CELL}

    @cached_property
    def weights(self) -> str:
        """Equal for cells that may share a process: the same weights, loaded the same way."""
        return content_hash(
            {key: value for key, value in self.identity.items() if key.split(".")[0] not in OF_THE_WORK}
        )

    @cached_property
    def family(self) -> str:
        """Equal for cells whose weights differ in the seed of their training at most."""
        parts = {key: value for key, value in self.identity.items() if key.split(".")[0] not in OF_THE_WORK}
        return content_hash({key: value for key, value in parts.items() if key != "train.seed"})

    @cached_property
    def work(self) -> str:
        """Equal for cells that do the same work on the same device, whatever does it."""
        return content_hash({key: value for key, value in self.identity.items() if key.split(".")[0] in SAME_WORK})

    @cached_property
    def key(self) -> str:
        return content_hash(self.identity)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The work of one lane.

    Attributes:
        folder: of the sweep's records, absolute.
        lane, num_lanes: which lane this is, counted from 0.
        units_per_process: see `SweepOptions`.
        stages: `prepare`, `measure` or both.
        cells: all that the units speak of.
        units: (index into cells, round), in the order of measuring.
        anchor: index of the cell whose repetition in each round shows the drift of the machine, or None.
        broken: checkpoint -> why it could not be prepared, by an earlier job of the same sweep.
        owner: the sweep that runs the lane, as `paradigms.folder_lock` names it.
    """

    sweep: str
    folder: str
    owner: str = ""
    runner: str
    preparer: str
    preload: tuple[str, ...] = ()
    unit_timeout_s: float | None
    prepare_timeout_s: float | None
    units_per_process: int = 1
    lane: int = 0
    num_lanes: int = 1
    stages: tuple[str, ...] = (PREPARE, MEASURE)
    cells: tuple[PlannedCell, ...] = ()
    units: tuple[tuple[int, int], ...] = ()
    anchor: int | None = 0
    broken: dict[str, str] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write the plan, whole or not at all.

        Raises:
            OSError: it cannot be written; what stood there before is still there.
        """
        write_whole(path, json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False))

    @classmethod
    def load(cls, path: Path) -> Plan:
        data = json.loads(path.read_text(encoding="utf-8"))
        data["cells"] = tuple(PlannedCell(**cell) for cell in data["cells"])
        data["units"] = tuple((cell, round_index) for cell, round_index in data["units"])
        data["stages"], data["preload"] = tuple(data["stages"]), tuple(data["preload"])
        return cls(**data)


def cells_of(folder: Path) -> dict[str, PlannedCell]:
    """Cells that the plans of a sweep's folder name, by key; none of a folder of records alone."""
    plans = [Plan.load(path) for path in sorted((folder / "plan").glob("*.json"))]
    return {cell.key: cell for plan in plans for cell in plan.cells}


def order_units(
    num_rounds: Sequence[int],
    seed: int | None,
    *,
    work: Sequence[str] | None = None,
    together: Sequence[str] | None = None,
) -> list[tuple[int, int]]:
    """All (cell, round), round after round, in a random order within each that depends on seed and round only.

    Cells that do the same work follow each other, in random order, since it is they that are compared, in pairs within
    a round: what slows the machine for some seconds then meets both, or none.

    Args:
        num_rounds: rounds of each cell.
        seed: of the order; None keeps that of the cells.
        work: of each cell, its work.
        together: of each cell, what it shares with those that are to follow each other within a round; goes before
            `work`.
    """
    units: list[tuple[int, int]] = []
    for round_index in range(max(num_rounds, default=0)):
        cells = [cell for cell, rounds in enumerate(num_rounds) if rounds > round_index]
        if seed is not None:
            random.Random(f"{seed}/{round_index}").shuffle(cells)
            for label in (work, together):
                if label is not None:
                    first = {label[cell]: place for place, cell in reversed(list(enumerate(cells)))}
                    cells.sort(key=lambda cell, label=label, first=first: first[label[cell]])
        units += [(cell, round_index) for cell in cells]
    return units


def split_lanes(units: Sequence[tuple[int, int]], num_lanes: int) -> list[list[tuple[int, int]]]:
    """Units of each lane, in order. All rounds of a cell stay in one lane: figures of a cell come from one device."""
    lanes: list[list[tuple[int, int]]] = [[] for _ in range(num_lanes)]
    for cell, round_index in units:
        lanes[cell % num_lanes].append((cell, round_index))
    return [lane for lane in lanes if lane]


def leave_out(cells: Sequence[PlannedCell], exclude: Sequence[Mapping[str, Any]]) -> list[PlannedCell]:
    """The cells that none of the conditions matches; a cell that lacks a factor does not match.

    Raises:
        ValueError: a condition names a factor that no cell has.
    """
    known = {name: None for cell in cells for name in cell.factors}
    for name in (name for condition in exclude for name in condition):
        if name not in known:
            raise ValueError(f"sweep.exclude: {name} is no factor ({suggest(name, list(known))})")

    def matches(factors: Mapping[str, Any], condition: Mapping[str, Any]) -> bool:
        return bool(condition) and all(
            name in factors and (factors[name] in value if isinstance(value, list) else factors[name] == value)
            for name, value in condition.items()
        )

    return [cell for cell in cells if not any(matches(cell.factors, condition) for condition in exclude)]
