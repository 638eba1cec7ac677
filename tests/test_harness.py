"""lm-eval over paradigms: equal to lm-eval's own model of transformers on the same weights, and honest about bounds."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import datasets
import numpy as np
import pytest
import theirs
import torch

from paradigms import cli
from paradigms.build import build
from paradigms.data.tokenizers import Tokenizer
from paradigms.harness import __main__ as command
from paradigms.harness.results import decided, notes, summaries, table, write
from paradigms.harness.text import Generation, encode_context, encode_pair, text_of
from paradigms.measure.environment import versions
from paradigms.quality.answers import answer_likelihoods
from paradigms.training.checkpoint import load_tokenizer
from paradigms.weights import Zoo
from paradigms.zoo import folder as zoo_folder

lm_eval = pytest.importorskip(
    "lm_eval", reason="lm-eval is not installed: pip install -c constraints.txt -e '.[harness]'"
)

from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.api.model import TemplateLM  # noqa: E402

from paradigms.harness.adapter import Settings, open_cell  # noqa: E402

TASKS = Path(__file__).parent / "harness_tasks"
POSITIONS = 64


def quiet(what, done, total):
    pass


@pytest.fixture(scope="module", autouse=True)
def here(tmp_path_factory):
    """A folder with the tasks in it, and no cache of the user's."""
    folder = tmp_path_factory.mktemp("harness")
    shutil.copytree(TASKS, folder / "harness_tasks")
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "datasets")
        patch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        patch.setenv("PARADIGMS_CACHE", str(folder / "cache"))
        patch.setattr("lm_eval.evaluator.add_env_info", lambda results: None)  # asks pip for its packages, for seconds
        yield folder
    torch.set_num_threads(threads)


def opened(*overrides, corpus=None, **settings):
    config = cli.compose(list(overrides))
    if corpus is not None:
        config["corpus"] = {"_target_": corpus}
    cell = build(config)
    cell.check()
    return open_cell(cell, Settings(**settings), quiet)


def asked(kind, *arguments):
    return [
        Instance(request_type=kind, doc={}, arguments=args, idx=0, metadata=("mine", n, 1))
        for n, args in enumerate(arguments)
    ]


# Tokens


class Theirs(TemplateLM):
    """lm-eval's own way from texts to pairs of tokens, over a tokenizer of ours."""

    def __init__(self, tokenizer):
        super().__init__()
        self.ours, self.pairs = tokenizer, []

    @property
    def eot_token_id(self):
        return self.ours.eos_id

    @property
    def prefix_token_id(self):
        return self.ours.bos_id

    def tok_encode(self, string, add_special_tokens=None, **more):
        return self.ours.encode(string)

    def _loglikelihood_tokens(self, requests, **more):
        self.pairs = [(context, answer) for _, context, answer in requests]
        return [(0.0, False)] * len(requests)

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        return []

    def generate_until(self, requests, disable_tqdm=False):
        return []


TEXTS = [
    ("Return the", " list"),
    ("Return the ", "list"),
    ("Return the \n\n", "list of items"),
    ("Return the  ", "  list"),
    ("retur", "n value"),
    ("retu", "rn value of"),
    ("Naïve café", " ☕ 日本"),
    ("", "Return"),
    ("", " Return"),
    ("a:\n", "\n b"),
]


@pytest.mark.parametrize("name", ["byte", "bpe"])
def test_pairs_are_those_of_lm_eval(name):
    tokenizer = Tokenizer() if name == "byte" else load_tokenizer(zoo_folder("ar"))
    oracle = Theirs(tokenizer)
    oracle.loglikelihood(asked("loglikelihood", *TEXTS))
    for (context, answer), (prompt, tokens) in zip(TEXTS, oracle.pairs, strict=True):
        if not tokens:  # lm-eval has no answer left either, and would stop at an assertion
            with pytest.raises(ValueError, match="has no tokens behind its context"):
                encode_pair(tokenizer, context, answer, begin="none", max_positions=100, name="")
            continue
        found = encode_pair(tokenizer, context, answer, begin="none", max_positions=100, name="")
        assert (list(found.prompt), list(found.answer)) == (prompt, tokens)
        begun = encode_pair(tokenizer, context, answer, begin="text", max_positions=100, name="")
        assert begun.prompt == (tokenizer.bos_id, *(prompt if context else ())) and begun.answer == found.answer


def test_a_token_over_the_joint_is_noticed():
    bpe = load_tokenizer(zoo_folder("ar"))
    context, answer = "retu", "rn value of the"
    assert bpe.encode(context + answer)[: len(bpe.encode(context))] != bpe.encode(context)
    assert encode_pair(bpe, context, answer, begin="text", max_positions=50, name="").joined
    assert not encode_pair(bpe, "Return the", " list", begin="text", max_positions=50, name="").joined


def test_what_is_too_long_loses_its_left_end():
    tokenizer = Tokenizer()
    text = "abcdefgh"
    ids = tokenizer.encode(text)
    for positions in range(4, 12):
        pair = encode_pair(tokenizer, text[:5], text[5:], begin="text", max_positions=positions, name="")
        whole = [tokenizer.bos_id, *ids]
        assert [*pair.prompt, *pair.answer] == whole[-positions:] and list(pair.answer) == ids[5:]
        assert pair.num_cut == max(0, 9 - positions)
    for most in range(1, 10):
        prompt, num_cut = encode_context(tokenizer, text, begin="text", most=most)
        assert list(prompt) == [tokenizer.bos_id, *ids][-most:] and num_cut == max(0, 9 - most)
    assert encode_context(tokenizer, "", begin="none", most=5) == ((tokenizer.bos_id,), 0)
    with pytest.raises(ValueError, match="mine, document 3: an answer of 3 tokens leaves no room"):
        encode_pair(tokenizer, text[:5], text[5:], begin="text", max_positions=3, name="mine, document 3")
    with pytest.raises(ValueError, match="mine, document 3: the answer '' has no tokens"):
        encode_pair(tokenizer, text, "", begin="text", max_positions=30, name="mine, document 3")


@pytest.mark.parametrize(
    ("asked_for", "wanted"),
    [
        ({}, Generation()),
        ({"until": "x", "max_gen_toks": 5}, Generation(until=("x",), max_new_tokens=5)),
        ({"until": ["x", ""], "max_new_tokens": 7, "max_tokens": 9}, Generation(until=("x",), max_new_tokens=7)),
        ({"do_sample": False, "temperature": 0.7, "top_p": 0.9}, Generation()),
        ({"temperature": 0.7}, Generation(temperature=0.7)),
        ({"do_sample": True, "temperature": 1, "top_k": 3}, Generation(temperature=1.0, top_k=3)),
    ],
    ids=["nothing", "a string", "aliases", "greedy after all", "draws", "draws of three"],
)
def test_generation_as_tasks_ask_for_it(asked_for, wanted):
    assert Generation.of(asked_for, name="") == wanted


@pytest.mark.parametrize(
    ("asked_for", "words"),
    [
        ({"num_beams": 4}, "mine: generation_kwargs.num_beams=4 is no setting"),
        ({"do_sample": True}, "mine: generation_kwargs.do_sample=true at temperature 0"),
        ({"max_gen_toks": 0}, "mine: generation_kwargs.max_gen_toks=0 must be at least 1"),
    ],
    ids=["beams", "draws of nothing", "no tokens"],
)
def test_generation_that_cannot_be(asked_for, words):
    with pytest.raises(ValueError, match=words):
        Generation.of(asked_for, name="mine")


def test_a_text_ends_before_its_stop_string_and_its_end():
    tokenizer = Tokenizer()
    ids = tokenizer.encode("one. two\nthree")
    stops = Generation(until=("\n", "."))
    assert text_of(tokenizer, ids, stops) == "one"
    assert text_of(tokenizer, ids, Generation()) == "one. two\nthree"
    assert text_of(tokenizer, [*ids[:2], tokenizer.eos_id, *ids[2:]], stops) == "on"


# The same weights by lm-eval's own model


@pytest.fixture(scope="module", params=["text", "none"])
def both(request, tmp_path_factory):
    """A tiny Llama by lm-eval's `hf`, and natively; contexts begin with begin-of-text, or not."""
    pytest.importorskip("accelerate", reason="lm-eval's model of transformers needs accelerate")
    from lm_eval.models.huggingface import HFLM

    folder = theirs.write_folder(tmp_path_factory.mktemp("llama"), max_position_embeddings=POSITIONS)
    names = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    if request.param == "text":
        description = json.loads((folder / "tokenizer.json").read_text())
        begin = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
        description["post_processor"] = {
            "type": "TemplateProcessing",
            "single": begin,
            "pair": [*begin, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        }
        (folder / "tokenizer.json").write_text(json.dumps(description))
    overrides = ("paradigm=ar", "model=pretrained", f"model.path={folder}", "measure.quality=false")
    sizes = ("workload.prompt_len=8", "workload.output_len=8", "workload.batch_size=3")
    ours = opened(*overrides, *sizes, corpus="tiny.TinyText", begin=request.param)
    assert (ours.max_positions, ours.max_length) == (POSITIONS, POSITIONS - 1)
    hf = HFLM(pretrained=str(folder), device="cpu", dtype="float32", batch_size=1, max_length=ours.max_length)
    return ours, hf


LONG = " ".join(f"the cache keeps every state {n}" for n in range(30))


def test_likelihoods_are_those_of_hf(both):
    ours, hf = both
    pairs = [*TEXTS, (LONG, " and a token"), ("a" * 10, LONG[:30])]
    for context in (LONG[:n] for n in range(20, 60)):  # an answer that is the likeliest
        (greedy,) = ours.generate_until(asked("generate_until", (context, {"max_gen_toks": 1})))
        if greedy.isascii() and greedy.strip() == greedy != "":
            pairs.append((context, greedy))
    found = ours.loglikelihood(asked("loglikelihood", *pairs))
    wanted = hf.loglikelihood(asked("loglikelihood", *pairs), disable_tqdm=True)
    assert [is_greedy for _, is_greedy in found] == [is_greedy for _, is_greedy in wanted]
    assert {is_greedy for _, is_greedy in found} == {True, False}
    assert [nats for nats, _ in found] == pytest.approx([nats for nats, _ in wanted], abs=1e-4)
    rows = ours.scored[-len(pairs) :]
    assert rows[len(TEXTS)].num_cut > 0 and not any(row.num_cut for row in rows[: len(TEXTS)])
    assert {row.nats_se for row in rows} == {0.0} and not any(row.is_bound for row in rows)


def test_rolling_likelihoods_are_those_of_hf(both):
    ours, hf = both
    texts = [(LONG,), (LONG[:40],), ("x",), ("",)]
    tokens = [ours.weights.tokenizer.encode(text) for (text,) in texts]
    assert len(tokens[0]) > 2 * POSITIONS
    found = ours.loglikelihood_rolling(asked("loglikelihood_rolling", *texts))
    with pytest.MonkeyPatch.context() as patch:  # else hf scores begin-of-text too, behind another, where it adds it
        patch.setattr(hf, "add_bos_token", False)
        wanted = hf.loglikelihood_rolling(asked("loglikelihood_rolling", *texts[:3]), disable_tqdm=True)
    assert found == pytest.approx([*wanted, 0.0], rel=1e-5, abs=1e-4)
    assert [row.num_tokens for row in ours.scored[-4:]] == [len(own) for own in tokens]


def test_a_rolling_likelihood_by_hand(both):
    """Windows of 63 predictions, the last behind as much as fits; token by token from the model's own logits."""
    ours, _ = both
    ids = ours.weights.tokenizer.encode(LONG)
    text = [ours.weights.tokenizer.bos_id, *ids]
    W, total = ours.max_length, 0.0
    for start in range(0, len(ids), W):
        stop = min(start + W, len(ids))
        first = max(0, stop - W)
        with torch.no_grad():
            log_p = ours.weights.model(torch.tensor([text[first:stop]]))[0].double().log_softmax(-1)
        total += sum(log_p[n - first, ids[n]].item() for n in range(start, stop))
    assert ours.loglikelihood_rolling(asked("loglikelihood_rolling", (LONG,)))[0] == pytest.approx(total, abs=1e-3)


def test_greedy_texts_are_those_of_hf(both):
    """A ragged batch, stop strings, a context that is cut."""
    ours, hf = both
    contexts = [context for context, _ in TEXTS if context] + [LONG, LONG[:30]]
    how = {"until": ["e", " k"], "max_gen_toks": 12, "do_sample": False}
    found = ours.generate_until(asked("generate_until", *((context, dict(how)) for context in contexts)))
    wanted = hf.generate_until(
        asked("generate_until", *((context, dict(how)) for context in contexts)), disable_tqdm=True
    )
    assert found == wanted and any(found)
    rows = ours.generated[-len(contexts) :]
    assert [row.num_cut > 0 for row in rows] == [context == LONG for context in contexts]
    stopped = [row.num_tokens for row in rows if row.finish_reason == "stop_string"]
    assert stopped and min(stopped) < 12  # not only cut afterwards
    assert {row.temperature for row in rows} == {0.0} and all(0 < row.nfe <= 12 for row in rows)


@pytest.mark.parametrize("more", [(), ("decoder=transformers_generate",)], ids=["our loop", "generate"])
def test_the_library_s_own_network_says_the_same(both, more):
    ours, _ = both
    path = ours.cell.train.path
    sizes = ("workload.prompt_len=8", "workload.output_len=8", "measure.quality=false")
    overrides = ("paradigm=ar", "model=transformers", f"model.path={path}", *sizes, *more)
    lm = opened(*overrides, corpus="tiny.TinyText", begin=ours.settings.begin)
    pairs, texts = asked("loglikelihood", *TEXTS), asked("generate_until", (LONG[:30], {"max_gen_toks": 6}))
    assert lm.loglikelihood(pairs) == [
        (pytest.approx(nats, abs=1e-4), same) for nats, same in ours.loglikelihood(pairs)
    ]
    assert lm.generate_until(texts) == ours.generate_until(texts)


def test_figures_are_those_of_hf(both):
    ours, hf = both
    names = ["tiny_choice", "tiny_continue"] + (["tiny_text"] if ours.settings.begin == "none" else [])
    manager = command._manager(names, "harness_tasks")
    results = [
        lm_eval.simple_evaluate(model=model, tasks=list(names), task_manager=manager, bootstrap_iters=0)
        for model in (ours, hf)
    ]
    mine, their = (found["results"] for found in results)
    for key in ("acc,none", "acc_norm,none"):
        assert mine["tiny_choice"][key] == their["tiny_choice"][key]
    assert mine["tiny_continue"]["exact_match,none"] == their["tiny_continue"]["exact_match,none"]
    for key in ("byte_perplexity,none", "bits_per_byte,none") if "tiny_text" in names else ():
        assert mine["tiny_text"][key] == pytest.approx(their["tiny_text"][key], rel=1e-5)
    texts = [[one["resps"] for one in found["samples"]["tiny_continue"]] for found in results]
    assert texts[0] == texts[1]


# The models of the zoo, by the command


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


def test_the_same_question_is_answered_alike_in_any_company():
    lm = opened("paradigm=ar", "workload.batch_size=4")
    how = {"max_gen_toks": 8, "do_sample": True, "temperature": 1.0}
    contexts = ["Return the", "If", "Raise a ValueError when", "Return the"]
    together = lm.generate_until(asked("generate_until", *((context, how) for context in contexts)))
    alone = [lm.generate_until(asked("generate_until", (context, how)))[0] for context in contexts]
    assert together[:3] == alone[:3]
    assert together[3] != together[0] == alone[3]  # asked again in one call, drawn again
    assert lm.generated[0].temperature == 1.0


# Bounds that are near to each other


def row(doc_id, nats, error, kind="loglikelihood", **more):
    values = {"task": "t", "num_tokens": 2, "is_bound": True, "num_cut": 0, "joined": False, **more}
    return SimpleNamespace(doc_id=doc_id, nats=nats, nats_se=error, kind=kind, **values)


def test_undecided_questions_are_counted():
    rows = [
        *(row(0, 10.0, 3.0), row(0, 19.9, 4.0), row(0, 50.0, 9.0)),  # 9.9 apart, an error of 5
        *(row(1, 19.0, 3.0), row(1, 8.9, 4.0)),  # 10.1 apart
        *(row(2, 1.0, 0.0), row(2, 1.5, 0.0)),  # nothing was drawn
        *(row(3, 1.0, None), row(3, 90.0, 0.1)),  # nobody knows
        *(row(4, 1.0, 5.0), row(5, 1.0, 5.0, kind="loglikelihood_rolling")),  # no questions
    ]
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
    found = {"paradigms": own, "value": np.int64(3), "function": quiet}
    written = json.loads(write(found, here / "deep" / "file.json").read_text())
    assert written["value"] == 3 and isinstance(written["function"], str)


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


def test_what_a_model_cannot_be_asked():
    lm = opened("paradigm=ar")
    with pytest.raises(ValueError, match=r"mine, document 1, request 0: the answer '' has no tokens"):
        lm.loglikelihood(asked("loglikelihood", ("a", " b"), ("a", "")))
    with pytest.raises(ValueError, match=r"max_gen_toks=575 leaves no room .* 575 tokens"):
        lm.generate_until(asked("generate_until", ("a", {"max_gen_toks": 575})))
    lm.cell = SimpleNamespace(model=SimpleNamespace(noise="uniform"))
    with pytest.raises(ValueError, match=r"not computed under uniform noise \(model.noise=uniform\)"):
        lm.loglikelihood(asked("loglikelihood", ("a", " b")))
    steps = opened("paradigm=diffusion_16")
    with pytest.raises(ValueError, match=r"decoder.sampler.steps=16"):
        steps.generate_until(asked("generate_until", ("a", {"max_gen_toks": 8})))


def test_a_decoder_of_its_own_rules_is_said_and_draws_are_refused():
    lm = opened("paradigm=ar")

    @dataclasses.dataclass(frozen=True)
    class Own:
        """Greedy, by a rule of its own."""

        engine = "native"
        inner: object

        def check(self, model, *, output_len):
            self.inner.check(model, output_len=output_len)

        def decode(self, model, requests, vocabulary):
            return self.inner.decode(model, requests, vocabulary)

    plain = dataclasses.replace(lm.cell.decoder, temperature=0.0)
    lm.cell = dataclasses.replace(lm.cell, decoder=Own(plain))
    lm.generate_until(asked("generate_until", ("Return", {"max_gen_toks": 3})))
    assert lm.generated[-1].temperature is None
    assert any("rules of its own" in note for note in notes(summaries([], lm.generated), num_masks=1, mask_seed=0))
    with pytest.raises(ValueError, match=r"temperature=0.5 asks for draws"):
        lm.generate_until(asked("generate_until", ("Return", {"max_gen_toks": 3, "temperature": 0.5})))


def test_no_window_is_longer_than_what_was_trained_on(monkeypatch):
    monkeypatch.setattr(Zoo, "trained_len", lambda self, wanted: 100)
    lm = opened("paradigm=ar", "measure.quality=false", "workload.prompt_len=8", "workload.output_len=8")
    assert (lm.max_positions, lm.max_length) == (100, 99)
