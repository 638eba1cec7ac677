import pytest
from fakes import FakeAutoregressive, make_requests

from paradigms.measure.clock import FakeClock
from paradigms.measure.warmup import warm_up


class Settling(FakeAutoregressive):
    """Costs less from run to run, as caches fill and kernels get chosen."""

    def events(self, requests):
        self.step_s = self.costs_s[min(self.num_runs, len(self.costs_s)) - 1]
        self.prefill_s = self.step_s
        yield from super().events(requests)


def settle(*costs_s, max_warmups=10, num_events=3, output_len=8):
    paradigm = Settling(clock=FakeClock())
    paradigm.costs_s = costs_s
    warmup = warm_up(
        paradigm,
        lambda: make_requests(output_len=output_len),
        clock=paradigm.clock,
        max_warmups=max_warmups,
        num_events=num_events,
    )
    return paradigm, warmup


def test_stops_as_soon_as_two_runs_in_a_row_agree():
    paradigm, warmup = settle(4.0, 2.0, 1.0, 0.95)
    assert warmup.runs_s == pytest.approx((12.0, 6.0, 3.0, 2.85))
    assert warmup.num_runs == paradigm.num_runs == 4
    assert warmup.seconds == pytest.approx(23.85)
    assert warmup.steady


def test_gives_up_after_the_most_runs_and_says_so():
    _, warmup = settle(16.0, 8.0, 4.0, 2.0, max_warmups=3)
    assert warmup.num_runs == 3
    assert not warmup.steady


def test_one_run_cannot_tell_whether_it_is_steady():
    _, warmup = settle(1.0, max_warmups=1)
    assert warmup.num_runs == 1
    assert not warmup.steady


def test_consumes_only_the_first_events_and_closes_the_run():
    paradigm, warmup = settle(1.0, num_events=3)
    assert warmup.runs_s == pytest.approx((3.0, 3.0))
    assert paradigm.num_closed == 2


def test_a_run_shorter_than_the_warmup_ends_by_itself():
    paradigm, warmup = settle(1.0, num_events=100, output_len=4)
    assert warmup.runs_s == pytest.approx((4.0, 4.0))
    assert paradigm.num_closed == 0


def test_a_run_that_fails_is_closed_and_its_error_seen():
    class Failing(FakeAutoregressive):
        def events(self, requests):
            yield from super().events(requests[:0] or requests)
            raise RuntimeError("broken step")

    paradigm = Failing(clock=FakeClock())
    with pytest.raises(RuntimeError, match="broken step"):
        warm_up(paradigm, make_requests, clock=paradigm.clock, max_warmups=3, num_events=100)
    assert paradigm.num_runs == 1


@pytest.mark.parametrize("name", ["max_warmups", "num_events"])
def test_counts_below_one_are_refused(name):
    with pytest.raises(ValueError, match=f"{name}=0"):
        settle(1.0, **{name: 0})
