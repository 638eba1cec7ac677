"""Cells of a sweep are predicted under the names that their records will have, and joined with them."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from paradigms.costs import sweep_predictions
from paradigms.costs.sweep_predictions import predictions, read_csv, run_compare, run_predict, tokens_per_forward

GRID = ["paradigm=ar,diffusion_threshold", "workload.output_len=8,16", "sweep.name=made_up"]


class Device:
    """A millisecond a forward, and a tenth of it for the decoder."""

    name, memory_bytes, spread = "made up", 2**30, 0.25

    class calibration:
        date = "2026-01-01"

    def forward_s(self, model: Any, shape: Any, *, dtype: str, execution: str) -> float:
        return 1e-3

    def decoder_s(self, decoder: Any, vocab_size: int, shape: Any, batch: Any) -> float:
        return 1e-4

    def bound_by(self, model: Any, shape: Any, *, dtype: str, execution: str) -> str:
        return "overhead"


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_predictions, "device_of", lambda device, threads: Device())


def sweep(folder: Path, seconds: dict[str, list[float]], *, nfe: int = 4) -> Path:
    """Records of a sweep: requests of each cell."""
    (folder / "records").mkdir(parents=True)
    runs = [{"key": name, "cell": name, "status": "ok"} for name in seconds] + [
        {"key": "bad", "cell": "ar, output_len=8", "status": "failed"}
    ]
    requests = [
        {"key": name, "e2e_s": each, "ttft_s": None, "committed_tokens": 16, "nfe": nfe}
        for name, values in seconds.items()
        for each in values
    ] + [{"key": "bad", "e2e_s": 99.0, "committed_tokens": 1, "nfe": 1}]
    for table, rows in (("runs", runs), ("requests", requests)):
        (folder / "records" / f"{table}-1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_cells_of_a_grid(tmp_path: Path) -> None:
    names = {f"diffusion_threshold, output_len={length}": [1.0] for length in (8, 16)}
    rows = predictions(GRID, [sweep(tmp_path / "before", names)])
    whole = {row.cell: row for row in rows if row.metric == "e2e_s"}
    assert list(whole) == [
        "ar, output_len=8",
        "ar, output_len=16",
        *names,
    ]
    assert {row.source for row in rows} == {"made_up"}
    assert whole["ar, output_len=16"].predicted == pytest.approx(16 * 1.1e-3)
    assert whole["diffusion_threshold, output_len=16"].predicted == pytest.approx(4 * 1.1e-3)  # 16 tokens, 4 a forward
    assert whole["ar, output_len=8"].high == pytest.approx(8 * 1.1e-3 * 1.25)
    assert "before" in whole["diffusion_threshold, output_len=16"].constants
    assert "before" not in whole["ar, output_len=16"].constants
    assert {row.metric for row in rows if row.cell.startswith("ar")} == {"e2e_s", "ttft_s", "tpot_s"}


def test_cells_whose_text_decides_need_an_earlier_sweep() -> None:
    with pytest.raises(ValueError, match="--nfe-from"):
        predictions(GRID, [])


def test_rates_of_finished_units_only(tmp_path: Path) -> None:
    found = tokens_per_forward([sweep(tmp_path / "before", {"one": [1.0], "two": [1.0]}, nfe=8)])
    assert {cell: rate for cell, (rate, _) in found.items()} == {"one": 2.0, "two": 2.0}
    with pytest.raises(ValueError, match="no finished unit"):
        tokens_per_forward([tmp_path / "nothing"])


def test_predictions_beside_what_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, joined = tmp_path / "p.csv", tmp_path / "joined.csv"
    before = sweep(tmp_path / "before", {f"diffusion_threshold, output_len={length}": [1.0] for length in (8, 16)})
    assert run_predict(argparse.Namespace(overrides=GRID, nfe_from=[before], out=file)) == 0
    measured = {"ar, output_len=8": [8e-3, 9e-3, 11e-3], "ar, output_len=16": [0.0352, 0.0352]}
    folder = sweep(tmp_path / "made_up", measured)
    assert run_compare(argparse.Namespace(file=file, folders=[folder], out=joined)) == 0
    rows = {row.cell: row for row in read_csv(joined) if row.metric == "e2e_s"}
    assert rows["ar, output_len=8"].measured == 9e-3
    assert rows["ar, output_len=8"].error == pytest.approx(8.8 / 9 - 1, rel=1e-4)
    assert rows["ar, output_len=16"].error == pytest.approx(-0.5, rel=1e-4)
    assert rows["diffusion_threshold, output_len=8"].measured is None
    beside = {row.cell for row in read_csv(folder / "predictions.csv") if row.measured is not None}
    assert beside == {"ar, output_len=8", "ar, output_len=16"}
    said = capsys.readouterr().out
    assert "4 cells predicted" in said
    assert "all                 2 units" in said
    assert "2 cells" in said and "within 35%:  50%" in said
    assert said.index("worst  made_up: ar, output_len=16") < said.index("worst  made_up: ar, output_len=8")


def test_other_sweeps_than_predicted_are_refused(tmp_path: Path) -> None:
    rows = predictions(["paradigm=ar", "sweep.name=made_up"], [])
    with pytest.raises(ValueError, match="only made_up"):
        sweep_predictions.with_measured(rows, [sweep(tmp_path / "other", {"ar": [1.0]})])
    with pytest.raises(ValueError, match="is no folder of a sweep"):
        sweep_predictions.with_measured(rows, [tmp_path / "nothing"])


def test_a_folder_of_another_name_is_the_sweep_that_its_records_say(tmp_path: Path) -> None:
    rows = predictions(["paradigm=ar", "sweep.name=made_up"], [])
    folder = sweep(tmp_path / "elsewhere", {"ar": [1.0]})
    (shard,) = (folder / "records").glob("runs-*.jsonl")
    shard.write_text(shard.read_text().replace('"status": "ok"', '"status": "ok", "sweep.name": "made_up"'))
    found = sweep_predictions.with_measured(rows, [folder])
    assert [row.measured for row in found if row.metric == "e2e_s"] == [1.0]
    assert len(sweep_predictions.unit_errors(rows, [folder])) == 1
    with pytest.raises(ValueError, match="as another of the folders is"):
        sweep_predictions.with_measured(rows, [folder, folder])


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "# no table"], ids=["empty", "columns", "words"])
def test_files_of_something_else_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "file.csv").write_text(text)
    with pytest.raises(ValueError, match="is no file of predictions"):
        read_csv(tmp_path / "file.csv")


def test_bad_overrides_are_said_in_a_line() -> None:
    with pytest.raises(ValueError, match="paradigm=arr is unknown"):
        predictions(["paradigm=arr"], [])
