"""Where hydra looks for sweepers: it accepts them from the `hydra_plugins` namespace only.

Hydra imports this file in every app that runs beside the package, so it imports the package only when the sweeper is
used. The folder has no `__init__.py`, since the namespace is shared with other plugins.
"""

from __future__ import annotations

from typing import Any

from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class RoundsSweeper(Sweeper):
    """Runs a grid in rounds; `paradigms.sweep` says how.

    Args:
        params: the grid of an experiment, key -> comma-separated values; the command line overrides it.
    """

    def __init__(self, params: dict[str, Any] | None = None) -> None:
        self.params = dict(params or {})

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.call = (config, hydra_context, task_function)

    def sweep(self, arguments: list[str]) -> None:
        from paradigms.sweep import run_sweeps

        code = run_sweeps(*self.call, arguments)
        if code:
            raise SystemExit(code)
