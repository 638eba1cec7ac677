"""Cells and series: what is put together, and what must not be."""

import math

import pandas as pd
import pytest
from synthetic_records import AR, FULL, NAIVE, QUARTER, SSM, write_sweep

from analysis import findings, load
from analysis.summary import BATCH_SIZE, OUTPUT_LEN, PROMPT_LEN, axes_varying, headline_cells, series_over, summarise

EXACT = {"round_noise": 0.0, "repeat_noise": 0.0}


def row_of(frames, truth, output_len):
    cells = summarise(frames)
    (row,) = cells[(cells["label"] == truth.label) & (cells[OUTPUT_LEN] == output_len)].to_dict("records")
    return row


def test_figures_follow_from_the_costs(tmp_path):
    frames = load(write_sweep(tmp_path / "s", paradigms=(AR, QUARTER), output_lens=(16, 64), **EXACT))
    ar, quarter = row_of(frames, AR, 64), row_of(frames, QUARTER, 64)
    prefill_s, step_s = AR.step_s + 64 * AR.position_s, AR.step_s + AR.position_s
    assert ar["e2e_s"] == pytest.approx(prefill_s + 63 * step_s)
    assert ar["ttft_s"] == pytest.approx(prefill_s) and ar["tpot_s"] == pytest.approx(step_s)
    assert ar["tokens_per_forward"] == 1 and quarter["tokens_per_forward"] == 4
    assert math.isnan(quarter["tpot_s"]) and quarter["ttft_s"] == quarter["e2e_s"]
    assert (ar["rounds"], ar["requests"]) == (3, 6)
    assert quarter["bits_per_byte_is_bound"] and not ar["bits_per_byte_is_bound"]


def test_rounds_add_no_generations(tmp_path):
    """The same seeds give the same text again: more rounds must not narrow the interval of a quality figure."""
    few = load(write_sweep(tmp_path / "few", paradigms=(AR,), output_lens=(16,), rounds=1, repeats=4))
    many = load(write_sweep(tmp_path / "many", paradigms=(AR,), output_lens=(16,), rounds=6, repeats=4))
    few, many = row_of(few, AR, 16), row_of(many, AR, 16)
    assert few["generations"] == many["generations"] == 4
    for name in ("judge_bits_per_byte", "judge_bits_per_byte_low", "judge_bits_per_byte_high"):
        assert few[name] == many[name]


def test_throughput_is_the_batch_over_its_wall_time(tmp_path):
    frames = load(write_sweep(tmp_path / "s", paradigms=(AR,), output_lens=(32,), batch_sizes=(1, 8), **EXACT))
    for row in summarise(frames).to_dict("records"):
        assert row["throughput_tokens_per_s"] == pytest.approx(32 * row[BATCH_SIZE] / row["e2e_s"])


def test_tail_percentile_only_with_enough_requests(tmp_path):
    frames = load(write_sweep(tmp_path / "s", paradigms=(AR,), output_lens=(16,), rounds=4, repeats=25))
    row = row_of(frames, AR, 16)
    assert row["e2e_s_p90"] > row["e2e_s"] and pd.isna(row["e2e_s_p99"])


@pytest.mark.parametrize(
    ("axis", "sizes"),
    [
        (OUTPUT_LEN, {"output_lens": (16, 32)}),
        (PROMPT_LEN, {"prompt_lens": (8, 16)}),
        (BATCH_SIZE, {"batch_sizes": (1, 2)}),
    ],
)
def test_axis_that_varies_is_found(tmp_path, axis, sizes):
    frames = load(write_sweep(tmp_path / "s", **({"paradigms": (AR,), "output_lens": (16,)} | sizes)))
    assert axes_varying(frames) == [axis]
    assert set(headline_cells(frames)["x"]) == {max(next(iter(sizes.values())))}


def test_cells_that_differ_in_more_than_the_axis_become_series_of_their_own(tmp_path):
    for temperature in (0.5, 1.0):
        write_sweep(tmp_path / "s", paradigms=(AR, SSM), output_lens=(16, 32), shard=f"t{temperature}",
                    factors={"decoder.temperature": temperature})  # fmt: skip
    rows = series_over(load(tmp_path / "s"), OUTPUT_LEN)
    names = {f"{truth.label} · temperature {value}" for truth in (AR, SSM) for value in ("0.5", "1")}
    assert set(rows["series"]) == names
    assert (rows.groupby(["series", "x"]).size() == 1).all()


def test_factor_that_follows_from_the_axis_names_nothing(tmp_path):
    frames = load(write_sweep(tmp_path / "s", paradigms=(FULL, QUARTER), output_lens=(16, 32)))
    assert set(series_over(frames, OUTPUT_LEN)["series"]) == {FULL.label, QUARTER.label}


def test_machines_become_series(tmp_path):
    one = write_sweep(tmp_path / "one", paradigms=(AR,), output_lens=(16, 32))
    two = write_sweep(tmp_path / "two", paradigms=(AR,), output_lens=(16, 32), machine_id="m1", machine="another")
    rows = series_over(load(one, two), OUTPUT_LEN)
    assert rows.groupby("series")["machine_id"].nunique().tolist() == [1, 1]


def test_context_cells_stay_out_of_the_length_figure(tmp_path):
    one = write_sweep(tmp_path / "one", paradigms=(AR,), output_lens=(16, 32))
    two = write_sweep(tmp_path / "two", paradigms=(AR,), output_lens=(16,), prompt_lens=(64, 512),
                      factors={"sweep.name": "context"})  # fmt: skip
    frames = load(one, two)
    assert set(series_over(frames, OUTPUT_LEN)["series"]) == {AR.label}
    assert axes_varying(frames) == [OUTPUT_LEN, PROMPT_LEN]


def test_ratio_cancels_drift(tmp_path):
    frames = load(write_sweep(tmp_path / "s", paradigms=(AR, NAIVE), output_lens=(64, 128), round_noise=0.5,
                              repeat_noise=0))  # fmt: skip
    ratios = findings.ratio_to_reference(frames).set_index("label")["ratio"]
    cached_s, naive_s = (sum(t.step_s + t.position_s * k for k in t.positions(64, 128)) for t in (AR, NAIVE))
    estimate = ratios[NAIVE.label]
    assert estimate.count == 3
    assert estimate.low == pytest.approx(naive_s / cached_s) and estimate.high == pytest.approx(naive_s / cached_s)
    assert ratios[AR.label].value == 1


def test_rounds_of_different_sweeps_are_not_paired(tmp_path):
    one = write_sweep(tmp_path / "one", paradigms=(AR,), output_lens=(16, 32))
    two = write_sweep(tmp_path / "two", paradigms=(NAIVE,), output_lens=(16, 32), factors={"sweep.name": "other"})
    ratios = findings.ratio_to_reference(load(one, two)).set_index("label")["ratio"]
    assert ratios[AR.label].count == 3 and ratios[NAIVE.label].count == 0
