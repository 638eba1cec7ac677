"""The main path on tiny cells: counts, bytes and tokens by known answers, and tables that agree with each other."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from hydra.core.global_hydra import GlobalHydra

from paradigms import bench, cli, scores
from paradigms.cell import Cell
from paradigms.data.stream import token_stream
from paradigms.data.tokenizers import BOS_ID, EOS_ID, MASK_ID, ByteTokenizer
from paradigms.decoding.autoregressive import Autoregressive
from paradigms.decoding.native import NativeParadigm
from paradigms.models.attention import AttentionConfig
from paradigms.models.config import ModelConfig
from paradigms.models.sliding_attention import SlidingAttentionConfig
from paradigms.paradigm import Request
from paradigms.quality.samples import sample_statistics
from paradigms.records import canonical_json, read_table

Unit = tuple[dict[str, Any], bench.Tables]
PROMPT, OUTPUT, BATCH, REPEATS = 8, 16, 2, 2
NATIVE = list(tiny.DECODERS)


@pytest.fixture(scope="module", autouse=True)
def _home(folders: Path) -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@cache
def trained(paradigm: str, round_index: int = 0, timeline: str = "device") -> Unit:
    """A unit with trained weights, everything measured."""
    return bench.run_unit(trained_cell(paradigm, timeline), round_index)


def trained_cell(paradigm: str, timeline: str = "device") -> Cell:
    cell = tiny.cell(
        paradigm, trained=True, batch_size=BATCH, measure={"tokens": True, "timeline": timeline, "memory": True}
    )
    cell.check()
    return cell


@cache
def random(paradigm: str, **work: Any) -> Unit:
    """A unit with random weights."""
    return bench.run_unit(tiny.cell(paradigm, **work), 0)


# ---------------------------------------------------------------- tables

RUN_COLUMNS = """parameters weight_bytes state_used_bytes state_allocated_bytes state_formula_bytes peak_tensor_bytes
    peak_rss_bytes cuda_peak_allocated_bytes cuda_peak_reserved_bytes import_s load_s compile_s warmup_s steady_s
    num_warmups warmup_steady kernels execution execution_prompts bits_per_byte bits_per_byte_se bits_per_byte_mask_se
    bits_per_byte_is_bound
    checkpoint_tokens corpus_sha256 corpus_is_zoo_corpus machine cpu gpu torch_version python_version
    transformers_version load_before load_after steal_fraction cpu_mhz_before cpu_mhz_after contended contention
    contended_by run_queue_fraction lost_fraction other_cores probe_before_s probe_after_s energy_j energy_j_per_token
    energy_source attempts attempt_kept attempt_wall_s attempt_contention"""
MEMORY = {name for name in RUN_COLUMNS.split() if name.startswith(("state_", "peak_", "cuda_peak_"))}  # round 0 only
QUALITY = {name for name in RUN_COLUMNS.split() if name.startswith("bits_per_byte")}
COLUMNS = {
    "requests": """repeat row request_id seed prompt_tokens requested_tokens committed_tokens finish_reason ttft_s
        tpot_s e2e_s itl_median_s itl_max_s num_chunks max_chunk_tokens nfe positions_computed step_time_s prefill_s
        token_entropy_nats distinct_1 distinct_2 judge_bits_per_byte""",
    "samples": "repeat row request_id seed prompt_ids token_ids text",
    "tokens": "repeat row position step phase t_final_s t_stream_s",
    "training": """checkpoint paradigm step tokens epoch train_nats val_bits_per_byte lr tokens_per_s peak_rss_bytes
        is_bound""",
}


@pytest.mark.parametrize("paradigm", NATIVE)
def test_tables_are_complete(paradigm: str) -> None:
    run, tables = trained(paradigm)
    assert set(RUN_COLUMNS.split()) <= run.keys()
    assert tables.keys() == COLUMNS.keys()
    for table, columns in COLUMNS.items():
        assert tables[table], table
        for row in tables[table]:
            assert set(columns.split()) <= row.keys(), table
    assert json.loads(canonical_json([run, tables])) == [run, tables], "plain JSON: no tensor, no NaN, no tuple"
    assert not any("." in name for name in run), "a name with a dot is a factor"


@pytest.mark.parametrize("paradigm", NATIVE)
def test_tables_agree_with_each_other(paradigm: str) -> None:
    run, tables = trained(paradigm)
    places = [(repeat, row) for repeat in range(REPEATS) for row in range(BATCH)]
    assert run["num_repeats"] == REPEATS
    for table in ("requests", "samples"):
        assert [(row["repeat"], row["row"]) for row in tables[table]] == places
    for request, sample in zip(tables["requests"], tables["samples"], strict=True):
        assert (request["request_id"], request["seed"]) == (sample["request_id"], sample["seed"])
        assert request["prompt_tokens"] == len(sample["prompt_ids"]) == PROMPT
        assert request["committed_tokens"] == request["requested_tokens"] == len(sample["token_ids"]) == OUTPUT
        assert request["finish_reason"] == "length" and MASK_ID not in sample["token_ids"]
        mine = [t for t in tables["tokens"] if (t["repeat"], t["row"]) == (sample["repeat"], sample["row"])]
        assert [token["position"] for token in mine] == list(range(OUTPUT))
        assert mine[0]["t_stream_s"] == request["ttft_s"]
        assert max(token["t_final_s"] for token in mine) == mine[-1]["t_stream_s"] <= request["e2e_s"]
        assert max(token["step"] for token in mine) == request["nfe"] - 1, "an event a forward"
    assert run["steady_s"] == pytest.approx(
        sum(max(r["e2e_s"] for r in tables["requests"] if r["repeat"] == repeat) for repeat in range(REPEATS))
    )
    assert {row["val_bits_per_byte"] for row in tables["training"]} and tables["training"][0]["paradigm"] == paradigm
    assert run["checkpoint_tokens"] == tables["training"][-1]["tokens"]
    assert {row["checkpoint"] for row in tables["training"]} == {trained_cell(paradigm).checkpoint_id()}


# ---------------------------------------------------------------- counts


@pytest.mark.parametrize(
    ("paradigm", "forwards"),
    [("ar", 16), ("ar_uncached", 16), ("ssm", 16), ("diffusion", 16), ("diffusion_quarter", 4)],
)
def test_forwards_are_tokens_or_steps(paradigm: str, forwards: int) -> None:
    assert {row["nfe"] for row in trained(paradigm)[1]["requests"]} == {forwards}


def test_a_threshold_takes_between_one_step_and_as_many_as_tokens() -> None:
    assert all(1 <= row["nfe"] <= OUTPUT for row in trained("diffusion_threshold")[1]["requests"])


def test_positions_computed() -> None:
    """Of a row: prompt and N - 1 tokens with a state, everything again at each step without one."""
    expected = {
        "ar": PROMPT + OUTPUT - 1,
        "ssm": PROMPT + OUTPUT - 1,
        "ar_uncached": sum(PROMPT + n for n in range(OUTPUT)),
        "diffusion": OUTPUT * (PROMPT + OUTPUT),
        "diffusion_quarter": OUTPUT // 4 * (PROMPT + OUTPUT),
    }
    for paradigm, positions in expected.items():
        assert {row["positions_computed"] for row in trained(paradigm)[1]["requests"]} == {positions}, paradigm


# ---------------------------------------------------------------- bytes


def test_preparing_random_weights_and_prompts_reads_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model may come without a tokenizer that can read any."""

    def refuse(*_: object) -> None:
        raise AssertionError("text was read")

    monkeypatch.setattr(bench, "token_stream", refuse)
    bench.prepare(tiny.cell("ar"))


@pytest.mark.parametrize(("prompt_len", "output_len", "batch_size"), [(8, 16, 1), (5, 1, 3), (1, 9, 2)])
def test_kv_bytes_by_the_formula(prompt_len: int, output_len: int, batch_size: int) -> None:
    attention = AttentionConfig(num_heads=4, num_kv_heads=2)
    model = ModelConfig(vocab_size=tiny.VOCAB_SIZE, d_model=32, num_blocks=2, attention=attention)
    work = {"prompt_len": prompt_len, "output_len": output_len, "batch_size": batch_size}
    run, _ = bench.run_unit(tiny.cell("ar", model=model, **work), 0)
    layers, kv_heads, head_dim, itemsize = 2, 2, 8, 4
    assert (
        run["state_used_bytes"]
        == 2 * layers * (prompt_len + output_len - 1) * kv_heads * head_dim * batch_size * itemsize
    )
    assert run["state_formula_bytes"] == run["state_used_bytes"] <= run["state_allocated_bytes"]
    assert run["peak_tensor_bytes"] >= run["weight_bytes"] + run["state_allocated_bytes"]


@pytest.mark.parametrize("block", ["AF", "WF"])
def test_bytes_of_a_cache_in_eight_bits_by_the_formula(block: str) -> None:
    """One byte a number, and a scale of four for the eight of a head."""
    attention = {"num_heads": 4, "num_kv_heads": 2}
    model = ModelConfig(
        vocab_size=tiny.VOCAB_SIZE,
        d_model=32,
        num_blocks=2,
        block=block,
        attention=AttentionConfig(**attention) if block == "AF" else None,
        sliding_attention=SlidingAttentionConfig(**attention, window=10) if block == "WF" else None,
    )
    cell = tiny.cell("ar", model=model)
    object.__setattr__(cell, "decoder", Autoregressive(kv_dtype="int8"))
    run, _ = bench.run_unit(cell, 0)
    slots = PROMPT + OUTPUT - 1 if block == "AF" else 10
    assert run["state_used_bytes"] == run["state_formula_bytes"] == 2 * 2 * 2 * slots * (8 + 4)


@pytest.mark.slow
def test_the_state_of_an_ssm_is_constant_and_that_of_attention_grows() -> None:
    ssm = [random("ssm", output_len=n)[0]["state_used_bytes"] for n in (1, 16, 64)]
    ar = [random("ar", output_len=n)[0]["state_used_bytes"] for n in (1, 16, 64)]
    assert ssm[0] == ssm[1] == ssm[2] == random("ssm")[0]["state_formula_bytes"] > 0
    assert ar[2] - ar[1] == (64 - 16) * ar[0] / PROMPT


@pytest.mark.parametrize("paradigm", ["ar_uncached", "diffusion"])
def test_what_keeps_nothing_has_no_state(paradigm: str) -> None:
    run, _ = trained(paradigm)
    assert run["state_used_bytes"] == run["state_allocated_bytes"] == run["state_formula_bytes"] == 0


@pytest.mark.parametrize(("dtype", "itemsize"), [("float64", 8), ("bfloat16", 2)])
def test_weights_are_counted_in_their_dtype(dtype: str, itemsize: int) -> None:
    cell = tiny.cell("ssm", output_len=2)
    object.__setattr__(cell.device, "dtype", dtype)
    run, _ = bench.run_unit(cell, 0)
    assert run["parameters"] == cell.model.num_parameters()
    assert run["weight_bytes"] == run["parameters"] * itemsize


def test_memory_is_measured_in_the_first_round_only() -> None:
    assert trained("ar", 0)[0].keys() >= MEMORY
    assert not MEMORY & trained("ar", 1)[0].keys()
    cell = tiny.cell("ar", output_len=2, measure={"memory": False})
    assert not MEMORY & bench.run_unit(cell, 0)[0].keys()


# ---------------------------------------------------------------- work


def prompts_of(unit: Unit) -> list[tuple[int, str, int, tuple[int, ...]]]:
    return [(s["repeat"], s["request_id"], s["seed"], tuple(s["prompt_ids"])) for s in unit[1]["samples"]]


def test_every_paradigm_gets_the_same_requests_and_no_two_are_alike() -> None:
    assert all(prompts_of(trained(paradigm)) == prompts_of(trained("ar")) for paradigm in NATIVE)
    both_rounds = prompts_of(trained("ar", 0)) + prompts_of(trained("ar", 1))
    for column in (1, 2, 3):
        assert len({request[column] for request in both_rounds}) == 2 * REPEATS * BATCH, "repeats and rounds differ"


def test_prompts_are_cut_from_the_heldout_text() -> None:
    stream = token_stream(tiny.corpus(), ByteTokenizer().load(tiny.corpus()), "heldout").astype("<u2").tobytes()
    for *_, prompt in prompts_of(trained("ar")):
        assert prompt[0] == BOS_ID
        assert torch.tensor(prompt[1:]).numpy().astype("<u2").tobytes() in stream


def test_random_prompts_depend_on_the_seed_and_hold_no_special_token() -> None:
    cell = tiny.cell("ar", prompt_len=64, batch_size=4)
    made = partial(bench.make_requests, corpus=tiny.corpus(), tokenizer=ByteTokenizer().load(tiny.corpus()))
    requests = made(cell, 0, 0)
    assert made(tiny.cell("ssm", prompt_len=64, batch_size=4), 0, 0) == requests
    assert made(tiny.cell("ar", prompt_len=64, batch_size=4, seed=1), 0, 0) != requests
    assert len({request.prompt for request in requests}) == 4
    for request in requests:
        assert len(request.prompt) == 64 and request.prompt[0] == BOS_ID
        assert not {BOS_ID, EOS_ID, MASK_ID} & set(request.prompt[1:])


@pytest.mark.parametrize(("min_time_s", "repeats"), [(0.0, 2), (1e9, 4)])
def test_repeats_end_with_enough_time_or_at_their_limit(min_time_s: float, repeats: int) -> None:
    measure = {"min_repeats": 2, "max_repeats": 4, "min_time_s": min_time_s, "memory": False}
    run, tables = bench.run_unit(tiny.cell("ar", output_len=2, measure=measure), 0)
    assert run["num_repeats"] == repeats == len(tables["samples"])


def test_a_natural_stop_ends_where_the_text_ends() -> None:
    stops = (" ", "a", "e", "t")
    cell = tiny.cell("ar", trained=True, batch_size=8, output_len=64, stop="natural", stop_strings=stops)
    _, tables = bench.run_unit(cell, 0)
    reasons = {row["finish_reason"] for row in tables["requests"]}
    assert "stop_string" in reasons
    for request, sample in zip(tables["requests"], tables["samples"], strict=True):
        reason, ids = request["finish_reason"], sample["token_ids"]
        assert (reason == "stop_string") == any(stop in sample["text"] for stop in stops)
        assert (reason == "eos") == (ids[-1] == EOS_ID) and EOS_ID not in ids[:-1]
        assert (reason == "length") <= (len(ids) == 64) and request["committed_tokens"] == len(ids) <= 64


# ---------------------------------------------------------------- what is timed is what is scored


@pytest.mark.parametrize("paradigm", NATIVE)
def test_samples_are_what_these_requests_generate(paradigm: str) -> None:
    cell = trained_cell(paradigm)
    weights = cell.train.load(cell.wanted, report=lambda what, done, total: None)
    native = NativeParadigm(weights.model.eval(), cell.decoder, weights.tokenizer)
    for sample in trained(paradigm)[1]["samples"]:
        request = Request(
            id="alone", prompt=tuple(sample["prompt_ids"]), max_new_tokens=OUTPUT, seed=sample["seed"], ignore_eos=True
        )
        tokens: dict[int, int] = {}
        for event in native.run([request]):
            assert event.positions_K is not None and event.token_ids_BK is not None
            for column, position in enumerate(event.positions_K):
                if event.final_BK is None or event.final_BK[0, column]:
                    tokens[position] = int(event.token_ids_BK[0, column])
        assert [tokens[position] for position in range(OUTPUT)] == sample["token_ids"]
        assert weights.tokenizer.decode(sample["token_ids"]) == sample["text"]


@pytest.mark.parametrize("paradigm", ["ar", "diffusion_threshold"])
def test_scores_are_those_of_the_samples(paradigm: str) -> None:
    _, tables = trained(paradigm)
    tokenizer = ByteTokenizer().load(tiny.corpus())
    for request, sample in zip(tables["requests"], tables["samples"], strict=True):
        statistics = sample_statistics(sample["token_ids"])
        assert {name: request[name] for name in statistics} == statistics
        data, context = (tokenizer.decode_bytes(sample[name]) for name in ("token_ids", "prompt_ids"))
        assert request["judge_bits_per_byte"] == bench.judge(tiny.corpus()).bits_per_byte(data, context=context)
        assert request["output_bytes"] == len(data)


@pytest.mark.parametrize("paradigm", ["ar", "ssm", "diffusion"])
def test_quality_is_a_bound_for_denoisers_only(paradigm: str) -> None:
    run, _ = trained(paradigm)
    assert run["bits_per_byte_is_bound"] == (paradigm == "diffusion")
    assert 0 < run["bits_per_byte"] < 8 and run["bits_per_byte_se"] > 0
    assert (run["bits_per_byte_mask_se"] > 0) == (paradigm == "diffusion")
    assert run["heldout_bytes"] == tiny.corpus().num_bytes["heldout"]
    assert run["corpus_sha256"] == tiny.corpus().sha256 and run["corpus_is_zoo_corpus"] is True


def test_without_quality_nothing_is_scored() -> None:
    run, tables = random("ar")
    assert "bits_per_byte" not in run and "judge_bits_per_byte" not in tables["requests"][0]
    assert tables["training"] == [] and run["checkpoint_tokens"] is None and run["corpus_is_zoo_corpus"] is None
    assert [sample["text"] for sample in tables["samples"]], "generations are kept all the same"


def test_heldout_text_is_scored_once_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    first = trained("ar")[0]

    def again(*_: object, **__: object) -> None:
        raise AssertionError("the held-out text was scored a second time")

    monkeypatch.setattr(scores, "heldout_likelihood", again)
    run, _ = bench.run_unit(trained_cell("ar_uncached"), 1)
    for name in ("bits_per_byte", "bits_per_byte_se", "heldout_tokens"):
        assert run[name] == first[name]
    with pytest.raises(AssertionError, match="second time"):
        seed = tiny.cell("ar", trained=True)
        object.__setattr__(seed.train, "seed", 5)
        bench.run_unit(seed, 1)


def test_preparing_does_what_units_share(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    cell = tiny.cell("diffusion", trained=True)
    object.__setattr__(cell.train, "seed", 7)
    bench.prepare(cell)
    told = capsys.readouterr().out
    assert "diffusion: training: loss" in told and "step 5 of 5" in told.splitlines()[-1]
    monkeypatch.setattr("paradigms.weights.train", None)
    monkeypatch.setattr(scores, "heldout_likelihood", None)
    assert math.isfinite(bench.run_unit(cell, 1)[0]["bits_per_byte"])


@pytest.mark.parametrize("paradigm", ["ar", "diffusion_quarter"])
def test_delivery_changes_times_not_tokens(paradigm: str) -> None:
    device, delivered = trained(paradigm), trained(paradigm, 0, "delivered")
    for name in ("prompt_ids", "token_ids", "text", "request_id"):
        assert [s[name] for s in delivered[1]["samples"]] == [s[name] for s in device[1]["samples"]], name
    for name in ("nfe", "positions_computed", "committed_tokens", "num_chunks", "judge_bits_per_byte"):
        assert [r[name] for r in delivered[1]["requests"]] == [r[name] for r in device[1]["requests"]], name


# ---------------------------------------------------------------- through the command line


def test_a_sweep_of_real_cells_writes_every_column_of_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("\n\n".join(tiny.texts()[:200]))
    (tmp_path / "b.txt").write_text("\n\n".join(tiny.texts()[200:]))
    monkeypatch.setattr(sys, "argv", ["paradigms"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    arguments = [
        *("experiment=smoke", "paradigm=ar,diffusion_quarter", "tokenizer=byte", "corpus=local_text"),
        f"corpus.path=[{tmp_path}/a.txt,{tmp_path}/b.txt]",
        *("measure.rounds=2", "sweep.report=false", "sweep.preload=[]", f"sweep.dir={tmp_path}/sweep"),
    ]
    code = cli.main(arguments)
    GlobalHydra.instance().clear()
    assert code == 0, capfd.readouterr().err
    runs = list(read_table(tmp_path / "sweep", "runs"))
    assert {(run["paradigm.name"], run["round"]) for run in runs} == {
        (name, index) for name in ("ar", "diffusion_quarter") for index in (0, 1)
    }
    lane = "key cell_key round status error started_at checkpoint machine_id code is_anchor sweep.name"
    factors = "workload.output_len workload.batch_size decoder.temperature model.d_model device.threads train.source"
    for run in runs:
        assert {*lane.split(), *factors.split(), *RUN_COLUMNS.split()} - QUALITY - MEMORY <= run.keys()
        assert (run["status"], run["error"]) == ("ok", None)
        assert (run.keys() >= MEMORY) == (run["round"] == 0)
    for table in ("requests", "samples"):
        assert {row["key"] for row in read_table(tmp_path / "sweep", table)} == {run["key"] for run in runs}
