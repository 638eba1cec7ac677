"""Identity of the code behind a result: of the modules that it imports, and of no others.

A checkpoint depends on the training loop and all that it reaches, not on a metric that was added beside it; trained for
hours, it should outlive that, and a comment that was reworded. Imports are read from the source, wherever they stand in
it; what is named by a string at run time is not seen, so callers name such modules themselves.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def imported_code_hash(*modules: str, package: Path = _PACKAGE) -> str:
    """Hash of the code of these modules and of everything of the package that they import: of what Python makes of it,
    so that layout, comments and docstrings do not count.

    Args:
        modules: dotted names; those outside the package have versions, and are left out.

    Raises:
        ValueError: a module that the package does not have.
    """
    digest = hashlib.sha256()
    for name in imported(*modules, package=package):
        file = _file(name, package)
        assert file is not None
        digest.update(f"{name}\0{_code(file, file.read_bytes())}\0".encode())
    return digest.hexdigest()[:16]


def imported(*modules: str, package: Path = _PACKAGE) -> list[str]:
    """These modules and what they import, dotted names in order; see `imported_code_hash`."""
    asked, found = [name for name in modules if name.partition(".")[0] == package.name], set()
    for name in asked:
        if _file(name, package) is None:
            raise ValueError(f"{name} is no module of {package.name}")
    waiting = [module for name in asked for module in _with_parents(name)]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += _imports(name, package)
    return sorted(found)


@cache
def _imports(name: str, package: Path) -> tuple[str, ...]:
    """Modules of the package that one imports."""
    file = _file(name, package)
    assert file is not None
    names = _named(ast.parse(file.read_bytes()), name if file.name == "__init__.py" else name.rpartition(".")[0])
    return tuple(sorted({module for module in names if _file(module, package) is not None}))


@cache
def _code(file: Path, content: bytes) -> str:
    tree = ast.parse(content, str(file))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(
            node
        ):
            node.body = node.body[1:]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()


def _named(tree: ast.AST, folder: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _with_parents(alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = folder.split(".")[: len(folder.split(".")) - node.level + 1]
                base = ".".join([*above, *([node.module] if node.module else [])])
            yield from _with_parents(base)
            yield from (f"{base}.{alias.name}" for alias in node.names)  # those that are modules


def _with_parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _file(name: str, package: Path) -> Path | None:
    head, *rest = name.split(".")
    if head != package.name:
        return None
    path = package.joinpath(*rest)
    files = (path / "__init__.py", path.with_suffix(".py")) if rest else (path / "__init__.py",)
    return next((file for file in files if file.is_file()), None)
