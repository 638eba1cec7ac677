"""The cost of timing: its interval by counting, its command on a tiny model."""

from __future__ import annotations

from math import comb

import pytest

from paradigms import loop_cost

TINY = ("tokenizer=byte", "model.d_model=32", "model.num_blocks=1", "model.target_parameters=null",
        "workload.prompt_len=4", "workload.output_len=4", "device=cpu")  # fmt: skip


@pytest.mark.parametrize("number", [6, 7, 10, 30, 61])
def test_the_interval_has_the_narrowest_ranks_that_cover(number: int) -> None:
    """Every pair is above the median or below it with the same chance: the binomial distribution, counted."""
    median, low, high = loop_cost.interval([float(rank) for rank in range(number, 0, -1)])
    assert median == (number + 1) / 2 and low - 1 == number - high
    outside = [sum(comb(number, below) for below in range(rank)) / 2**number for rank in (int(low), int(low) + 1)]
    assert 2 * outside[0] <= 0.05 < 2 * outside[1]


def test_pairs_are_runs_of_the_same_work() -> None:
    pairs = loop_cost.measure(TINY, num_pairs=6)
    assert len(pairs) == 6
    for pair in pairs:
        assert 0 < pair.loop_s <= pair.record_s and pair.bare_s > 0


def test_the_command_says_both_ratios(capsys: pytest.CaptureFixture[str]) -> None:
    assert loop_cost.main(["--pairs=6", *TINY]) in (0, 1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("6 pairs") and "timed loop / bare loop" in lines[1] and "record / bare" in lines[2]


@pytest.mark.parametrize(
    ("arguments", "words"), [(["--pairs=5"], "--pairs=5"), (["paradigm=nothing"], "paradigm=nothing is unknown")]
)
def test_bad_input(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    assert loop_cost.main(arguments) == 2
    assert words in capsys.readouterr().err
