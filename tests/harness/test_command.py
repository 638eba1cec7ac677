"""The command: the models of the zoo, and what it refuses."""

from __future__ import annotations

import json

import pytest
from harness.asking import TASKS, quiet

from paradigms import cli
from paradigms.build import build
from paradigms.harness import __main__ as command
from paradigms.harness.text import encode_pair
from paradigms.measure.environment import versions
from paradigms.quality.answers import answer_likelihoods

ZOO = {
    "ar": ["paradigm=ar"],
    "ssm": ["paradigm=ssm"],
    "diffusion": ["paradigm=diffusion"],
    "block_diffusion": ["paradigm=block_diffusion", "model.canvas_block=8"],
}


@pytest.mark.parametrize("name", ZOO)
def test_the_command_asks_the_zoo(name, here, capsys):
    path = here / f"{name}.json"
    tasks = ["--tasks", "tiny_choice,tiny_continue", "--include-path", "harness_tasks", "--limit", "3"]
    code = command.main([*ZOO[name], *tasks, "--masks", "6", "--mask-seed", "5", "--output", str(path)])
    printed = capsys.readouterr().out
    assert code == 0
    found = json.loads(path.read_text())
    own, causal = found["paradigms"], name in ("ar", "ssm")
    cell = build(cli.compose(ZOO[name]))
    assert own["checkpoint"] == cell.checkpoint_id() and own["paradigm"]["name"] == name
    assert own["settings"]["limit"] == 3 and own["settings"]["num_masks"] == 6
    assert own["versions"]["lm-eval"] and own["versions"]["torch"] == versions()["torch"]
    assert found["n-samples"]["tiny_choice"]["effective"] == 3

    rows = own["likelihoods"]
    assert [(row["task"], row["doc_id"]) for row in rows] == [("tiny_choice", n) for n in (0, 0, 0, 1, 1, 1, 2, 2, 2)]
    weights = cell.train.load(cell.wanted, quiet)
    questions = [json.loads(line) for line in (TASKS / "choice.jsonl").read_text().splitlines()[:3]]
    pairs = []
    for question in questions:
        for choice in question["choices"]:
            pair = encode_pair(
                weights.tokenizer, question["question"], " " + choice, begin="text", max_positions=576, name=""
            )
            pairs.append((pair.prompt, pair.answer))
    wanted = answer_likelihoods(weights.model, pairs, mask_id=weights.tokenizer.mask_id, num_masks=6, seed=5)
    assert [row["nats"] for row in rows] == pytest.approx([one.nats for one in wanted], rel=1e-6)
    assert [row["nats_se"] for row in rows] == pytest.approx([one.nats_se for one in wanted], rel=1e-6)
    best = [
        min(range(3), key=lambda c: wanted[3 * n + c].nats) == question["label"] for n, question in enumerate(questions)
    ]
    assert found["results"]["tiny_choice"]["acc,none"] == pytest.approx(sum(best) / 3)

    is_bound = any(one.is_bound for one in wanted)
    assert own["is_bound"] == own["tasks"]["tiny_choice"]["is_bound"] == is_bound == (not causal)
    figures = {
        tuple(line.split(" | ")[i] for i in (0, 4, 5)) for line in printed.splitlines() if line.startswith("| tiny")
    }
    name = "| tiny_choice" + (" (bound)" if is_bound else "")
    assert (name, "acc", f"{found['results']['tiny_choice']['acc,none']:.4f}") in figures
    assert ("| tiny_continue", "exact_match", f"{found['results']['tiny_continue']['exact_match,none']:.4f}") in figures
    assert ("tiny_choice (bound)" in printed) == (not causal) == any("bounds" in note for note in own["notes"])
    assert [row["is_greedy"] for row in rows] == [one.is_greedy for one in wanted]
    texts = own["generations"]
    assert [row["doc_id"] for row in texts] == [0, 1, 2] and all(1 <= row["num_tokens"] <= 12 for row in texts)
    if causal:
        assert all(row["nfe"] == row["num_tokens"] for row in texts)
    assert str(path) in printed


def test_a_cache_in_8_bits_is_said_beside_likelihoods(here, capsys):
    path = here / "out.json"
    tasks = ["--tasks", "tiny_choice", "--include-path", "harness_tasks", "--limit", "1"]
    for paradigm, is_said in (("ar", False), ("ar_int8", True)):
        assert command.main([f"paradigm={paradigm}", *tasks, "--output", str(path)]) == 0
        assert ("likelihoods are those of an exact cache; decoder.kv_dtype=int8" in capsys.readouterr().out) == is_said


# What is refused


LOCAL = ("--tasks", "tiny_choice", "--include-path", "harness_tasks")
BAD = {
    "no such paradigm": (["paradigm=arr", *LOCAL], ["paradigm=arr is unknown"]),
    "random weights": (["train=random", "measure=latency", *LOCAL], ["train=random has nothing to say about values"]),
    "random weights and quality": (["train=random", *LOCAL], ["train=random has nothing to say about values"]),
    "a task of ours": (["task=mqar", *LOCAL], ["tokenizer=symbols reads no text"]),
    "no such task": (["--tasks", "tiny_choise", "--include-path", "harness_tasks"], ["--tasks=tiny_choise is no task"]),
    "no task at all": (["--tasks", ","], ["--tasks names no task"]),
    "no such folder": (["--tasks", "x", "--include-path", "nowhere"], ["--include-path=nowhere is no folder"]),
    "no documents": ([*LOCAL, "--limit", "0"], ["--limit=0 must be"]),
    "documents without end": ([*LOCAL, "--limit", "inf"], ["--limit=inf must be"]),
    "no number": ([*LOCAL, "--limit", "nan"], ["--limit=nan must be"]),
    "half a document": ([*LOCAL, "--limit", "2.5"], ["--limit=2.5 must be"]),
    "no masks": ([*LOCAL, "--masks", "0"], ["--masks=0 must be at least 1"]),
    "no such beginning": ([*LOCAL, "--begin", "end"], ["--begin=end is unknown; it is one of text, none"]),
    "fewer than no examples": ([*LOCAL, "--num-fewshot", "-1"], ["--num-fewshot=-1"]),
    "more examples than documents": ([*LOCAL, "--num-fewshot", "99"], ["fewer documents to take examples from"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_line(case, capsys, monkeypatch):
    if case == "no such task":  # without lm-eval's own thousands, which take seconds to read
        manager = command._manager(["tiny_choice"], "harness_tasks")
        monkeypatch.setattr("lm_eval.tasks.TaskManager", lambda **options: manager)
    arguments, words = BAD[case]
    assert command.main(arguments) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: ") and all(word in error for word in words), error


@pytest.mark.parametrize(
    "document, words",
    [
        ({"question": "a", "choices": ["", "b"], "label": 0}, "IndexError"),
        ({"question": "a", "label": 0}, "'choices' is undefined"),
        (None, "FileNotFoundError"),
    ],
    ids=["a choice without text", "a field that is missing", "no documents"],
)
def test_a_task_that_cannot_be_loaded_is_one_clear_line(document, words, tmp_path, capsys):
    task = (TASKS / "tiny_choice.yaml").read_text().replace("harness_tasks/choice.jsonl", f"{tmp_path}/choice.jsonl")
    (tmp_path / "tiny_choice.yaml").write_text(task)
    if document is not None:
        (tmp_path / "choice.jsonl").write_text(json.dumps(document) + "\n")
    assert command.main(["--tasks", "tiny_choice", "--include-path", str(tmp_path)]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: --tasks=tiny_choice: lm-eval cannot load it") and words in error


def test_without_lm_eval_the_command_says_how_to_get_it(monkeypatch, capsys):
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    assert command.main(["--tasks", "x"]) == 2
    assert "pip install -c constraints.txt -e '.[harness]'" in capsys.readouterr().err
