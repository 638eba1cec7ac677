"""Steps whose times are written down: what happened to them comes back, and what belongs to the work does not count."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paradigms.measure.unevenness import BLOCK_S, unevenness

STEP_S = 0.005


def recording(durations_s: np.ndarray, kinds: list[tuple[Any, ...]] | None = None) -> Any:
    kinds = kinds or [("prefill", 8), *[("decode", 1)] * (len(durations_s) - 1)]
    return SimpleNamespace(event_s=tuple(np.cumsum(durations_s)), event_kinds=tuple(kinds))


def steps(number: int, slow: slice = slice(0), by: float = 1.6) -> np.ndarray:
    durations_s = np.full(number, STEP_S)
    durations_s[slow] *= by
    return durations_s


def test_equal_steps_are_even() -> None:
    assert unevenness([recording(steps(100)), recording(steps(100))]) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.7])
@pytest.mark.parametrize("repeats", [1, 3])
def test_a_slow_phase_comes_back_as_what_it_cost(share: float, repeats: int) -> None:
    """Of 200 steps a share takes 1.6 times as long."""
    slow = slice(100 - round(100 * share), 100 + round(100 * share))
    found = unevenness([recording(steps(200, slow)) for _ in range(repeats)])
    assert found == pytest.approx(0.6 * share, rel=0.1)


def test_what_lasts_for_the_whole_attempt_cannot_be_seen() -> None:
    assert unevenness([recording(steps(100, slice(None)))]) == pytest.approx(0, abs=1e-9)


def test_a_slow_repeat_among_others_is_seen() -> None:
    assert unevenness([recording(steps(40)), recording(steps(40)), recording(steps(40, slice(None)))]) == pytest.approx(
        0.2, rel=0.05
    )


def test_steps_that_grow_with_the_text_are_even() -> None:
    """By three times from beginning to end, as attention does."""
    grown = STEP_S * np.linspace(1, 3, 120)
    assert unevenness([recording(grown), recording(grown)]) < 0.01
    grown[60:90] *= 1.5
    assert unevenness([recording(grown)]) > 0.1


def test_kinds_of_steps_are_compared_with_their_like() -> None:
    """A refresh every eighth step takes nine times as long."""
    kinds = [("denoise", ("denoiser", 1), 512 if index % 8 == 0 else 16) for index in range(64)]
    durations_s = np.array([9 * STEP_S if index % 8 == 0 else STEP_S for index in range(64)])
    assert unevenness([recording(durations_s, kinds)]) < 0.01
    durations_s[16:40] *= 1.4
    assert unevenness([recording(durations_s, kinds)]) == pytest.approx(0.4 * 24 / 64, rel=0.2)


def test_positions_that_never_recur_are_joined_by_phase() -> None:
    """Without a cache every step computes one position more."""
    kinds = [("decode", ("decoder", 1), 64 + index) for index in range(100)]
    even = STEP_S * (64 + np.arange(100)) / 64
    assert unevenness([recording(even, kinds)]) < 0.01
    even[30:60] *= 1.6
    assert unevenness([recording(even, kinds)]) > 0.1


def test_jitter_that_is_shorter_than_a_block_is_no_phase() -> None:
    jitter = np.random.default_rng(0).exponential(0.2, 2000)
    assert unevenness([recording(0.0005 * (1 + jitter))]) < 0.03


def test_the_rest_of_a_repeat_is_no_block_of_its_own() -> None:
    """Its last step, slower by half, is 2 ms: 1 % of all, not a block at 1.5."""
    durations_s = np.append(np.full(int(8 * BLOCK_S / 0.002), 0.002), 0.003)
    assert unevenness([recording(durations_s)]) < 0.01


@pytest.mark.parametrize(
    "recordings",
    [[], [recording(steps(1))], [recording(steps(2))], [recording(steps(4))]],
    ids=["none", "prefill", "a_step", "one_block"],
)
def test_too_little_tells_nothing(recordings: list[Any]) -> None:
    assert unevenness(recordings) is None


def test_events_at_one_instant_are_no_division_by_zero() -> None:
    found = unevenness([recording(np.where(np.arange(60) % 2 == 0, 0.0, STEP_S))])
    assert found is not None and np.isfinite(found)
