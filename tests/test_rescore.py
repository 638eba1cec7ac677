"""Rescoring of a sweep that nobody ran: texts with known faults in its records, and the figures that must come out."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import theirs
import tiny

from paradigms import generated, metric_check, rescore
from paradigms.data.stream import token_stream
from paradigms.data.tokenizers import ByteTokenizer
from paradigms.plan import Plan, PlannedCell
from paradigms.quality import mauve
from paradigms.quality.sample_scores import Generation
from paradigms.records import RecordWriter, read_table
from paradigms.requests import make_requests

PROMPT_LEN, OUTPUT_LEN, TEXTS = 8, 24, 12
TOKENIZER = ByteTokenizer().load(tiny.corpus())


def texts(kind: str, count: int, prompt_len: int, output_len: int) -> list[tuple[list[int], list[int]]]:
    """Prompts and outputs: true held-out text, a repeated letter, or what stands in one training document."""
    split = "train" if kind == "memorised" else "heldout"
    stream = token_stream(tiny.corpus(), TOKENIZER, split).tolist()
    starts = np.linspace(0, len(stream) - prompt_len - output_len, count).astype(int).tolist()
    if kind == "memorised":
        starts = [n + 1 for n, token in enumerate(stream) if token == TOKENIZER.bos_id][:count]
    found = []
    for start in starts:
        prompt = [TOKENIZER.bos_id, *stream[start : start + prompt_len - 1]]
        output = stream[start + prompt_len - 1 : start + prompt_len - 1 + output_len]
        found.append((prompt, TOKENIZER.encode("a" * output_len) if kind == "dull" else output))
    return found


def write_sweep(folder: Path, kinds: dict[str, dict[str, Any]], *, texts_a_round: int = TEXTS // 2) -> Path:
    """Two rounds a cell; a kind's changes go into its workload."""
    cells, writer = [], RecordWriter(folder, "a")
    for kind, work in kinds.items():
        config = {
            "paradigm": {"name": kind, "label": kind},
            "corpus": {"_target_": "tiny.TinyText"},
            "tokenizer": {"_target_": "paradigms.data.tokenizers.ByteTokenizer"},
            "workload": {"prompt_len": PROMPT_LEN, "output_len": OUTPUT_LEN, "prompts": "heldout", "stop": "length"}
            | work,
        }
        lengths = [config["workload"][name] for name in ("prompt_len", "output_len")]
        cell = PlannedCell(name=kind, config=config)
        cells.append(cell)
        drawn = texts(kind, 2 * texts_a_round, *lengths)
        for round_index in range(2):
            requests, samples = [], []
            for row in range(texts_a_round):
                number = round_index * texts_a_round + row
                prompt, output = drawn[number]
                if kind == "broken":  # ends within a character; empty; whole
                    output = [TOKENIZER.encode("é")[:1], [], output][number % 3]
                request = {
                    "request_id": f"0/{number}",
                    "seed": number,
                    "repeat": 0,
                    "row": row,
                    "key": f"{kind}{round_index}",
                }
                reason = "length" if work.get("stop") != "natural" or number % 2 else "eos"
                requests.append(request | {"finish_reason": reason, "requested_tokens": lengths[1], "e2e_s": 1.0})
                samples.append(request | {"prompt_ids": prompt, "token_ids": output, "text": TOKENIZER.decode(output)})
            run = {
                **cell.factors,
                **{"key": f"{kind}{round_index}", "cell_key": cell.key, "round": round_index, "status": "ok"},
                **{"machine_id": "m", "code": "c", "checkpoint": "x", "started_at": "2026-01-01T00:00:00Z"},
                **{"corpus_sha256": tiny.corpus().sha256, "checkpoint_tokenizer": TOKENIZER.sha256},
            }
            writer.write_unit(run, requests=requests, samples=samples)
    Plan(
        sweep="x", folder=str(folder), runner="", preparer="", unit_timeout_s=None, prepare_timeout_s=None,
        cells=tuple(cells),
    ).save(folder / "plan" / "measure-0.json")  # fmt: skip
    return folder


@pytest.fixture(autouse=True)
def cache(folders: Path) -> None:
    """Caches of the session."""


@pytest.fixture
def no_mauve(monkeypatch):
    def refuse(*sides, **options):
        raise mauve.TooFewTexts("too few")

    monkeypatch.setattr(mauve, "compare", refuse)


@pytest.fixture(scope="module")
def scorer(tmp_path_factory) -> str:
    return str(theirs.write_folder(tmp_path_factory.mktemp("scorer") / "llama"))


def table(folder: Path, name: str) -> list[dict[str, Any]]:
    paths = sorted((folder / "records").glob(f"{name}-*.jsonl"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def run(folder: Path, *more: str) -> int:
    return rescore.main([str(folder), *more])


def test_figures_of_a_whole_folder(tmp_path, scorer, no_mauve, capsys):
    folder = write_sweep(tmp_path / "sweep", {"true": {}, "dull": {}, "memorised": {}})
    assert run(folder, "--scorer", scorer) == 0
    printed = capsys.readouterr().out
    assert "| held-out text |" in printed and "too few" in printed and "quality.csv" in printed
    scores, sets = table(folder, "scores"), {row["name"]: row for row in table(folder, "set_scores")}
    assert len(scores) == 3 * TEXTS + 2 * TEXTS  # twice as many of reference
    assert set(sets) == {"true", "dull", "memorised", "held-out text"}
    assert all(row["samples"] == TEXTS for row in sets.values())
    assert sets["dull"]["token_entropy_nats"] == 0 and sets["dull"]["rep_4"] == pytest.approx(1 - 1 / (OUTPUT_LEN - 3))
    assert sets["dull"]["self_bleu"] == pytest.approx(1)
    assert sets["true"]["self_bleu"] < 1
    assert sets["memorised"]["longest_match_share"] == 1 > sets["true"]["longest_match_share"] > 0.2
    assert sets["dull"]["longest_match_share"] < 0.1
    assert sets["true"]["token_entropy_nats"] == pytest.approx(sets["held-out text"]["token_entropy_nats"], abs=0.3)
    for row in sets.values():  # the figure of a set is the ratio of sums of its texts
        own = [score for score in scores if score["cell_key"] == row["cell_key"]][: row["samples"]]
        if not row["is_reference"]:
            nats, tokens = (sum(score[f"external_{name}"] for score in own) for name in ("nats", "tokens"))
            assert row["external_nats_per_token"] == pytest.approx(nats / tokens)
            assert row["generative_perplexity"] == pytest.approx(np.exp(nats / tokens))
    with open(folder / "quality.csv") as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    assert float(rows["dull"]["self_bleu"]) == pytest.approx(1)
    assert rows["dull"]["paradigm.name"] == "dull"


def test_what_is_scored_is_not_scored_again(tmp_path, scorer, no_mauve, monkeypatch):
    folder = write_sweep(tmp_path / "sweep", {"true": {}})
    assert run(folder, "--scorer", scorer) == 0
    before, first_csv = table(folder, "scores"), (folder / "quality.csv").read_text()
    with monkeypatch.context() as patch:
        patch.setattr(rescore, "sample_columns", None)
        patch.setattr(rescore, "set_columns", None)
        assert run(folder, "--scorer", scorer) == 0
    assert table(folder, "scores") == before
    assert (folder / "quality.csv").read_text() == first_csv
    assert run(folder) == 0  # without the scorer: other figures, beside
    assert len(table(folder, "scores")) == 2 * len(before)


def test_an_interrupted_one_goes_on(tmp_path, no_mauve, monkeypatch, capsys):
    folder = write_sweep(tmp_path / "sweep", {"true": {}, "dull": {}})
    monkeypatch.setattr(rescore, "CHUNK", 5)
    columns, calls = rescore.sample_columns, []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 9:
            raise KeyboardInterrupt
        return columns(*arguments)

    monkeypatch.setattr(rescore, "sample_columns", interrupted)
    assert run(folder) == 130
    assert "goes on" in capsys.readouterr().err
    assert len(table(folder, "scores")) == 5  # whole chunks
    shard = next((folder / "records").glob("scores-*.jsonl"))
    shard.write_bytes(shard.read_bytes()[:-20])  # and a line that a crash cut off
    assert run(folder) == 0
    assert len(calls) == 9 + 2 * TEXTS + 2 * TEXTS - 4
    whole = write_sweep(tmp_path / "whole", {"true": {}, "dull": {}})
    assert run(whole) == 0
    without_time = [[{**row, "scored_at": None} for row in table(each, "set_scores")] for each in (whole, folder)]
    assert without_time[0] == without_time[1]
    assert (whole / "quality.csv").read_text() == (folder / "quality.csv").read_text()


@pytest.mark.parametrize(("stop", "output_len"), [("length", 40), ("natural", 113)])
def test_the_ideal_is_what_really_follows_the_prompts(stop, output_len):
    cell = tiny.cell("ar", trained=True, output_len=output_len, stop=stop, batch_size=3, measure={"max_repeats": 2})
    corpus = tiny.corpus()
    material = generated.Material(corpus, TOKENIZER)
    asked = [request for n in range(2) for request in make_requests(cell, 0, n, corpus=corpus, tokenizer=TOKENIZER)]
    one = Generation((), generated.in_place(asked[0], (), TOKENIZER))
    group = generated.Group("a", "k", "m", {}, material, cell.workload, [one] * len(asked), [("k", 0, 0)] * len(asked))
    (reference,) = generated.references([group])
    documents = [text.encode() for text in corpus.documents["heldout"]]
    assert len(reference.generations) > len(asked)
    for request, ideal in zip(asked, reference.generations, strict=False):
        prompt = TOKENIZER.decode_bytes(request.prompt)
        assert ideal.text.data.startswith(prompt) and ideal.output == ideal.text.data[len(prompt) :]
        if stop == "length":
            assert len(ideal.tokens) == output_len and not ideal.truncated
        elif ideal.truncated:
            assert len(ideal.tokens) == output_len and TOKENIZER.eos_id not in ideal.tokens
            assert any(document.startswith(ideal.text.data) for document in documents)
        else:
            assert ideal.tokens[-1] == TOKENIZER.eos_id and ideal.text.data in documents
    assert stop == "length" or {ideal.truncated for ideal in reference.generations} == {True, False}


def test_rejected_and_truncated_texts_are_counted(tmp_path, scorer, no_mauve, capsys):
    folder = write_sweep(tmp_path / "sweep", {"broken": {"stop": "natural"}, "true": {}})
    assert run(folder, "--scorer", scorer) == 0
    sets = {row["name"]: row for row in table(folder, "set_scores")}
    broken = sets["broken"]
    assert broken["samples"] == TEXTS and broken["empty"] == TEXTS // 3
    assert broken["external_rejected_reasons"] == {"empty output": TEXTS // 3, "ends within a character": TEXTS // 3}
    assert broken["external_nats_per_token_count"] == TEXTS // 3
    assert broken["truncated"] == TEXTS // 2 and sets["true"]["truncated"] == 0
    assert f"broken: {TEXTS // 3} texts rejected, ends within a character" in capsys.readouterr().out


def test_a_prompt_that_was_asked_again_with_the_same_seed_is_one_text(tmp_path, no_mauve):
    folder = write_sweep(tmp_path / "sweep", {"true": {}})
    shard = folder / "records" / "samples-a.jsonl"
    changed = [json.loads(line) for line in shard.read_text().splitlines()]
    for row in changed:
        row |= {"request_id": f"0/{row['row']}", "seed": row["row"]}  # the second round asks the first's again
    shard.write_text("".join(json.dumps(row) + "\n" for row in changed))
    assert run(folder) == 0
    sets = {row["name"]: row for row in table(folder, "set_scores")}
    assert sets["true"]["samples"] == TEXTS // 2


def test_fewer_texts_and_no_reference(tmp_path, no_mauve, capsys):
    folder = write_sweep(tmp_path / "sweep", {"true": {}})
    assert run(folder, "--reference", "none", "--max-samples", "5", "--no-novelty") == 0
    (row,) = table(folder, "set_scores")
    assert row["samples"] == 5 and "longest_match_bytes" not in row and "mauve_problem" not in row
    assert run(folder, "--max-samples", "0") == 2
    assert "--max-samples 0" in capsys.readouterr().err


def test_infilled_text_is_judged_in_its_place():
    from paradigms.paradigm import Request

    prompt, given = TOKENIZER.encode("ab"), TOKENIZER.encode("XY")
    canvas = (None, None, *given, None)
    request = Request(id="0", prompt=(TOKENIZER.bos_id, *prompt), max_new_tokens=3, canvas=canvas)
    text = generated.in_place(request, TOKENIZER.encode("cde"), TOKENIZER)
    assert text.data == b"abcdXYe"
    assert Generation((1, 2, 3), text).stretches == [b"cd", b"e"]
    assert Generation((1, 2, 3), text).output == b"cde"


def test_analysis_and_resuming_ignore_the_new_tables(tmp_path, no_mauve):
    import analysis
    from paradigms.records import drop_unfinished

    folder = write_sweep(tmp_path / "sweep", {"true": {}})
    before = analysis.load(folder)
    assert run(folder) == 0
    after = analysis.load(folder)
    assert before.runs.equals(after.runs) and before.requests.equals(after.requests) and after.notes == before.notes
    assert drop_unfinished(folder) == 0
    assert len(list(read_table(folder, "samples"))) == TEXTS


def edited(folder: Path, **changes: Any) -> Path:
    shard = folder / "records" / "runs-a.jsonl"
    rows = [json.loads(line) | changes for line in shard.read_text().splitlines()]
    shard.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"corpus_sha256": "other"}, "is another text here"),
        ({"checkpoint_tokenizer": "other"}, "neither that of the config, nor in the zoo"),
        ({"workload.prompts": "random"}, "no texts to score"),
        ({"status": "failed"}, "no texts to score"),
    ],
    ids=["corpus", "tokenizer", "random prompts", "failed"],
)
def test_bad_records_are_refused_with_what_to_do(tmp_path, changes, words, capsys):
    assert run(edited(write_sweep(tmp_path / "sweep", {"true": {}}), **changes)) == 2
    assert words in capsys.readouterr().err


def test_bad_calls(tmp_path, capsys, monkeypatch):
    assert run(tmp_path / "nowhere") == 2
    assert "no folder" in capsys.readouterr().err
    folder = write_sweep(tmp_path / "sweep", {"true": {}})
    assert run(folder, "--scorer", str(tmp_path)) == 2
    assert "--scorer" in capsys.readouterr().err
    monkeypatch.setattr(rescore, "gpu_names", list)
    assert run(folder, "--device", "cuda") == 2
    assert "this machine shows no NVIDIA GPU; use --device cpu" in capsys.readouterr().err


def test_without_a_plan_overrides_name_the_corpus(tmp_path, no_mauve, capsys):
    folder = write_sweep(tmp_path / "sweep", {"true": {}})
    (folder / "plan" / "measure-0.json").unlink()
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(tiny.texts()))
    assert run(folder, "corpus=local_text", f"corpus.path={text}", "tokenizer=byte") == 0  # the same documents
    assert run(folder, "corpus=local_text", f"corpus.path={text}", "corpus.sample_by=document") == 2
    capsys.readouterr()
    assert run(folder, "corpus=local_text", f"corpus.path={text}", "tokenizer=bpe1024", "tokenizer.vocab_size=500") == 2
    assert "did not write the texts of these records" in capsys.readouterr().err


def test_mauve_stands_beside_its_ceiling(tmp_path):
    pytest.importorskip("mauve")
    short = {"prompt_len": 4, "output_len": 12}  # so that the tiny held-out text has twice 50 of them
    folder = write_sweep(tmp_path / "sweep", {"true": short, "dull": short}, texts_a_round=25)
    assert run(folder, "--no-novelty") == 0
    sets = {row["name"]: row for row in table(folder, "set_scores")}
    if problem := sets["true"].get("mauve_problem"):
        pytest.fail(problem)
    assert sets["dull"]["mauve"] < 0.1 < sets["true"]["mauve"]
    assert sets["dull"]["mauve_lost_low"] > 0
    assert sets["dull"]["mauve_features"] == "byte grams"


def test_the_metric_check_says_by_its_exit_code_whether_it_holds(monkeypatch, capsys):
    from paradigms.quality import defects

    looks = [
        defects.Look(
            metric=metric,
            defect=defect,
            difference=defects.Estimate(1.0, 0.1, 9),
            sees=True,
            expected=None if (metric, defect) != ("mauve", "exact") else False,
        )
        for metric in defects.METRICS
        for defect in defects.DEFECTS
    ]
    monkeypatch.setattr(defects, "check", lambda *sources, **options: looks)
    assert metric_check.main([]) == 1
    assert "0 of 1 expectations hold" in capsys.readouterr().out
    monkeypatch.setattr(defects, "check", lambda *sources, **options: looks[1:6])
    monkeypatch.setattr(defects, "table", lambda looks: "")
    assert metric_check.main([]) == 0


def test_the_metric_check_refuses_bad_input(capsys):
    assert metric_check.main(["--texts", "3"]) == 2
    assert metric_check.main(["--texts", "-5"]) == 2 and "give at least 50 texts" in capsys.readouterr().err
    assert metric_check.main(["--seed", "-1"]) == 2 and "--seed -1 must be at least 0" in capsys.readouterr().err
    assert metric_check.main(["--texts", "3"]) == 2
    assert "--texts 3" in capsys.readouterr().err
    assert metric_check.main(["corpus=mqar"]) == 2 and "corpus=mqar is a task" in capsys.readouterr().err
    assert metric_check.main(["corpus=markov,mqar"]) == 2 and "one cell is asked for" in capsys.readouterr().err
    assert metric_check.main(["corpus=nothing"]) == 2
    assert "corpus=nothing is unknown" in capsys.readouterr().err


def test_help(capsys):
    with pytest.raises(SystemExit) as stop:
        rescore.main(["--help"])
    assert stop.value.code == 0 and "--scorer" in capsys.readouterr().out
