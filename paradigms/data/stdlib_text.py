"""English and Python that every CPython carries: nothing to download, a few megabytes, different between versions.

Source files are found below the folder that sysconfig calls `stdlib`. Installed packages and the test suites are left
out: the first are not the library, the second are mostly tables of cases.
"""

from __future__ import annotations

import ast
import importlib
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator
from pathlib import Path

SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "pydoc_data"})
SKIPPED_FILES = ("_sysconfigdata",)  # written by the build, not by people
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings() -> Iterator[str]:
    """Every docstring of the standard library, indentation removed, then every topic of `help()`."""
    for source in sources():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # invalid escapes in old files
                tree = ast.parse(source)
        except (SyntaxError, ValueError):  # templates and deliberately broken files
            continue
        for node in ast.walk(tree):
            if isinstance(node, _DOCUMENTED) and (docstring := ast.get_docstring(node)):
                yield docstring
    for topic in _help_topics().values():
        yield topic.strip()


def sources() -> Iterator[str]:
    """The text of every source file of the standard library, in the order of paths; undecodable files are left out."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if SKIPPED_FOLDERS.intersection(parts[:-1]) or path.name.startswith(SKIPPED_FILES):
            continue
        try:
            with tokenize.open(path) as file:
                yield file.read()
        except (SyntaxError, UnicodeDecodeError):
            continue


def _help_topics() -> dict[str, str]:
    try:
        return importlib.import_module("pydoc_data.topics").topics
    except ModuleNotFoundError:
        raise ValueError(
            "this Python has no pydoc_data.topics, the text behind help(); install the full standard library "
            "or choose another corpus"
        ) from None
