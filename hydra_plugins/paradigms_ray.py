"""Lanes as Ray tasks, on this machine or on a cluster that runs.

The published launcher (hydra-ray-launcher 1.2.2) runs on a current Ray, but cannot be installed beside what this
package is pinned to: it wants cloudpickle < 3 and, for machines that it would rent, python-dateutil < 3. A sweep needs
less: a task a lane.

Hydra imports this file in every app that runs beside the package, so it imports Ray only when the launcher is used.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

KEEP_DEVICES = "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"  # 0: a task that reserves no GPU still sees them all


class RayLauncher(Launcher):
    """Runs each job as a task of Ray; those that find no room wait.

    Args:
        address: of a running cluster, or `auto` for this machine's; None starts one here and stops it at the end. The
            machines of a cluster must share the folder of the sweep and this package.
        num_cpus, num_gpus: of one that is started here; None takes what the machine has.
        cpus_per_lane, gpus_per_lane: what a lane reserves. With gpus_per_lane=0 lanes see all GPUs of their machine,
            and are dealt them in turn.
    """

    def __init__(
        self,
        address: str | None,
        num_cpus: int | None,
        num_gpus: int | None,
        cpus_per_lane: float,
        gpus_per_lane: float,
    ) -> None:
        cluster = {"address": address, "num_cpus": num_cpus, "num_gpus": num_gpus}
        self.cluster = {key: value for key, value in cluster.items() if value is not None}
        self.needs = {"num_cpus": cpus_per_lane, "num_gpus": gpus_per_lane, "max_retries": 0}

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Take what jobs need.

        Raises:
            ValueError: Ray is not installed.
        """
        if importlib.util.find_spec("ray") is None:
            raise ValueError("launch=ray needs a package that is not installed: pip install ray")
        self.call = (hydra_context, task_function, config)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray

        environment = {KEEP_DEVICES: "0", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        start: Any = {"include_dashboard": False, "logging_level": "error", "runtime_env": {"env_vars": environment}}
        started_here = not ray.is_initialized()
        if started_here:
            ray.init(**start, **self.cluster)
        try:
            task: Any = ray.remote(**self.needs)(_run)
            call = ray.put((*self.call, Singleton.get_state()))
            return ray.get([task.remote(call, initial_job_idx + n, list(job)) for n, job in enumerate(job_overrides)])
        finally:
            if started_here:
                ray.shutdown()


def _run(call: tuple[HydraContext, TaskFunction, DictConfig, Any], index: int, overrides: list[str]) -> JobReturn:
    """In the worker."""
    hydra_context, task_function, config, state = call
    setup_globals()
    Singleton.set_state(state)
    own = hydra_context.config_loader.load_sweep_config(config, overrides)
    with open_dict(own):
        own.hydra.job.id, own.hydra.job.num = f"{own.hydra.job.name}_{index}", index
    HydraConfig.instance().set_config(own)
    return run_job(
        task_function=task_function,
        config=own,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
        hydra_context=hydra_context,
    )
