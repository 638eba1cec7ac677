"""Loading: what counts, what is left out, and that it is said."""

import json
import shutil

import pytest
from synthetic_records import AR, SSM, write_sweep

from analysis import load, tables
from paradigms.records import RecordWriter

SMALL = {"paradigms": (AR, SSM), "output_lens": (16, 32), "rounds": 2}


def only_shard(folder, table):
    return next((folder / "records").glob(f"{table}-a.jsonl"))


def test_counts_and_join(tmp_path):
    frames = load(write_sweep(tmp_path / "s", **SMALL))
    assert (len(frames.runs), len(frames.requests), len(frames.cells), len(frames.samples)) == (8, 16, 4, 16)
    assert frames.notes == ()
    assert (frames.timed["workload.output_len"] == frames.timed["committed_tokens"]).all()
    assert frames.cells["units_ok"].tolist() == [2] * 4 and frames.cells["requests"].tolist() == [4] * 4
    assert frames.tokens.empty


@pytest.mark.parametrize("slow", [1.1, 1.5])
def test_a_unit_beside_which_fixed_work_was_slow_is_contended(tmp_path, slow):
    folder = write_sweep(tmp_path / "s", **SMALL)
    path = only_shard(folder, "runs")
    runs = [json.loads(line) for line in path.read_text().splitlines()]
    for index, run in enumerate(runs):
        run |= {"probe_before_s": 0.002, "probe_after_s": 0.002 * (slow if index == 3 else 1)}
    path.write_text("".join(json.dumps(run) + "\n" for run in runs))
    frames = load(folder)
    marked = frames.runs.set_index("key")
    assert marked.loc[runs[3]["key"], "slowdown"] == pytest.approx(slow)
    assert marked["contended"].sum() == (slow > 1.2)
    assert marked.loc[runs[3]["key"], "contended"] == (slow > 1.2)


def test_requests_of_a_unit_without_a_runs_line_do_not_count(tmp_path):
    folder = write_sweep(tmp_path / "s", **SMALL)
    path = only_shard(folder, "runs")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    frames = load(folder)
    assert (len(frames.runs), len(frames.requests)) == (7, 14)


def test_corrupted_lines_are_left_out_and_named(tmp_path):
    folder = write_sweep(tmp_path / "s", **SMALL)
    path = only_shard(folder, "requests")
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2][:40] + b"\n"
    lines[4] = b"\xff\xfe not text\n"
    path.write_bytes(b"".join(lines))
    frames = load(folder)
    assert len(frames.requests) == 14
    (note,) = frames.notes
    assert str(path) in note and "2 corrupted lines" in note and "3, 5" in note


def test_value_of_a_wrong_type_is_left_out_and_said(tmp_path):
    folder = write_sweep(tmp_path / "s", **SMALL)
    path = only_shard(folder, "requests")
    lines = path.read_text().splitlines()
    lines[0] = json.dumps(json.loads(lines[0]) | {"e2e_s": "soon"})
    path.write_text("\n".join(lines) + "\n")
    frames = load(folder)
    assert frames.requests["e2e_s"].isna().sum() == 1
    assert any("e2e_s" in note for note in frames.notes)


def test_ok_wins_over_failed_whatever_the_order(tmp_path):
    folder = tmp_path / "s"
    write_sweep(folder, **SMALL, shard="b", fail=lambda *_: ("failed", "no"), started_at="2026-01-02T00:00:00Z")
    write_sweep(folder, **SMALL, shard="a")
    frames = load(folder)
    assert set(frames.runs["status"]) == {"ok"} and len(frames.runs) == 8 and len(frames.requests) == 16


def test_of_a_unit_tried_twice_in_one_shard_only_the_last_try_counts(tmp_path):
    folder = tmp_path / "s"
    writer = RecordWriter(folder, "a")
    unit = {"key": "k", "cell_key": "c", "round": 0, "status": "ok"}
    first, second = (
        [{"key": "k", "repeat": repeat, "row": 0, "e2e_s": e2e_s} for repeat in range(count)]
        for count, e2e_s in ((5, 9.0), (2, 1.0))
    )
    writer._append("requests", first)  # a crash before the runs line
    writer.write_unit(unit, requests=second)
    assert load(folder).requests["e2e_s"].tolist() == [1.0, 1.0]


def test_older_code_is_set_aside_with_a_note(tmp_path):
    folder = tmp_path / "s"
    write_sweep(folder, **SMALL, shard="a", code="new", started_at="2026-01-02T00:00:00Z")
    write_sweep(folder, **SMALL, shard="b", code="old")
    frames = load(folder)
    assert set(frames.runs["code"]) == {"new"} and len(frames.runs) == 8
    assert any("8 units set aside" in note for note in frames.notes)


def test_merging_keeps_machines_apart_and_counts_a_copied_folder_once(tmp_path):
    one = write_sweep(tmp_path / "one", **SMALL)
    two = write_sweep(tmp_path / "two", **SMALL, machine_id="m1", machine="another")
    shutil.copytree(one, tmp_path / "copy")
    assert len(load(one, tmp_path / "copy").requests) == 16
    merged = load(one, two)
    assert len(merged.cells) == 8 and set(merged.cells["machine"]) == set(merged.runs["machine"])


def test_errors_say_what_to_do(tmp_path):
    write_sweep(tmp_path / "there", **SMALL)
    with pytest.raises(ValueError, match=r"no folder .*gone; there are .*there"):
        load(tmp_path / "gone")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"no finished unit in .*empty"):
        load(tmp_path / "empty")
    with pytest.raises(ValueError, match="no sweep folder"):
        load()


def test_what_a_unit_was_beside_and_its_energy_reach_the_tables(tmp_path):
    """Reasons with their largest readings over the units of a cell; joules only where a counter told them."""
    told = {0: "other processes 0.20, run queue 0.05", 1: "run queue 0.31, GPU processes 2"}
    folder = write_sweep(
        tmp_path / "s", paradigms=(AR,), output_lens=(16, 32), contended=lambda t, n, r: n == 32 and r in told
    )
    for path in (folder / "records").glob("runs-*.jsonl"):
        runs = [json.loads(line) for line in path.read_text().splitlines()]
        for run in runs:
            if run["contended"]:
                run |= {"contended_by": told[run["round"]], "attempts": run["round"] + 2, "contention": 4.0}
            if run["workload.output_len"] == 16:
                run |= {"energy_j": 8.0, "energy_j_per_token": 0.25, "energy_source": "rapl"}
        path.write_text("".join(json.dumps(run) + "\n" for run in runs))
    frames = load(folder)
    (row,) = tables.contended(frames).rows
    assert row[-3:] == ["2 of 3", "other processes 0.200, run queue 0.310, GPU processes 2.00", "3"]
    every = tables.every_cell(frames)
    assert [row[every.heads.index("J a token")] for row in every.rows] == ["0.250", "–"]
    assert set(frames.runs["energy_source"].dropna()) == {"rapl"} and frames.runs["energy_j"].dtype == float
    plain = write_sweep(tmp_path / "plain", paradigms=(AR,), output_lens=(16,))
    assert "J a token" not in tables.every_cell(load(plain)).heads
