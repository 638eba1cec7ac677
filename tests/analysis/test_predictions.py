"""Files of predictions: errors by hand, the figure, and bad files."""

import numpy as np
import pandas as pd
import pytest
from synthetic_records import AR, write_sweep

from analysis import figures, load, predictions

ROWS = pd.DataFrame(
    [
        ("a", "near", "x", "e2e_s", "s", 1.1, 1.0, 1.2, 1.0, "c"),
        ("a", "near", "y", "e2e_s", "s", 1.8, None, None, 2.0, "c"),
        ("a", "far", "z", "peak_bytes", "B", 3e9, None, None, 2e9, "c"),
        ("a", "far", "not measured", "e2e_s", "s", 7.0, None, None, None, "c"),
        ("b", "ratio", "r", "speed_up", "", 2.0, None, None, 2.0, "c"),
    ],
    columns=list(predictions.COLUMNS),
)


@pytest.fixture
def file(tmp_path):
    ROWS.to_csv(tmp_path / "predictions.csv", index=False)
    return tmp_path / "predictions.csv"


def test_errors_and_their_summary(file):
    rows = predictions.read(file)
    assert rows["unit"].tolist() == ["s", "s", "B", "s", ""]
    assert predictions.errors(rows).tolist() == pytest.approx([0.1, -0.1, 0.5, 0.0])
    assert predictions.sentence(rows) == (
        "4 figures: median error 10.0%, 90th percentile 38.0%; 75% within 15%, 75% within 35%"
    )


def test_figure_has_a_panel_a_unit_and_a_line_of_equality(file):
    fig = predictions.figure(predictions.read(file))
    assert [panel.get_xlabel() for panel in fig.axes] == ["measured, seconds", "measured, bytes", "measured, ratio"]
    seconds = fig.axes[0]
    equal, *shown = (np.asarray(line.get_xydata()) for line in seconds.lines)
    assert equal[:, 0].tolist() == equal[:, 1].tolist()
    assert len(seconds.collections) == len(predictions.BANDS)
    assert [each[:, 1].tolist() for each in shown] == [[1.1, 1.8]]
    labels = [text.get_text() for text in fig.legends[0].get_texts()]
    assert labels[0].startswith("near\n2: median 10.0%")


def test_reports_show_what_lies_in_their_folders(file, tmp_path):
    swept = write_sweep(tmp_path / "mine", paradigms=(AR,), output_lens=(16, 32))
    assert "predictions" not in [choice.name for choice in figures.choose(load(swept))]
    ROWS.assign(measured=None).to_csv(swept / "predictions.csv", index=False)
    assert "predictions" not in [choice.name for choice in figures.choose(load(swept))]
    frames = load(swept, file.parent)  # a folder of predictions alone
    (shown,) = [choice for choice in figures.choose(frames) if choice.name == "predictions"]
    assert shown.sentence(frames).startswith("4 figures: median error 10.0%")
    caption = shown.draw(frames).get_supxlabel()
    assert frames.runs["machine"].iloc[0] in " ".join(caption.split())


def test_command_line(file, capsys):
    assert predictions.main([str(file)]) == 0
    assert file.with_suffix(".png").stat().st_size > 10_000
    assert "4 figures" in capsys.readouterr().out


@pytest.mark.parametrize("bad", ["columns", "nothing measured", "missing", "words", "empty"])
def test_bad_files_are_named(tmp_path, bad, capsys):
    path = tmp_path / "bad.csv"
    if bad == "columns":
        path.write_text("a,b\n1,2\n")
    elif bad in ("words", "empty"):
        path.write_text("a\nb, c, d\n" * (bad == "words"))
    elif bad == "nothing measured":
        ROWS.assign(measured=None).to_csv(path, index=False)
    assert predictions.main([str(path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1 and (str(path) in said or bad == "nothing measured")
