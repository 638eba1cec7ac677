"""What the ledger of a run holds, against counts by hand; and that noting changes nothing."""

from __future__ import annotations

import pytest
import tiny
import torch

from paradigms import bench
from paradigms.measure.ledger import Ledger, work_columns
from paradigms.models.config import ModelConfig
from paradigms.models.experts import ExpertsConfig
from paradigms.paradigm import Event
from paradigms.work import ForwardShape

P, N, B, V, E, F, H = 8, 16, 2, tiny.VOCAB_SIZE, 32, 64, 2
SIZE = 4  # bytes of a float32
PRODUCTS = 2 * (4 * E * E + 3 * E * F)  # of a token through a Transformer block, attention's own left out
HEAD = 2 * E * V


@pytest.fixture(autouse=True)
def _folders(folders) -> None:
    """Caches of the session."""


def unit(paradigm: str, *, round_index: int = 0, batch_size: int = B, model=None, measure=None, **work):
    cell = tiny.cell(paradigm, batch_size=batch_size, model=model, measure=measure, **work)
    run, _ = bench.run_unit(cell, round_index)
    return run


def by_phase(run, phase: str) -> dict[str, float]:
    """The ledger of one phase, without the counts of operations that are no products."""
    names = ("forwards", "matmul_flops", "hidden_flops", "weight_bytes", "state_read_bytes", "state_written_bytes")
    return {name: run[f"{name}_{phase}"] for name in names}


def test_of_a_transformer():
    run = unit("ar")
    weights = run["weight_bytes"]
    assert run["ledger"] == "observed"
    assert by_phase(run, "prefill") == {
        "forwards": 1,
        "matmul_flops": B * (P * PRODUCTS + 4 * P * P * E + HEAD),  # scores and their mix: 2 P P E each
        "hidden_flops": B * 4 * E * P * (P - 1) // 2,
        "weight_bytes": weights,
        "state_read_bytes": 0,
        "state_written_bytes": B * P * 2 * E * SIZE,
    }
    seen = range(P + 1, P + N)  # by each token that is read back
    assert by_phase(run, "decode") == {
        "forwards": N - 1,
        "matmul_flops": sum(B * (PRODUCTS + 4 * each * E + HEAD) for each in seen),
        "hidden_flops": 0,
        "weight_bytes": (N - 1) * weights,
        "state_read_bytes": sum(B * (each - 1) * 2 * E * SIZE for each in seen),
        "state_written_bytes": (N - 1) * B * 2 * E * SIZE,
    }
    assert run["other_flops_decode"] > 0


def test_of_a_state_space_model():
    run = unit("ssm")
    state = tiny.MODELS["ssm"].state_bytes(batch_size=B, length=P, itemsize=SIZE)
    decode = by_phase(run, "decode")
    assert (decode["forwards"], decode["weight_bytes"]) == (N - 1, (N - 1) * run["weight_bytes"])
    assert decode["state_read_bytes"] == decode["state_written_bytes"] == (N - 1) * state
    one = tiny.MODELS["ssm"].matmul_flops(num_tokens=1, context=1)
    assert decode["matmul_flops"] == (N - 1) * B * one and decode["hidden_flops"] == 0


def test_of_a_denoiser():
    run = unit("diffusion_quarter")
    assert not [name for name in run if name.endswith(("_prefill", "_decode")) and name.startswith("forwards")]
    length, steps = P + N, 4
    assert by_phase(run, "denoise") == {
        "forwards": steps,
        "matmul_flops": steps * B * (length * PRODUCTS + 4 * length * length * E + 4 * HEAD),
        "hidden_flops": 0,
        "weight_bytes": steps * run["weight_bytes"],
        "state_read_bytes": 0,
        "state_written_bytes": 0,
    }


@pytest.mark.parametrize("paradigm", sorted(tiny.DECODERS))
def test_the_formula_says_what_was_observed(paradigm):
    observed, planned = unit(paradigm), unit(paradigm, measure={"memory": False})
    assert (observed["ledger"], planned["ledger"]) == ("observed", "formula")
    phases = {name.removeprefix("forwards_") for name in observed if name.startswith("forwards_")} - {"timed"}
    assert phases == ({"denoise"} if "diffusion" in paradigm else {"prefill", "decode"})
    for phase in phases:
        assert by_phase(planned, phase) == pytest.approx(by_phase(observed, phase))
        assert planned[f"other_flops_{phase}"] == pytest.approx(observed[f"other_flops_{phase}"])


def test_runs_that_are_not_made_whole_are_counted_by_formula():
    whole = unit("ar", output_len=24)
    summed = unit("ar", output_len=24, measure={"extrapolate_over_s": 1e-9, "warmup_events": 3})
    assert summed["extrapolated"] and (summed["ledger"], whole["ledger"]) == ("formula", "observed")
    assert by_phase(summed, "decode") == by_phase(whole, "decode")
    assert (summed["committed_tokens"], summed["effective_tokens"]) == (B * 24, None)


def test_what_nobody_noted_and_no_formula_knows_is_missing():
    later = unit("ar", round_index=1)  # memory is watched in the first round only
    assert later["ledger"] == "formula"
    natural = unit("ar", stop="natural", measure={"memory": False})
    assert natural["ledger"] is None and "forwards_decode" not in natural
    assert unit("ar", stop="natural")["ledger"] == "observed"


def test_tokens_of_one_repeat():
    cell = tiny.cell("ar", batch_size=3)
    run, tables = bench.run_unit(cell, 0)
    eos_id = cell.tokenizer.load(tiny.corpus()).eos_id
    texts = [row["token_ids"] for row in tables["samples"] if row["repeat"] == 0]
    effective = sum(text.index(eos_id) + 1 if eos_id in text else len(text) for text in texts)
    tokens = [run[f"{name}_tokens"] for name in ("requested", "committed", "effective")]
    assert tokens == [3 * N, 3 * N, effective]


def test_experts_count_as_they_were_touched():
    model = ModelConfig(
        vocab_size=V, d_model=E, num_blocks=2, block="AE", experts=ExpertsConfig(width=16, num_experts=6)
    )
    run = unit("ar", model=model, batch_size=3)
    assert run["weight_bytes_decode"] == pytest.approx((N - 1) * run["weight_bytes_read_decode"], abs=N * 8)


def test_the_model_answers_as_before():
    model = tiny.random_model(tiny.MODELS["ar"]).eval()
    ledger = Ledger()
    noting = ledger.noting(model)
    assert (noting.config, noting.device, noting.weight_bytes) == (model.config, model.device, model.weight_bytes)
    tokens_BT = torch.arange(10).view(2, 5)
    wanted_BT = tokens_BT % 3 == 0
    one, other = model.new_state(2, 8), noting.new_state(2, 8)
    with torch.inference_mode():
        for chunk, options in ((tokens_BT[:, :3], {}), (tokens_BT[:, 3:], {"logits_at": slice(-1, None)})):
            assert torch.equal(noting(chunk, other, **options), model(chunk, one, **options))
        assert torch.equal(noting.logits_where(tokens_BT, wanted_BT), model.logits_where(tokens_BT, wanted_BT))
        assert torch.equal(noting.hidden(tokens_BT), model.hidden(tokens_BT))
        padded = {"num_tokens": [2, 3], "write": "none"}
        assert torch.equal(noting(tokens_BT[:, :3], other, **padded), model(tokens_BT[:, :3], one, **padded))
    events = iter([Event(phase="decode"), Event(phase="denoise")])
    assert len(list(ledger.of(events))) == 2
    assert ledger.shapes == [
        ForwardShape(phase="decode", rows=2, tokens=3, seen=3, written=3, logits=6),
        ForwardShape(phase="decode", rows=2, tokens=2, seen=5, kept=3, written=2, logits=2),
        ForwardShape(phase="decode", rows=2, tokens=5, seen=5, logits=4),
        ForwardShape(phase="decode", rows=2, tokens=5, seen=5, logits=0),
        ForwardShape(phase="decode", rows=2, tokens=3, seen=8, kept=5, logits=6),
    ]


def test_columns_of_a_network_without_formulas_are_its_forwards():
    shapes = [ForwardShape(phase="decode", rows=1, tokens=1, seen=4, kept=3, written=1, logits=1, times=2.5)]

    class Unknown:
        def counts(self, *_, **__):
            raise ValueError("no formula")

    columns = work_columns(Unknown(), shapes, itemsize=4)
    assert columns.pop("forwards_decode") == 2.5 and set(columns.values()) == {None}
