"""`python -m paradigms.costs`: calibrate this machine, predict cells, find where they cross, check the model."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from paradigms.cli import BAD_INPUT, FAILED, INTERRUPTED
from paradigms.costs import calibrate, crossover_command, predict_command, reference_command, sweep_predictions

EXAMPLES = """examples:
  python -m paradigms.costs calibrate                                                  under a minute, once a machine
  python -m paradigms.costs predict paradigm=ar,ssm workload.output_len=64,256         on this machine
  python -m paradigms.costs predict device=h200 model=path/to/config.json              on a datasheet, without weights
  python -m paradigms.costs crossover paradigm=ar,ssm --axis workload.output_len --high 512
  python -m paradigms.costs reference                                                  against published measurements"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code: 2 for bad input, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m paradigms.costs",
        description="What cells will cost before they are run: time, memory, largest batch, from configs alone.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    calibrate.add_parser(subparsers)
    for command in (predict_command, crossover_command, reference_command, sweep_predictions):
        command.add_parsers(subparsers)
    try:
        options = _parsed(parser, arguments)
        code = options.run(options)
        sys.stdout.flush()
        return code
    except SystemExit as stop:  # of argparse, which has said what is wrong
        return stop.code if isinstance(stop.code, int) else BAD_INPUT
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # of `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (ValueError, OSError) as error:
        print(f"error: {_of_file(error) if isinstance(error, OSError) else error}", file=sys.stderr)
        return BAD_INPUT


def _of_file(error: OSError) -> str:
    """`/proc/x.csv: permission denied; name another file`."""
    return f"{error.filename}: {str(error.strerror).lower()}; name another file" if error.filename else str(error)


def _parsed(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Options and overrides in any order: what argparse leaves over are overrides, unless it looks like an option."""
    options, left_over = parser.parse_known_args(arguments)
    if wrong := [each for each in left_over if each.startswith("-") or not hasattr(options, "overrides")]:
        parser.error(f"unknown argument {wrong[0]!r}; see --help")
    if left_over:
        options.overrides = [*options.overrides, *left_over]
    return options


if __name__ == "__main__":
    sys.exit(main())
