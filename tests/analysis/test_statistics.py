"""Summaries against known answers."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from analysis import statistics

FINITE = st.floats(min_value=1e-6, max_value=1e6, allow_nan=False)


def test_median_gives_every_round_the_same_weight():
    estimate = statistics.median_interval([1, 1, 1, 1, 1, 2, 3], ["a"] * 5 + ["b", "c"])
    assert (estimate.value, estimate.count) == (2.0, 3)
    assert (estimate.low, estimate.high) == (1.0, 3.0)  # of three rounds nothing but their range can be known
    assert estimate.coverage == pytest.approx(0.75)


def test_one_round_has_no_interval_and_none_no_value():
    assert math.isnan(statistics.median_interval([1.0, 2.0], [0, 0]).low)
    assert statistics.median_interval([math.nan]).count == 0


@settings(max_examples=30, deadline=None)
@given(st.lists(FINITE, min_size=1, max_size=12))
def test_value_lies_inside_its_interval(values):
    estimate = statistics.median_interval(values)
    assert math.isnan(estimate.low) or estimate.low <= estimate.value <= estimate.high


@settings(max_examples=30, deadline=None)
@given(st.lists(FINITE, min_size=2, max_size=8), st.floats(min_value=0.1, max_value=10))
def test_paired_ratio_is_blind_to_drift(drift, ratio):
    base = pd.Series(drift)
    assert statistics.paired_ratio(base * ratio, base).value == pytest.approx(ratio)


def test_paired_ratio_uses_shared_rounds_only():
    estimate = statistics.paired_ratio(pd.Series({0: 2.0, 1: 4.0}), pd.Series({1: 2.0, 2: 1.0}))
    assert (estimate.value, estimate.count) == (pytest.approx(2.0), 1)


def test_straight_slope_is_that_of_the_line():
    exact = statistics.slope([1, 2, 5], [3.0, 5.0, 11.0])
    assert (exact.value, exact.low, exact.high) == pytest.approx((2, 2, 2))
    assert math.isnan(statistics.slope([1, 2], [3.0, 5.0]).low) and math.isnan(statistics.slope([1], [3.0]).value)
    x, y = np.arange(6.0), np.array([0.1, 0.9, 2.2, 2.8, 4.1, 5.0])
    bent = statistics.slope(x, y)
    deviation = math.sqrt(((y - np.polyval(np.polyfit(x, y, 1), x)) ** 2).sum() / 4 / ((x - x.mean()) ** 2).sum())
    assert bent.high - bent.value == pytest.approx(2.776445 * deviation, rel=1e-6)  # t of 4 degrees of freedom


@pytest.mark.parametrize(("percent", "need"), [(50, 20), (90, 100), (99, 1000), (99.9, 10_000)])
def test_percentile_needs_ten_samples_beyond_it(percent, need):
    value, reason = statistics.percentile(np.arange(need - 1), percent)
    assert value is None and f"{need:,}" in reason and f"{need - 1:,}" in reason
    assert statistics.percentile(np.arange(need), percent)[0] == pytest.approx(np.percentile(np.arange(need), percent))


def test_percentile_refuses_nonsense():
    with pytest.raises(ValueError, match="percent=100"):
        statistics.percentile([1.0], 100)


@settings(max_examples=50, deadline=None)
@given(st.floats(min_value=-2, max_value=3), st.floats(min_value=1e-3, max_value=1e3))
@example(exponent=2.220446049250313e-16, factor=0.00390625)  # logarithms that round to a constant
def test_slope_of_a_power_law(exponent, factor):
    x = np.array([16, 32, 64, 128])
    slope = statistics.loglog_slope(x, factor * x.astype(float) ** exponent)
    assert slope.value == pytest.approx(exponent, abs=1e-9)
    assert slope.low - 1e-9 <= exponent <= slope.high + 1e-9


def test_slope_says_what_it_cannot_know():
    assert math.isnan(statistics.loglog_slope([16], [1.0]).value)
    two = statistics.loglog_slope([1, 10], [1.0, 10.0])
    assert two.value == pytest.approx(1.0) and math.isnan(two.low)


def test_latency_fit_recovers_the_law_and_its_breach():
    n = pd.Series([16, 32, 64, 128, 256])
    ttft = pd.Series([0.01] * 5)
    straight = ttft + (n - 1) * 0.002
    fit = statistics.fit_latency(n, ttft, straight)
    assert fit.t_step_s == pytest.approx(0.002) and fit.worst < 1e-12
    bent = straight.copy()
    bent[4] *= 1.2
    fit = statistics.fit_latency(n, ttft, bent)
    assert fit.residual.abs().idxmax() == 256 and fit.worst > 0.1


def test_latency_fit_needs_two_lengths():
    assert statistics.fit_latency(pd.Series([1, 8]), pd.Series([0.1, 0.1]), pd.Series([0.1, 0.8])) is None


def test_drift_is_relative_to_the_median_round():
    timed = pd.DataFrame({"key": list("abcx"), "cell": ["m/c"] * 4, "machine_id": "m", "round": [0, 1, 2, 0],
                          "e2e_s": [1.0, 2.0, 3.0, 99.0]})  # fmt: skip
    moved = statistics.drift(timed, ["a", "b", "c"])
    assert moved["relative"].tolist() == [-0.5, 0.0, 0.5]


def test_dividing_by_the_anchor_removes_shared_drift_and_adds_its_noise():
    random = np.random.default_rng(0)
    drift_R, cells = random.lognormal(0, 0.1, size=8), [f"m/{index}" for index in range(6)]
    rows = [{"key": f"{cell}/{index}", "cell": cell, "machine_id": "m", "round": index, "e2e_s": 2.0 * factor}
            for cell in cells for index, factor in enumerate(drift_R)]  # fmt: skip
    timed = pd.DataFrame(rows)
    anchors = timed.loc[timed["cell"] == "m/0", "key"].tolist()
    measured, divided = statistics.spread_over_rounds(timed, anchors)
    assert measured == pytest.approx(np.log(drift_R).std(ddof=1)) and divided == pytest.approx(0, abs=1e-12)
    still = timed.assign(e2e_s=timed["e2e_s"].where(timed["cell"] == "m/0", 2.0))
    measured, divided = statistics.spread_over_rounds(still, anchors)
    assert measured == 0 and divided == pytest.approx(np.log(drift_R).std(ddof=1))
    assert math.isnan(statistics.spread_over_rounds(timed, timed["key"].tolist())[0])


def units(values_CR):
    cells = np.repeat(np.arange(len(values_CR)), values_CR.shape[1])
    return pd.DataFrame({"cell": cells.astype(str), "e2e_s": np.exp(values_CR.ravel())})


@pytest.mark.parametrize("rounds", [3, 5, 8])
def test_units_far_off_are_marked_and_hardly_any_other(rounds):
    random = np.random.default_rng(rounds)
    values_CR = 0.01 * random.normal(size=(400, rounds)) + random.normal(size=(400, 1))
    assert statistics.outliers(units(values_CR)).mean() <= 0.001
    values_CR[::10, 1] += 0.2  # 20 deviations
    marked = statistics.outliers(units(values_CR)).to_numpy(copy=True).reshape(values_CR.shape)
    assert marked[::10, 1].mean() > (0.9 if rounds > 3 else 0.6)  # of three, the good two may lie far apart
    marked[::10, 1] = False
    assert marked.mean() <= 0.02  # beside one that is off, two good ones look scattered rather than off


def test_two_rounds_and_exact_repetitions_have_no_outlier():
    assert not statistics.outliers(units(np.array([[0.0, 1.0]]))).any()
    assert not statistics.outliers(units(np.zeros((3, 5)))).any()


def test_first_of_each_group_is_tested_by_exact_ranks():
    frame = pd.DataFrame({"value": [3.0, 1, 2, 2.0, 1, 5, 4], "group": list("aaabbcc"), "order": [0, 1, 2, 0, 1, 0, 1]})
    found = statistics.first_is_slower(frame["value"], frame["group"], frame["order"])
    assert found is not None and found.groups == 3
    assert found.p == pytest.approx(1 / 12)  # 3 of 3, 2 of 2, 2 of 2: one of 12 equally likely rankings
    assert found.excess == pytest.approx(1.0)  # 3 / 1.5, 2 / 1, 5 / 4
    alone = pd.Series([1.0, 2.0])
    assert statistics.first_is_slower(alone, pd.Series(["a", "b"]), pd.Series([0, 0])) is None


@pytest.mark.parametrize("groups", [20, 300])
def test_first_is_no_slower_is_rejected_as_often_as_p_says(groups):
    random = np.random.default_rng(groups)
    labels, order = np.repeat(np.arange(groups), 3), np.tile(np.arange(3), groups)
    found = []
    for _ in range(200):
        values = pd.Series(random.lognormal(size=3 * groups))
        test = statistics.first_is_slower(values, pd.Series(labels), pd.Series(order))
        assert test is not None
        found.append(test.p)
    for level in (0.1, 0.3, 0.5):  # ranks of 20 groups leave gaps between the levels
        assert level - 0.2 <= np.mean(np.array(found) <= level) <= level + 0.08
