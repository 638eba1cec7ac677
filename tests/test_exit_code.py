"""Commands end alike: a code, and one line on stderr for what went wrong."""

from __future__ import annotations

import errno
import runpy
import sys
import warnings
from pathlib import Path

import pytest

from paradigms.cli import exit_code
from paradigms.records import read_table


def raises(error: BaseException):
    def run() -> None:
        raise error

    return run


@pytest.mark.parametrize(
    "error, code, line",
    [
        (ValueError("steps=0 must be at least 1"), 2, "error: steps=0 must be at least 1"),
        (OSError(errno.ENOSPC, "No space left on device", "runs/a"), 2, "error: runs/a: no space left on device"),
        (OSError("nobody answers"), 2, "error: nobody answers"),
        (KeyboardInterrupt(), 130, "go on with the same command"),
    ],
)  # fmt: skip
def test_what_went_wrong_is_one_line(error, code, line, capsys):
    assert exit_code(raises(error), interrupted="go on with the same command") == code
    assert capsys.readouterr().err == f"{line}\n"


def test_an_interruption_while_modules_are_imported_is_one_line(monkeypatch, capsys):
    class Interrupted:
        def find_spec(self, name, path, target=None):
            if name == "paradigms.cli":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "paradigms.cli")
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    with pytest.raises(SystemExit) as stop:
        runpy.run_module("paradigms", run_name="__main__")
    assert stop.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_our_own_bugs_are_not_hidden():
    with pytest.raises(ZeroDivisionError):
        exit_code(raises(ZeroDivisionError()))


def test_a_code_of_its_own_is_kept():
    assert exit_code(lambda: 1) == 1 and exit_code(lambda: None) == 0


def test_damaged_records_are_told_each_and_other_warnings_stay(tmp_path: Path, capsys):
    records = tmp_path / "records"
    records.mkdir()
    (records / "runs-a.jsonl").write_text('{"key": "a"}\n{"key": \n{"key"\n')
    show = warnings.showwarning

    def run() -> None:
        assert len(list(read_table(tmp_path, "runs"))) == 1
        warnings.warn("something else", stacklevel=1)

    with pytest.warns(UserWarning, match="something else"):
        assert exit_code(run) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.startswith("warning: ") and ", line " in line for line in lines] == [True, True]
    assert warnings.showwarning is show
