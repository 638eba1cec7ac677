"""The main path when a run would take too long: what is summed is marked, and counted as the whole would be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from paradigms import bench

OUTPUT, BATCH = 24, 2
SUMMED = {"extrapolate_over_s": 1e-9, "max_warmups": 1, "warmup_events": 3}


@pytest.fixture(scope="module", autouse=True)
def _home(folders: Path) -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def unit(paradigm: str, **measure) -> tuple[dict[str, Any], bench.Tables]:
    cell = tiny.cell(paradigm, output_len=OUTPUT, batch_size=BATCH, measure=measure)
    cell.check()
    return bench.run_unit(cell, 0)


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("ar_uncached", "ssm")]


@pytest.mark.parametrize("paradigm", ["ar", "diffusion", *SLOW])
def test_a_unit_that_is_extrapolated_says_so_and_counts_as_the_whole_does(paradigm: str) -> None:
    whole, its = unit(paradigm)
    summed, mine = unit(paradigm, **SUMMED)
    assert (whole["extrapolated"], whole["forwards_timed"]) == (False, None)
    assert (summed["extrapolated"], summed["forwards_timed"], summed["num_repeats"]) == (True, 9, 0)
    assert len(mine["requests"]) == BATCH and not mine["samples"]
    for a, b in zip(mine["requests"], its["requests"][:BATCH], strict=True):
        same = ("request_id", "seed", "prompt_tokens", "committed_tokens", "nfe", "finish_reason")
        assert [a[name] for name in same] == [b[name] for name in same]
        assert a["positions_computed"] == pytest.approx(b["positions_computed"])
        assert a["extrapolated"] and a["e2e_s"] > 0 and (a["ttft_s"] is None) == (paradigm == "diffusion")
    for name in ("state_used_bytes", "state_formula_bytes"):
        assert summed[name] == whole[name], "the state at its largest is seen: the last place is the end"
    assert summed["state_used_bytes"] == summed["state_formula_bytes"]
    assert 0.9 * whole["peak_tensor_bytes"] < summed["peak_tensor_bytes"] < 1.25 * whole["peak_tensor_bytes"]


@pytest.mark.parametrize(
    ("paradigm", "measure"),
    [
        ("ar", {"extrapolate_over_s": 1e6}),
        ("diffusion_quarter", SUMMED),  # 6 forwards: no more than would be timed
        ("ar", {**SUMMED, "warmup_events": 1}),  # no step was seen
    ],
)
def test_what_is_short_or_unknown_is_run_whole(paradigm: str, measure: dict) -> None:
    run, tables = unit(paradigm, **measure)
    assert not run["extrapolated"] and len(tables["samples"]) == run["num_repeats"] * BATCH
    assert "extrapolated" not in tables["requests"][0]


def test_a_natural_stop_cannot_be_extrapolated() -> None:
    cell = tiny.cell("ar", trained=True, stop="natural", measure={"quality": False, "extrapolate_over_s": 1.0})
    with pytest.raises(ValueError, match=r"workload.stop=natural ends where the text ends, which nobody can"):
        cell.check()
