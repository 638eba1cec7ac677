"""What was not run whole is never shown as if it had been."""

from __future__ import annotations

import pandas as pd
import pytest
from matplotlib.colors import to_hex
from synthetic_records import AR, FULL, SSM, write_sweep

from analysis import checks, figures, findings, load, report, style, tables
from analysis.summary import summarise

LENGTHS = (64, 256, 1024)


@pytest.fixture(scope="module")
def frames(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "gpu"
    long = {"paradigms": (AR, SSM, FULL), "output_lens": LENGTHS}
    return load(write_sweep(folder, **long, extrapolated=lambda truth, n, r: truth is FULL and n == 1024 and r > 0))


def test_units_and_cells_keep_the_mark(frames):
    cells = summarise(frames).set_index(["paradigm.name", "workload.output_len"])
    assert cells["extrapolated"].sum() == 1 and cells.loc[("diffusion", 1024), "units_extrapolated"] == 2
    assert frames.requests["extrapolated"].sum() == 2 and frames.ok["extrapolated"].sum() == 2


def test_old_records_without_the_column_were_run_whole(tmp_path):
    frames = load(write_sweep(tmp_path / "old", paradigms=(AR,), output_lens=(16, 32)))
    assert not frames.requests["extrapolated"].any() and not frames.ok["extrapolated"].any()
    assert not tables.extrapolated(frames).rows


def test_points_have_a_mark_of_their_own_and_the_caption_says_what_it_means(frames):
    panel = figures.latency(frames).axes[0]
    dots = [line for line in panel.lines if line.get_marker() == "." and len(line.get_xdata())]
    assert [list(line.get_xdata()) for line in dots] == [[1024]]
    mark = style.mark_of(frames, FULL.label)
    hollow = [line for line in panel.lines if line.get_marker() == mark.marker and 1024 in line.get_xdata()]
    assert [to_hex(line.get_markerfacecolor()) for line in hollow] == ["#ffffff"]
    said = "extrapolated from a few forwards"
    assert said in " ".join(figures.latency(frames).get_supxlabel().split())
    assert any("part extrapolated" in text.get_text() for text in figures.latency(frames).legends[0].get_texts())


def test_tables_and_sentences_name_them(frames, tmp_path):
    (row,) = [row for row in tables.headline(frames).rows if row[0].startswith(FULL.label)]
    assert row[0].endswith("‡") and "‡: extrapolated" in report.LEGEND
    assert tables.extrapolated(frames).rows == [[FULL.label, "1,024", "64", "1", "2 of 3", "9 of 1,024"]]
    assert [row[-1] for row in tables.every_cell(frames).rows].count("2 of 3") == 1
    assert f"{FULL.label} (extrapolated) takes" in findings.latency(frames)
    assert "extrapolated points" in findings.slopes(frames)
    page, csv, *_ = report.write_report(frames, tmp_path)
    assert "9 of 1,024" in page.read_text() and pd.read_csv(csv)["extrapolated"].sum() == 1


def test_laws_are_judged_without_them(frames, tmp_path):
    found = {check.law: check for check in checks.checks(frames)}
    whole = len(frames.requests) - 2
    assert found["fixed length: committed = requested tokens"].figure == f"{whole} of {whole} requests"
    alone = load(
        write_sweep(tmp_path / "s", paradigms=(AR,), output_lens=LENGTHS, extrapolated=lambda truth, n, r: True)
    )
    laws = {check.law for check in checks.checks(alone)}
    assert not any("t_step" in law or "NFE" in law for law in laws)
