"""Cells opened for lm-eval, and its requests; without lm-eval whoever imports this is skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from paradigms import cli
from paradigms.build import build

pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install -c constraints.txt -e '.[harness]'")

from lm_eval.api.instance import Instance

from paradigms.harness.adapter import Settings, open_cell

TASKS = Path(__file__).parents[1] / "harness_tasks"
TEXTS = [
    ("Return the", " list"),
    ("Return the ", "list"),
    ("Return the \n\n", "list of items"),
    ("Return the  ", "  list"),
    ("retur", "n value"),
    ("retu", "rn value of"),
    ("Naïve café", " ☕ 日本"),
    ("", "Return"),
    ("", " Return"),
    ("a:\n", "\n b"),
]


def quiet(what, done, total):
    pass


def opened(*overrides, corpus=None, **settings):
    config = cli.compose(list(overrides))
    if corpus is not None:
        config["corpus"] = {"_target_": corpus}
    cell = build(config)
    cell.check()
    return open_cell(cell, Settings(**settings), quiet)


def asked(kind, *arguments):
    return [
        Instance(request_type=kind, doc={}, arguments=args, idx=0, metadata=("mine", n, 1))
        for n, args in enumerate(arguments)
    ]
