"""The cells of a grid: what the command line and an experiment ask for, composed and checked before anything runs.

A grid asks the same of all its cells. What stands beside it for comparison and has other keys, an autoregressive
model beside samplers of masked diffusion, is named in `sweep.also` (`Composer.beside`).

Composing a config takes a tenth of a second, most of it for reading YAML. So configs are composed once for each
combination of group choices, and plain values are set on copies: the same result, since hydra too sets values after
the groups are composed.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from paradigms.build import build
from paradigms.plan import PlannedCell, leave_out

NOT_CELL = ("sweep", "launch", "hydra")  # every other key of the config describes the cell
MAX_LISTED = 100  # impossible cells


def _of(key: str, attribute: str, *, _root_: DictConfig) -> Any:
    """`${of:corpus,prompt_tokens}`: an attribute of what a part of the config builds, for sizes that follow from it."""
    node = OmegaConf.select(_root_, key, throw_on_missing=True)
    if not OmegaConf.is_dict(node):
        raise ValueError(f"${{of:{key},{attribute}}}: {key} is no part of this config")
    found = getattr(build(OmegaConf.to_container(node, resolve=True), key), attribute, None)
    if found is None:
        raise ValueError(
            f"{key}={node.get('_target_', '').rpartition('.')[2]} has no {attribute}: tokenizer=symbols, workload=task "
            "and train=task are for tasks (task=star_graph) and known processes"
        )
    return found


OmegaConf.register_new_resolver("of", _of, replace=True)
OmegaConf.register_new_resolver("times", lambda *factors: math.prod(factors), replace=True)

FIXED_IN_A_SWEEP = ("sweep", "launch", "hydra.launcher")


def expand(loader: ConfigLoader, params: dict[str, Any], arguments: Sequence[str]) -> list[list[str]]:
    """Override lists of all cells, in hydra's own grammar; arguments win over the grid of an experiment."""
    lines = [f"{key}={value}" for key, value in params.items()] + list(arguments)
    overrides = OverridesParser.create(config_loader=loader).parse_overrides(lines)
    for override in overrides:
        group = override.get_key_element().split(".")[0]
        if override.is_sweep_override() and group in ("sweep", "launch", "experiment"):
            raise ValueError(f"{override.input_line}: cannot be swept together with cells; give one value")
    return BasicSweeper.split_arguments(overrides, None)[0]


class Composer:
    """Composes the configs of cells against the master config of a sweep."""

    def __init__(self, loader: ConfigLoader, master: DictConfig) -> None:
        self._loader, self._master = loader, master
        parser = OverridesParser.create()
        self._parse = cache(lambda line: parser.parse_overrides([line])[0])  # the same lines come again and again
        self._is_group = cache(lambda key: bool(loader.get_group_options(key)))
        self._composed: dict[tuple[str, ...], DictConfig] = {}
        self._possible = cache(self._compose_at_all)

    def config(self, overrides: Sequence[str]) -> dict[str, Any]:
        """Resolved config of one cell.

        Raises:
            ConfigCompositionException: an unknown key or group option, or overrides that change what a sweep fixes.
        """
        parsed = [self._parse(line) for line in overrides]
        structure = tuple(line for line, one in zip(overrides, parsed, strict=True) if not self._is_plain_value(one))
        if structure not in self._composed:
            self._composed[structure] = self._compose(structure)
        config = copy.deepcopy(self._composed[structure])
        for override in filter(self._is_plain_value, parsed):
            try:
                OmegaConf.update(config, override.key_or_group, override.value(), merge=True)
            except OmegaConfBaseException as error:
                raise ConfigCompositionException(f"Could not override {override.key_or_group!r}.") from error
        resolved = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
        assert isinstance(resolved, dict)
        return {str(key): value for key, value in resolved.items() if key not in NOT_CELL}

    def beside(self, grid: Sequence[Sequence[str]], also: Sequence[Sequence[str]]) -> list[list[str]]:
        """Override lists of the cells beside a grid, each once.

        Every entry of `also` is a small grid in the same grammar. It is set in the place of each cell of the grid, and
        takes over whatever it does not set itself and has a key for: with `[paradigm=ar]` the lengths, batches and
        temperatures of the grid, not its samplers and caches.
        """
        found: dict[tuple[str, ...], None] = {}
        for own in (own for entry in also for own in expand(self._loader, {}, entry)):
            set_here = set(map(_key, own))
            for overrides in grid:
                of_all = [line for line in overrides if _of_the_sweep(line)]
                rest = [line for line in overrides if not _of_the_sweep(line) and _key(line) not in set_here]
                taken = [line for line in rest if self._possible((*of_all, *own, line))]
                found.setdefault((*of_all, *own, *taken))
        return [list(overrides) for overrides in found]

    def _compose_at_all(self, overrides: tuple[str, ...]) -> bool:
        try:
            self.config(overrides)
        except ConfigCompositionException:
            return False
        return True

    def _is_plain_value(self, override: Override) -> bool:
        prefixed = override.is_add() or override.is_force_add() or override.is_delete()
        of_the_sweep = override.key_or_group.split(".")[0] in NOT_CELL
        return not (prefixed or of_the_sweep or override.package is not None or self._is_group(override.key_or_group))

    def _compose(self, structure: Sequence[str]) -> DictConfig:
        config = self._loader.load_sweep_config(self._master, list(structure))
        for key in FIXED_IN_A_SWEEP:
            if OmegaConf.select(config, key) != OmegaConf.select(self._master, key):
                raise ConfigCompositionException(
                    f"{' '.join(structure)} changes {key}, which is the same for all cells of a sweep; run it by itself"
                )
        with open_dict(config):
            config.pop("hydra")
        return config


def plan_cells(
    composer: Composer,
    grid: Sequence[Sequence[str]],
    exclude: Sequence[dict[str, Any]],
    also: Sequence[Sequence[str]] = (),
) -> list[PlannedCell]:
    """Cells of a grid and beside it, composed, built and checked, without repetitions and what `exclude` names.

    Raises:
        ValueError: impossible cells, all of them listed; nothing has been loaded.
    """
    asked = [*grid, *composer.beside(grid, also)]
    swept = _swept_keys(asked)
    named = [PlannedCell(name="", config=composer.config(overrides)) for overrides in asked]
    named = [
        PlannedCell(name=_name(cell, lines, swept), config=cell.config)
        for cell, lines in zip(named, asked, strict=True)
    ]
    wanted = leave_out(named, exclude)
    cells: dict[str, PlannedCell] = {}
    problems: dict[str, list[str]] = {}
    for cell in wanted:
        try:
            build(cell.config).check()
        except ValueError as error:
            problems.setdefault(str(error), []).append(cell.name)
            continue
        cells.setdefault(cell.key, cell)
    if problems:
        raise ValueError(_list_problems(problems, len(wanted)))
    if not cells:
        raise ValueError("sweep.exclude leaves no cell of the grid; take a condition out")
    return list(cells.values())


def _list_problems(problems: dict[str, list[str]], num_cells: int) -> str:
    num_bad = sum(map(len, problems.values()))
    if num_bad == num_cells and len(problems) == 1:
        return next(iter(problems))
    lines = [f"  {name}: {message}" for message, names in problems.items() for name in names]
    if len(lines) > MAX_LISTED:
        lines[MAX_LISTED:] = [f"  and {len(lines) - MAX_LISTED} more"]
    return "\n".join([f"{num_bad} of {num_cells} cells are impossible, so nothing was run", *lines])


def _swept_keys(asked: Sequence[Sequence[str]]) -> list[str]:
    """Keys that do not have one value everywhere; not to be set is a value too."""
    values: dict[str, list[str]] = {}
    for overrides in asked:
        for line in overrides:
            values.setdefault(_key(line), []).append(line.partition("=")[2])
    return [key for key, seen in values.items() if len(set(seen)) > 1 or len(seen) < len(asked)]


def _name(cell: PlannedCell, overrides: Sequence[str], swept: Sequence[str]) -> str:
    """`diffusion, sampler=margin, output_len=64`: the paradigm and what else was swept."""
    values = {_key(line): line.partition("=")[2] for line in overrides}
    paradigm = cell.factors.get("paradigm.name") or values.get("paradigm", "cell")
    rest = [f"{re.split('[./]', key)[-1]}={values[key]}" for key in swept if key != "paradigm" and key in values]
    return ", ".join([str(paradigm), *rest])


def _of_the_sweep(line: str) -> bool:
    """Whether an override must be the same for all cells."""
    return re.split("[./=]", line.lstrip("+~"))[0] in (*NOT_CELL, "experiment")


def _key(line: str) -> str:
    return line.partition("=")[0]
