"""`python -m paradigms.train`: train the zoo's models afresh and publish them into the package.

One process a model, one thread each, as many at once as there are cores. Ctrl-C is safe: the next call goes on from the
last saved step and ends with the same weights. Hydra overrides change the recipe: `python -m paradigms.train
--no-publish train.num_tokens=200000`.
"""

from __future__ import annotations

import argparse
import dataclasses
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from paradigms import zoo
from paradigms.build import build
from paradigms.cell import Cell
from paradigms.cli import BAD_INPUT, INTERRUPTED, compose, explain
from paradigms.heldout import WINDOW_LEN, heldout_likelihood
from paradigms.measure.environment import set_threads, usable_cores
from paradigms.training.checkpoint import to_bfloat16
from paradigms.training.printed import Printed
from paradigms.weights import CHECKPOINTS, load_corpus

FROM_DENOISER = "train=from_denoiser"


def _block_diffusion(canvas_block: int, *, low: float, high: float) -> list[str]:
    times = [f"train.objective.low={low}", f"train.objective.high={high}"]
    return ["paradigm=block_diffusion", f"model.canvas_block={canvas_block}", *times, FROM_DENOISER]


MODELS = {  # name in the zoo -> what makes it, beside the command line
    "ar": ["paradigm=ar", "train=full"],
    "ssm": ["paradigm=ssm", "train=full"],
    "diffusion": ["paradigm=diffusion", "train=full"],
    "block_diffusion_4": _block_diffusion(4, low=0.45, high=0.95),
    "block_diffusion_8": _block_diffusion(8, low=0.4, high=0.9),
    "block_diffusion_16": _block_diffusion(16, low=0.3, high=0.8),
    "diffusion_5m": [
        "paradigm=diffusion",
        "size=5m",
        "train=full",
        "train.num_tokens=2_000_000",
        "train.learning_rates=[0.004]",
        "train.num_validations=10",
    ],
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m paradigms.train", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS), help="models to train")
    parser.add_argument("--jobs", type=int, default=usable_cores(), help="trainings at once (default: one a core)")
    parser.add_argument("--no-publish", action="store_true", help="leave the zoo as it is; checkpoints stay in runs/")
    parser.add_argument("overrides", nargs="*", help="hydra overrides, such as train.num_tokens=200000")
    options, unknown = parser.parse_known_args(arguments)
    overrides = [*options.overrides, *unknown]
    try:
        if len(options.only) == 1:
            train_one(options.only[0], overrides, publish=not options.no_publish)
            return 0
        return train_all(options.only, overrides, jobs=max(1, options.jobs), publish=not options.no_publish)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from the last saved step", file=sys.stderr)
        return INTERRUPTED
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT


def train_all(names: Sequence[str], overrides: Sequence[str], *, jobs: int, publish: bool) -> int:
    """A process a model; the worst exit code. Those that start from the zoo's denoiser come after it."""

    def run(name: str) -> int:
        command = [sys.executable, "-m", "paradigms.train", *overrides, "--only", name]
        return subprocess.run(command + ([] if publish else ["--no-publish"]), check=False).returncode

    waves = [[name for name in names if (FROM_DENOISER in MODELS[name]) is later] for later in (False, True)]
    with ThreadPoolExecutor(jobs) as pool:
        return max(code for wave in waves for code in pool.map(run, wave))


def train_one(name: str, overrides: Sequence[str], *, publish: bool) -> None:
    """Train one model and, unless told otherwise, put it into the zoo."""
    try:
        config = compose([*MODELS[name], *overrides])
    except Exception as error:
        raise ValueError(explain(error)) from error
    cell: Cell = build(config)
    set_threads(cell.device.threads)
    weights = cell.train.load(cell.wanted, report=Printed(name))
    print(f"{name}: scoring the held-out text", flush=True)
    folder = Path(CHECKPOINTS) / weights.checkpoint
    if publish:  # what ships is what is scored
        weights.model.load_state_dict(to_bfloat16(weights.model.state_dict()))
    heldout = heldout_likelihood(weights, load_corpus(cell.corpus))
    if publish:
        folder = zoo.publish(folder, name, {"heldout": {**dataclasses.asdict(heldout), "window": WINDOW_LEN}})
    bound = "at most " if heldout.is_bound else ""
    print(f"{name}: {bound}{heldout.bits_per_byte:.3f} bits per byte on held-out text; {folder}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
