"""The bounds of `paradigms.known_costs`, on units whose ratios are written down; the whole sweep once, without them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from paradigms import known_costs
from paradigms.build import build
from paradigms.cell import Cell
from paradigms.cli import compose
from paradigms.decoding.known_cost import KnownCost


def units(rows: list[tuple[str, float, bool]]) -> pd.DataFrame:
    """(kind, E2E against its known cost, marked): the rounds of one cell a kind."""
    return pd.DataFrame(
        [
            {"kind": kind, "cell": kind, "round": index, "marked": marked, "attempts": 1}
            | dict.fromkeys(known_costs.FIGURES, ratio)
            for index, (kind, ratio, marked) in enumerate(rows)
        ]
    )


def test_known_figures() -> None:
    decoder = KnownCost(kind="arithmetic", step_s=1e-3, operation_s=3e-4, prefill_steps=4)
    assert known_costs.known(decoder, 11) == pytest.approx({"ttft_s": 3.6e-3, "tpot_s": 9e-4, "e2e_s": 12.6e-3})


@pytest.mark.parametrize(
    ("rows", "good"),
    [
        ([("cpu_time", 1.0, False)] * 20, True),
        ([("cpu_time", 1.019, False)] * 19 + [("cpu_time", 1.5, True)], True),
        ([("cpu_time", 1.0, False)] * 18 + [("cpu_time", 1.5, False)] * 2, False),  # 90 % are recovered
        ([("cpu_time", 1.0, False)] * 18 + [("cpu_time", 1.0, True)] * 2, False),  # 10 % are marked
        ([("cpu_time", 0.975, False)] * 20, False),
        ([("cpu_time", 1.0, False)] * 20 + [("arithmetic", 1.03, False)] * 20, False),  # one of two cells is off
        ([("cpu_time", 1.0, False)] * 20 + [("arithmetic", 1.0, False)] * 11 + [("arithmetic", 1.4, False)] * 9, True),
    ],
)  # fmt: skip
def test_the_bounds_of_a_quiet_machine(rows: list[tuple[str, float, bool]], good: bool) -> None:
    assert known_costs.holds(units(rows), 0) is good
    assert len(known_costs.verdict(units(rows), 0)) == 3


@pytest.mark.parametrize(
    ("rows", "good", "words"),
    [
        ([("memory", 1.2, True)] * 9 + [("memory", 1.2, False)], True, "10 of 10; marked of those: 90.0%"),
        ([("memory", 1.2, True)] * 8 + [("memory", 0.9, False)], False, "9 of 9; marked of those: 88.9%"),
        ([("memory", 1.2, True), ("memory", 1.04, False), ("memory", 1.0, True)], True, "1 of 3; marked of those: 100"),
        ([("memory", 1.04, True)] * 9, False, "nothing to notice"),
    ],
)
def test_the_bounds_beside_a_neighbour(rows: list[tuple[str, float, bool]], good: bool, words: str) -> None:
    assert known_costs.holds(units(rows), 1) is good
    assert words in known_costs.verdict(units(rows), 1)[0]


def test_the_table_counts() -> None:
    rows = [("cpu_time", 1.0, False), ("cpu_time", 1.03, True), ("cpu_time", 1.2, True), ("memory", 0.5, False)]
    lines = known_costs.table(units(rows)).splitlines()
    assert lines[2] == "| cpu_time | 3 | 1.0300 | 1.0300 | 1.0300 | 1 | 1 | 2 | 1 | 0 |"
    assert lines[3] == "| memory | 1 | 0.5000 | 0.5000 | 0.5000 | 0 | 1 | 0 | 0 | 0 |"


@pytest.mark.parametrize(("kind", "operation_s"), [("cpu_time", None), ("memory", 1e-4)])
def test_its_command_line_is_a_cell_of_known_cost(kind: str, operation_s: float | None) -> None:
    overrides = [line.split(",")[0] for line in known_costs.overrides_of(kind, operation_s, 2, Path("somewhere"))]
    config: dict[str, Any] = compose(overrides)
    cell: Cell = build(config)
    cell.check()
    assert cell.decoder == KnownCost(kind=kind, operation_s=operation_s, step_s=known_costs.STEPS_S[0])
    assert (cell.measure.rounds, cell.paradigm["name"]) == (2, kind)


@pytest.mark.parametrize("options", [["--neighbour=-1"], ["--rounds=0"]], ids=["neighbours", "rounds"])
def test_impossible_numbers_are_refused_before_anything_runs(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        known_costs.main(options)
    assert stopped.value.code == 2 and "at least 0 neighbours and 1 round" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="children are found by /proc")
def test_ctrl_c_is_one_line_and_leaves_nobody(tmp_path: Path) -> None:
    """Pressed in a terminal it reaches the whole group: the command, its sweep, and no neighbour's traceback."""
    command = [sys.executable, "-m", "paradigms.known_costs", "--neighbour=2", f"--folder={tmp_path / 'records'}"]
    with (tmp_path / "said").open("w+") as said:
        process = subprocess.Popen(command, start_new_session=True, stdout=said, stderr=said)
        deadline = time.monotonic() + 60
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while len(neighbours := children.read_text().split()) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(1.0)  # they have begun, and so may the sweep
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=30) == 130
        said.seek(0)
        text = said.read()
    assert len(neighbours) >= 2 and not any(Path("/proc", each).exists() for each in neighbours)
    assert "interrupted" in text and "Traceback" not in text


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="states are read from /proc")
def test_neighbours_hold_still_while_operations_are_timed() -> None:
    def states() -> set[str]:
        return {Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in pids}

    children = Path(f"/proc/self/task/{os.getpid()}/children")
    others = set(children.read_text().split())
    with known_costs._neighbours(2, 0.0) as stopped:
        pids = set(children.read_text().split()) - others
        with stopped():
            time.sleep(0.05)
            assert len(pids) == 2 and states() == {"T"}
        time.sleep(0.05)
        assert "T" not in states()
    assert not any(Path("/proc", pid).exists() for pid in pids)


@pytest.mark.slow
def test_a_whole_sweep_beside_a_neighbour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Every unit comes back with its known cost and what was read around it; how far it is off is the machine's."""
    monkeypatch.setattr(known_costs, "STEPS_S", (0.0005,))
    monkeypatch.setattr(known_costs, "LENGTHS", (4, 8))
    monkeypatch.setattr(known_costs, "CALIBRATION_S", 0.1)
    code = known_costs.main(["--neighbour=1", "--rounds=2", f"--folder={tmp_path}", "measure.min_time_s=0"])
    out = capfd.readouterr().out
    assert code in (0, 1) and f"records: {tmp_path}" in out
    found = known_costs.judged(tmp_path, {})
    assert (
        len(found) == 12
        and set(found["round"]) == {0, 1}
        and set(found["kind"]) == {"cpu_time", "arithmetic", "memory"}
    )
    assert (found.loc[found["kind"] == "cpu_time", "e2e_s"] > 1).all(), "cpu time cannot pass faster than the clock"
    assert found["attempts"].between(1, 3).all()
    slow, slower = (known_costs.judged(tmp_path, {("memory", 0): seconds}) for seconds in (1.0, 2.0))
    of_memory = (found["kind"] == "memory") & (found["round"] == 0)
    assert (slow["e2e_s"] / slower["e2e_s"]).tolist() == pytest.approx(of_memory.map({True: 2.0, False: 1.0}).tolist())
