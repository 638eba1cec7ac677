"""Rooflines of records whose work, times and peaks are known: shares come out exactly, and what is missing is said."""

import json
from dataclasses import replace

import numpy as np
import pytest
from synthetic_records import AR, FULL, QUARTER, SSM, write_sweep

from analysis import figures, load, report, roofline, roofline_figures, tables

PEAK_FLOPS, PEAK_BYTES = 8e10, 5e10
PHASE_OF = {AR.name: "decode", SSM.name: "decode", FULL.name: "denoise", QUARTER.name: "denoise"}
STEADY = {"round_noise": 0.0, "repeat_noise": 0.0, "rounds": 2}
SOME = {"paradigms": (AR, SSM, QUARTER), "output_lens": (16, 64)}


def work(truth, run):
    """A made-up ledger: phase -> (forwards, matmul and other FLOPs, bytes of weights, of state read and written)."""
    prompt, output = int(run["workload.prompt_len"]), int(run["workload.output_len"])
    position_flops, weights = 2 * run["parameters"] * run["workload.batch_size"], run["weight_bytes"]
    if PHASE_OF[truth] == "denoise":
        steps = len(_truth(truth).positions(prompt, output))
        return {"denoise": (steps, position_flops * steps * (prompt + output), 1000 * steps, weights * steps, 0, 0)}
    rest = output - 1
    return {
        "prefill": (1, position_flops * prompt, 1000, weights, 0, 500),
        "decode": (rest, position_flops * rest, 1000 * rest, weights * rest, 700 * rest, 300 * rest),
    }


def _truth(name):
    return next(truth for truth in (AR, SSM, FULL, QUARTER) if truth.name == name)


def columns(truth, run):
    names = ("forwards", "matmul_flops", "other_flops", "weight_bytes", "state_read_bytes", "state_written_bytes")
    return {
        f"{name}_{phase}": value
        for phase, values in work(truth, run).items()
        for name, value in zip(names, values, strict=True)
    }


def add(folder, more):
    """Add columns to the units of a sweep: `more(run)` gives them."""
    for path in (folder / "records").glob("runs-*.jsonl"):
        runs = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(run | more(run)) + "\n" for run in runs))
    return folder


def with_roof(run):
    roof = {"peak_flops_per_s": PEAK_FLOPS, "peak_bytes_per_s": PEAK_BYTES, "calibrated_at": "2026-01-01T00:00:00Z"}
    return columns(run["paradigm.name"], run) | roof | {"device": "cpu"}


@pytest.fixture(scope="module")
def frames(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "steady"
    return load(add(write_sweep(folder, **SOME, **STEADY, batch_sizes=(1, 4)), with_roof))


def seconds(truth, phase, row):
    """The law of the synthetic records."""
    prompt, output, batch = (int(row[f"workload.{name}"]) for name in ("prompt_len", "output_len", "batch_size"))
    times = [truth.step_s + truth.position_s * count * batch for count in truth.positions(prompt, output)]
    return {"prefill": times[0], "decode": sum(times[1:]), "denoise": sum(times)}[phase]


def test_shares_are_those_of_the_known_work_and_time(frames):
    rows = roofline.rates(frames)
    assert len(rows) == 2 * 2 * (2 + 2 + 1)  # outputs x batches x phases of the three
    for row in rows.to_dict("records"):
        truth = _truth(row["paradigm.name"])
        _, matmul, other, *moved = work(truth.name, row)[row["phase"]]
        seconds_s = seconds(truth, row["phase"], row)
        assert row["seconds"] == pytest.approx(seconds_s)
        assert row["intensity"] == pytest.approx((matmul + other) / sum(moved))
        assert row["flops_per_s"] == pytest.approx((matmul + other) / seconds_s)
        assert row["bytes_per_s"] == pytest.approx(sum(moved) / seconds_s)
        for name, value in (("mfu", row["flops_per_s"] / PEAK_FLOPS), ("mbu", row["bytes_per_s"] / PEAK_BYTES)):
            assert row[name] == row[f"{name}_low"] == row[f"{name}_high"] == pytest.approx(value)


def test_intervals_come_from_rounds(tmp_path):
    noisy = load(add(write_sweep(tmp_path / "noisy", **SOME, rounds=3, round_noise=0.1), with_roof))
    rows = roofline.rates(noisy)
    assert (rows["mfu_low"] < rows["mfu"]).all() and (rows["mfu"] < rows["mfu_high"]).all()
    per_round = noisy.requests.merge(noisy.runs[["key", "cell", "round"]], on="key")
    row = rows[rows["phase"] == "denoise"].iloc[0]
    by_round = per_round[per_round["cell"] == row["cell"]].groupby("round")["e2e_s"].median()
    assert row["mbu"] == pytest.approx(row["bytes"] / by_round.median() / PEAK_BYTES, rel=1e-3)


def test_each_unit_is_held_against_its_own_peak(tmp_path):
    """A machine that was calibrated again between rounds: equal times, other shares."""
    folder = write_sweep(tmp_path / "again", paradigms=(SSM,), output_lens=(16,), **STEADY)
    rows = roofline.rates(
        load(add(folder, lambda run: with_roof(run) | {"peak_flops_per_s": 1e10 * 2 ** run["round"]}))
    )
    decode = rows[rows["phase"] == "decode"].iloc[0]
    assert decode["flops_per_s_low"] == decode["flops_per_s_high"]
    assert (decode["mfu_low"], decode["mfu_high"]) == pytest.approx(
        (decode["flops_per_s"] / 2e10, decode["flops_per_s"] / 1e10)
    )


def test_several_prefills_count_to_the_phase_that_they_serve(tmp_path):
    """The clock knows only the first forward: with two prefills there is one phase, over the whole time."""
    folder = write_sweep(tmp_path / "canvases", paradigms=(QUARTER,), output_lens=(16,), **STEADY)
    more = {"forwards_prefill": 2, "matmul_flops_prefill": 4e6, "weight_bytes_prefill": 3e6}
    frames = load(add(folder, lambda run: with_roof(run) | more))
    (row,) = roofline.rates(frames).to_dict("records")
    _, matmul, other, weights, *_ = work(QUARTER.name, row)["denoise"]
    assert row["phase"] == "denoise" and row["seconds"] == pytest.approx(seconds(QUARTER, "denoise", row))
    assert (row["flops"], row["bytes"]) == (matmul + other + 4e6, weights + 3e6)


def test_figure_shows_every_point_under_its_roof(frames):
    (choice,) = [choice for choice in figures.choose(frames) if choice.name == "roofline"]
    fig = choice.draw(frames)
    (panel,) = fig.axes
    rows = roofline.rates(frames)
    for phase, marker in roofline_figures.MARKERS.items():
        points = [line.get_xydata() for line in panel.lines if line.get_marker() == marker]
        wanted = rows.loc[rows["phase"] == phase, ["intensity", "flops_per_s"]].to_numpy()
        assert sorted(np.concatenate(points).tolist()) == sorted(wanted.tolist())
    roof = panel.lines[0]
    for x, y in zip(roof.get_xdata(), roof.get_ydata(), strict=True):
        assert y == pytest.approx(min(PEAK_FLOPS, x * PEAK_BYTES))
    assert min(roof.get_xdata()) < rows["intensity"].min() and max(roof.get_xdata()) > rows["intensity"].max()
    assert panel.get_xscale() == panel.get_yscale() == "log"
    legend = [text.get_text() for text in fig.legends[0].get_texts()]
    assert legend[:6] == [AR.label, QUARTER.label, SSM.label, "prefill", "decode", "denoise"]
    assert legend[6] == "roof: 80.0 GFLOP/s,\n50.0 GB/s"
    assert fig._supxlabel.get_text().startswith("2 cores of a made-up CPU")


def test_more_paradigms_than_colours_are_told_apart(tmp_path):
    many = tuple(replace(AR, name=f"ar_{index:02}", label=f"AR {index:02}") for index in range(12))
    folder = write_sweep(tmp_path / "many", paradigms=many, output_lens=(16,), **STEADY)
    frames = load(add(folder, lambda run: with_roof(run | {"paradigm.name": AR.name})))
    looks = {
        (handle.get_color(), handle.get_fillstyle())
        for handle in roofline_figures.figure(frames).legends[0].legend_handles[:12]
    }
    assert len(looks) == 12


def test_table_and_sentence(frames):
    table = roofline_figures.table(frames)
    rows = roofline.rates(frames)
    assert {len(row) for row in table.rows} == {len(table.heads)}
    assert table.title.endswith("at 64 output tokens")
    shown = {(row[0].split(" · ")[0], row[1]) for row in table.rows}
    assert shown == set(zip(rows["label"], rows["phase"], strict=True))
    for row in table.rows:
        assert float(row[2].split(" [")[0]) == pytest.approx(100 * float(row[4].split(" [")[0]) / 80, rel=0.01)
        assert float(row[3].split(" [")[0]) == pytest.approx(100 * float(row[5].split(" [")[0]) / 50, rel=0.01)
    assert {row[7] for row in table.rows} <= {"operations", "bytes"}
    said = roofline_figures.sentence(frames)
    assert said.startswith("At 64 output tokens, of what the machine was found to achieve: in prefill ")
    assert "in decode" in said and "in denoise" in said


def test_the_sentence_names_the_extremes(tmp_path):
    frames = load(add(write_sweep(tmp_path / "two", paradigms=(AR, SSM), output_lens=(16, 64), **STEADY), with_roof))
    rows = roofline.rates(frames)
    decode = rows[(rows["phase"] == "decode") & (rows["workload.output_len"] == 64)].set_index("label")
    best, worst = (
        f"{label} reaches {100 * decode.loc[label, 'mbu']:.3g} % of the bandwidth" for label in (AR.label, SSM.label)
    )
    assert decode.loc[AR.label, "mbu"] > decode.loc[SSM.label, "mbu"]
    assert f"in decode {best}, {worst}" in roofline_figures.sentence(frames)


def test_more_than_the_peak_is_called_no_finding(frames, tmp_path):
    rows = roofline.rates(frames)
    most = rows.loc[rows["workload.output_len"] == 64, ["mfu", "mbu"]].max(axis=None)
    assert most > 1.05 and "calibrate it again" in roofline_figures.sentence(frames)
    high = write_sweep(tmp_path / "high", **SOME, **STEADY)
    higher = load(add(high, lambda run: with_roof(run) | {"peak_flops_per_s": 1e13, "peak_bytes_per_s": 1e13}))
    assert "calibrate it again" not in roofline_figures.sentence(higher)


@pytest.mark.parametrize("contended", [True, False, None], ids=["contended", "quiet", "unknown"])
def test_a_contended_calibration_is_said(tmp_path, contended):
    folder = write_sweep(tmp_path / "one", paradigms=(AR,), output_lens=(16,), **STEADY)
    high = {"peak_flops_per_s": 1e13, "peak_bytes_per_s": 1e13, "calibration_contended": contended}
    said = roofline_figures.sentence(load(add(folder, lambda run: with_roof(run) | high)))
    assert ("Something else ran while the machine was calibrated" in said) == (contended is True)


def test_columns_of_the_csv(frames):
    cells = tables.results(frames)
    rows = roofline.rates(frames)
    for row in rows.to_dict("records"):
        same = cells[(cells["cell_key"] == row["cell_key"])].iloc[0]
        assert same[f"mfu_{row['phase']}"] == row["mfu"] and same[f"mbu_{row['phase']}_high"] == row["mbu_high"]
        assert same[f"intensity_{row['phase']}"] == row["intensity"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (lambda run: {}, "no work was counted"),
        (lambda run: columns(run["paradigm.name"], run), "python -m paradigms.costs calibrate"),
        (lambda run: with_roof(run) | {"peak_flops_per_s": None}, "products of this dtype"),
    ],
    ids=["no_ledger", "no_calibration", "no_dtype"],
)
def test_without_a_roof_it_says_how_to_get_one(tmp_path, more, words):
    frames = load(add(write_sweep(tmp_path / "bare", **SOME, **STEADY), more))
    assert words in roofline.missing(frames)
    assert "roofline" not in [choice.name for choice in figures.choose(frames)]
    assert not roofline_figures.table(frames).rows and len(tables.results(frames))


@pytest.mark.parametrize("calibrated", [True, False], ids=["calibrated", "not_calibrated"])
def test_report_holds_it_or_says_what_to_do(tmp_path, calibrated):
    folder = write_sweep(tmp_path / "one", paradigms=(AR,), output_lens=(16,), **STEADY)
    page, *_ = report.write_report(load(add(folder, with_roof) if calibrated else folder), tmp_path)
    text = page.read_text()
    assert (tmp_path / "figures" / "roofline.png").exists() == ('id="roofline"' in text) == calibrated
    assert ("MFU, %" in text) == calibrated and ("No MFU, no MBU: no work was counted" in text) != calibrated
