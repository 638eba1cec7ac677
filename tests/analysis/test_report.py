"""The report end to end: files that stand alone, nothing dropped without a word, friendly errors, the notebook."""

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from nbclient import NotebookClient
from rich.console import Console
from synthetic_records import AR, QUARTER, SSM, THRESHOLD, write_sweep

from analysis import figures, load, report, style, summary, tables

NOTEBOOK = Path(report.__file__).with_name("report.ipynb")
SOME = {"paradigms": (AR, SSM, QUARTER), "output_lens": (16, 32, 64)}


@pytest.fixture(scope="module")
def frames(swept):
    return load(swept)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    def fail(truth, output_len, round_index):
        return ("oom", "Traceback\nRuntimeError: <out> of memory") if truth is QUARTER and output_len == 64 else None

    folder = tmp_path_factory.mktemp("runs") / "mine"
    return write_sweep(folder, **SOME, fail=fail, contended=lambda t, n, r: t is SSM and n == 32 and r == 1)


@pytest.fixture(scope="module")
def told(swept):
    """What the command says."""
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert report.main([str(swept)]) == 0
    return said.getvalue()


@pytest.fixture(scope="module")
def written(swept, told):
    """Page, CSV, Markdown, figures: the paths that the command names at its end."""
    return [Path(line) for line in told.splitlines()[-4:]]


def test_page_stands_alone_and_says_what_failed(written):
    page = written[0].read_text()
    assert not re.search(r"""(?:src|href)=["'](?:https?:)?//""", page) and "<script" not in page
    num_pictures = page.count("data:image/svg+xml;base64,")
    assert num_pictures == len(list(written[3].glob("*.svg"))) == len(list(written[3].glob("*.png"))) > 5
    assert "RuntimeError: &lt;out&gt; of memory" in page
    assert "1 of 3" in page and "upper bound" in page and "p90 needs 100 requests" in page
    assert "python -m paradigms -m experiment=side_by_side" in page


def test_csv_has_a_row_a_cell_with_counts(written):
    results = pd.read_csv(written[1])
    assert len(results) == 9
    lost = results[(results["paradigm.name"] == QUARTER.name) & (results["workload.output_len"] == 64)]
    assert lost["units_oom"].item() == 3 and lost["e2e_s"].isna().all()
    kept = results[results["e2e_s"].notna()]
    assert (kept["e2e_s_low"] <= kept["e2e_s"]).all() and (kept["e2e_s"] <= kept["e2e_s_high"]).all()
    assert {"rounds", "requests", "generations"} <= set(results)


def test_markdown_is_a_table_with_the_failures(written):
    text = written[2].read_text()
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in rows[:5]}) == 1
    assert "| ≤ 2.360 |" in text and "of memory" in text


def test_headline_compares_at_the_longest_length_all_have(frames):
    cells = summary.headline_cells(frames)
    assert set(cells["x"]) == {32} and set(cells["label"]) == {AR.label, SSM.label, QUARTER.label}


@pytest.mark.parametrize("width", [80, 100, 120, 160, 200])
def test_terminal_table_fits(swept, width):
    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(report.terminal_table(swept, width=width))
    text = console.export_text()
    assert "…" not in text and AR.label in text and "≤ 2.360" in text
    assert max(map(len, text.splitlines())) <= width


def test_figures_follow_what_varies(tmp_path, frames):
    def names(**sizes):
        small = {"paradigms": (AR, SSM), "output_lens": (16,), "rounds": 1}
        folder = write_sweep(tmp_path / str(sizes), **(small | sizes))
        return {choice.name for choice in figures.choose(load(folder))}

    lengths = {"latency", "seconds_a_token", "first_token", "tokens_per_forward", "positions", "memory"}
    assert {choice.name for choice in figures.choose(frames)} == lengths | {"quality", "loss"}
    assert names(prompt_lens=(8, 64)) == {"context", "quality", "loss"}
    assert names(batch_sizes=(1, 4)) == {"batch", "quality", "loss"}
    assert names() == {"quality", "loss"}


def test_every_figure_has_units_a_machine_and_a_sentence(tmp_path):
    frames = load(write_sweep(tmp_path / "s", paradigms=(AR, SSM, QUARTER), output_lens=(16, 32), prompt_lens=(8, 64),
                              batch_sizes=(1, 2), rounds=2, repeats=1))  # fmt: skip
    choices = figures.choose(frames)
    assert {"context", "batch", "latency"} <= {choice.name for choice in choices}
    for choice in choices:
        figure = choice.draw(frames)
        assert "made-up CPU" in figure.get_supxlabel(), choice.name
        assert figure.legends and all(axes.get_xlabel() and axes.get_ylabel() for axes in figure.axes), choice.name
        assert choice.sentence(frames).endswith(".") and "nan" not in choice.sentence(frames), choice.name


def test_legend_stands_outside_and_nothing_overlaps(frames):
    figure = figures.headline(frames)
    figure.draw_without_rendering()
    boxes = [axes.get_tightbbox() for axes in figure.axes] + [figure.legends[0].get_window_extent()]
    boxes.append(figure._supxlabel.get_window_extent())
    for index, box in enumerate(boxes):
        assert all(box is other or not box.padded(-1).overlaps(other) for other in boxes[index + 1 :])


def test_a_paradigm_looks_the_same_everywhere(frames):
    marks = {label: style.mark_of(frames, label) for label in summary.labels(frames)}
    assert len({(mark.color, mark.marker) for mark in marks.values()}) == len(marks)
    for draw in (figures.latency, figures.memory, figures.headline):
        colors = {line.get_label().split("\n")[0]: line.get_color() for line in draw(frames).legends[0].get_lines()}
        assert colors == {label: mark.color for label, mark in marks.items()}


def test_contended_points_are_hollow(frames):
    (axes,) = figures.latency(frames).axes
    hollow = [line for line in axes.get_lines() if line.get_markerfacecolor() == "white"]
    assert [line.get_xdata().tolist() for line in hollow] == [[32.0]]


def test_bound_is_dashed_and_named(frames):
    legend = figures.loss(frames).legends[0]
    dashed = {line.get_label(): line.is_dashed() for line in legend.get_lines()}
    assert sorted(dashed) == [AR.label, f"{QUARTER.label}\n(upper bound)", SSM.label]
    assert dashed == {name: "upper bound" in name for name in dashed}


def test_undefined_tpot_is_said_and_not_drawn(frames):
    left, right = figures.first_token(frames).axes
    assert f"undefined: {QUARTER.label}" in right.get_xlabel() and "undefined" not in left.get_xlabel()
    color = style.mark_of(frames, QUARTER.label).color
    assert all(line.get_color() != color for line in right.get_lines())


def test_all_failed_and_single_cells_still_report(tmp_path):
    lost = write_sweep(tmp_path / "lost", paradigms=(AR,), output_lens=(16,),
                       fail=lambda *_: ("failed", "ValueError: no"))  # fmt: skip
    assert "ValueError: no" in report.write_report(load(lost), tmp_path / "out")[0].read_text()
    single = load(write_sweep(tmp_path / "single", paradigms=(THRESHOLD,), output_lens=(16,), rounds=1, repeats=1))
    assert len(tables.headline(single).rows) == 1 and "[" not in tables.headline(single).rows[0][1]
    assert "One round: no intervals" in figures.headline(single).get_supxlabel()


def test_command_prints_table_failures_and_paths(swept, told, written):
    assert AR.label in told and "3 units did not succeed" in told
    assert written[0] == swept / "report" / "index.html" and all(path.exists() for path in written)


@pytest.mark.parametrize("arguments", [["nowhere"], []])
def test_command_line_errors_are_one_line(arguments, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        report.main(arguments)
    assert stopped.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_out_that_is_a_file_is_refused(swept, tmp_path, capsys):
    (tmp_path / "taken").write_text("")
    with pytest.raises(SystemExit):
        report.main([str(swept), "--out", str(tmp_path / "taken")])
    assert "--out" in capsys.readouterr().err


def test_analysis_needs_no_torch():
    code = (
        "import sys, analysis.report; sys.exit(not sys.modules.keys().isdisjoint(('torch', 'hydra', 'transformers')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=NOTEBOOK.parents[1], check=False).returncode == 0


def test_notebook_runs_and_is_stored_without_outputs(swept, monkeypatch):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)
    monkeypatch.setenv("RUNS", str(swept))
    monkeypatch.setenv("PYTHONPATH", str(NOTEBOOK.parents[1]))
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": NOTEBOOK.parent}}).execute()
    assert any("image/png" in output.get("data", {}) for cell in cells for output in cell.outputs)
