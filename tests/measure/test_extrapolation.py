"""An extrapolated run says what the whole one would have, wherever its steps cost what the rule can carry."""

from __future__ import annotations

import pytest
from fakes import FakeAutoregressive, FakeDiffusion, make_requests

from paradigms.measure.clock import FakeClock
from paradigms.measure.extrapolation import FEWEST_EVENTS, NUM_TIMED, SETTLING, at, events_at, extrapolate, places
from paradigms.measure.timeline import record
from paradigms.measure.warmup import warm_up
from paradigms.paradigm import Outline
from paradigms.workload import Measure

COSTS = {
    "constant": {},
    "in proportion to the length": {"growth_s": 1e-3},
    "and to its square": {"growth_s": 1e-3, "bend_s": 1e-6},
}


@pytest.mark.parametrize("output_len", [FEWEST_EVENTS, 11, 100, 1001])
@pytest.mark.parametrize("cost", COSTS)
def test_token_by_token_it_says_what_the_whole_run_does(cost, output_len):
    paradigm = FakeAutoregressive(clock=FakeClock(), **COSTS[cost])
    requests = make_requests(3, output_len=output_len, prompt_len=5)
    whole = record(paradigm, requests, clock=paradigm.clock)
    started_s, started_runs = paradigm.clock.now_s, paradigm.num_runs
    outline = Outline(num_events=output_len, grows=True)
    found = extrapolate(paradigm, requests, outline, clock=paradigm.clock)
    assert found.wall_s == pytest.approx(whole.wall_s, rel=1e-5)
    assert found.positions_computed == pytest.approx(whole.positions_computed)
    assert paradigm.clock.now_s - started_s == pytest.approx(found.spent_s)
    assert paradigm.num_closed == paradigm.num_runs - started_runs == 3
    for mine, its in zip(found.request_rows(), whole.request_rows(), strict=True):
        for name in ("request_id", "seed", "prompt_tokens", "committed_tokens", "nfe", "finish_reason"):
            assert mine[name] == its[name], name
        for name in ("ttft_s", "tpot_s", "e2e_s", "prefill_s", "positions_computed"):
            assert mine[name] == pytest.approx(its[name], rel=1e-5), name
        assert mine["step_time_s"] == pytest.approx(its["step_time_s"], rel=1e-5)
        assert mine["extrapolated"] is True and mine["forwards_timed"] == 9
        assert set(its) <= set(mine)


def test_a_canvas_is_summed_from_equal_steps():
    paradigm = FakeDiffusion(clock=FakeClock(), num_steps=40)
    requests = make_requests(2, output_len=80)
    whole = record(paradigm, requests, clock=paradigm.clock)
    found = extrapolate(paradigm, requests, Outline(num_events=40, grows=False), clock=paradigm.clock)
    assert found.wall_s == pytest.approx(whole.wall_s)
    assert found.positions_computed == whole.positions_computed
    row = found.request_rows()[0]
    assert row["ttft_s"] is None and row["tpot_s"] is None, "decided by the order, on the way"
    assert row["nfe"] == 40 and row["prefill_s"] == pytest.approx(0.2)


def test_places_stand_at_the_start_the_middle_and_the_end():
    found = places(Outline(num_events=100, grows=True))
    indices = [range(place.first_index, place.first_index + place.num_steps) for place in found]
    assert [list(index) for index in indices] == [[2, 3], [48, 49, 50, 51], [98, 99]]
    assert sum(place.num_steps for place in found) == NUM_TIMED
    for num_events in range(FEWEST_EVENTS, 60):
        first, middle, last = places(Outline(num_events=num_events, grows=True))
        assert first.first_index + first.num_steps <= middle.first_index + 1
        assert middle.first_index + middle.num_steps <= last.first_index + 1
        assert last.first_index + last.num_steps == num_events and middle.moved >= 0


def test_requests_moved_on_keep_their_length_and_their_seed():
    (request,) = make_requests(1, output_len=20, prompt_len=3)
    place = places(Outline(num_events=20, grows=True))[-1]
    (moved,) = at([request], place)
    assert len(moved.prompt) + moved.max_new_tokens == 23 and moved.prompt[:3] == request.prompt
    assert moved.seed == request.seed and moved.max_new_tokens == 1 + SETTLING + 2


def test_the_device_is_idle_before_steps_are_timed():
    paradigm = FakeAutoregressive(clock=FakeClock())
    before = paradigm.clock.num_synchronized
    extrapolate(paradigm, make_requests(output_len=50), Outline(num_events=50, grows=True), clock=paradigm.clock)
    assert paradigm.clock.num_synchronized - before == 3 * 3, "before the run, behind its first event, when read"


def test_a_place_is_closed_even_when_nobody_reads_on():
    paradigm = FakeAutoregressive(clock=FakeClock())
    events = events_at(paradigm, make_requests(output_len=50), places(Outline(num_events=50, grows=True))[1])
    next(events)
    events.close()
    assert paradigm.num_closed == 1


def test_short_runs_are_made_whole():
    paradigm = FakeAutoregressive(clock=FakeClock())
    with pytest.raises(ValueError, match="run of 9 forwards is no longer than the 10"):
        extrapolate(paradigm, make_requests(output_len=9), Outline(num_events=9, grows=True), clock=paradigm.clock)


def test_the_warm_up_estimates_the_whole():
    paradigm = FakeAutoregressive(clock=FakeClock(), prefill_s=2.0, step_s=0.25)
    settings = {"clock": paradigm.clock, "max_warmups": 2}
    warmup = warm_up(paradigm, lambda: make_requests(output_len=100), num_events=4, **settings)
    assert (warmup.first_s, warmup.step_s) == pytest.approx((2.0, 0.25))
    assert warmup.estimate_s(100) == pytest.approx(2.0 + 99 * 0.25)
    blind = warm_up(paradigm, lambda: make_requests(output_len=100), num_events=1, **settings)
    assert blind.step_s is None and blind.estimate_s(100) == 0, "no step was seen, so nothing is extrapolated"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"extrapolate_over_s": 0.0}, "must be above 0"),
        ({"extrapolate_over_s": 1.0}, "measure.quality=true needs them"),
        ({"extrapolate_over_s": 1.0, "quality": False, "tokens": True}, "measure.tokens=true needs them"),
        ({"extrapolate_over_s": 1.0, "quality": False, "timeline": "delivered"}, "measure.timeline=delivered needs"),
    ],
)
def test_what_an_extrapolated_run_cannot_have_is_refused(values, words):
    with pytest.raises(ValueError, match=words):
        Measure(**values)
    Measure(extrapolate_over_s=1.0, quality=False)
