"""Bits by position of whole cells: their sum is the held-out likelihood, and the command says what is wrong."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import tiny

from paradigms import context_use, heldout, weights
from paradigms.data.processes.process import Estimated
from paradigms.quality.by_position import PositionBits

pytestmark = pytest.mark.usefixtures("home")


@pytest.mark.parametrize("name", ["ar", "diffusion"])
def test_stretches_add_up_to_the_held_out_figure(name: str) -> None:
    cell = tiny.cell(name, trained=True)
    found = context_use.measure(cell, num_masks=3)
    loaded = cell.train.load(cell.wanted, report=lambda what, done, total: None)
    whole = heldout.heldout_likelihood(loaded, weights.load_corpus(cell.corpus), num_masks=3)
    nats = sum(part.bits_per_byte.value * part.num_bytes for part in found if part.num_bytes) * math.log(2)
    assert sum(part.num_bytes for part in found) == whole.num_bytes
    assert sum(part.num_tokens for part in found) == whole.num_tokens
    assert nats == pytest.approx(whole.nats, rel=1e-6)
    assert {part.is_bound for part in found} == {name == "diffusion"}


def test_figures_are_of_the_dtype_that_is_asked_for() -> None:
    cell = tiny.cell("ar", trained=True)
    found = context_use.measure(cell, num_masks=1, num_windows=2)
    rounded = dataclasses.replace(cell, device=dataclasses.replace(cell.device, dtype="bfloat16"))
    other = context_use.measure(rounded, num_masks=1, num_windows=2)
    nats = [[part.bits_per_byte.value for part in parts if part.num_bytes] for parts in (found, other)]
    assert nats[0] != nats[1] and nats[0] == pytest.approx(nats[1], rel=0.02)


def test_fewer_windows_are_spread_over_the_text() -> None:
    cell = tiny.cell("ar", trained=True)
    loaded = cell.train.load(cell.wanted, report=lambda what, done, total: None)
    corpus = weights.load_corpus(cell.corpus)
    all_of_them = heldout.heldout_windows(loaded, corpus).tokens_NT
    some = heldout.heldout_windows(loaded, corpus, count=2).tokens_NT
    assert np.array_equal(some, all_of_them[[0, -1]][: len(some)])
    assert np.array_equal(heldout.heldout_windows(loaded, corpus, count=10_000).tokens_NT, all_of_them)


def test_the_table_has_a_row_a_stretch() -> None:
    def part(first: int, last: int, bits: float, bound: bool) -> PositionBits:
        bits_per_byte = Estimated(bits, 0.25, 4)
        return PositionBits(
            first=first, last=last, bits_per_byte=bits_per_byte, num_tokens=4, num_bytes=9, is_bound=bound
        )

    lines = context_use.table(
        {"ar": [part(1, 1, 3.0, False)], "diffusion": [part(1, 1, 4.0, True), part(2, 3, 2.0, True)]}
    )
    assert lines.splitlines()[2:4] == ["| 1 | 3.000 ± 0.500 | ≤ 4.000 ± 0.500 |", "| 2 to 3 | – | ≤ 2.000 ± 0.500 |"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train=random", "measure=latency"], "error: train=random has learnt nothing"),
        (["paradigm=arr"], "error: paradigm=arr is unknown"),
    ],
    ids=["random", "unknown"],
)
def test_bad_input_is_one_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert context_use.main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith(words) and said.count("\n") == 1
