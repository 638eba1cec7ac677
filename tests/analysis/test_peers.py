"""Ratios to a peer: the true one, paired, and only between cells that are equal but for the engine."""

from __future__ import annotations

import pytest
from synthetic_records import AR, PEER, SSM, write_sweep

from analysis.frames import load
from analysis.peers import against_peers, pairs


def column(table, head: str) -> list[str]:
    return [row[table.heads.index(head)] for row in table.rows]


def test_the_ratio_is_the_true_one_at_each_work(tmp_path):
    folder = write_sweep(tmp_path, paradigms=(AR, PEER, SSM), output_lens=(16, 64), prompt_lens=(8, 128), rounds=5)
    table = against_peers(load(folder))
    assert len(table.rows) == 4 and set(column(table, "weights")) == {AR.label}
    for head in ("peer / ours: E2E", "a token after the first", "first token"):
        assert [float(value.split(" [")[0]) for value in column(table, head)] == pytest.approx([2] * 4, rel=0.02)
        assert all("[" in value for value in column(table, head))
    assert [float(value) for value in column(table, "our step / bare products")] == pytest.approx([2] * 4, rel=0.05)


def test_no_pair_without_a_peer_or_with_other_weights_or_conditions(tmp_path):
    assert not against_peers(load(write_sweep(tmp_path / "alone", paradigms=(AR, SSM)))).rows
    two = write_sweep(tmp_path / "two", paradigms=(AR,), factors={"device.dtype": "float32"})
    write_sweep(two, paradigms=(PEER,), factors={"device.dtype": "bfloat16"}, shard="b")
    assert list(pairs(load(two))) == []


def test_a_peer_that_failed_has_no_ratio(tmp_path):
    fail = lambda truth, output_len, round_index: ("failed", "no") if truth is PEER else None  # noqa: E731
    assert not against_peers(load(write_sweep(tmp_path, paradigms=(AR, PEER), fail=fail))).rows
