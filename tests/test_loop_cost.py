"""The cost of timing: its parts, its command on a tiny model."""

from __future__ import annotations

import pytest

from paradigms import loop_cost
from paradigms.paradigm import Event

TINY = ("tokenizer=byte", "model.d_model=32", "model.num_blocks=1", "model.target_parameters=null",
        "workload.prompt_len=4", "workload.output_len=4", "device=cpu")  # fmt: skip


def test_pairs_are_runs_of_the_same_work() -> None:
    cost = loop_cost.measure(TINY, num_pairs=6)
    assert len(cost.pairs) == 6 and cost.num_events == 4
    for pair in cost.pairs:
        assert 0 < pair.loop_s <= pair.record_s and pair.bare_s > 0


def test_what_is_added_is_a_share_of_an_event() -> None:
    pairs = [loop_cost.Pair(bare_s, bare_s, bare_s) for bare_s in (0.1, 0.2, 0.9)]
    assert loop_cost.Cost(pairs, 100, 1e-5).added_share == pytest.approx(100 * 1e-5 / 0.2)


def test_a_replay_hands_out_the_same_events_each_time() -> None:
    events = [Event("prefill"), Event("decode")]
    replay = loop_cost.Replay(events)
    assert list(replay.run([])) == list(replay.run([])) == events


def test_the_command_says_both_ratios_and_what_is_added(capsys: pytest.CaptureFixture[str]) -> None:
    assert loop_cost.main(["--pairs=6", *TINY]) in (0, 1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("6 pairs") and "timed loop / bare loop" in lines[1] and "record / bare" in lines[2]
    assert lines[3].startswith("added to an event")


@pytest.mark.parametrize(
    ("arguments", "words"), [(["--pairs=5"], "--pairs=5"), (["paradigm=nothing"], "paradigm=nothing is unknown")]
)
def test_bad_input(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    assert loop_cost.main(arguments) == 2
    assert words in capsys.readouterr().err
