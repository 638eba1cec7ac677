"""On a GPU: the main path from end to end on tiny cells, as an experiment there runs it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny
import torch

from paradigms import bench
from paradigms.records import canonical_json
from paradigms.workload import Device

pytestmark = pytest.mark.gpu
BATCH, OUTPUT = 3, 24
SUMMED = {"extrapolate_over_s": 1e-9, "warmup_events": 4, "max_warmups": 2}


@pytest.fixture(scope="module", autouse=True)
def _home(folders: Path) -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("measure", [{}, SUMMED], ids=["whole", "extrapolated"])
@pytest.mark.parametrize("execution", ["eager", "cuda_graph"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("paradigm", ["ar", "ssm", "diffusion"])
def test_a_unit(paradigm, dtype, execution, measure):
    cell = tiny.cell(paradigm, output_len=OUTPUT, batch_size=BATCH, measure=measure)
    cell = dataclasses.replace(cell, device=Device(name="cuda", dtype=dtype, execution=execution))
    cell.check()
    run, tables = bench.run_unit(cell, 0)
    canonical_json([run, tables])
    assert run["device"] == "cuda" and run["gpu"] and run["execution"] == execution
    assert run["extrapolated"] == bool(measure)
    assert 0 < run["weight_bytes"] <= run["cuda_peak_allocated_bytes"] <= run["cuda_peak_reserved_bytes"]
    assert run["state_used_bytes"] == run["state_formula_bytes"] and bool(run["state_used_bytes"]) == (
        paradigm != "diffusion"
    )
    for row in tables["requests"]:
        assert row["committed_tokens"] == row["nfe"] == OUTPUT
        assert 0 < row["prefill_s"] < row["e2e_s"] < 60 and 0 < row["step_time_s"] < 1
    assert len(tables["samples"]) == (0 if measure else run["num_repeats"] * BATCH)


def test_random_weights_are_drawn_there_and_again_the_same():
    cell = tiny.cell("ar")
    there = dataclasses.replace(cell, device=Device(name="cuda"))
    assert there.checkpoint_id() != dataclasses.replace(cell, device=Device(name="cpu")).checkpoint_id()
    models = [there.train.load(there.wanted, report=lambda what, done, total: None).model for _ in range(2)]
    for mine, its in zip(*(model.parameters() for model in models), strict=True):
        assert mine.is_cuda and torch.equal(mine, its)
