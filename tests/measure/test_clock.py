from itertools import pairwise

import pytest
import torch

from paradigms.measure.clock import CudaClock, FakeClock, HostClock, clock_for


def test_fake_clock_reads_what_it_was_advanced_by():
    clock = FakeClock()
    clock.advance(3.0)
    stamps = [clock.mark()]
    for seconds in (0.5, 0.0, 0.25):
        clock.advance(seconds)
        stamps.append(clock.mark())
    assert clock.read(stamps) == [0.0, 0.5, 0.5, 0.75]
    assert clock.num_synchronized == 1


def test_fake_clock_never_goes_back():
    with pytest.raises(ValueError, match="cannot go back by 1"):
        FakeClock().advance(-1)


@pytest.mark.parametrize("clock", [HostClock(), FakeClock()])
def test_no_stamps_read_as_no_times(clock):
    assert clock.read([]) == []


def test_host_clock_starts_at_zero_and_never_goes_back():
    clock = HostClock()
    times_s = clock.read([clock.mark() for _ in range(100)])
    assert times_s[0] == 0
    assert all(later >= earlier for earlier, later in pairwise(times_s))


def test_cpu_gets_the_host_clock_whatever_the_timeline():
    assert isinstance(clock_for("cpu", "device"), HostClock)
    assert isinstance(clock_for("cpu", "delivered"), HostClock)


def test_cuda_gets_events_only_while_tokens_stay_on_the_device():
    assert isinstance(clock_for("cuda", "device"), CudaClock)
    assert isinstance(clock_for("cuda:1", "delivered"), HostClock)


@pytest.mark.gpu
def test_cuda_clock_counts_device_work_that_the_host_ran_ahead_of():
    clock = CudaClock()
    square = torch.rand(4096, 4096, device="cuda")
    product = square @ square
    clock.synchronize()
    stamps, host_stamps = [clock.mark()], [HostClock().mark()]
    for _ in range(5):
        product = product @ square
        stamps.append(clock.mark())
    host_stamps.append(HostClock().mark())
    times_s = clock.read(stamps)
    assert times_s[0] == 0
    assert all(later > earlier for earlier, later in pairwise(times_s))
    assert times_s[-1] > HostClock().read(host_stamps)[-1]
