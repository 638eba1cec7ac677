"""Curves over epochs, of records whose minimum is known: marked where it is, in bits per byte, bounds named."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from synthetic_records import AR, FULL, SSM, write_sweep

from analysis import epochs, figures, load
from analysis.frames import Frames

SOME: dict[str, Any] = {"paradigms": (AR, SSM, FULL), "output_lens": (16,), "rounds": 1}
BYTES = 2.5
MINIMUM = {"ar": 8.0, "ssm": 5.0, "diffusion": math.inf}  # epochs; of the last none


def validation(checkpoint: str, epoch: float) -> float:
    """A parabola around the minimum, or what falls for ever."""
    minimum = MINIMUM[checkpoint]
    return 3.0 - 0.05 * epoch if math.isinf(minimum) else 2.0 + 0.01 * (epoch - minimum) ** 2


def training(checkpoint: str, epoch: float) -> float:
    return 3.0 / (1 + 0.3 * epoch)


def points(bytes_of_token: float | None = BYTES, last: float = 20.0) -> list[dict[str, Any]]:
    return [
        {
            "checkpoint": checkpoint, "paradigm": checkpoint, "step": step, "tokens": 1000 * step,
            "epoch": last * step / 20, "train_nats": training(checkpoint, last * step / 20) * math.log(2) * BYTES,
            "val_bits_per_byte": validation(checkpoint, last * step / 20), "lr": 1e-3, "tokens_per_s": 1.0,
            "peak_rss_bytes": 1, "is_bound": checkpoint == "diffusion", "train_bytes_per_token": bytes_of_token,
        }
        for checkpoint in MINIMUM
        for step in range(1, 21)
    ]  # fmt: skip


@pytest.fixture
def swept(tmp_path: Path) -> Callable[..., Frames]:
    def write(
        rows: list[dict[str, Any]], change: Callable[[dict[str, Any]], dict[str, Any]] = lambda run: run
    ) -> Frames:
        folder = write_sweep(tmp_path / "mine", **SOME)
        for path in (folder / "records").glob("training-*.jsonl"):
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        for path in (folder / "records").glob("runs-*.jsonl"):
            runs = [json.loads(line) for line in path.read_text().splitlines()]
            path.write_text("".join(json.dumps(change(run)) + "\n" for run in runs))
        return load(folder)

    return write


def test_curves_are_in_bits_per_byte_with_the_minimum_where_it_is(swept: Callable[..., Frames]) -> None:
    found = {course.name: course for course in epochs.courses(swept(points()))}
    assert set(found) == {AR.label, SSM.label, FULL.label}
    for truth, checkpoint in ((AR, "ar"), (SSM, "ssm"), (FULL, "diffusion")):
        course = found[truth.label]
        assert len(course.rows) == 20
        for row in course.rows.to_dict("records"):
            assert row["train_bits_per_byte"] == pytest.approx(training(checkpoint, row["epoch"]))
            assert row["val_bits_per_byte"] == pytest.approx(validation(checkpoint, row["epoch"]))
        assert course.best["epoch"] == pytest.approx(min(MINIMUM[checkpoint], 20.0))
        assert course.last["epoch"] == 20.0
        assert course.is_bound == (checkpoint == "diffusion")
    assert found[AR.label].rise == pytest.approx(0.01 * 12**2) and found[FULL.label].rise == 0


def test_the_figure_has_two_lines_and_a_star_for_each(swept: Callable[..., Frames]) -> None:
    frames = swept(points())
    (panel,) = epochs.figure(frames).axes
    stars = [line for line in panel.lines if line.get_marker() == "*"]
    assert [float(line.get_xdata()[0]) for line in stars] == [8.0, 20.0, 5.0]  # type: ignore[index]
    assert [float(line.get_ydata()[0]) for line in stars] == pytest.approx([2.0, 2.0, 2.0])  # type: ignore[index]
    assert len(panel.lines) == 3 * 3
    dotted = [line for line in panel.lines if line.get_linestyle() == ":"]
    assert len(dotted) == 3 and all(len(line.get_xdata()) == 20 for line in dotted)  # type: ignore[arg-type]


def test_the_legend_and_the_sentence_say_what_is_a_bound_and_what_got_worse(swept: Callable[..., Frames]) -> None:
    frames = swept(points())
    (legend,) = epochs.figure(frames).legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert [text for text in texts if "upper bound" in text] == [
        f"{FULL.label}\n(upper bounds)\nbest 2.00 after 20.0 epochs"
    ]
    said = epochs.sentence(frames)
    at_end = 3.0 / 7
    assert f"{AR.label} 2.00 bits per byte after 8.0 epochs, then worse: 3.44 after 20.0, its training text at " in said
    assert f"training text at {at_end:.2f}" in said
    assert f"{FULL.label} at most 2.00 bits per byte after 20.0 epochs, and no worse since (2.00 after 20.0)" in said


def test_a_bound_is_one_where_no_held_out_text_was_scored(swept: Callable[..., Frames]) -> None:
    """With measure.quality=false the runs do not say it; the curves do."""
    frames = swept(points(), lambda run: run | {"bits_per_byte_is_bound": None, "bits_per_byte": None})
    assert {course.name for course in epochs.courses(frames) if course.is_bound} == {FULL.label}


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (points(bytes_of_token=None), "trained before the figure was recorded"),
        ([{key: value for key, value in row.items() if key != "train_bytes_per_token"} for row in points()], "so too"),
        (points(last=1.5), "hardly read again"),
        ([row | {"epoch": None} for row in points()], "every batch is new"),
    ],
    ids=["null", "missing", "short", "tasks"],
)
def test_where_there_is_nothing_to_show_there_is_no_figure(rows: Any, why: str, swept: Callable[..., Frames]) -> None:
    assert epochs.choose(swept(rows)) == [], why


def test_the_report_chooses_it(swept: Callable[..., Frames]) -> None:
    assert "epochs" in [choice.name for choice in figures.choose(swept(points()))]


def test_validation_windows_are_named_where_they_are_known(swept: Callable[..., Frames]) -> None:
    plain = epochs.figure(swept(points())).get_supxlabel()
    assert "Validated on" not in plain
    more = {"train.validation_windows": 64, "train.validation_len": 127}
    told = epochs.figure(swept(points(), lambda run: run | more)).get_supxlabel()
    assert "Validated on 64 windows of at most 127 tokens" in " ".join(told.split())


def test_old_reports_are_as_they_were(tmp_path: Path) -> None:
    frames = load(write_sweep(tmp_path / "old", **SOME))
    chosen = [choice.name for choice in figures.choose(frames)]
    assert "loss" in chosen and "epochs" not in chosen
