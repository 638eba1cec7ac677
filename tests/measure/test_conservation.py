"""A run whose events do not add up is refused, whatever way it was spoilt."""

import pytest
import torch
from fakes import FakeAutoregressive, FakeDiffusion, FakeFaulty, SpellingDecoder, make_requests

from paradigms.measure.clock import FakeClock
from paradigms.measure.conservation import ConservationError
from paradigms.measure.timeline import record
from paradigms.paradigm import Event


def run(paradigm, requests, **options):
    return record(paradigm, requests, clock=paradigm.clock, **options)


def autoregressive(**options):
    return FakeAutoregressive(clock=FakeClock(), **options)


def repeat_position(index, event):
    event.finished = {}
    return [event, event] if index == 1 else [event]


def lose_token(index, event):
    if index == 1:
        event.token_ids_BK = None
    return [event]


def lose_last_token(index, event):
    if event.finished:
        event.token_ids_BK = None
    return [event]


def skip_end(index, event):
    event.finished = {}
    return [event]


def end_twice(index, event):
    return [event, Event(phase="decode", finished=event.finished)] if event.finished else [event]


def end_unknown_row(index, event):
    event.finished = {7: "length"} if event.finished else {}
    return [event]


def end_for_no_reason(index, event):
    event.finished = dict.fromkeys(event.finished, "bored")
    return [event]


def end_by_eos(index, event):
    event.finished = dict.fromkeys(event.finished, "eos")
    return [event]


def run_on(index, event):
    return [event, Event(phase="decode", forwards={"model": 1})] if event.finished else [event]


def cut_too_early(index, event):
    event.num_committed = {0: 1} if index == 1 else {}
    return [event]


def cut_too_long(index, event):
    event.num_committed = {0: 9} if event.finished else {}
    return [event]


def cut_a_fixed_length(index, event):
    event.num_committed = {0: 2} if event.finished else {}
    return [event]


def run_nothing(index, event):
    event.forwards = {}
    return [event]


def run_backwards(index, event):
    event.forwards = {"model": -1 if index == 1 else 1}
    return [event]


def forget_positions(index, event):
    event.positions_K = None
    return [event]


def drop_a_row(index, event):
    event.token_ids_BK = event.token_ids_BK[:1]
    return [event]


def mask_too_narrow(index, event):
    event.final_BK = torch.ones(1, 1, dtype=torch.bool)
    return [event]


def negative_position(index, event):
    event.positions_K = [-1] if index == 1 else event.positions_K
    return [event]


def give_nothing(index, event):
    return []


def too_many(index, event):
    if not event.finished:
        return [event]
    ids_BK = torch.zeros(2, 1, dtype=torch.long)
    extra = Event(phase="decode", positions_K=[4], token_ids_BK=ids_BK, finished=event.finished)
    event.finished = {}
    return [event, extra]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (repeat_position, "row 0: position 1 is final in event 1 and again in event 2"),
        (lose_token, "row 0: 3 positions are final, up to 3, but position 1 is not"),
        (lose_last_token, "row 0: 3 tokens committed, 4 requested"),
        (too_many, "row 0: 5 tokens committed, 4 allowed"),
        (skip_end, "row 0 has no finish reason after 4 tokens"),
        (end_twice, "row 0 ends in event 3 and again in event 4"),
        (end_unknown_row, "event 3 ends row 7, but rows are 0..1"),
        (end_for_no_reason, "finish reason 'bored' is not one of length, eos, stop_string"),
        (end_by_eos, "row 0 ends by 'eos' although its length is fixed"),
        (run_on, "event 4 works although every row has ended by event 3"),
        (cut_too_early, "event 1 commits 1 tokens of row 0, which it does not end"),
        (cut_too_long, "event 3 commits 9 tokens of row 0, but position 4 is not final"),
        (cut_a_fixed_length, "row 0: 2 tokens committed, 4 requested"),
        (run_nothing, "counts no forward"),
        (run_backwards, "event 1 counts backwards"),
        (forget_positions, "event 0 carries tokens but says no positions"),
        (drop_a_row, r"token_ids_BK has shape \(1, 1\), but rows and positions are \(2, 1\)"),
        (mask_too_narrow, r"final_BK has shape \(1, 1\), but rows and positions are \(2, 1\)"),
        (negative_position, "position 1 is not"),
        (give_nothing, "the run gave no event"),
    ],
)
@pytest.mark.parametrize("timeline", ["device", "delivered"])
def test_a_run_that_does_not_add_up_is_refused(spoil, message, timeline):
    paradigm = FakeFaulty(clock=FakeClock(), inner=autoregressive(), spoil=spoil)
    options = {"stream_decoder": SpellingDecoder} if timeline == "delivered" else {}
    with pytest.raises(ConservationError, match=message):
        run(paradigm, make_requests(2, output_len=4), timeline=timeline, **options)


def test_a_position_that_stays_final_in_the_mask_is_reported_twice():
    class CumulativeMask(FakeDiffusion):
        def events(self, requests):
            seen = torch.zeros(len(requests), requests[0].max_new_tokens, dtype=torch.bool)
            for event in super().events(requests):
                seen = seen | event.final_BK
                event.final_BK = seen
                yield event

    with pytest.raises(ConservationError, match="again in event 1"):
        run(CumulativeMask(clock=FakeClock()), make_requests())


def test_a_clock_that_goes_back_is_refused():
    class Backwards(FakeClock):
        def read(self, stamps):
            times_s = super().read(stamps)
            return [*times_s[:-1], times_s[0] - 1.0]

    paradigm = FakeAutoregressive(clock=Backwards())
    with pytest.raises(ConservationError, match=r"event 7 comes at -1\.0 s, before"):
        run(paradigm, make_requests())


def test_a_natural_stop_at_the_length_limit_must_use_the_whole_length():
    def end_short(index, event):
        return [Event(phase="prefill", forwards={"model": 1}, finished={0: "length"})] if index == 0 else []

    with pytest.raises(ConservationError, match="0 tokens committed, 8 requested"):
        run(FakeFaulty(clock=FakeClock(), inner=autoregressive(), spoil=end_short), make_requests(ignore_eos=False))
