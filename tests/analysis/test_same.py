"""The A/A test finds intervals that cover as they say, and those that do not."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_records import AR, SSM, write_sweep

from analysis import load, same

AGAIN = replace(AR, name="ar_again", label="AR again")
SWEEP = {"output_lens": (16, 64), "rounds": 7 * 20 + 3, "repeats": 1, "round_noise": 0.05, "repeat_noise": 0.01}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_sweep(tmp_path_factory.mktemp("runs") / "same", paradigms=(AR, AGAIN, SSM), **SWEEP)


def test_alike_cells_are_covered_as_often_as_stated_whatever_the_drift(folder, capsys):
    told = same.run_test(load(folder))
    assert len(told.comparisons) == 2 * 20  # three rounds are left over; another paradigm is no partner
    assert set(told.comparisons["names"]) == {f"AR again / {AR.label}, {n} tokens" for n in SWEEP["output_lens"]}
    assert told.promised == pytest.approx(0.953125) and told.share.low <= told.promised <= told.share.high
    assert 0.005 < told.half_width < 0.03  # drift of 5 % a round is gone
    assert same.main([str(folder)]) == (0 if told.holds else 1)
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(f"{told.comparisons['covers'].sum()} of 40 intervals") and Path(said[-1]).exists()
    figure = same.draw(load(folder), told)
    assert "of 40 intervals cover no difference" in figure.get_supxlabel().replace("\n", " ")


def test_a_real_difference_is_not_covered(tmp_path):
    """Negative control: 3 % between the two names."""
    folder = write_sweep(tmp_path / "s", paradigms=(AR, replace(AGAIN, step_s=1.03 * AR.step_s)), **SWEEP)
    told = same.run_test(load(folder))
    assert told.share.high < 0.9 and not told.holds
    assert same.main([str(folder), "--out", str(tmp_path / "x.png")]) == 1


def test_what_cannot_be_tested_is_said(folder, tmp_path, capsys):
    alone = write_sweep(tmp_path / "alone", paradigms=(AR, SSM), output_lens=(16,))
    short = write_sweep(tmp_path / "short", paradigms=(AR, AGAIN), output_lens=(16,))
    for arguments, says in (
        ([alone], "no two cells differ in the paradigm's name alone"),
        ([short], "no pair of cells has 7 rounds"),
        ([folder, "--rounds", "4"], "rounds=4 give no interval of 95 %"),
        ([folder, "--out", f"{folder}/records/runs-a.jsonl/x.png"], "cannot write"),
    ):
        with pytest.raises(SystemExit) as stopped:
            same.main([str(word) for word in arguments])
        assert stopped.value.code == 2 and says in capsys.readouterr().err


def test_another_checkpoint_or_machine_is_no_partner(tmp_path):
    folder = write_sweep(tmp_path / "s", paradigms=(AR, AGAIN), output_lens=(16,), rounds=7)
    path = next((folder / "records").glob("runs-a.jsonl"))
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for column, value in (("checkpoint", "other"), ("machine_id", "m9")):
        edited = [r | {column: value} if r["paradigm.name"] == AGAIN.name else r for r in records]
        path.write_text("".join(json.dumps(record) + "\n" for record in edited))
        with pytest.raises(ValueError, match="no two cells"):
            same.run_test(load(folder))
