"""Figures of paradigms whose cost is known, on a clock that nothing else moves: they must come out exactly."""

import gc
import json
from itertools import pairwise

import pytest
from fakes import (
    VOCAB_SIZE,
    FakeAutoregressive,
    FakeBlocks,
    FakeDiffusion,
    FakeFaulty,
    FakeParadigm,
    SpellingDecoder,
    make_requests,
    spell,
    token,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from paradigms.measure.clock import FakeClock, HostClock
from paradigms.measure.timeline import record
from paradigms.paradigm import Event

approx = pytest.approx


def run(paradigm, requests, **options):
    return record(paradigm, requests, clock=paradigm.clock, **options)


def autoregressive(**options):
    return FakeAutoregressive(clock=FakeClock(), **options)


# Known answers


@given(length=st.integers(1, 20), batch_size=st.integers(1, 3))
@settings(max_examples=25, deadline=None)
def test_autoregressive_figures(length, batch_size):
    requests = make_requests(batch_size, output_len=length)
    recording = run(autoregressive(prefill_s=0.5, step_s=0.1), requests)
    assert recording.prefill_s == 0.5
    assert recording.step_time_s == (approx(0.1) if length > 1 else None)
    assert recording.wall_s == approx(0.5 + (length - 1) * 0.1)
    for request, row in zip(requests, recording.rows, strict=True):
        assert row.token_ids == tuple(token(request, position) for position in range(length))
        assert row.ttft_s == 0.5
        assert row.tpot_s == (approx(0.1) if length > 1 else None)
        assert row.e2e_s == approx(0.5 + (length - 1) * 0.1)
        assert row.itl_s == approx((0.1,) * (length - 1))
        assert row.chunk_tokens == (1,) * length
        assert row.nfe == {"model": length}
        assert row.positions_computed == approx(4 + length - 1)
        assert row.finish_reason == "length"
    assert recording.nfe == {"model": length}
    assert recording.positions_computed == batch_size * (4 + length - 1)


@given(length=st.integers(1, 20), steps=st.integers(1, 20), seed=st.integers(0, 5))
@settings(max_examples=25, deadline=None)
def test_diffusion_figures(length, steps, seed):
    paradigm = FakeDiffusion(clock=FakeClock(), num_steps=min(steps, length), step_s=0.25, seed=seed)
    order = paradigm.order(length)
    (request,) = make_requests(output_len=length)
    (row,) = run(paradigm, [request]).rows
    assert row.steps == tuple(order)
    assert row.t_final_s == tuple(0.25 * (step + 1) for step in order)
    stream_s = [max(row.t_final_s[: position + 1]) for position in range(length)]
    assert row.t_stream_s == tuple(stream_s)
    assert row.ttft_s == stream_s[0]
    assert row.e2e_s == 0.25 * paradigm.num_steps
    arrivals_s = sorted(set(stream_s))
    assert row.itl_s == tuple(later - earlier for earlier, later in pairwise(arrivals_s))
    assert row.chunk_tokens == tuple(stream_s.count(arrival) for arrival in arrivals_s)
    assert row.nfe == {"model": paradigm.num_steps}
    assert row.positions_computed == paradigm.num_steps * (4 + length)
    expected_tpot = (row.e2e_s - row.ttft_s) / (length - 1) if len(arrivals_s) > 1 else None
    assert row.tpot_s == expected_tpot


def test_a_canvas_revealed_at_once_has_no_time_per_token():
    recording = run(FakeDiffusion(clock=FakeClock(), num_steps=1, step_s=0.2), make_requests(output_len=8))
    (row,) = recording.request_rows()
    assert row["ttft_s"] == row["e2e_s"] == 0.2
    assert row["tpot_s"] is row["itl_median_s"] is row["itl_max_s"] is row["step_time_s"] is None
    assert (row["num_chunks"], row["max_chunk_tokens"]) == (1, 8)


def test_blocks_arrive_in_chunks_and_both_models_count():
    recording = run(
        FakeBlocks(clock=FakeClock(), block_len=4, prefill_s=0.3, block_s=0.4), make_requests(2, output_len=10)
    )
    for row in recording.rows:
        assert row.chunk_tokens == (4, 4, 2)
        assert row.ttft_s == approx(0.7)
        assert row.itl_s == approx((0.4, 0.4))
        assert row.e2e_s == approx(1.5)
        assert row.tpot_s == approx(0.8 / 9)
        assert row.nfe == {"target": 4, "draft": 11}
        assert row.positions_computed == 2 * 4 + 2 * 10
    assert recording.prefill_s == approx(0.3)
    assert recording.step_time_s == approx(0.4)
    assert recording.phases == ("prefill", "decode", "decode", "decode")
    (first, _) = recording.request_rows()
    assert (first["nfe"], first["nfe_target"], first["nfe_draft"]) == (15, 4, 11)


def test_a_row_that_ends_early_has_figures_of_its_own():
    requests = make_requests(3, output_len=6, ignore_eos=False)
    recording = run(autoregressive(prefill_s=0.5, step_s=0.1, eos_at={1: 2}), requests)
    early = recording.rows[1]
    assert early.token_ids == tuple(token(requests[1], position) for position in range(3))
    assert early.finish_reason == "eos"
    assert early.e2e_s == approx(0.7)
    assert early.nfe == {"model": 3}
    assert [len(ids) for ids in recording.token_ids] == [6, 3, 6]
    assert recording.rows[0].e2e_s == approx(1.0)
    # The prefill is 3 x 4 positions, each step 3: shared by three rows until event 2, by the other two after it.
    assert early.positions_computed == approx(4 + 2)
    assert recording.rows[0].positions_computed == approx(4 + 2 + 3 * 1.5)
    assert sum(row.positions_computed for row in recording.rows) == approx(recording.positions_computed)


def test_a_row_may_end_with_nothing():
    def end(index, event):
        return [Event(phase="prefill", forwards={"model": 1}, finished={0: "eos"})] if index == 0 else []

    paradigm = FakeFaulty(clock=FakeClock(), inner=autoregressive(), spoil=end)
    (row,) = run(paradigm, make_requests(ignore_eos=False)).request_rows()
    assert row["committed_tokens"] == row["num_chunks"] == row["max_chunk_tokens"] == 0
    assert row["ttft_s"] is row["tpot_s"] is None
    assert row["finish_reason"] == "eos"


def test_a_canvas_with_an_end_of_text_is_cut_behind_it():
    requests = make_requests(2, output_len=8, ignore_eos=False)
    whole = run(FakeDiffusion(clock=FakeClock(), num_steps=4, step_s=0.25), requests).rows[0]
    cut = run(FakeDiffusion(clock=FakeClock(), num_steps=4, step_s=0.25, eos_at={0: 2}), requests)
    row = cut.rows[0]
    assert row.token_ids == whole.token_ids[:3]
    assert row.t_stream_s == whole.t_stream_s[:3]
    assert row.e2e_s == whole.e2e_s == 1.0  # all steps were waited for
    assert sum(row.chunk_tokens) == 3
    assert (row.finish_reason, cut.rows[1].finish_reason) == ("eos", "length")
    assert len(cut.token_ids[1]) == 8
    assert [len(tokens) for tokens in cut.token_ids] == [3, 8]
    assert len(cut.token_rows()) == 11


def test_an_end_that_is_announced_late_counts_in_e2e():
    clock = FakeClock()

    def split_end(index, event):
        if not event.finished:
            return [event]
        late = Event(phase="decode", finished=event.finished)
        event.finished = {}
        return [event, late]

    inner = FakeAutoregressive(clock=clock, prefill_s=0.5, step_s=0.25)
    (row,) = run(FakeFaulty(clock=clock, inner=inner, spoil=split_end), make_requests(output_len=3)).rows
    assert row.e2e_s == row.t_stream_s[-1] == 1.0  # announced by an event of its own, which took no time


def test_what_stands_still_before_the_run_is_not_counted():
    paradigm = autoregressive(prefill_s=0.5, step_s=0.25)
    paradigm.clock.advance(100.0)
    assert run(paradigm, make_requests(output_len=2)).wall_s == 0.75


# Records


def test_records_have_the_columns_of_their_tables():
    recording = run(autoregressive(), make_requests(2, output_len=3))
    requests, tokens = recording.request_rows(), recording.token_rows()
    assert [set(row) for row in requests] == 2 * [
        {
            *("row", "request_id", "seed", "prompt_tokens", "requested_tokens", "committed_tokens", "finish_reason"),
            *("ttft_s", "tpot_s", "e2e_s", "itl_median_s", "itl_max_s", "num_chunks", "max_chunk_tokens"),
            *("nfe", "positions_computed", "step_time_s", "prefill_s"),
        }
    ]
    assert {tuple(row) for row in tokens} == {("row", "position", "step", "phase", "t_final_s", "t_stream_s")}
    assert [(row["row"], row["position"], row["step"], row["phase"]) for row in tokens[:3]] == [
        (0, 0, 0, "prefill"),
        (0, 1, 1, "decode"),
        (0, 2, 2, "decode"),
    ]
    assert len(tokens) == 6
    json.dumps([requests, tokens], allow_nan=False)


# Delivery


@pytest.mark.parametrize(
    "make",
    [
        lambda: autoregressive(),
        lambda: FakeDiffusion(clock=FakeClock(), num_steps=5, seed=3),
        lambda: FakeBlocks(clock=FakeClock(), block_len=3),
    ],
    ids=["autoregressive", "diffusion", "blocks"],
)
def test_delivered_is_the_same_work_and_the_whole_text(make):
    requests = make_requests(2, output_len=10)
    device = run(make(), requests)
    delivered = run(make(), requests, timeline="delivered", stream_decoder=SpellingDecoder)
    assert delivered.token_ids == device.token_ids
    assert delivered.request_rows() == device.request_rows()
    assert [row.text for row in device.rows] == [None, None]
    assert [row.text for row in delivered.rows] == [spell(request, 10) for request in requests]


def test_delivery_stops_where_the_row_ends():
    requests = make_requests(2, output_len=6, ignore_eos=False)
    paradigm = autoregressive(eos_at={0: 1})
    recording = run(paradigm, requests, timeline="delivered", stream_decoder=SpellingDecoder)
    assert [row.text for row in recording.rows] == [spell(requests[0], 2), spell(requests[1], 6)]


def test_delivered_text_does_not_go_beyond_a_cut():
    class InOrder(FakeDiffusion):
        def order(self, length):
            return [position * self.num_steps // length for position in range(length)]

    requests = make_requests(2, output_len=8, ignore_eos=False)
    paradigm = InOrder(clock=FakeClock(), num_steps=4, eos_at={0: 2})
    recording = run(paradigm, requests, timeline="delivered", stream_decoder=SpellingDecoder)
    assert [row.text for row in recording.rows] == [spell(requests[0], 3), spell(requests[1], 8)]


def test_detokenising_is_inside_the_delivered_time_and_in_stream_order():
    clock = FakeClock()
    fed = []

    class SlowDecoder(SpellingDecoder):
        def feed(self, ids):
            fed.append(list(ids))
            clock.advance(0.01 * len(ids))
            return super().feed(ids)

    paradigm = FakeDiffusion(clock=clock, num_steps=4, step_s=0.25, seed=1)
    (request,) = make_requests(output_len=8)
    (row,) = record(paradigm, [request], clock=clock, timeline="delivered", stream_decoder=SlowDecoder).rows
    assert row.e2e_s == approx(4 * 0.25 + 8 * 0.01)
    assert [token_id for ids in fed for token_id in ids] == list(row.token_ids)
    assert [len(ids) for ids in fed] == list(row.chunk_tokens)


# Errors


@pytest.mark.parametrize(
    ("requests", "options", "message"),
    [
        ([], {}, "no requests"),
        (make_requests(), {"timeline": "wall"}, "'wall' is unknown; it is one of device, delivered"),
        (make_requests(), {"timeline": "delivered"}, "give it a stream_decoder"),
        (make_requests(), {"stream_decoder": SpellingDecoder}, "leave stream_decoder out"),
    ],
)
def test_settings_that_do_not_go_together(requests, options, message):
    with pytest.raises(ValueError, match=message):
        run(autoregressive(), requests, **options)


# The loop itself


def test_the_device_loop_touches_no_tensor_and_marks_once_an_event():
    class CountingClock(FakeClock):
        num_marks = 0

        def mark(self):
            self.num_marks += 1
            return super().mark()

    class Untouchable:
        """Stands for a tensor on a busy device: reading it while the clock runs might wait for the device."""

        def __init__(self, tensor, is_over):
            self.tensor, self.is_over = tensor, is_over

        def __getattr__(self, name):
            assert self.is_over(), f"{name} was read while the clock ran"
            return getattr(self.tensor, name)

    clock = CountingClock()
    inner = FakeAutoregressive(clock=clock)
    over = []

    class Watched(FakeParadigm):
        def events(self, requests):
            for event in inner.events(requests):
                event.token_ids_BK = Untouchable(event.token_ids_BK, lambda: bool(over))
                yield event
            over.append(True)

    run(Watched(clock=clock), make_requests(output_len=5))
    assert clock.num_marks == 1 + 5
    assert clock.num_synchronized == 2  # ahead of the run, and once to read all stamps


def test_garbage_collection_is_as_it_was_after_a_run_that_fails():
    class Broken(FakeParadigm):
        def events(self, requests):
            yield Event(phase="prefill", forwards={"model": 1})
            assert gc.get_freeze_count() > 0
            raise MemoryError("no room")

    before = gc.get_freeze_count(), gc.isenabled()
    with pytest.raises(MemoryError, match="no room"):
        run(Broken(clock=FakeClock()), make_requests())
    assert (gc.get_freeze_count(), gc.isenabled()) == before


def test_a_real_clock_gives_ordered_times_that_add_up():
    requests = make_requests(2, output_len=16)
    recording = record(autoregressive(), requests, clock=HostClock())
    assert all(later >= earlier for earlier, later in pairwise((0.0, *recording.event_s)))
    for row in recording.rows:
        assert row.ttft_s == recording.prefill_s
        assert row.ttft_s + sum(row.itl_s) == approx(row.e2e_s)
        assert row.e2e_s == recording.wall_s
        assert all(0 <= token_id < VOCAB_SIZE for token_id in row.token_ids)
