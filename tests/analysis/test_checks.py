"""Every law is shown to hold on records that obey it, and to break on records that do not."""

import json
from dataclasses import replace

import pytest
from synthetic_records import AR, FULL, NAIVE, QUARTER, SIXTEEN, SSM, THRESHOLD, write_sweep

from analysis import checks, equalities, load
from analysis.laws import forwards as expected_forwards

LENGTHS = (16, 64, 128)


def change(folder, table, edit):
    """Rewrite each record of a table with what `edit` returns for it."""
    for path in (folder / "records").glob(f"{table}-*.jsonl"):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(edit(record)) + "\n" for record in records))


def slower_at_128(request, factor):
    return request | {"e2e_s": request["e2e_s"] * (factor if request["requested_tokens"] == 128 else 1)}


def verdict(frames, law):
    (check,) = [check for check in checks.checks(frames) if law in check.law]
    return check.verdict


@pytest.fixture
def folder(tmp_path):
    return write_sweep(tmp_path / "s", output_lens=LENGTHS, rounds=2)


def test_all_hold_on_lawful_records(folder):
    found = checks.checks(load(folder))
    assert len(found) == 13 and {check.verdict for check in found} == {checks.HOLDS}


@pytest.mark.parametrize(
    ("law", "table", "edit"),
    [
        ("committed = requested", "requests", lambda r: r | {"committed_tokens": r["requested_tokens"] - 1}),
        ("NFE = N", "requests", lambda r: r | {"nfe": r["nfe"] + 1}),
        ("state: formula", "runs", lambda r: r | {"state_formula_bytes": 1} if r["round"] == 0 else r),
        ("KV bytes", "runs", lambda r: r | {"state_used_bytes": 4096} if r["round"] == 0 else r),
        ("SSM state", "runs", lambda r: r | {"state_used_bytes": r["workload.output_len"]} if r["round"] == 0 else r),
        ("denoising: positions", "requests", lambda r: r | {"positions_computed": r["positions_computed"] + 1}),
        ("1 ≤ NFE", "requests", lambda r: r | {"nfe": 0}),
        ("without a cache", "requests", lambda r: r | {"positions_computed": r["positions_computed"] + 1}),
        ("AR, KV cache: E2E", "requests", lambda r: slower_at_128(r, 1.3)),
    ],
)
def test_each_law_can_fail(folder, law, table, edit):
    change(folder, table, edit)
    assert verdict(load(folder), law) == checks.FAILS


def test_state_laws_are_silent_where_texts_end_by_themselves(folder):
    change(folder, "runs", lambda r: r | {"workload.stop": "natural", "state_formula_bytes": 1})
    laws = " ".join(check.law for check in checks.checks(load(folder)))
    assert "formula" not in laws and "KV bytes" not in laws and "SSM state" in laws


def test_residual_of_a_contended_length_is_noise(tmp_path):
    folder = write_sweep(tmp_path / "s", paradigms=(AR,), output_lens=LENGTHS, contended=lambda t, n, r: n == 128)
    change(folder, "requests", lambda r: slower_at_128(r, 1.1))
    assert verdict(load(folder), "E2E") == checks.NOISE


def test_drift_of_the_anchor_is_noise(tmp_path):
    folder = write_sweep(tmp_path / "s", paradigms=(AR,), output_lens=(16,), round_noise=0)
    keys = {}
    change(folder, "runs", lambda r: keys.setdefault(r["key"], r["round"]) is None or r)
    change(folder, "requests", lambda r: r | {"e2e_s": r["e2e_s"] * (1 + 0.2 * keys[r["key"]])})
    assert verdict(load(folder), "drift") == checks.NOISE


def test_slow_first_repeats_and_rounds_are_noise(tmp_path):
    folder = write_sweep(tmp_path / "s", paradigms=(AR, SSM), output_lens=LENGTHS, rounds=5, repeats=4)
    law = "first timed repeat"
    assert verdict(load(folder), law) == checks.HOLDS and verdict(load(folder), "first round") == checks.HOLDS
    change(folder, "requests", lambda r: r | {"e2e_s": r["e2e_s"] * (1.05 if r["repeat"] == 0 else 1)})
    assert verdict(load(folder), law) == checks.NOISE and verdict(load(folder), "first round") == checks.HOLDS
    keys = {}
    change(folder, "runs", lambda r: keys.setdefault(r["key"], r["round"]) is None or r)
    change(folder, "requests", lambda r: r | {"e2e_s": r["e2e_s"] * (1.2 if keys[r["key"]] == 0 else 1)})
    assert verdict(load(folder), "first round") == checks.NOISE


def test_expected_forwards(tmp_path):
    frames = load(write_sweep(tmp_path / "s", output_lens=(64,)))
    expected = {row["paradigm.label"]: expected_forwards(row) for _, row in frames.cells.iterrows()}
    token_by_token = dict.fromkeys((AR.label, NAIVE.label, SSM.label, FULL.label), 64)
    assert expected == token_by_token | {QUARTER.label: 16, SIXTEEN.label: 16, THRESHOLD.label: None}


def equality(frames, factor):
    (row,) = [row for row in equalities.equalities(frames) if row.factor == factor]
    return row


def test_equal_sweep_flags_nothing(folder):
    assert all(row.equal for row in equalities.equalities(load(folder)))


@pytest.mark.parametrize(
    ("factor", "column", "value"),
    [("threads", "device.threads", 2), ("dtype", "device.dtype", "bfloat16"), ("execution", "execution", "compiled"),
     ("sampling", "decoder.temperature", 0.5), ("corpus", "corpus_sha256", "cd" * 32)],
)  # fmt: skip
def test_unequal_factor_names_who_differs(folder, factor, column, value):
    change(folder, "runs", lambda r: r | {column: value} if r["paradigm.name"] == "ssm" else r)
    row = equality(load(folder), factor)
    assert not row.equal and SSM.label in row.values and AR.label in row.values


def test_parameters_within_two_per_cent(tmp_path):
    for name, parameters, equal in (("near", 1_529_000, True), ("far", 1_531_000, False)):
        pair = (AR, replace(SSM, parameters=parameters))
        frames = load(write_sweep(tmp_path / name, paradigms=pair, output_lens=(16,)))
        assert equality(frames, "parameters").equal is equal


def test_missing_work_is_unequal(tmp_path):
    frames = load(write_sweep(tmp_path / "s", output_lens=LENGTHS,
                              fail=lambda t, n, r: ("oom", "full") if t is SSM and n == 128 else None))  # fmt: skip
    row = equality(frames, "work")
    assert not row.equal and f"1 of {SSM.label}" in row.values
