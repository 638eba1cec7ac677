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
from paradigms.records import content_hash, flatten

PREPARE, MEASURE = "prepare", "measure"
NOT_OF_THE_CELL = ("measure.rounds",)  # more rounds of the same cell are the same cell: what is measured stays valid


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """How a sweep goes about its cells; nothing here changes a cell's figures.

    Attributes:
        name: name of the sweep.
        dir: folder of its records.
        seed: of the order within rounds.
        exclude: cells to leave out, each a mapping of dotted factor to value or list of values; all of them must match.
        unit_timeout_s: a unit that takes longer is ended and recorded as failed; null waits for ever.
        prepare_timeout_s: the same for preparing a checkpoint, which may train it.
        report: build the report at the end.
        runner, preparer: dotted names of what measures a unit and of what prepares a checkpoint.
        preload: modules that are imported before children are forked, beside the runner's, so that no child has to.
        plan: set by the sweeper for the lanes that it launches.
    """

    name: str
    dir: str
    seed: int = 0
    exclude: list[dict[str, Any]] = field(default_factory=list)
    unit_timeout_s: float | None = 1800.0
    prepare_timeout_s: float | None = None
    report: bool = True
    runner: str = "paradigms.bench.run_unit"
    preparer: str = "paradigms.bench.prepare"
    preload: tuple[str, ...] = ()
    plan: str | None = None

    def __post_init__(self) -> None:
        if not self.name or self.name != Path(self.name).name:
            raise ValueError(f"sweep.name={self.name!r} must be a plain name, since it names a folder")
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
        """Flat factors for the records, without the entries that only say how to build the cell."""
        flat = flatten(self.config)
        return {key: value for key, value in flat.items() if not key.rpartition(".")[2].startswith("_")}

    @property
    def identity(self) -> dict[str, Any]:
        """The factors that determine the figures."""
        return {key: value for key, value in self.factors.items() if key not in NOT_OF_THE_CELL}

    @cached_property
    def key(self) -> str:
        return content_hash(self.identity)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The work of one lane.

    Attributes:
        folder: of the sweep's records, absolute.
        lane, num_lanes: which lane this is, counted from 0.
        stages: `prepare`, `measure` or both.
        cells: all that the units speak of.
        units: (index into cells, round), in the order of measuring.
        anchor: index of the cell whose repetition in each round shows the drift of the machine, or None.
        broken: checkpoint -> why it could not be prepared, by an earlier job of the same sweep.
    """

    sweep: str
    folder: str
    runner: str
    preparer: str
    preload: tuple[str, ...] = ()
    unit_timeout_s: float | None
    prepare_timeout_s: float | None
    lane: int = 0
    num_lanes: int = 1
    stages: tuple[str, ...] = (PREPARE, MEASURE)
    cells: tuple[PlannedCell, ...] = ()
    units: tuple[tuple[int, int], ...] = ()
    anchor: int | None = 0
    broken: dict[str, str] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Plan:
        data = json.loads(path.read_text(encoding="utf-8"))
        data["cells"] = tuple(PlannedCell(**cell) for cell in data["cells"])
        data["units"] = tuple((cell, round_index) for cell, round_index in data["units"])
        data["stages"], data["preload"] = tuple(data["stages"]), tuple(data["preload"])
        return cls(**data)


def order_units(num_rounds: Sequence[int], seed: int) -> list[tuple[int, int]]:
    """All (cell, round), round after round, in a random order within each that depends on seed and round only.

    Args:
        num_rounds: rounds of each cell.
        seed: of the order.
    """
    units: list[tuple[int, int]] = []
    for round_index in range(max(num_rounds, default=0)):
        cells = [cell for cell, rounds in enumerate(num_rounds) if rounds > round_index]
        random.Random(f"{seed}/{round_index}").shuffle(cells)
        units += [(cell, round_index) for cell in cells]
    return units


def split_lanes(units: Sequence[tuple[int, int]], num_lanes: int) -> list[list[tuple[int, int]]]:
    """Units of each lane, in order. All rounds of a cell stay in one lane: figures of a cell come from one device."""
    lanes: list[list[tuple[int, int]]] = [[] for _ in range(num_lanes)]
    for cell, round_index in units:
        lanes[cell % num_lanes].append((cell, round_index))
    return [lane for lane in lanes if lane]


def excluded(factors: Mapping[str, Any], exclude: Sequence[Mapping[str, Any]]) -> bool:
    """Whether one of the conditions matches a cell.

    Raises:
        ValueError: a condition names a factor that the cell does not have.
    """

    def matches(condition: Mapping[str, Any]) -> bool:
        unknown = [name for name in condition if name not in factors]
        if unknown:
            raise ValueError(f"sweep.exclude: {unknown[0]} is no factor ({suggest(unknown[0], list(factors))})")
        return all(
            factors[name] in value if isinstance(value, list) else factors[name] == value
            for name, value in condition.items()
        )

    return any(condition and matches(condition) for condition in exclude)
