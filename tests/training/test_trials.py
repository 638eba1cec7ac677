"""Learning rates tried in full by one seed, the best taken for all: what is trained how often, and by whom."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from paradigms import weights
from paradigms.data.tokenizers import ByteTokenizer
from paradigms.training import checkpoint, loop
from paradigms.weights import TrainedHere, Wanted, Weights

RECIPE: dict[str, Any] = {**tiny.RECIPE, "lengths": (16, 48), "batch_tokens": 96, "num_tokens": 1200}
RATES = (1e-6, 8e-3)
TOO_HIGH = 1e30


@pytest.fixture(autouse=True)
def home(folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Checkpoints of this test alone."""
    monkeypatch.setattr(weights, "CHECKPOINTS", tmp_path / "checkpoints")
    monkeypatch.setattr(loop, "SAVE_EVERY_S", 0.0)
    return tmp_path / "checkpoints"


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, int]]:
    """(learning rate, seed) of everything that is trained."""
    seen: list[tuple[float, int]] = []
    train = weights.train

    def spy(config: Any, recipe: Any, *rest: Any, **more: Any) -> Any:
        seen.append((more["learning_rate"], recipe.seed))
        return train(config, recipe, *rest, **more)

    monkeypatch.setattr(weights, "train", spy)
    return seen


def wanted(name: str = "ar") -> Wanted:
    return Wanted(tiny.MODELS[name], tiny.TinyText(), ByteTokenizer())


def source(**changes: Any) -> TrainedHere:
    return TrainedHere(**{**RECIPE, "learning_rates": RATES, "trial_seed": 0, **changes})


def load(report: Any = lambda what, done, total: None, *, name: str = "ar", **changes: Any) -> Weights:
    return source(**changes).load(wanted(name), report)


def same_weights(one: Weights, other: Weights) -> bool:
    left, right = one.model.state_dict(), other.model.state_dict()
    return all(torch.equal(left[name], right[name]) for name in left)


def test_every_rate_is_trained_once_and_the_best_serves_every_seed(trainings: list[tuple[float, int]]) -> None:
    second = load(seed=1)
    assert trainings == [(1e-6, 0), (8e-3, 0), (8e-3, 1)]
    third, first, again = load(seed=2), load(seed=0), load(seed=1)
    assert trainings == [(1e-6, 0), (8e-3, 0), (8e-3, 1), (8e-3, 2)], "the first seed's trial is its training"
    assert {found.card["learning_rate"] for found in (first, second, third)} == {8e-3}
    assert [found.card["recipe"]["seed"] for found in (first, second, third)] == [0, 1, 2]
    assert same_weights(second, again) and second.checkpoint == again.checkpoint
    assert not same_weights(first, second) and not same_weights(second, third)


def test_a_seed_gets_what_a_plain_training_of_that_rate_gives() -> None:
    for seed in (0, 1):
        chosen = load(seed=seed)
        plain = load(seed=seed, learning_rates=(8e-3,), trial_seed=None)
        assert same_weights(chosen, plain)
        assert chosen.checkpoint != plain.checkpoint, "the one was chosen, the other was given"


def test_a_trial_says_which_of_how_many_it_is() -> None:
    said: list[str] = []
    load(lambda what, done, total: said.append(what.split(":")[0]), seed=3, learning_rates=(3e-3, 1e-6))
    trials = ["rate 0.003, 1 of 2, training", "rate 1e-06, 2 of 2, training"]
    assert list(dict.fromkeys(said)) == [*trials, "training"]


def test_the_card_says_what_each_rate_came_to(home: Path) -> None:
    card = load(seed=1).card
    assert card["trial_seed"] == 0 and list(card["trials_bits_per_byte"]) == ["1e-06", "0.008"]
    for rate in RATES:
        own = TrainedHere(**RECIPE | {"learning_rates": (rate,)})
        curve = checkpoint.read_card(home / own.checkpoint_id(wanted()))["curve"]
        assert card["trials_bits_per_byte"][str(rate)] == min(point["val_bits_per_byte"] for point in curve)
    assert card["trials_bits_per_byte"]["0.008"] < card["trials_bits_per_byte"]["1e-06"]
    assert load(learning_rates=RATES[::-1]).card["learning_rate"] == 8e-3, "wherever it stands in the list"


def test_names_of_checkpoints_differ_by_seed_rates_and_who_tries() -> None:
    variants: list[dict[str, Any]] = [{}, {"seed": 1}, {"seed": 2}, {"trial_seed": 1}, {"trial_seed": None},
                                      {"learning_rates": (8e-3,)}]  # fmt: skip
    assert len({source(**changes).checkpoint_id(wanted()) for changes in variants}) == len(variants)


def test_a_rate_that_diverges_counts_as_none_and_is_not_tried_again(trainings: list[tuple[float, int]]) -> None:
    rates = (TOO_HIGH, 4e-3)
    first = load(seed=0, learning_rates=rates)
    assert trainings == [(TOO_HIGH, 0), (4e-3, 0)]
    second = load(seed=1, learning_rates=rates)
    assert trainings == [(TOO_HIGH, 0), (4e-3, 0), (4e-3, 1)]
    for found in (first, second):
        assert found.card["learning_rate"] == 4e-3 and found.card["trials_bits_per_byte"][str(TOO_HIGH)] is None


def test_where_every_rate_diverges_it_says_so(trainings: list[tuple[float, int]]) -> None:
    rates = (TOO_HIGH, 1e29)
    for _ in range(2):
        with pytest.raises(
            ValueError, match=r"every rate of train\.learning_rates=\[1e\+30, 1e\+29\] diverged; add lo"
        ):
            load(learning_rates=rates)
    assert trainings == [(TOO_HIGH, 0), (1e29, 0)], "what has diverged once is remembered"
    with pytest.raises(ValueError, match=r"diverged at step \d+ with learning rate 1e\+30; lower it"):
        load(learning_rates=(TOO_HIGH,), trial_seed=None)
    assert len(trainings) == 2


@pytest.mark.parametrize("step", [pytest.param(3, marks=pytest.mark.slow), 8])
@pytest.mark.parametrize("turn", [1, 2, 3])
def test_an_interruption_of_any_of_them_changes_nothing(
    turn: int, step: int, home: Path, trainings: list[tuple[float, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = load(name="diffusion", seed=1)
    monkeypatch.setattr(weights, "CHECKPOINTS", home / "again")
    trainings.clear()

    def report(what: str, done: int, total: int) -> None:
        if len(trainings) == turn and done == step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load(report, name="diffusion", seed=1)
    resumed = load(name="diffusion", seed=1)
    assert len(trainings) == 4, "two trials and a training, one of them begun twice"
    assert (
        same_weights(resumed, straight)
        and resumed.card["trials_bits_per_byte"] == straight.card["trials_bits_per_byte"]
    )


def test_two_that_want_the_same_weights_train_them_once(trainings: list[tuple[float, int]]) -> None:
    found: list[Weights] = []
    together = threading.Barrier(2)

    def ask() -> None:
        together.wait()
        found.append(load(seed=1))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 2 and same_weights(*found)
    assert sorted(trainings) == [(1e-6, 0), (8e-3, 0), (8e-3, 1)]


HOLD = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.readline()
"""


def test_another_process_that_trains_is_waited_for(home: Path, trainings: list[tuple[float, int]]) -> None:
    plain = {"learning_rates": (4e-3,), "trial_seed": None}
    folder = home / source(**plain).checkpoint_id(wanted())
    folder.mkdir(parents=True)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder / ".lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None and other.stdout is not None and other.stdout.readline() == "held\n"
        found: list[Weights] = []
        asking = threading.Thread(target=lambda: found.append(load(**plain)))
        asking.start()
        asking.join(0.5)
        assert asking.is_alive() and trainings == []
        other.communicate("go on\n")
        asking.join(60)
    assert len(found) == 1 and trainings == [(4e-3, 0)]
