"""What is said of results: bounds near to each other, contexts that were cut, groups; and the file."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from harness.asking import quiet

from paradigms.harness.results import decided, notes, summaries, table, write


def row(doc_id, nats, error, kind="loglikelihood", **more):
    values = {
        "task": "t",
        "num_tokens": 2,
        "is_bound": True,
        "num_cut": 0,
        "joined": False,
        "has_context": True,
        **more,
    }
    return SimpleNamespace(doc_id=doc_id, nats=nats, nats_se=error, kind=kind, **values)


def test_undecided_questions_are_counted():
    rows = [
        *(row(0, 10.0, 3.0), row(0, 19.9, 4.0), row(0, 50.0, 9.0)),  # 9.9 apart, an error of 5
        *(row(1, 19.0, 3.0), row(1, 8.9, 4.0)),  # 10.1 apart
        *(row(2, 1.0, 0.0), row(2, 1.5, 0.0)),  # nothing was drawn
        *(row(3, 1.0, None), row(3, 90.0, 0.1)),  # nobody knows
        *(row(4, 1.0, 5.0), row(5, 1.0, 5.0, kind="loglikelihood_rolling")),  # no questions
    ]
    by_themselves = [row(one.doc_id, one.nats - 60.0, 0.1, has_context=False) for one in rows[:8]]  # acc_mutual_info
    assert decided([*rows, *by_themselves]) == decided(rows)
    assert decided(by_themselves) == (0, 3), "unless nothing else is asked"
    assert decided(rows) == (2, 4)
    of = summaries(rows, [])["t"]
    assert (of["undecided"], of["questions"], of["likelihoods"], of["mask_se_max_nats"]) == (2, 4, 11, None)
    said = " ".join(notes({"t": of}, num_masks=8, mask_seed=1))
    assert "2 of 4 questions" in said and "8 masks an answer, seed 1" in said


def test_notes_say_nothing_where_nothing_is_to_be_said():
    of = summaries([row(0, 1.0, 0.0, is_bound=False), row(0, 9.0, 0.0, is_bound=False)], [])
    assert notes(of, num_masks=8, mask_seed=0) == []
    cut = summaries([row(0, 1.0, 0.0, is_bound=False, num_cut=3, joined=True)], [])
    said = notes(cut, num_masks=8, mask_seed=0)
    assert len(said) == 2 and "1 of 1 contexts were too long" in said[0] and "over the joint" in said[1]


def test_groups_of_bounds_are_marked():
    results = {
        "results": {"a": {"acc,none": 0.5, "acc_stderr,none": "N/A"}, "b": {"alias": " - b", "f1,strict": 1}},
        "groups": {"top": {"acc,none": 0.25, "acc_stderr,none": 0.125}, "other": {"f1,strict": 1}},
        "group_subtasks": {"top": ["middle"], "middle": ["a"], "other": ["b"]},
        "versions": {"a": 2.0},
        "n-shot": {"a": 3},
        "paradigms": {"tasks": {"a": {"is_bound": True}, "b": {"is_bound": False}}},
    }
    assert table(results).splitlines()[2:] == [
        "| a (bound) | 2.0 | 3 | none | acc | 0.5000 | – |",
        "| b | – | – | strict | f1 | 1.0000 | – |",
        "| top (bound) | – | – | none | acc | 0.2500 | 0.1250 |",
        "| other | – | – | strict | f1 | 1.0000 | – |",
    ]


def test_without_a_name_the_file_is_named_by_what_was_asked(here):
    own = {"paradigm": {"name": "ar"}, "config": {"a": 1}, "checkpoint": "x", "settings": {"tasks": ["t"]}}
    first = write({"paradigms": own}, None)
    assert first == write({"paradigms": own}, None) and first.parent == Path("runs/harness")
    assert first != write({"paradigms": {**own, "settings": {"tasks": ["u"]}}}, None)
    for other in ({"configs": {"t": {"doc_to_target": "{{a}}"}}}, {"task_hashes": {"t": "documents of the same name"}}):
        assert first != write({"paradigms": own, **other}, None)
    found = {"paradigms": own, "value": np.int64(3), "function": quiet}
    written = json.loads(write(found, here / "deep" / "file.json").read_text())
    assert written["value"] == 3 and isinstance(written["function"], str)
