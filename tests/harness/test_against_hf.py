"""The same weights by lm-eval's own model of transformers: equal likelihoods, texts and figures."""

from __future__ import annotations

import json

import pytest
import theirs
import torch
from harness.asking import TEXTS, asked, opened
from lm_eval import simple_evaluate

from paradigms.harness import __main__ as command

POSITIONS = 64


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
        simple_evaluate(model=model, tasks=list(names), task_manager=manager, bootstrap_iters=0) for model in (ours, hf)
    ]
    mine, their = (found["results"] for found in results)
    for key in ("acc,none", "acc_norm,none"):
        assert mine["tiny_choice"][key] == their["tiny_choice"][key]
    assert mine["tiny_continue"]["exact_match,none"] == their["tiny_continue"]["exact_match,none"]
    for key in ("byte_perplexity,none", "bits_per_byte,none") if "tiny_text" in names else ():
        assert mine["tiny_text"][key] == pytest.approx(their["tiny_text"][key], rel=1e-5)
    texts = [[one["resps"] for one in found["samples"]["tiny_continue"]] for found in results]
    assert texts[0] == texts[1]
