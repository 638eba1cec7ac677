"""Scores that were written after the texts: found again among frontiers, those of two scorers never mixed."""

import io
import json

import pytest
from synthetic_records import AR as AR_TEXT
from synthetic_records import SSM, write_sweep

from analysis import equal_quality, frontier, frontier_figures, load
from analysis.frontier import JUDGE

NATURAL = {"workload.stop": "natural"}
SMALL = {"output_lens": (16,), "rounds": 3, "repeats": 2}


@pytest.fixture(autouse=True)
def fewer_draws(monkeypatch):
    monkeypatch.setattr(equal_quality, "DRAWS", 200)


def write_lines(folder, table, rows, shard="later"):
    path = folder / "records" / f"{table}-{shard}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_later_scores_of_samples_and_of_sets_are_read_if_there(tmp_path):
    folder = write_sweep(tmp_path / "s", paradigms=(AR_TEXT, SSM), factors=NATURAL, **SMALL)
    before = load(folder)
    rows = before.requests.to_dict("records")
    write_lines(folder, "scores", [
        {"key": row["key"], "repeat": row["repeat"], "row": row["row"], "gen_bits_per_byte": 1.5, "note": 3.0}
        for row in rows
    ])  # fmt: skip
    cells = before.cells[["cell_key", "paradigm.label"]].to_numpy().tolist()
    write_lines(folder, "set_scores", [
        {"key": key, "cell_key": key, "machine_id": "m0", "is_reference": False, "generative_perplexity": 9.0,
         "mauve": 0.9 if label == SSM.label else 0.5, "mauve_low": 0.4, "mauve_high": 0.95}
        for key, label in [*cells, ["reference", "none"]]
    ])  # fmt: skip
    frames = load(folder)
    assert [measure.name for measure in frontier.measures(frames)] == [JUDGE.name, "gen_bits_per_byte", "mauve"]
    mauve = next(measure for measure in frontier.measures(frames) if measure.name == "mauve")
    found = frontier.points(frames, mauve).set_index("label")
    assert found["quality"].to_dict() == {AR_TEXT.label: 0.5, SSM.label: 0.9}
    assert found["quality_low"].tolist() == [0.4, 0.4] and mauve.higher
    bits = frontier.points(frames, frontier.measures(frames)[1])
    assert bits["quality"].tolist() == [1.5, 1.5] and bits["scored"].tolist() == [2, 2]
    for choice in frontier_figures.choose(frames):
        choice.draw(frames).savefig(io.BytesIO(), format="png", dpi=30)
        assert choice.sentence(frames)
    assert len(list(frontier_figures.choose(frames))) == 3 and equal_quality.table(frames).markdown()


def test_scores_of_two_scorers_are_never_mixed(tmp_path):
    folder = write_sweep(tmp_path / "s", paradigms=(AR_TEXT, SSM), factors=NATURAL, **SMALL)
    before = load(folder)
    rows, cells = before.requests.to_dict("records"), before.cells["cell_key"].tolist()

    def scored(shard, by, scorer, at, value, texts, samples):
        said = {"scored_by": by, "scorer": scorer, "scored_at": at}
        write_lines(folder, "scores", [
            {"key": row["key"], "repeat": row["repeat"], "row": row["row"], "external_bits_per_byte": value, **said}
            for row in rows[:texts]
        ], shard)  # fmt: skip
        write_lines(folder, "set_scores", [
            {"key": key, "cell_key": key, "machine_id": "m0", "mauve": value / 10, "samples": samples, **said}
            for key in cells
        ], shard)  # fmt: skip

    def shown():
        frames = load(folder)
        names = {measure.name: measure for measure in frontier.measures(frames)}
        found = [frontier.points(frames, names[name])["quality"] for name in ("external_bits_per_byte", "mauve")]
        return [set(values) for values in found], frontier.note(frames)

    scored("z", "one", "Llama", "2026-01-01T00:00:00Z", 1.0, len(rows), 9)
    assert shown()[0] == [{1.0}, {0.1}] and "those of Llama" in shown()[1] and "other way" not in shown()[1]
    scored("a", "two", "Other", "2026-01-02T00:00:00Z", 2.0, len(rows), 9)  # later, though its shard sorts first
    assert shown()[0] == [{2.0}, {0.2}]
    assert "those of Other" in shown()[1] and "scores by 1 other way, of fewer texts" in shown()[1]
    scored("zz", "three", "Third", "2026-01-03T00:00:00Z", 3.0, 2, 9)  # a few texts alone
    assert shown()[0] == [{2.0}, {0.2}]
    scored("0", "four", None, "2026-01-04T00:00:00Z", 4.0, len(rows), 9)  # without a scorer
    assert shown()[0] == [{2.0}, {0.2}]
    scored("zzz", "two", "Other", "2026-01-05T00:00:00Z", 5.0, 0, 4)  # sets of fewer texts, later
    assert shown()[0] == [{2.0}, {0.2}]
