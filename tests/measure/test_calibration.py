"""Calibration: figures in between follow known curves, files survive or are named, a tiny real one is plausible."""

import json
import math
from dataclasses import replace

import pytest
import torch

from paradigms.measure.calibration import (
    BandwidthPoint,
    Calibration,
    Extent,
    MatmulPoint,
    ThreadTimes,
    calibrate,
    calibration_for,
    calibration_path,
    peak_columns,
)
from paradigms.measure.calibration.columns import COLUMNS
from paradigms.measure.calibration.threads import counts_to_try
from paradigms.measure.calibration.tries import FEWEST_TRIES, NUM_TRIES, tries
from paradigms.measure.clock import FakeClock
from paradigms.measure.environment import machine_id

TINY = Extent(
    working_sets_bytes=(2**14, 2**18, 2**22),
    dtypes=("float32", "bfloat16"),
    sizes=((32, 48), (64, 128)),
    rows=(1, 4, 16),
    thread_counts=(1,),
    budget_s=0.004,
)


def bandwidth(working_set_bytes, bytes_per_s):
    return BandwidthPoint(
        working_set_bytes=working_set_bytes, bytes_per_s=bytes_per_s, low=bytes_per_s, high=bytes_per_s, method="sum"
    )


def matmul(dtype, rows, k, n, flops_per_s):
    return MatmulPoint(dtype=dtype, rows=rows, k=k, n=n, flops_per_s=flops_per_s, low=flops_per_s, high=flops_per_s)


def power_law(rows, k, n):
    """A rate that is straight in logarithms of the rows and of the matrix."""
    return 1e9 * rows**0.5 * (k * n) ** 0.25


@pytest.fixture
def known():
    """2^12 / working set ^ 0.5 bytes a second, `power_law` operations."""
    return Calibration(
        machine="m0",
        machine_line="a made-up machine",
        device="cpu",
        device_name="a made-up CPU",
        threads=1,
        torch_version="2.13.0",
        date="2026-01-01T00:00:00Z",
        took_s=7.5,
        noise={"steal_fraction": None, "contended": False},
        bandwidth=tuple(bandwidth(4**power, 1e12 * 2.0**-power) for power in range(8, 14)),
        matmul=tuple(
            matmul("float32", rows, k, n, power_law(rows, k, n))
            for k, n in ((256, 1024), (32, 32), (64, 256))
            for rows in (1, 8, 64)
        ),
        dispatch_s=1e-6,
        threads_tried=(
            ThreadTimes(threads=1, decode_s=1.02, prefill_s=4.0),
            ThreadTimes(threads=2, decode_s=1.0, prefill_s=2.0),
            ThreadTimes(threads=4, decode_s=1.5, prefill_s=1.95),
        ),
        layers={"AF": {"float32": [1.0, 2.5]}},
        decoders={"autoregressive": 1e-5},
    )


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PARADIGMS_CACHE", str(tmp_path))
    return tmp_path


# ---------------------------------------------------------------- figures in between


@pytest.mark.parametrize("working_set_bytes", [4**8, 4**9 + 1, 3 * 4**10, 4**13 - 5])
def test_bandwidth_lies_on_the_power_law_it_was_sampled_from(known, working_set_bytes):
    assert known.bandwidth_at(working_set_bytes) == pytest.approx(1e12 * working_set_bytes**-0.5)


def test_bandwidth_outside_is_the_nearest(known):
    assert known.bandwidth_at(1) == known.peak_bytes_per_s() == 1e12 * 2.0**-8
    assert known.bandwidth_at(1e15) == 1e12 * 2.0**-13


def test_bandwidth_passes_through_points_of_a_step():
    """A cache's edge is no power law: every measured point comes back, and what lies between stays between."""
    edge = {2**20: 9e10, 2**21: 9e10, 2**22: 2e10}
    from_points = _with_bandwidth(edge)
    for size, rate in edge.items():
        assert from_points.bandwidth_at(size) == pytest.approx(rate)
    assert from_points.bandwidth_at(2**21.5) == pytest.approx(math.sqrt(9e10 * 2e10))
    assert _with_bandwidth(dict(reversed(edge.items()))).bandwidth_at(2**21.5) == from_points.bandwidth_at(2**21.5)


def _with_bandwidth(points):
    return Calibration(
        machine="m0", machine_line="", device="cpu", device_name="", threads=1, torch_version="", date="", took_s=0.0,
        noise={}, bandwidth=tuple(bandwidth(*point) for point in points.items()), matmul=(), dispatch_s=1e-6,
    )  # fmt: skip


@pytest.mark.parametrize(("rows", "k", "n"), [(1, 32, 32), (5, 32, 32), (8, 100, 50), (50, 64, 300), (64, 256, 1024)])
def test_products_lie_on_the_power_law_they_were_sampled_from(known, rows, k, n):
    assert known.matmul_flops_per_s("float32", rows, k, n) == pytest.approx(power_law(rows, k, n))


def test_products_outside_are_the_nearest(known):
    assert known.matmul_flops_per_s("float32", 4096, 4096, 4096) == pytest.approx(power_law(64, 256, 1024))
    assert known.peak_flops_per_s("float32") == pytest.approx(power_law(64, 256, 1024))


def test_a_size_with_fewer_rows_takes_its_last(known):
    fewer = replace(known, matmul=tuple(p for p in known.matmul if (p.rows, p.k) != (64, 256)))
    assert fewer.matmul_flops_per_s("float32", 64, 256, 1024) == pytest.approx(power_law(8, 256, 1024))


def test_best_threads_are_the_fewest_within_five_percent(known):
    assert known.best_threads == {"decode": 1, "prefill": 2}
    assert replace(known, threads_tried=()).best_threads == {}


def test_what_cannot_be_told_is_an_error(known):
    with pytest.raises(ValueError, match=r"float16.*a made-up CPU.*measured: float32"):
        known.matmul_flops_per_s("float16", 1, 8, 8)
    with pytest.raises(ValueError, match="float16"):
        known.peak_flops_per_s("float16")
    with pytest.raises(ValueError, match="working_set_bytes=0"):
        known.bandwidth_at(0)
    with pytest.raises(ValueError, match="rows=0"):
        known.matmul_flops_per_s("float32", 0, 8, 8)
    for ask in (_with_bandwidth({}).peak_bytes_per_s, lambda: _with_bandwidth({}).bandwidth_at(1)):
        with pytest.raises(ValueError, match=r"paradigms\.costs calibrate"):
            ask()


# ---------------------------------------------------------------- files


def test_a_file_holds_all_of_it(known, cache):
    path = known.save()
    assert path == calibration_path("m0", "cpu", 1) and path.is_relative_to(cache)
    assert calibration_for("m0", "cpu", 1) == known
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]  # nothing half-written stays


def test_machines_devices_and_threads_have_files_of_their_own(known, cache):
    others = [replace(known, machine="m1"), replace(known, device="cuda", launch_s=4e-6), replace(known, threads=2)]
    for each in (known, *others):
        each.save()
    for each in (known, *others):
        assert calibration_for(each.machine, each.device, each.threads) == each
    assert calibration_for("m2", "cpu", 1) is None
    assert calibration_for(None, "cpu", 1) is None
    replace(known, machine=machine_id()).save()
    assert calibration_for(None, "cpu", 1) is not None


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (lambda stored: "{", "Expecting"),
        (lambda stored: "[1]", "not an object"),
        (lambda stored: json.dumps(stored | {"format": 0}), "its format is 0"),
        (lambda stored: json.dumps({k: v for k, v in stored.items() if k != "dispatch_s"}), "missing.*dispatch_s"),
        (lambda stored: json.dumps(stored | {"extra": 1}), "unknown.*extra"),
        (lambda stored: json.dumps(stored | {"matmul": [{"rows": 1}]}), "MatmulPoint"),
    ],
    ids=["cut_off", "list", "old", "missing", "unknown", "point"],
)
def test_a_bad_file_is_named(known, cache, damage, word):
    path = known.save()
    path.write_text(damage(json.loads(path.read_text())))
    with pytest.raises(ValueError, match=word) as error:
        calibration_for("m0", "cpu", 1)
    assert str(path) in str(error.value) and "python -m paradigms.costs calibrate" in str(error.value)


def test_what_is_no_json_leaves_the_old_file(known, cache):
    path = known.save()
    with pytest.raises(ValueError):
        replace(known, layers={"AF": math.nan}).save()
    assert Calibration.load(path) == known
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


# ---------------------------------------------------------------- columns of a record

RUN = {"device": "cpu", "weight_bytes": 4**9}
LEDGER = {"forwards_prefill": 1, "weight_bytes_prefill": 4**9, "state_read_bytes_prefill": 0}
LEDGER |= {"forwards_decode": 3, "weight_bytes_decode": 3 * 4**9, "state_read_bytes_decode": 12 * 4**9}


def test_a_record_has_the_roof_at_what_a_forward_reads(known, cache):
    replace(known, machine=machine_id()).save()
    found = peak_columns(RUN, threads=1, dtype="float32")
    assert found == {
        "peak_flops_per_s": known.peak_flops_per_s("float32"),
        "peak_bytes_per_s": known.bandwidth_at(4**9),
        "calibrated_at": known.date,
        "calibration_contended": False,
    }
    counted = peak_columns(RUN | LEDGER, threads=1, dtype="float32")
    assert counted["peak_bytes_per_s"] == known.bandwidth_at(4 * 4**9)  # (4 of weights and 12 of state) over 4 forwards


def test_a_record_without_a_roof_says_none(known, cache):
    nothing = dict.fromkeys(COLUMNS)
    assert peak_columns(RUN, threads=1, dtype="float32") == nothing
    path = replace(known, machine=machine_id()).save()
    assert peak_columns(RUN, threads=2, dtype="float32") == nothing
    assert peak_columns(RUN, threads=1, dtype="float64")["peak_flops_per_s"] is None
    path.write_text("{")
    with pytest.warns(UserWarning, match="calibrate"):
        assert peak_columns(RUN, threads=1, dtype="float32") == nothing


# ---------------------------------------------------------------- measuring


@pytest.mark.parametrize("cost_s", [1e-5, 3e-3, 0.1, 5.0])
def test_tries_find_a_known_cost(cost_s):
    clock, calls = FakeClock(), []

    def work():
        calls.append(1)
        clock.advance(cost_s)

    found = tries(work, clock, budget_s=0.07)
    assert tuple(found) == pytest.approx((cost_s,) * 3)
    assert clock.now_s <= max(0.07, FEWEST_TRIES * cost_s) * 1.01 + 2 * cost_s
    assert cost_s > 0.01 or len(calls) >= NUM_TRIES


def test_tries_tell_the_middle_and_both_ends():
    clock = FakeClock()
    costs_s = iter([9.0, 1.0, 2.0, 8.0, 3.0])  # to warm up, to find the number of tries, and three tries
    found = tries(lambda: clock.advance(next(costs_s)), clock, budget_s=0.1)
    assert tuple(found) == (3.0, 2.0, 8.0)


def test_threads_to_try(monkeypatch):
    for cores, counts in ((1, (1,)), (2, (1, 2)), (6, (1, 2, 4, 6)), (8, (1, 2, 4, 8))):
        monkeypatch.setattr("paradigms.measure.calibration.threads.usable_cores", lambda cores=cores: cores)
        assert counts_to_try() == counts


@pytest.fixture(scope="module")
def real():
    threads, told = torch.get_num_threads(), []
    found = calibrate("cpu", 1, lambda *args: told.append(args), extent=TINY)
    torch.set_num_threads(threads)
    return found, told


def test_a_real_one_has_every_point_and_no_nonsense(real):
    found, told = real
    assert [point.working_set_bytes for point in found.bandwidth] == list(TINY.working_sets_bytes)
    assert [(p.dtype, p.k, p.n, p.rows) for p in found.matmul] == [
        (dtype, k, n, rows) for dtype in TINY.dtypes for k, n in TINY.sizes for rows in TINY.rows
    ]
    for point in (*found.bandwidth, *found.matmul):
        rate = point.bytes_per_s if isinstance(point, BandwidthPoint) else point.flops_per_s
        assert 0 < point.low <= rate <= point.high
    assert found.dispatch_s > 0 and found.took_s > 0
    assert (found.launch_s, found.graph_replay_s, found.graph_kernel_s) == (None, None, None)
    assert found.best_threads == {"decode": 1, "prefill": 1}
    assert (found.machine, found.device, found.threads, found.dtypes) == (machine_id(), "cpu", 1, TINY.dtypes)
    assert {"steal_fraction", "contended", "probe_before_s", "probe_after_s"} <= set(found.noise)
    done, totals = [each[1] for each in told], {each[2] for each in told}
    assert done == list(range(1, len(told) + 1)) and totals == {len(told)}


def test_a_real_one_survives_its_file(real, cache):
    found, _ = real
    assert Calibration.load(found.save()) == found


def test_products_too_long_are_left_out_and_taken_from_fewer_rows():
    from paradigms.measure.calibration.products import measure_products

    with torch.inference_mode():
        points = measure_products(
            torch.device("cpu"), "float32", ((64, 64),), (1, 4, 10**6), budget_s=1e-3, longest_s=1e-3
        )
    assert 1 <= len(points) <= 2 and points[0].rows == 1  # a million rows need 8 GFLOP


def test_no_threads_are_an_error():
    with pytest.raises(ValueError, match=r"device\.threads=0"):
        calibrate("cpu", 0, extent=TINY)


@pytest.mark.gpu
def test_a_real_one_on_cuda():
    tiny = replace(TINY, working_sets_bytes=(2**20, 2**24), dtypes=("float32", "bfloat16", "float16"), thread_counts=())
    found = calibrate("cuda", 1, extent=tiny)
    assert len(found.bandwidth) == 2 and len(found.matmul) == 18 and found.best_threads == {}
    for name in ("dispatch_s", "launch_s", "graph_replay_s", "graph_kernel_s"):
        assert getattr(found, name) > 0, name
