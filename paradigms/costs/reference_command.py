"""`reference`: measurements that others have published, beside what the model says of them."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

from paradigms.costs.printed import printed
from paradigms.costs.reference.predictions import predictions
from paradigms.costs.reference.table import summary, write


def add_parsers(subparsers: Any) -> None:
    """The command `reference`."""
    parser = subparsers.add_parser("reference", help="published measurements, predicted, with errors and constants")
    parser.add_argument("--out", type=Path, default=None, help="folder for predictions.csv, .md and .png")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """The exit code."""
    rows = predictions() if arguments.out is None else write(arguments.out)
    lines = [line[:5] for line in summary(rows)]
    print(printed(["group", "rows", "median error", "worst", "promised"], lines), end="")
    if arguments.out is None:
        return 0
    drawing = [sys.executable, "-m", "analysis.predictions", str(arguments.out / "predictions.csv")]
    code = subprocess.run(drawing, check=False).returncode  # a process of its own: analysis reads files only
    if not code:
        print(f"written: {arguments.out}/predictions.csv, .md, .png")
    return code
