"""`python -m paradigms.harness`: the tasks of lm-evaluation-harness, asked of any paradigm.

Takes the same overrides as `python -m paradigms` and composes one cell. Prints a line a metric, bounds marked,
and writes one JSON file. Tasks of one's own are YAML files in a folder; nothing is fetched for those.
"""

from __future__ import annotations

import argparse
import difflib
import math
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from paradigms.build import build
from paradigms.cli import compose, exit_code, explain
from paradigms.data.symbols import Symbols
from paradigms.harness.results import collected, table, write
from paradigms.training.printed import Printed

EXAMPLES = """examples:
  python -m paradigms.harness paradigm=ar --tasks hellaswag,piqa --limit 100          fetched from the Hugging Face hub
  python -m paradigms.harness paradigm=diffusion --tasks mine --include-path my_tasks  a YAML file that says task: mine
  python -m paradigms.harness paradigm=ar model=pretrained model.path=my_folder workload.batch_size=8 --tasks gsm8k"""
INSTALL = "lm-eval is not installed: pip install -c constraints.txt -e '.[harness]'"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code: 2 for bad input, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m paradigms.harness",
        description=(__doc__ or "").partition(": ")[2].partition("\n")[0],
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--tasks", required=True, metavar="NAME[,NAME]", help="tasks or groups of lm-eval")
    parser.add_argument("--include-path", metavar="FOLDER", help="of tasks of one's own")
    parser.add_argument("--limit", type=float, metavar="N", help="documents of each task; below 1 a share of them")
    parser.add_argument(
        "--num-fewshot", type=int, metavar="N", help="examples before each question (default: the task's)"
    )
    parser.add_argument(
        "--begin", default="text", help="contexts begin with begin-of-text (text, default) or with none"
    )
    parser.add_argument(
        "--masks", type=int, default=128, metavar="N", help="masks an answer, of denoisers (default 128)"
    )
    parser.add_argument("--mask-seed", type=int, default=0, metavar="N", help="what they follow from (default 0)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="JSON (default: a name in runs/harness)")
    parser.add_argument("overrides", nargs="*", help="hydra overrides, such as paradigm=diffusion")
    options, left_over = parser.parse_known_args(arguments)
    if wrong := [each for each in left_over if each.startswith("-")]:
        parser.error(f"unknown argument {wrong[0]!r}; see --help")
    options.overrides = [*options.overrides, *left_over]

    def evaluate() -> None:
        results = run(options)
        path = write(results, options.output)
        print(table(results), *results["paradigms"]["notes"], f"results: {path}", sep="\n")

    return exit_code(evaluate)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Evaluate; see `results.collected`.

    Raises:
        ValueError: bad overrides or options, an impossible cell, a task that nobody knows, or lm-eval is missing.
    """
    if find_spec("lm_eval") is None:
        raise ValueError(INSTALL)
    limit = _limit(options.limit)
    if options.num_fewshot is not None and options.num_fewshot < 0:
        raise ValueError(f"--num-fewshot={options.num_fewshot} must be at least 0")
    try:
        config = compose(options.overrides)
    except Exception as error:
        raise ValueError(explain(error)) from error
    cell = build(config)
    cell.check()
    if isinstance(cell.tokenizer, Symbols):
        raise ValueError(
            "tokenizer=symbols reads no text, of which lm-eval's tasks are made; leave task=... out, and measure it by "
            "python -m paradigms"
        )
    import lm_eval

    from paradigms.harness.adapter import Settings, open_cell

    settings = Settings(num_masks=options.masks, mask_seed=options.mask_seed, begin=options.begin)
    names = [name for name in options.tasks.split(",") if name]
    manager = _manager(names, options.include_path)
    lm = open_cell(cell, settings, Printed(str(cell.paradigm["name"])))
    evaluate: Any = lm_eval.simple_evaluate
    try:
        found = evaluate(
            model=lm, tasks=list(names), task_manager=manager, limit=limit, num_fewshot=options.num_fewshot
        )
    except ValueError as error:
        if "larger than population" not in str(error):
            raise
        raise ValueError(
            "a task has fewer documents to take examples from than --num-fewshot (or its own num_fewshot) asks for; "
            "ask for fewer"
        ) from error
    assert found is not None, "one process evaluates"
    return collected(
        found,
        config=config,
        checkpoint=lm.weights.checkpoint,
        max_length=lm.max_length,
        settings=settings,
        asked={"tasks": names, "limit": limit, "num_fewshot": options.num_fewshot},
        scored=lm.scored,
        generated=lm.generated,
    )


def _limit(limit: float | None) -> float | None:
    if limit is None:
        return None
    if not 0 < limit < math.inf or (limit > 1 and limit != int(limit)):
        raise ValueError(f"--limit={limit:g} must be a number of documents, or a share of them between 0 and 1")
    return int(limit) if limit >= 1 else limit


def _manager(names: Sequence[str], folder: str | None) -> Any:
    """What knows the tasks: the folder alone where that is enough, since reading all of lm-eval's takes seconds."""
    from lm_eval.tasks import TaskManager

    if not names:
        raise ValueError("--tasks names no task; give one, or several with commas between them")
    if folder is not None and not Path(folder).is_dir():
        raise ValueError(f"--include-path={folder} is no folder; give one with YAML files of tasks")
    manager = None
    for defaults in (False, True) if folder is not None else (True,):
        manager = TaskManager(include_path=folder, include_defaults=defaults)
        if all(name in manager.all_tasks for name in names):
            return _explaining(manager)
    assert manager is not None
    unknown = next(name for name in names if name not in manager.all_tasks)
    close = difflib.get_close_matches(unknown, manager.all_tasks, n=1)
    raise ValueError(
        f"--tasks={unknown} is no task of lm-eval{'' if folder is None else f', nor of {folder}'}"
        f"{f'; did you mean {close[0]}?' if close else ''} (`lm-eval ls tasks` lists them)"
    )


def _explaining(manager: Any) -> Any:
    """The same manager, whose `load` raises a ValueError for a file or a document that lm-eval stumbles over."""
    load = manager.load

    def explained(tasks: Any) -> Any:
        try:
            return load(tasks)
        except Exception as error:
            said = " ".join(str(error).split())
            raise ValueError(
                f"--tasks={tasks if isinstance(tasks, str) else ','.join(map(str, tasks))}: lm-eval cannot load it "
                f"({type(error).__name__}: {said}); look at its YAML file and its first document (a choice without "
                "text is an IndexError there)"
            ) from error

    manager.load = explained
    return manager


if __name__ == "__main__":
    raise SystemExit(main())
