"""`python -m paradigms`: a hydra app whose errors are one line each.

Every call is a sweep, of one cell or of many, so that there is one path through the program; `-m` may be given and
changes nothing.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    InterpolationKeyError,
    InterpolationToMissingValueError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)

from paradigms.build import suggest
from paradigms.grid import NOT_CELL, Composer, expand, plan_cells
from paradigms.lane import LaneSummary, run_planned
from paradigms.plan import Plan, PlannedCell
from paradigms.progress import progress
from paradigms.records import RecordWarning

CONF = Path(__file__).resolve().parent.parent / "conf"
FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130
_MODES = (
    "-m",
    "--multirun",
    "-c",
    "--cfg",
    "-i",
    "--info",
    "-h",
    "--help",
    "--hydra-help",
    "--version",
    "-sc",
    "--shell-completion",
)
_INSTALL = {
    "joblib": "hydra-joblib-launcher",
    "submitit_local": "hydra-submitit-launcher",
    "submitit_slurm": "hydra-submitit-launcher",
}

_UNSET = {  # keys that one file refers to and another must bring
    "no_file_in_conf_sized_for_this_model": "one of these models has no file of this size in conf/sized (named "
    "model_size): transformer, mamba2 and denoiser have 5m, 125m and 1b, mamba has 5m",
    "decoder.sampler._label_": "paradigm=diffusion and its kind are decoded by decoder=masked_diffusion; an "
    "autoregressive decoder needs a causal model, as in paradigm=ar",
    "model.path": "train=pretrained takes the weights of model.path: add model=pretrained (native) or "
    "model=transformers, and model.path=...",
}
_OF_SEVERAL_TASKS = {"train": "train=task", "corpus": "++{}=..."}  # beside which options of each can be given


def job(config: DictConfig) -> LaneSummary:
    """What a launcher runs: one lane, whose plan the sweeper has written."""
    path = config.sweep.plan
    if path is None:
        raise ValueError(
            "hydra.mode=RUN is not supported, since every call is a sweep, if only of one cell; leave it out"
        )
    plan = Plan.load(Path(path))
    return run_planned(plan, progress(lane=plan.lane, num_lanes=plan.num_lanes))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    wants_traceback = os.environ.get("HYDRA_FULL_ERROR") == "1"
    os.environ["HYDRA_FULL_ERROR"] = "1"  # hydra then raises its errors instead of printing them its way
    if not any(argument.split("=")[0] in _MODES for argument in arguments):
        arguments.append("--multirun")
    sys.argv = [sys.argv[0], *arguments]
    try:
        hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")(job)()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # of `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (HydraException, OmegaConfBaseException, ValueError, OSError) as error:
        if wants_traceback:
            raise
        print(f"error: {explain(error)}", file=sys.stderr)
        return BAD_INPUT
    return 0


def compose(overrides: Sequence[str]) -> dict[str, Any]:
    """Resolved config of one cell, as the command line composes it, without what belongs to the sweep."""
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        config = hydra.compose("config", list(overrides))
    resolved = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    assert isinstance(resolved, dict)
    return {str(key): value for key, value in resolved.items() if key not in NOT_CELL}


def planned_cells(arguments: Sequence[str]) -> tuple[str, list[PlannedCell]]:
    """Name and cells of the sweep that these arguments would run, composed and checked; nothing runs.

    Raises:
        ValueError: bad overrides, or impossible cells, all of them listed.
    """
    try:
        with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
            loader = GlobalHydra.instance().config_loader()
            master = loader.load_configuration("config", list(arguments), run_mode=RunMode.MULTIRUN)
            sweep = OmegaConf.to_container(master.sweep)
            params = OmegaConf.to_container(master.hydra.sweeper.params) if master.hydra.sweeper.params else {}
            assert isinstance(sweep, dict) and isinstance(params, dict)
            grid = expand(loader, {str(key): value for key, value in params.items()}, arguments)
            cells = plan_cells(Composer(loader, master), grid, sweep.get("exclude") or [], sweep.get("also") or [])
            return str(sweep["name"]), cells
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(explain(error)) from error


def exit_code(run: Callable[[], int | None], *, interrupted: str = "interrupted") -> int:
    """Run a command; its code, or that of bad input or Ctrl-C, told in one line, as is each damaged record."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", RecordWarning)
            warnings.showwarning = partial(_told, warnings.showwarning)
            return run() or 0
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        return INTERRUPTED
    except (ValueError, OSError) as error:
        what = str(error)
        if isinstance(error, OSError) and error.strerror and error.filename:
            what = f"{error.filename}: {error.strerror.lower()}"
        print(f"error: {what}", file=sys.stderr)
        return BAD_INPUT


def _told(show: Callable[..., None], message: Warning | str, category: type[Warning], *more: Any) -> None:
    """Show a warning: of records a line, others as Python does."""
    if issubclass(category, RecordWarning):
        print(f"warning: {message}", file=sys.stderr)
    else:
        show(message, category, *more)


def explain(error: BaseException) -> str:
    """What a person needs to know about bad input: the value, what is allowed, what to do."""
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    if isinstance(error, OverrideParseException):
        return f"cannot read {error.override!r}; write key=value, and quote what the shell would change: 'key=[1,2]'"
    if isinstance(error, MissingConfigException):
        return _unknown_option(error)
    if isinstance(cause, MissingMandatoryValue):
        return f"{cause.full_key} has no default; give it: {cause.full_key}=..."
    if isinstance(cause, InterpolationToMissingValueError):
        key = _first_line(cause).rpartition(" ")[2]
        return f"{key} has no default; give it: {key}=..."
    if isinstance(cause, InterpolationKeyError):
        for key, remedy in _UNSET.items():
            if f"'{key}'" in str(cause):
                return remedy
    if part := re.search(r"access decoder\.(\w+)\._label_", str(cause)):
        name = part[1]
        return f"decoder.{name} is chosen with a slash: decoder/{name}=...; its options are decoder.{name}.option=..."
    if isinstance(cause, OmegaConfBaseException):
        parent = cause.parent_node
        if isinstance(parent, DictConfig) and cause.key is not None and cause.key not in parent:
            if cause.full_key == "model.path":
                return "model.path is for models of others: add model=pretrained (native) or model=transformers"
            if (cause.full_key or "").startswith("hydra.launcher."):
                return (
                    f"{cause.full_key} is no setting of this launcher; add the launch=... that has it, for all sweeps"
                )
            allowed = sorted(str(key) for key in parent if not str(key).startswith("_"))
            group = str(cause.full_key).partition(".")[0]
            if group in _OF_SEVERAL_TASKS and not set(allowed) - {"source"}:  # as of train=zoo, corpus=stdlib_docs
                return (
                    f"{cause.full_key} is no option of the {group} chosen here; give the {group}=... that has it, or "
                    f"with several tasks {_OF_SEVERAL_TASKS[group].format(cause.full_key)}"
                )
            return f"{cause.full_key} is unknown ({suggest(str(cause.key), allowed)})"
        said = _first_line(cause).partition("raised while resolving interpolation: ")  # ours, of `${of:...}`
        return f"{cause.full_key or ''}: {said[2] or said[0]}".lstrip(": ")
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'the folder'}: {error.strerror.lower()}; make room or set sweep.dir"
    if isinstance(error, ConfigCompositionException) and (
        part := re.search(r"Could not override '(\w+)/(\w+)'", str(error))
    ):
        return (
            f"{part[1]}/{part[2]} is no part of the {part[1]} chosen here; decoder/sampler and decoder/cache belong to "
            "decoder=masked_diffusion, as in paradigm=diffusion"
        )
    if said := re.search(r"Ambiguous value for argument '(.*?)' 1\.", " ".join(str(error).split())):
        return f"{said[1]} gives several values, and one cell is asked for here; give one (a list is key=[1,2])"
    if isinstance(error, HydraException):
        return " ".join(str(error).split())
    return str(error)


def _unknown_option(error: MissingConfigException) -> str:
    """`paradigm=arr`: hydra knows the group and its options."""
    group, _, option = (error.missing_cfg_file or "").rpartition("/")
    if option in _INSTALL and group == "hydra/launcher":
        return f"launch={option} needs a package that is not installed: pip install {_INSTALL[option]}"
    if not error.options:
        return _first_line(error)
    return f"{group}={option} is unknown ({suggest(option, list(error.options))})"


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
