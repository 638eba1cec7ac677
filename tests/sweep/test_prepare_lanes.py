"""Several lanes prepare: what shares trials stays together, and everybody hears of what is broken."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import Running
from standin import cell_config
from test_sweep_cli import runs

from paradigms.plan import PlannedCell
from paradigms.sweep import _Sweep


def cell(name: str, seed: int, task: str, planted: int = 0, **more: Any) -> PlannedCell:
    config = cell_config(name, model={"_target_": "standin.StandInModel", "width": 8 if name == "ar" else 16})
    config |= {"train": {"seed": seed, "num_tokens": 100}, "corpus": {"name": task}, **more}
    config["workload"] |= {"planted": planted}
    return PlannedCell(name=f"{name} {seed} {task} {planted}", config=config)


GRID = list(itertools.product(("ar", "ssm"), (0, 1, 2), ("a", "b", "c"), (0, 1)))


def shares(cells: list[PlannedCell], units: list[tuple[int, int]], count: int) -> list[list[tuple[int, int]]]:
    return _Sweep.shares(SimpleNamespace(cells=cells), units, count)  # type: ignore[arg-type]


def test_a_family_is_a_training_but_for_its_seed() -> None:
    cells = [cell(*values) for values in GRID]
    by_family: dict[str, set[tuple[str, str]]] = {}
    for one, (name, _, task, _) in zip(cells, GRID, strict=True):
        by_family.setdefault(one.family, set()).add((name, task))
    assert sorted(map(len, by_family.values())) == [1] * 6, "2 models x 3 tasks, whatever seed and workload"
    assert len({one.weights for one in cells}) == 18
    recipe = cell("ar", 0, "a", train={"seed": 0, "num_tokens": 200})
    assert recipe.family != cells[0].family
    other_decoder = cell("ar", 0, "a", decoder={"temperature": 0.5})
    assert other_decoder.family == cells[0].family, "the same weights, decoded otherwise"


@pytest.mark.parametrize("count", [1, 2, 4, 6, 9])
def test_units_are_dealt_out_by_family_each_once(count: int) -> None:
    cells = [cell(*values) for values in GRID]
    units = [(index, round_index) for round_index in range(2) for index in reversed(range(len(cells)))]
    found = shares(cells, units, count)
    assert len(found) == min(count, 6) and all(found)
    assert sorted(itertools.chain(*found)) == sorted(units)
    of_share = [{cells[index].family for index, _ in share} for share in found]
    assert sum(map(len, of_share)) == 6, "no family in two shares"
    assert max(map(len, of_share)) - min(map(len, of_share)) <= 1, "dealt out evenly"
    for share in found:
        assert share == [unit for unit in units if unit in set(share)], "in the order of the plan"


def plans(folder: Path) -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in sorted((folder / "plan").iterdir())}


def test_every_checkpoint_is_prepared_once_and_then_measured_by_all(conf: Path, tmp_path: Path) -> None:
    grid = ["paradigm=ar,ssm,diffusion", "model.width=8,16", "workload.output_len=8,16"]
    code, out = Running(conf, "launch=joblib", *grid).finish()
    assert code == 0, out
    said = [line.split()[-1] for line in out.splitlines() if "preparing " in line]
    assert Counter(said) == {f"{name}-{width}": 1 for name in ("ar", "ssm", "diffusion") for width in (8, 16)}
    found = plans(tmp_path / "runs" / "adhoc")
    assert list(found) == ["measure-0", "measure-1", "prepare-0", "prepare-1"]
    assert [found[f"prepare-{lane}"]["stages"] for lane in (0, 1)] == [["prepare"]] * 2
    prepared = [set(map(tuple, found[f"prepare-{lane}"]["units"])) for lane in (0, 1)]
    measured = [set(map(tuple, found[f"measure-{lane}"]["units"])) for lane in (0, 1)]
    assert not prepared[0] & prepared[1] and prepared[0] | prepared[1] == measured[0] | measured[1]
    assert len(runs(tmp_path)) == 12


@pytest.mark.slow
def test_what_one_lane_could_not_prepare_no_lane_measures(conf: Path, tmp_path: Path) -> None:
    """Cells of a broken checkpoint lie in both measuring lanes; a healthy one is measured all the same."""
    broken_too = "sweep.also=[['model.width=16','behaviour=unpreparable']]"
    code, out = Running(conf, "launch=joblib", "model.width=8", "workload.output_len=8,16,32,64", broken_too).finish()
    assert code == 1, out
    found = Counter((run["model.width"], run["status"]) for run in runs(tmp_path))
    assert found == {(8, "ok"): 4, (16, "failed"): 4}
    assert len(list((tmp_path / "runs/adhoc/records").glob("runs-*"))) == 2, "both lanes measured"
    assert out.count("the checkpoint is corrupt") >= 1 and "1 failed:" in out, "told once"
    broken = [plan["broken"] for name, plan in plans(tmp_path / "runs" / "adhoc").items() if name.startswith("measure")]
    assert broken == [{"ar-16": "preparing failed: the checkpoint is corrupt"}] * 2


def test_one_lane_prepares_and_measures_by_itself(conf: Path, tmp_path: Path) -> None:
    code, out = Running(conf, "paradigm=ar,ssm", "workload.output_len=8").finish()
    assert code == 0, out
    assert list(plans(tmp_path / "runs" / "adhoc")) == ["prepare-measure-0"]
