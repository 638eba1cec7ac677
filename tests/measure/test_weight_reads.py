"""Experts touched and bytes of weights read, as a unit of a model with experts records them."""

from __future__ import annotations

import pytest
import tiny

from paradigms import bench
from paradigms.models.config import ModelConfig
from paradigms.models.experts import ExpertsConfig

EXPERTS = ModelConfig(
    vocab_size=tiny.VOCAB_SIZE, d_model=32, num_blocks=2, block="AE", experts=ExpertsConfig(width=16, num_experts=6)
)


@pytest.fixture(autouse=True)
def _folders(folders) -> None:
    """Caches of the session."""


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_unit_tells_what_its_forwards_read(batch_size):
    run, _ = bench.run_unit(tiny.cell("ar", model=EXPERTS, batch_size=batch_size), 0)
    prefill, decode = run["experts_touched_prefill"], run["experts_touched_decode"]
    assert 2 <= prefill <= 6
    assert decode == 2 if batch_size == 1 else 2 <= decode <= 6
    per_expert = 2 * 3 * 32 * 16 * 4  # two layers, three matrices, four bytes
    assert run["weight_bytes_read_decode"] == pytest.approx(run["weight_bytes"] - (6 - decode) * per_expert, abs=8)
    assert run["weight_bytes_read_prefill"] == pytest.approx(run["weight_bytes"] - (6 - prefill) * per_expert, abs=8)


def test_a_model_without_experts_says_nothing():
    run, _ = bench.run_unit(tiny.cell("ar"), 0)
    assert not [name for name in run if "touched" in name or "bytes_read" in name]


def test_experts_of_random_weights_need_the_workload_s_consent():
    tiny.cell("ar", model=EXPERTS).check()
    with pytest.raises(ValueError, match="a router that has learnt nothing"):
        tiny.cell("ar", model=EXPERTS, prompts="heldout").check()
