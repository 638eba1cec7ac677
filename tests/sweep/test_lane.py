"""A lane records every unit, whatever becomes of it, and never a unit twice."""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from standin import cell_config, lane_plan

from paradigms.lane import LaneSummary, run_lane
from paradigms.plan import Plan, PlannedCell, order_units
from paradigms.progress import TimeLeft
from paradigms.records import RecordWriter, canonical_json, drop_unfinished, read_table


class Said:
    """Keeps what a lane tells."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def stage(self, name: str, total: int) -> None:
        self.lines.append(f"{name} {total}")

    def start(self, name: str, left_s: float | None = None) -> None:
        pass

    def done(self, name: str, seconds: float, note: str = "") -> None:
        pass

    def say(self, line: str) -> None:
        self.lines.append(line)

    def close(self) -> None:
        pass


def run(plan: Plan, show: Said | None = None) -> LaneSummary:
    return run_lane(plan, show or Said(), code="c0de", machine="m1")


def runs(folder: Path) -> list[dict[str, Any]]:
    return list(read_table(folder, "runs"))


def test_units_are_recorded_with_factors_and_children(tmp_path: Path) -> None:
    show = Said()
    summary = run(lane_plan(tmp_path, [cell_config("ar", 8), cell_config("ssm", 8)]), show)
    assert (summary.measured, summary.reused, summary.failures) == (4, 0, [])
    record = next(run for run in runs(tmp_path) if run["paradigm.name"] == "ar" and run["round"] == 1)
    assert record["workload.output_len"] == 8 and record["sweep.name"] == "test" and record["status"] == "ok"
    assert record["is_anchor"] and record["code"] == "c0de" and record["machine_id"] == "m1"
    assert not [name for name in record if "_target_" in name]
    keys = {run["key"] for run in runs(tmp_path)}
    assert len(keys) == 4 and {request["key"] for request in read_table(tmp_path, "requests")} == keys
    assert len(list(read_table(tmp_path, "training"))) == 2 * 2, (
        "a loss curve is kept once a checkpoint, not once a unit"
    )
    assert show.lines == [
        "prepare 2",
        "preparing ar-8",
        "preparing ssm-8",
        "measure, round 1 of 2 2",
        "measure, round 2 of 2 2",
    ]


def test_a_sweep_goes_on_past_units_that_fail_and_resumes(tmp_path: Path) -> None:
    behaviours = {"ar": "ok", "raises": "raises", "killed": "killed", "memory": "memory", "ssm": "ok"}
    configs = [cell_config(name, behaviour=behaviour) for name, behaviour in behaviours.items()]
    summary = run(lane_plan(tmp_path, configs, rounds=1))
    statuses = {run["paradigm.name"]: run["status"] for run in runs(tmp_path)}
    assert statuses == {
        "ar": "ok", "raises": "failed", "killed": "failed", "memory": "oom", "ssm": "ok",
    }  # fmt: skip
    assert summary.measured == 2 and len(summary.failures) == 3
    raised = next(run for run in runs(tmp_path) if run["paradigm.name"] == "raises")
    assert raised["error"] == "three is not a length"
    assert "misbehave" in (tmp_path / "errors" / f"{raised['key']}.txt").read_text()

    again = run(lane_plan(tmp_path, configs, rounds=1))
    assert (again.measured, again.reused, len(again.failures)) == (0, 2, 3), (
        "failed units are tried again, good ones not"
    )
    more = run(lane_plan(tmp_path, configs[:1], rounds=3))
    assert (more.measured, more.reused) == (2, 1), "more rounds reuse those that are there"


def test_what_cannot_be_prepared_is_not_measured(tmp_path: Path) -> None:
    configs = [cell_config("bad", behaviour="unpreparable"), cell_config("ar")]
    summary = run(lane_plan(tmp_path, configs))
    assert summary.measured == 2 and summary.broken == {"bad-8": "preparing failed: the checkpoint is corrupt"}
    assert Counter(run["status"] for run in runs(tmp_path)) == {"ok": 2, "failed": 2}
    assert len(summary.failures) == 1 and "the checkpoint is corrupt" in summary.failures[0]


def test_what_cannot_be_written_as_json_fails_with_its_place(tmp_path: Path) -> None:
    summary = run(lane_plan(tmp_path, [cell_config("ar")], rounds=1, runner="standin.return_nan"))
    assert summary.measured == 0 and "JSON" in summary.failures[0]


def test_other_code_machine_or_factor_is_another_unit(tmp_path: Path) -> None:
    plan = lane_plan(tmp_path, [cell_config("ar")], rounds=1)
    assert run_lane(plan, Said(), code="c0de", machine="m1").measured == 1
    assert run_lane(plan, Said(), code="c0de", machine="m1").reused == 1
    assert run_lane(plan, Said(), code="other", machine="m1").measured == 1
    assert run_lane(plan, Said(), code="c0de", machine="m2").measured == 1
    assert run(lane_plan(tmp_path, [cell_config("ar", 9)], rounds=1)).measured == 1


def test_folders_of_two_machines_merge_by_copying_their_shards(tmp_path: Path) -> None:
    """Units keep their machine's key, so nothing collides, and each machine finds its own ones finished."""
    configs = [cell_config("ar", 8), cell_config("ssm", 8)]
    folders = {machine: tmp_path / machine for machine in ("m1", "m2")}
    for machine, folder in folders.items():
        assert run_lane(lane_plan(folder, configs), Said(), code="c0de", machine=machine).measured == 4
    merged = tmp_path / "merged"
    for folder in folders.values():
        shutil.copytree(folder / "records", merged / "records", dirs_exist_ok=True)
    keys = {machine: {record["key"] for record in runs(folder)} for machine, folder in folders.items()}
    records = runs(merged)
    assert {record["key"] for record in records} == keys["m1"] | keys["m2"] and len(records) == 8
    assert Counter(record["machine_id"] for record in records) == {"m1": 4, "m2": 4}
    assert Counter(request["key"] for request in read_table(merged, "requests")) == dict.fromkeys(
        keys["m1"] | keys["m2"], 1
    )
    assert drop_unfinished(merged) == 0
    for machine in folders:
        assert run_lane(lane_plan(merged, configs), Said(), code="c0de", machine=machine).reused == 4


def test_what_a_crash_left_at_the_end_of_shards_is_cut_off(tmp_path: Path) -> None:
    run(lane_plan(tmp_path, [cell_config("ar")]))
    records = tmp_path / "records"
    (runs_path,), (requests_path,) = records.glob("runs-*"), records.glob("requests-*")
    before = {path: path.read_bytes() for path in (runs_path, requests_path)}
    assert drop_unfinished(tmp_path) == 0
    orphan = canonical_json({"key": "never committed", "repeat": 0}).encode()
    runs_path.write_bytes(before[runs_path] + b'{"key": "hal')
    requests_path.write_bytes(before[requests_path] + orphan + b"\n" + orphan + b"\n" + orphan[:-7])
    (records / "samples-other.jsonl").write_bytes(orphan + b"\n")
    assert drop_unfinished(tmp_path) == 1 + 3 + 1
    assert {path: path.read_bytes() for path in before} == before
    assert (records / "samples-other.jsonl").read_bytes() == b""
    assert drop_unfinished(tmp_path) == 0


def test_time_left_adds_up() -> None:
    chance = random.Random(0)
    cells = [chance.randrange(5) for _ in range(60)]
    left, waiting = TimeLeft(cells), list(cells)
    assert left.estimate_s() is None
    seen: dict[int, float] = {}
    while waiting:
        seen[waiting[0]] = chance.uniform(1, 9)
        left.saw(waiting.pop(0), seen[cells[len(cells) - len(waiting) - 1]])
        mean = sum(seen.values()) / len(seen)
        assert left.estimate_s() == pytest.approx(sum(seen.get(cell, mean) for cell in waiting), abs=1e-9)


def test_a_plan_that_does_not_fit_the_disk_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan = lane_plan(tmp_path, [cell_config("ar")])
    plan.save(path)
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(OSError, match=str(path)):
            dataclasses.replace(plan, sweep="another").save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert Plan.load(path) == plan and [file.name for file in tmp_path.iterdir()] == ["plan.json"]


def test_a_lane_that_is_killed_loses_and_doubles_nothing(tmp_path: Path) -> None:
    started, folder = tmp_path / "started", tmp_path / "runs"
    configs = [cell_config(name) for name in ("a", "b", "c")] + [cell_config("slow", behaviour=f"sleeps:{started}")]
    plan = lane_plan(folder, configs, rounds=1, units=((0, 0), (1, 0), (3, 0), (2, 0)))
    plan.save(tmp_path / "plan.json")
    script = (
        "from pathlib import Path; from test_lane import Said, run; from paradigms.plan import Plan\n"
        f"run(Plan.load(Path({str(tmp_path / 'plan.json')!r})))"
    )
    path = os.pathsep.join([str(Path(__file__).parent), os.getcwd()])
    process = subprocess.Popen([sys.executable, "-c", script], env=os.environ | {"PYTHONPATH": path})
    while not started.exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = {run["key"] for run in runs(folder)}
    assert len(before) == 2

    summary = run(lane_plan(folder, configs[:3], rounds=1))
    keys = [run["key"] for run in runs(folder)]
    assert (summary.measured, summary.reused) == (1, 2)
    assert len(keys) == len(set(keys)) == 3 and before < set(keys)


def test_a_cut_off_line_is_named_and_its_unit_measured_again(tmp_path: Path) -> None:
    plan = lane_plan(tmp_path, [cell_config("ar")])
    run(plan)
    shard = next((tmp_path / "records").glob("runs-*"))
    shard.write_bytes(shard.read_bytes()[:-20])
    show = Said()
    with pytest.warns(match="record left out"):
        summary = run(plan, show)
        list(read_table(tmp_path, "runs"))
    assert (summary.measured, summary.reused) == (1, 1)
    assert any("record left out" in line for line in show.lines)


def test_a_disk_that_is_full_stops_the_lane_and_keeps_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = RecordWriter.write_unit
    calls = []

    def full(self: RecordWriter, record: Any, **tables: Any) -> None:
        calls.append(record)
        if len(calls) == 3:
            raise OSError(28, "No space left on device", str(self.folder))
        write(self, record, **tables)

    monkeypatch.setattr(RecordWriter, "write_unit", full)
    summary = run(lane_plan(tmp_path, [cell_config("ar"), cell_config("ssm")]))
    assert summary.measured == 2 and summary.fatal == (
        f"{tmp_path}/records: No space left on device; what is measured is kept, the same command resumes"
    )
    assert [run["status"] for run in runs(tmp_path)] == ["ok", "ok"]


def test_nothing_of_a_unit_that_does_not_fit_the_disk_stays_behind(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path, "a")
    writer.write_unit({"key": "first", "status": "ok"})
    (path,) = (tmp_path / "records").iterdir()
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write over the limit is then an error
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 100, limits[1]))
    try:
        with pytest.raises(OSError, match=str(path)):
            writer.write_unit({"key": "second", "status": "ok", "text": "x" * 300})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == before


def test_ten_thousand_finished_units_are_skipped_without_starting_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paradigms import lane

    configs = [cell_config("ar", length) for length in range(1, 1001)]
    plan = lane_plan(tmp_path, configs, rounds=10)
    keys = [unit.key for unit in lane._Lane(plan, Said(), "c0de", "m1").units()]
    assert len(set(keys)) == 10_000
    lines = (canonical_json({"key": key, "status": "ok"}) + "\n" for key in keys)
    (tmp_path / "records" / "runs-earlier.jsonl").write_text("".join(lines))
    monkeypatch.setattr(lane, "start_server", lambda _: pytest.fail("nothing has to run"))
    assert run(plan).reused == 10_000


# ---------------------------------------------------------------- units that share a process


def shared(folder: Path, configs: list[dict[str, Any]], units_per_process: int, **more: Any) -> Plan:
    plan = lane_plan(folder, configs, units_per_process=units_per_process, **more)
    together = [cell.weights for cell in plan.cells]
    rounds = [1 + max(round_index for _, round_index in plan.units)] * len(configs)
    return dataclasses.replace(plan, units=tuple(order_units(rounds, 0, together=together)))


def test_units_over_the_same_weights_share_a_process(tmp_path: Path) -> None:
    """Two paradigms and two lengths over one model share; another model, another round and a fourth unit do not."""
    wide = {"_target_": "standin.StandInModel", "width": 16}
    configs = [cell_config(name, length) for name in ("ar", "naive") for length in (8, 16)]
    configs += [cell_config("ssm", 8, model=wide)]
    summary = run(shared(tmp_path, configs, 3))
    assert (summary.measured, summary.failures) == (10, [])
    processes: dict[int, list[dict[str, Any]]] = {}
    for record in runs(tmp_path):
        processes.setdefault(record["pid"], []).append(record)
    assert sorted(len(units) for units in processes.values()) == [1, 1, 1, 1, 3, 3]
    for units in processes.values():
        assert [unit["unit_in_process"] for unit in units] == list(range(len(units)))
        assert len({(unit["round"], unit["model.width"]) for unit in units}) == 1


def test_one_unit_a_process_unless_asked(tmp_path: Path) -> None:
    run(lane_plan(tmp_path, [cell_config("ar", 8), cell_config("ar", 16)]))
    assert {record["unit_in_process"] for record in runs(tmp_path)} == {0}
    assert len({record["pid"] for record in runs(tmp_path)}) == 4


@pytest.mark.parametrize("behaviour", ["raises", "killed", "exits"])
def test_a_unit_that_fails_costs_only_itself(tmp_path: Path, behaviour: str) -> None:
    """What was measured before it in its process is kept, what comes after it begins a new one."""
    configs = [cell_config("ar", length) for length in (8, 16, 32, 64)]
    plan = shared(tmp_path, configs, 10, rounds=1)
    second = plan.units[1][0]
    config = plan.cells[second].config | {"paradigm": {**plan.cells[second].config["paradigm"], "name": "bad"}}
    bad = dataclasses.replace(plan.cells[second], config={**config, "behaviour": behaviour})
    cells = [bad if index == second else cell for index, cell in enumerate(plan.cells)]
    object.__setattr__(bad, "weights", plan.cells[0].weights)  # `behaviour` is part of the identity of a stand-in
    summary = run(dataclasses.replace(plan, cells=tuple(cells)))
    assert (summary.measured, len(summary.failures)) == (3, 1)
    by_status = Counter(record["status"] for record in runs(tmp_path))
    assert by_status == {"ok": 3, "failed": 1}
    assert [record["unit_in_process"] for record in runs(tmp_path) if record["status"] == "ok"] == [0, 0, 1]
    assert len(set(record["key"] for record in runs(tmp_path))) == 4


def test_units_that_share_stand_together_in_a_random_order() -> None:
    together = list("abcabcabc")
    units = order_units([2] * 9, 0, together=together)
    for round_index in (0, 1):
        order = [cell for cell, index in units if index == round_index]
        assert sorted(order) == list(range(9))
        letters = [together[cell] for cell in order]
        assert len([letter for letter, _ in itertools.groupby(letters)]) == 3
    assert [cell for cell, index in units if index == 0] != [cell for cell, index in units if index == 1]


def test_units_of_the_same_work_follow_each_other_in_a_random_order() -> None:
    """Nine cells, three of each work: what is compared is measured side by side, in another order every round."""
    work = list("abcabcabc")
    units = order_units([8] * 9, 0, work=work)
    orders = [[cell for cell, of in units if of == round_index] for round_index in range(8)]
    for order in orders:
        assert sorted(order) == list(range(9))
        letters = [work[cell] for cell in order]
        assert len([letter for letter, _ in itertools.groupby(letters)]) == 3
    assert len({tuple(work[cell] for cell in order) for order in orders}) > 1, "works come in a random order"
    assert len({tuple(cell for cell in order if work[cell] == "a") for order in orders}) > 1, "and so do their cells"
    shared = order_units([1] * 9, 0, work=work, together=list("xyxyxyxyx"))
    process = ["xyxyxyxyx"[cell] for cell, _ in shared]
    assert process in (list("xxxxxyyyy"), list("yyyyxxxxx")), "what shares a process comes first"


def test_work_is_what_paradigms_have_in_common() -> None:
    def cell(**changes: object) -> PlannedCell:
        config = {
            "paradigm": {"name": "ar"},
            "model": {"width": 8},
            "workload": {"output_len": 8},
            "device": {"threads": 1},
        }
        return PlannedCell(name="", config={**config, **changes})

    assert cell().work == cell(paradigm={"name": "ssm"}, model={"width": 16}).work
    assert cell().work != cell(workload={"output_len": 16}).work != cell(device={"threads": 2}).work
