"""The largest batch that fits, against trying every batch over every forward."""

from dataclasses import dataclass, replace
from math import comb
from typing import Any

import pytest

from paradigms.costs.largest_batch import MOST, largest, largest_batch
from paradigms.costs.prediction import peak_bytes
from paradigms.decoding.autoregressive import Autoregressive
from paradigms.decoding.diffusion.plan import _numbers_of_rows
from paradigms.models.config import ModelConfig
from paradigms.work import BatchShape, ForwardShape

BATCH = BatchShape(rows=1, prompt_len=12, output_len=9)
CONFIGS = {
    "attention": ModelConfig(vocab_size=50, d_model=32, block="AF", num_blocks=2),
    "mamba2": ModelConfig(vocab_size=50, d_model=32, block="M", num_blocks=2),
    "hybrid": ModelConfig(vocab_size=50, d_model=32, block="MA", num_blocks=2),
}


@dataclass(frozen=True)
class Memory:
    """A device of so many bytes and nothing else."""

    memory_bytes: int
    name: str = "memory"
    spread: None = None

    def forward_s(self, model: Any, shape: Any, *, dtype: str, execution: str) -> float:
        raise AssertionError("nothing is timed")

    def decoder_s(self, decoder: Any, vocab_size: int, shape: Any, batch: Any) -> float:
        raise AssertionError("nothing is timed")

    def bound_by(self, model: Any, shape: Any, *, dtype: str, execution: str) -> str:
        raise AssertionError("nothing is timed")


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("cache", ["state", "none"])
def test_as_trying_every_batch(name, cache):
    model, decoder = CONFIGS[name], Autoregressive(cache=cache)

    def peak(rows: int) -> int:
        return peak_bytes(model, list(decoder.forwards(model, replace(BATCH, rows=rows))), dtype="float32")

    peaks = [peak(rows) for rows in range(1, 41)]
    assert peaks == sorted(peaks)
    for memory in (peaks[0] - 1, peaks[0], peaks[6] - 1, peaks[6], peaks[6] + 1, peaks[30], peaks[38]):
        found = largest_batch(model, decoder, BATCH, Memory(memory), dtype="float32")
        assert found == sum(each <= memory for each in peaks)


def test_without_end():
    found = largest_batch(CONFIGS["mamba2"], Autoregressive(), BATCH, Memory(1 << 60), dtype="float32")
    assert found == MOST


def test_only_shapes_that_nothing_exceeds_are_looked_at():
    decoder = Autoregressive()
    shapes = list(decoder.forwards(CONFIGS["attention"], replace(BATCH, output_len=500)))
    kept = largest(shapes)
    assert len(kept) == 2 and {shape.phase for shape in kept} == {"prefill", "decode"}
    assert max(shape.seen for shape in kept) == max(shape.seen for shape in shapes)
    same = ForwardShape(phase="decode", rows=1, tokens=1, seen=3, logits=1)
    assert largest([same, same]) == [same]


@pytest.mark.parametrize("working", [0.003, 0.4, 0.98])
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_rows_that_take_part_are_binomial(rows, working):
    found = dict(_numbers_of_rows(rows, working))
    for number in range(1, rows + 1):
        chance = comb(rows, number) * working**number * (1 - working) ** (rows - number)
        assert found.get(number, 0.0) == pytest.approx(chance, rel=1e-9, abs=1e-9)


def test_rows_that_take_part_of_thousands():
    found = dict(_numbers_of_rows(60_000, 0.25))
    assert sum(found.values()) == pytest.approx(1, abs=1e-6)
    assert sum(number * chance for number, chance in found.items()) == pytest.approx(15_000, rel=1e-6)
