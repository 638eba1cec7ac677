"""Ratios to a peer: the true one, paired, and only between cells that are equal but for the engine."""

from __future__ import annotations

import pytest
from synthetic_records import AR, NAIVE, PEER, SSM, write_sweep

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


def test_another_way_of_decoding_is_no_pair(tmp_path):
    """A peer with a cache is held against ours with one, and sampling against sampling."""
    found = list(pairs(load(write_sweep(tmp_path / "cache", paradigms=(AR, NAIVE, PEER), output_lens=(16,)))))
    assert [ours["paradigm.name"] for ours, _ in found] == [AR.name]
    two = write_sweep(tmp_path / "greedy", paradigms=(AR,), factors={"decoder.temperature": 0.0})
    write_sweep(two, paradigms=(PEER,), shard="b")
    assert list(pairs(load(two))) == []
    eight = write_sweep(tmp_path / "eight", paradigms=(AR,), factors={"decoder.kv_dtype": "int8"})
    write_sweep(eight, paradigms=(PEER,), shard="b")
    assert list(pairs(load(eight))) == []
    plain = write_sweep(tmp_path / "plain", paradigms=(AR,), output_lens=(16,), factors={"decoder.kv_dtype": None})
    peer = {"decoder.cache": None, "decoder.use_cache": True}
    write_sweep(plain, paradigms=(PEER,), output_lens=(16,), factors=peer, shard="b")
    assert len(list(pairs(load(plain)))) == 1


def test_a_peer_that_failed_has_no_ratio(tmp_path):
    fail = lambda truth, output_len, round_index: ("failed", "no") if truth is PEER else None  # noqa: E731
    assert not against_peers(load(write_sweep(tmp_path, paradigms=(AR, PEER), fail=fail))).rows
