"""Cells of layers and decoders run what they say, and time is that of the calls alone."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from paradigms.build import build
from paradigms.costs import decoder_cells, layer_cells
from paradigms.measure.clock import FakeClock
from paradigms.models.config import LAYERS

CPU = torch.device("cpu")
KINDS = ("Autoregressive", "MaskedDiffusion.Ancestral", "MaskedDiffusion.Threshold", "PrefixCache", "DelayedCache")


def test_only_the_calls_count() -> None:
    clock, calls = FakeClock(), []

    def call() -> None:
        calls.append(1)
        clock.advance(2e-5 if len(calls) > 1 else 1.0)  # the first warms up

    assert layer_cells.visit_s(call, lambda: clock.advance(0.5), clock) == pytest.approx(2e-5)
    assert len(calls) > 10


def test_a_long_call_is_timed_once() -> None:
    clock, calls = FakeClock(), []

    def call() -> None:
        calls.append(1)
        clock.advance(0.2)

    assert layer_cells.visit_s(call, lambda: None, clock) == pytest.approx(0.2)
    assert len(calls) == 2


def test_a_busy_neighbour_is_left_out() -> None:
    assert layer_cells.typical([1.0, 1.1, 1.2, 9.0]) == pytest.approx(1.1)


def test_visits_until_two_agree() -> None:
    assert layer_cells.agree([1.05, 3.0, 1.0]) and not layer_cells.agree([1.2, 3.0, 1.0])
    assert layer_cells.quickest([1.2, 3.0, 1.0]) == pytest.approx(1.1)
    assert layer_cells.quickest([3.0]) == 3.0


def test_the_models_time_is_taken_out() -> None:
    """A clock that only the model moves: nothing is left for the decoder."""
    clock = FakeClock()
    cell = decoder_cells.decoder_cells()[0]
    decoder, model, requests, vocabulary = decoder_cells._run(cell, clock, CPU)
    own = model._stamped
    model._stamped = lambda work, *args, **how: own(lambda: (clock.advance(1.0), work(*args, **how))[1])  # type: ignore
    model.stamps = [clock.mark()]
    for _ in decoder.decode(model, requests, vocabulary):
        clock.advance(0.25)
    model.stamps.append(clock.mark())
    read_s = clock.read(model.stamps)
    left_s = sum(end - start for start, end in list(pairwise(read_s))[::2])
    assert left_s == pytest.approx(0.25 * cell.batch.output_len)


def test_every_kind_of_layer_is_timed_in_every_mode() -> None:
    modes = {
        (cell.kind, layer_cells.mode_of(cell.model, cell.shape, dtype="float32")) for cell in layer_cells.layer_cells()
    }
    kinds = {kind for kind, _ in modes}
    assert modes == {(kind, mode) for kind in kinds for mode in ("token", "rows", "tokens")}
    assert {kind[0] for kind in kinds} == set(LAYERS)
    assert len(kinds) == len(layer_cells.KINDS)


def test_no_cell_is_one_of_conf() -> None:
    """Predictions are held against cells that nothing was fitted to."""
    assert not {cell.model.d_model for cell in layer_cells.layer_cells()} & {112, 128}


@pytest.mark.parametrize("letter", LAYERS)
def test_cells_run_and_the_state_stays_where_it_was(letter: str) -> None:
    cells = [cell for cell in layer_cells.layer_cells() if cell.kind[0] == letter and cell.model.d_model <= 160]
    chosen = {
        (layer_cells.mode_of(cell.model, cell.shape, dtype="float32"), cell.shape.kept > 0, cell.model.causal): cell
        for cell in cells
        if cell.shape.positions <= 100 and cell.shape.kept < 1000
    }
    for cell in chosen.values():
        model = layer_cells._made(cell.model, CPU, torch.float32)
        with torch.inference_mode():
            call, after = layer_cells._call(model, cell.shape)
            for _ in range(3):
                call()
                after()
        assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


def test_a_written_cell_comes_back_from_its_file() -> None:
    cells = layer_cells.layer_cells()[::25]
    timed = [layer_cells.replace(cell, visits_s=(1.0, 2.0, 3.0)) for cell in cells]
    stored = layer_cells.to_json(timed, dtype="float32", execution="eager")
    assert layer_cells.from_json(stored) == timed


def test_timing_visits_every_cell() -> None:
    cells = [cell for cell in layer_cells.layer_cells() if cell.kind == "F"][:3]
    timed = layer_cells.time_cells(cells, clock=FakeClock(), device=CPU, visits=2)
    assert [len(cell.visits_s) for cell in timed] == [2, 2, 2]


def test_decoders_make_the_forwards_that_are_planned() -> None:
    cells = [cell for cell in decoder_cells.decoder_cells() if cell.batch.rows * cell.batch.output_len <= 48]
    assert {kind for cell in cells for kind in decoder_cells.kinds_of(build(cell.decoder))} >= set(KINDS)
    for cell in decoder_cells.time_decoders(cells, clock=FakeClock(), device=CPU, visits=1):
        decoder, model, requests, vocabulary = decoder_cells._run(cell, FakeClock(), CPU)
        with torch.inference_mode():
            events = list(decoder.decode(model, requests, vocabulary))
        planned = decoder.forwards(decoder_cells.model_of(cell), cell.batch, tokens_per_forward=cell.tokens_per_forward)
        made = sum(event.forwards.get("model", 0) for event in events)
        assert sum(shape.times for shape in planned) == pytest.approx(made, rel=0.25), cell.name  # some are drawn
        assert sum(len(event.finished) for event in events) == 1


def test_kinds_of_decoders() -> None:
    cells = {cell.name: cell for cell in decoder_cells.decoder_cells()}
    kinds = {kind for cell in cells.values() for kind in decoder_cells.kinds_of(build(cell.decoder))}
    assert len(cells) == len(decoder_cells.decoder_cells())
    assert kinds >= {*KINDS, "DualCache"}


def test_a_written_decoder_cell_comes_back_from_its_file() -> None:
    cells = [decoder_cells.replace(cell, visits_s=(1.0,)) for cell in decoder_cells.decoder_cells()]
    assert decoder_cells.from_json(decoder_cells.to_json(cells)) == cells
