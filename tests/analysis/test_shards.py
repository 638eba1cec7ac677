"""The Parquet copy of the records: equal to the lines, made again when they change, never in the way."""

import json
import multiprocessing
import os
import time

import numpy as np
import pytest
import synthetic_records
from pandas.testing import assert_frame_equal
from synthetic_records import AR, QUARTER, SSM, write_sweep

from analysis import load, shards
from paradigms.records import canonical_json, content_hash, unit_key

SMALL = {"paradigms": (AR, SSM, QUARTER), "output_lens": (16, 32), "rounds": 2}
TABLES = ("runs", "requests", "training")


@pytest.fixture(autouse=True)
def small_tables_have_a_copy(monkeypatch):
    monkeypatch.setattr(shards, "WORTH_BYTES", 1)


@pytest.fixture
def folder(tmp_path):
    return write_sweep(tmp_path / "s", **SMALL)


def copy_of(folder, table="requests"):
    return folder / "records" / ".cache" / f"{table}.parquet"


def add(folder, table, *records):
    path = next((folder / "records").glob(f"{table}-a*.jsonl"))
    path.write_text(path.read_text() + "".join(json.dumps(record) + "\n" for record in records))


def parsed(folder, table, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(shards, "CACHED", ())
        return shards.read(folder, table)[0]


def test_copy_equals_the_lines(folder, monkeypatch):
    first = json.loads(next((folder / "records").glob("runs-a.jsonl")).read_text().splitlines()[0])
    odd = {"key": "odd", "list": [0.1, None, [1]], "mixed": "soon", "number": 2**70, "a": {"b": "≤ é"}, "void": None}
    add(folder, "runs", first | odd, first | {"key": "x", "mixed": 3, "flag": True}, first | {"key": "y", "flag": None})
    for table in TABLES:
        lines = parsed(folder, table, monkeypatch)
        shards.read(folder, table)
        assert copy_of(folder, table).exists()
        with monkeypatch.context() as patch:
            patch.setattr(shards, "_parse", None)  # not read again
            assert_frame_equal(shards.read(folder, table)[0], lines)
    assert not list(copy_of(folder).parent.glob("*.tmp"))


def test_whole_report_input_is_equal_with_and_without(folder, monkeypatch):
    cold, warm = load(folder), load(folder)
    monkeypatch.setattr(shards, "CACHED", ())
    plain = load(folder)
    for name in TABLES:
        assert_frame_equal(getattr(cold, name), getattr(plain, name))
        assert_frame_equal(getattr(warm, name), getattr(plain, name))


def test_appended_changed_and_added_shards_are_seen(folder):
    count = len(load(folder).requests)
    line = next((folder / "records").glob("requests-a.jsonl")).read_text().splitlines()[0]
    add(folder, "requests", json.loads(line) | {"repeat": 7})
    assert len(load(folder).requests) == count + 1
    write_sweep(folder, paradigms=(AR,), output_lens=(64,), rounds=1, shard="b")
    assert len(load(folder).requests) == count + 3
    path = next((folder / "records").glob("requests-b.jsonl"))
    path.write_text(path.read_text().replace('"row":0', '"row":1'))  # as long as before
    assert (load(folder).requests["row"] == 1).sum() == 2
    path.unlink()
    assert len(load(folder).requests) == count + 1


def test_notes_of_unreadable_lines_are_kept(folder):
    path = next((folder / "records").glob("requests-a.jsonl"))
    path.write_bytes(path.read_bytes() + b"\xff no\n")
    cold, warm = load(folder).notes, load(folder).notes
    assert cold == warm and "1 corrupted line" in warm[0]


@pytest.mark.parametrize("damage", [b"", b"no parquet", None])
def test_damaged_copy_is_made_again_and_said(folder, damage):
    count = len(load(folder).requests)
    copy = copy_of(folder)
    copy.write_bytes(copy.read_bytes()[:-40] if damage is None else damage)
    frames = load(folder)
    assert len(frames.requests) == count and any(f"{copy} cannot be read" in note for note in frames.notes)
    assert load(folder).notes == ()


def test_copy_of_another_format_is_made_again(folder, monkeypatch):
    load(folder)
    before = copy_of(folder).stat().st_mtime_ns
    monkeypatch.setattr(shards, "FORMAT", -1)
    assert load(folder).notes == () and copy_of(folder).stat().st_mtime_ns != before


def test_folder_that_cannot_be_written_is_read(folder, monkeypatch):
    """A user who may do everything can write anywhere, so the refusal is made up."""

    def refuse(*arguments, **options):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(shards.pq, "write_table", refuse)
    assert len(load(folder).requests) == 24 and not copy_of(folder).exists()
    copy_of(folder).parent.rmdir()
    copy_of(folder).parent.write_text("a file where the folder would be")
    assert len(load(folder).requests) == 24


def test_small_tables_and_samples_have_no_copy(folder, monkeypatch):
    assert len(load(folder).samples) == 24 and not copy_of(folder, "samples").exists()
    other = write_sweep(folder.with_name("other"), **SMALL)
    monkeypatch.setattr(shards, "WORTH_BYTES", 10**9)
    load(other)
    assert not copy_of(other).parent.exists()


def test_copy_replaced_while_it_is_read_is_not_taken_for_the_first(folder, monkeypatch):
    """A slower reader may put an older copy in place between what a copy says of its shards and its rows."""
    shards.read(folder, "requests")
    older = copy_of(folder).read_bytes()
    line = next((folder / "records").glob("requests-a.jsonl")).read_text().splitlines()[0]
    add(folder, "requests", json.loads(line) | {"repeat": 7})
    assert len(shards.read(folder, "requests")[0]) == 25
    loads, replaced = json.loads, []

    def replace(text):
        if not replaced:
            other = copy_of(folder).with_name("older")
            other.write_bytes(older)
            replaced.append(os.replace(other, copy_of(folder)))
        return loads(text)

    with monkeypatch.context() as patch:
        patch.setattr(shards.json, "loads", replace)
        assert len(shards.read(folder, "requests")[0]) == 25
    assert replaced


def _read_often(folder, results):
    shards.WORTH_BYTES = 1
    results.put([len(shards.read(folder, "requests")[0]) for _ in range(8)])


def test_readers_beside_a_writer_never_see_less_than_was_there(folder):
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    readers = [context.Process(target=_read_often, args=(folder, results)) for _ in range(2)]
    for reader in readers:
        reader.start()
    line = next((folder / "records").glob("requests-a.jsonl")).read_text().splitlines()[0]
    path = folder / "records" / "requests-c.jsonl"
    count = 24
    while any(reader.is_alive() for reader in readers) and count < 2_000:
        with open(path, "a") as file:
            file.write(line + "\n")
        count += 1
        time.sleep(0.01)
    for counts in (results.get(timeout=60) for _ in readers):
        assert counts == sorted(counts) and counts[0] >= 24
    for reader in readers:
        reader.join()
    assert len(shards.read(folder, "requests")[0]) == count
    assert not list(copy_of(folder).parent.glob("*.tmp"))


def test_two_machines_merge(tmp_path):
    """Their folders side by side, or their files in one: cells stay apart, and warm equals cold."""
    one = write_sweep(tmp_path / "one", **SMALL)
    two = write_sweep(tmp_path / "two", **SMALL, machine_id="m1", machine="another", shard="b")
    both = tmp_path / "both" / "records"
    both.mkdir(parents=True)
    for path in [*one.glob("records/*.jsonl"), *two.glob("records/*.jsonl")]:
        (both / path.name).write_bytes(path.read_bytes())
    for _ in ("cold", "warm"):
        apart, together = load(one, two), load(both.parent)
        for frames in (apart, together):
            assert frames.runs["machine_id"].value_counts().to_dict() == {"m0": 12, "m1": 12}
            assert len(frames.cells) == 12 and len(frames.requests) == 48
        columns = ["key", "repeat", "row", "e2e_s"]
        one_way, other_way = (f.requests[columns].sort_values(columns, ignore_index=True) for f in (apart, together))
        assert_frame_equal(one_way, other_way)


def write_many(folder, *, rounds):
    """100 cells with 10 requests a unit, written at once."""
    random, records = np.random.default_rng(0), {"runs": [], "requests": []}
    for round_index in range(rounds):
        for truth in synthetic_records.ALL[:5]:
            for output_len, prompt_len in [(8 * 2**i, 8 * 2**j) for i in range(5) for j in range(4)]:
                config = synthetic_records._config(truth, prompt_len, output_len, 1)
                config |= {f"model.option_{index}": index for index in range(40)}
                key = unit_key(cell=config, round_index=round_index, code="c", checkpoint=truth.name, machine="m0")
                run = {
                    "key": key,
                    "cell_key": content_hash(config),
                    "round": round_index,
                    "started_at": "2026",
                    **config,
                }
                run |= config | synthetic_records._machine("m0", "a machine", "c") | {"contended": False}
                records["runs"].append(run | synthetic_records._unit(truth, prompt_len, output_len, 1, round_index))
                noise = random.lognormal(0, 0.01, size=10)
                records["requests"] += synthetic_records._requests(key, truth, prompt_len, output_len, 1, noise)[0]
    (folder / "records").mkdir(parents=True)
    for table, rows in records.items():
        (folder / "records" / f"{table}-a.jsonl").write_text("".join(canonical_json(row) + "\n" for row in rows))


@pytest.mark.slow
def test_hundred_thousand_requests(tmp_path, monkeypatch):
    """Prints what loading costs (pytest -s): the first time, which parses the lines, and from then on."""
    monkeypatch.undo()
    write_many(tmp_path / "big", rounds=100)
    for name in ("cold", "warm"):
        started = time.perf_counter()
        frames = load(tmp_path / "big")
        print(f"{name}: {time.perf_counter() - started:.2f} s for {len(frames.requests):,} requests, "
              f"{len(frames.runs):,} units, {os.path.getsize(copy_of(tmp_path / 'big')):,} bytes")  # fmt: skip
        assert (len(frames.runs), len(frames.requests)) == (10_000, 100_000)
