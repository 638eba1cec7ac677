"""The code behind a checkpoint: found as Python finds it, changed by what it reaches and by nothing else."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import paradigms
from paradigms.measure import imported_code
from paradigms.measure.imported_code import imported, imported_code_hash
from paradigms.weights import TRAINING_CODE

PACKAGE = Path(paradigms.__file__).parent
FILES = {  # a package with every way to import
    "__init__.py": "from toy import version\n",
    "version.py": "VERSION = 1\n",
    "start.py": "import os, numpy.linalg\nfrom toy.named import thing\nfrom . import beside\nfrom .sub import *\n",
    "named.py": "import toy.whole as whole\nthing = 1\n",
    "whole.py": "from toy import start\n",  # a circle
    "beside.py": "def later():\n    from toy import late, version\n",
    "late.py": "if True:\n    import toy.sub.deep.deepest\n",
    "sub/__init__.py": "from ..above import name\n",
    "sub/deep/__init__.py": "HERE = 1\n",
    "sub/deep/deepest.py": "from ... import topmost\nfrom ..sibling import x\nfrom . import cousin\n",
    "sub/deep/cousin.py": "",
    "sub/sibling.py": "x = 1\n",
    "above.py": "name = 1\n",
    "topmost.py": "",
    "unrelated.py": "import toy.start\n",
    "sub/unrelated.py": "import toy.unrelated\n",
    "named_as_a_string.py": "",
}
REACHED = sorted(
    {"toy", "toy.sub", "toy.sub.deep"}
    | {f"toy.{name}" for name in ("version", "start", "named", "whole", "beside", "late", "above", "topmost")}
    | {f"toy.sub.{name}" for name in ("sibling", "deep.deepest", "deep.cousin")}
)


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    root = tmp_path / "toy"
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def file_of(toy: Path, module: str) -> Path:
    path = toy.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def test_all_ways_to_import_are_followed(toy: Path) -> None:
    assert imported("toy.start", package=toy) == REACHED
    assert imported("toy.unrelated", package=toy) == sorted([*REACHED, "toy.unrelated"])
    assert imported("toy.sub.deep.cousin", package=toy) == sorted(
        ["toy", "toy.above", "toy.sub", "toy.sub.deep", "toy.sub.deep.cousin", "toy.version"]
    ), "its parents run first, and what they import"


def test_python_loads_nothing_that_is_not_found(toy: Path) -> None:
    program = "import sys, toy.start, toy.beside; toy.beside.later(); import toy.late; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=toy.parent, capture_output=True, text=True, check=True
    ).stdout.split()
    assert [name for name in done if name.partition(".")[0] == "toy"] == REACHED


@pytest.mark.parametrize("module", REACHED)
def test_what_is_reached_changes_the_hash(module: str, toy: Path) -> None:
    before = imported_code_hash("toy.start", package=toy)
    path = file_of(toy, module)
    path.write_text(path.read_text() + "ANOTHER = 1\n")
    assert imported_code_hash("toy.start", package=toy) != before


def test_layout_comments_and_docstrings_are_no_code(toy: Path) -> None:
    path = file_of(toy, "toy.named")
    path.write_text('import toy.whole as whole\ndef thing(x):\n    """Says."""\n    return f"{x} and more"\n')
    before = imported_code_hash("toy.start", package=toy)
    path.write_text(
        '"""Another."""\n\nimport toy.whole as whole  # why\n\n\ndef thing(\n    x,\n):\n    return (\n'
        '        f"{x} and "\n        "more"\n    )\n'
    )
    assert imported_code_hash("toy.start", package=toy) == before
    path.write_text(path.read_text().replace("more", "less"))
    assert imported_code_hash("toy.start", package=toy) != before


@pytest.mark.parametrize("module", ["toy.unrelated", "toy.sub.unrelated", "toy.named_as_a_string"])
def test_nothing_else_does(module: str, toy: Path) -> None:
    before = imported_code_hash("toy.start", package=toy)
    path = file_of(toy, module)
    path.write_text("something = 'else'\n")
    path.with_name("new.py").write_text("")
    assert imported_code_hash("toy.start", package=toy) == before
    assert imported_code_hash("toy.start", module, package=toy) != before, "unless it is named"


def test_line_endings_and_order_of_names_do_not_count(toy: Path) -> None:
    before = imported_code_hash("toy.start", "toy.unrelated", package=toy)
    path = toy / "start.py"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert imported_code_hash("toy.unrelated", "toy.start", package=toy) == before


def test_code_that_moves_to_another_module_is_other_code(toy: Path) -> None:
    before = imported_code_hash("toy.start", package=toy)
    one, other = toy / "above.py", toy / "sub" / "sibling.py"
    contents = one.read_text(), other.read_text()
    one.write_text(contents[1]), other.write_text(contents[0])
    assert imported_code_hash("toy.start", package=toy) != before


def test_modules_of_others_are_left_out_and_unknown_ones_refused(toy: Path) -> None:
    assert imported("numpy.linalg", "somewhere.else", package=toy) == []
    for name in ("toy.nothing", "toy.sub.nothing"):
        with pytest.raises(ValueError, match=f"{name} is no module of toy"):
            imported(name, package=toy)


# ---------------------------------------------------------------- our own


@pytest.fixture(scope="module")
def loaded() -> set[str]:
    """Modules of ours that a fresh interpreter has after it imported those of a training."""
    program = f"import sys, {', '.join(TRAINING_CODE)}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=PACKAGE.parent, capture_output=True, text=True, check=True
    )
    return {name for name in done.stdout.split() if name.partition(".")[0] == "paradigms"}


def test_what_training_loads_is_found(loaded: set[str]) -> None:
    found = set(imported(*TRAINING_CODE))
    assert loaded <= found and set(TRAINING_CODE) <= loaded
    asked_later: set[str] = set()
    for name in found:
        path = PACKAGE.joinpath(*name.split(".")[1:])
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        folder = name if path.is_dir() else name.rpartition(".")[0]
        inner = [node for node in ast.walk(ast.parse(file.read_bytes())) if isinstance(node, ast.FunctionDef | ast.If)]
        named = {other for node in inner for other in imported_code._named(node, folder)}
        asked_later |= {other for other in named if imported_code._file(other, PACKAGE) is not None}
    assert found - loaded <= set(imported(*asked_later)), "the rest is imported in functions, or for type checkers"


def test_measuring_and_decoding_are_no_part_of_a_training() -> None:
    found = imported(*TRAINING_CODE)
    assert {"paradigms.training.objectives", "paradigms.models.stack", "paradigms.quality.nats"} <= set(found)
    without = ("paradigms.bench", "paradigms.cell", "paradigms.weights", "paradigms.scores", "paradigms.decoding")
    assert not [name for name in found if name.startswith(without)]
