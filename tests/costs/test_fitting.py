"""Factors that are known are found, with outliers and without."""

from __future__ import annotations

import numpy as np
import pytest

from paradigms.costs.fitting import fit


def made_up(num_cells: int = 60) -> tuple[list[dict[str, float]], list[float]]:
    draw = np.random.default_rng(3)
    cells = [
        {"overhead": 1.0, "work": float(10 ** draw.uniform(-6, -2)), "bytes": float(10 ** draw.uniform(-6, -2))}
        for _ in range(num_cells)
    ]
    return cells, [3e-5 + 1.5 * cell["work"] + 0.4 * cell["bytes"] for cell in cells]


def test_factors_are_found() -> None:
    cells, seconds = made_up()
    law = fit(cells, seconds)
    assert law.factors == pytest.approx({"overhead": 3e-5, "work": 1.5, "bytes": 0.4}, rel=1e-6)
    assert max(map(abs, law.errors)) < 1e-6
    assert max(map(abs, law.left_out)) < 1e-6
    assert law.seconds({"work": 2.0, "unheard of": 5.0}) == pytest.approx(3.0)


def test_slow_outliers_do_not_decide() -> None:
    cells, seconds = made_up()
    disturbed = [value * (3 if index % 12 == 0 else 1) for index, value in enumerate(seconds)]
    law = fit(cells, disturbed)
    assert law.factors == pytest.approx({"overhead": 3e-5, "work": 1.5, "bytes": 0.4}, rel=0.1)


def test_a_lucky_cell_pulls_with_a_bounded_force() -> None:
    """Ten cells of a second, one of a third: Huber's optimum is where 10 (f - 1) + 3 x 0.1 = 0; squares say 13/19."""
    law = fit([{"a": 1.0}] * 11, [1.0] * 10 + [1 / 3])
    assert law.factors["a"] == pytest.approx(0.97, abs=1e-3)


def test_what_is_known_already_is_not_explained_again() -> None:
    cells, seconds = made_up()
    known = [1.5 * cell["work"] for cell in cells]
    law = fit([{"overhead": 1.0, "bytes": cell["bytes"]} for cell in cells], seconds, known)
    assert law.factors == pytest.approx({"overhead": 3e-5, "bytes": 0.4}, rel=1e-6)


def test_factors_are_never_negative() -> None:
    law = fit([{"a": 1.0, "b": float(size)} for size in range(1, 6)], [1.0 / size for size in range(1, 6)])
    assert min(law.factors.values()) >= 0


def test_left_out_cells_are_predicted_from_the_others() -> None:
    law = fit([{"a": 1.0}, {"a": 1.0}, {"b": 1.0}], [1.0, 2.0, 1.0])
    assert law.left_out[2] == pytest.approx(-1.0)  # nothing else tells what b costs


@pytest.mark.parametrize("seconds", [[], [0.0]], ids=["none", "no time"])
def test_cells_must_take_time(seconds: list[float]) -> None:
    with pytest.raises(ValueError, match="must take time"):
        fit([{"a": 1.0}] * len(seconds), seconds)
