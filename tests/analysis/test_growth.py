"""Growth of memory: the slopes that were put in, the interval of a bent line, fragmentation of either kind."""

import json
import math

import pytest
from synthetic_records import AR, HEAD_DIM, ITEMSIZE, KV_HEADS, LAYERS, SSM, write_sweep

from analysis import growth, load, report

A_TOKEN = 2 * LAYERS * KV_HEADS * HEAD_DIM * ITEMSIZE
LENGTHS = (16, 64, 128, 256)


def rewrite(folder, edit):
    for path in (folder / "records").glob("runs-*.jsonl"):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(edit(record)) + "\n" for record in records))


@pytest.mark.parametrize("batch_size", [1, 4])
def test_state_grows_by_keys_and_values_of_a_token(tmp_path, batch_size):
    folder = write_sweep(tmp_path / "s", paradigms=(AR, SSM), output_lens=LENGTHS, batch_sizes=(batch_size,))
    found = growth.growth(load(folder)).set_index("series")
    for column in ("state_used_bytes", "state_formula_bytes"):
        ar, ssm = found.loc[AR.label, column], found.loc[SSM.label, column]
        assert (ar.value, ar.low, ar.high) == pytest.approx((A_TOKEN,) * 3) and ar.count == 4
        assert ssm.value == pytest.approx(0, abs=1e-6)
    assert found.loc[AR.label, "peak_tensor_bytes"].value == pytest.approx(A_TOKEN)  # its widest moment is the prompt
    assert (found.loc[AR.label, "first"], found.loc[AR.label, "last"]) == (80, 320)


def test_a_bent_line_has_an_interval_and_two_points_none(tmp_path):
    folder = write_sweep(tmp_path / "s", paradigms=(AR,), output_lens=LENGTHS)
    wider = lambda r: r["state_used_bytes"] * (1.5 if r["workload.output_len"] == 64 else 1)  # noqa: E731
    rewrite(folder, lambda r: r | {"state_used_bytes": wider(r)} if "state_used_bytes" in r else r)
    bent = growth.growth(load(folder))["state_used_bytes"].item()
    assert bent.low < A_TOKEN < bent.high and bent.high - bent.low > A_TOKEN
    two = write_sweep(tmp_path / "two", paradigms=(AR,), output_lens=(16, 64))
    assert math.isnan(growth.growth(load(two))["state_used_bytes"].item().low)


def test_fragmentation_is_held_over_used(tmp_path):
    folder = write_sweep(tmp_path / "cpu", paradigms=(AR,), output_lens=LENGTHS)
    held = lambda r: 400_000_000 + int(1.25 * r["peak_tensor_bytes"])  # noqa: E731
    rewrite(folder, lambda r: r | {"peak_rss_bytes": held(r)} if "peak_tensor_bytes" in r else r)
    assert growth.growth(load(folder))["fragmentation"].item() == pytest.approx(1.25, rel=1e-3)
    cuda = {"cuda_peak_allocated_bytes": 1000, "cuda_peak_reserved_bytes": 1500}
    rewrite(folder, lambda r: r | cuda if "peak_tensor_bytes" in r else r)
    assert growth.growth(load(folder))["fragmentation"].item() == 1.5


def test_report_has_the_table_where_a_length_varies(tmp_path):
    folder = write_sweep(tmp_path / "s", paradigms=(AR,), output_lens=LENGTHS)
    rows = growth.table(load(folder)).rows
    assert rows[0][:2] == [AR.label, "80 to 320"] and rows[0][3] == f"{A_TOKEN:,}"
    assert "Growth of memory" in report.write_report(load(folder), tmp_path / "out")[0].read_text()
    one = write_sweep(tmp_path / "one", paradigms=(AR,), output_lens=(16,))
    assert growth.table(load(one)).rows == []
