"""Where weights come from: trained once, resumed exactly, found again; the better learning rate is taken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from paradigms import weights
from paradigms.data.tokenizers import ByteTokenizer
from paradigms.models.config import ModelConfig
from paradigms.models.experts import ExpertsConfig
from paradigms.models.latent_attention import LatentAttentionConfig
from paradigms.training import loop
from paradigms.weights import RandomWeights, SavedCheckpoint, TrainedHere, Wanted, Weights

RECIPE = {**tiny.RECIPE, "lengths": (16, 48), "batch_tokens": 96, "num_tokens": 1200, "probe_tokens": 600}


@pytest.fixture(autouse=True)
def home(folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Checkpoints of this test alone."""
    monkeypatch.setattr(weights, "CHECKPOINTS", tmp_path / "checkpoints")
    monkeypatch.setattr(loop, "SAVE_EVERY_S", 0.0)
    return tmp_path / "checkpoints"


def wanted(name: str) -> Wanted:
    return Wanted(tiny.MODELS[name], tiny.TinyText(), ByteTokenizer())


def load(name: str = "ar", report: Any = lambda what, done, total: None, **changes: Any) -> Weights:
    return TrainedHere(**{**RECIPE, **changes}).load(wanted(name), report)


def test_a_training_is_found_again(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load()
    monkeypatch.setattr(weights, "train", None)
    again = load()
    assert again.checkpoint == first.checkpoint == home.glob("*").__next__().name
    assert again.checkpoint == TrainedHere(**RECIPE).checkpoint_id(wanted("ar"))
    assert all(torch.equal(a, b) for a, b in zip(first.model.parameters(), again.model.parameters(), strict=True))
    as_folder = SavedCheckpoint(path=str(home / first.checkpoint))
    assert as_folder.load(wanted("ar"), report=lambda what, done, total: None).card == first.card


@pytest.mark.parametrize(
    "interrupt_at", [("trial at rate 0.001", 5), ("trial at rate 0.004", 7), ("training", 9)], ids=str
)
def test_an_interruption_anywhere_ends_with_the_same_weights(
    home: Path, interrupt_at: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = {"learning_rates": (1e-3, 4e-3)}
    straight = load("diffusion", **rates)
    monkeypatch.setattr(weights, "CHECKPOINTS", home / "again")
    told: list[tuple[str, int]] = []

    def report(what: str, done: int, total: int) -> None:
        told.append((what.split(":")[0], done))
        if told[-1] == interrupt_at and told.count(interrupt_at) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load("diffusion", report, **rates)
    (folder,) = (home / "again").iterdir()
    assert not (folder / "card.json").exists() and list(folder.glob("*.unfinished.safetensors"))
    resumed = load("diffusion", report, **rates)
    assert told.count(interrupt_at) == 1, "it went on after the step that was interrupted"
    for name in ("weights_sha256", "learning_rate", "trials_bits_per_byte", "best_step", "tokens_seen"):
        assert resumed.card[name] == straight.card[name], name
    assert not list(folder.glob("*.unfinished.safetensors"))


def test_options_that_change_no_weight_share_a_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """One training serves all forms of latent attention, each computed as asked; the same for random weights."""

    def wanted_in(form: str) -> Wanted:
        latent = LatentAttentionConfig(num_heads=2, kv_rank=8, nope_dim=8, rope_dim=4, value_dim=8, form=form)
        config = ModelConfig(vocab_size=tiny.VOCAB_SIZE, d_model=32, num_blocks=1, block="LF", latent_attention=latent)
        return Wanted(config, tiny.TinyText(), ByteTokenizer())

    for source in (TrainedHere(**RECIPE), RandomWeights()):
        found = {}
        for form in ("latent", "absorbed", "expanded"):
            found[form] = source.load(wanted_in(form), lambda what, done, total: None)
            assert found[form].model.config.latent_attention.form == form
            if source.source == "train":
                monkeypatch.setattr(weights, "train", None)
        assert len({one.checkpoint for one in found.values()}) == 1
        left, right = (found[form].model.state_dict() for form in ("latent", "expanded"))
        assert all(torch.equal(left[name], right[name]) for name in left)


def test_a_training_of_experts_that_was_interrupted_ends_with_the_same_weights(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experts = ExpertsConfig(num_experts=4, width=16)
    config = ModelConfig(vocab_size=tiny.VOCAB_SIZE, d_model=32, num_blocks=1, block="AE", experts=experts)
    asked = Wanted(config, tiny.TinyText(), ByteTokenizer())
    straight = TrainedHere(**RECIPE).load(asked, lambda what, done, total: None)
    monkeypatch.setattr(weights, "CHECKPOINTS", home / "again")
    with pytest.raises(KeyboardInterrupt):
        TrainedHere(**RECIPE).load(asked, tiny.Reports(interrupt_at=7))
    resumed = TrainedHere(**RECIPE).load(asked, lambda what, done, total: None)
    assert resumed.card["weights_sha256"] == straight.card["weights_sha256"]


def test_the_better_learning_rate_is_taken() -> None:
    card = load(learning_rates=(1e-6, 8e-3)).card
    trials = card["trials_bits_per_byte"]
    assert trials["0.008"] < trials["1e-06"] - 0.1
    assert card["learning_rate"] == 8e-3
    assert next(point["lr"] for point in card["curve"]) > 1e-3
    assert load(learning_rates=(8e-3, 1e-6)).card["learning_rate"] == 8e-3, "wherever it stands in the list"


def test_one_rate_needs_no_trial() -> None:
    tasks = set()
    card = load(report=lambda what, done, total: tasks.add(what.split(":")[0])).card
    assert tasks == {"training"} and card["trials_bits_per_byte"] == {} and card["learning_rate"] == 4e-3


@pytest.mark.parametrize("name", tiny.MODELS)
def test_a_card_tells_how_the_weights_came_about(name: str) -> None:
    found = load(name)
    card = found.card
    corpus = tiny.corpus()
    assert card["parameters"] == sum(parameter.numel() for parameter in found.model.parameters())
    assert card["recipe"]["longest"] == 48 and card["recipe"]["num_tokens"] == 1200
    assert card["corpus"] == {"name": "tiny", "sha256": corpus.sha256, "num_bytes": dict(corpus.num_bytes)}
    assert card["tokenizer_sha256"] == found.tokenizer.sha256
    assert card["tokens_seen"] == card["curve"][-1]["tokens"] >= 1200
    assert card["epochs"] == pytest.approx(card["tokens_seen"] / len(tiny.streams(found.tokenizer)["train"]))
    assert card["seconds"] > 0 and card["peak_bytes"] > 2**20 and card["machine"] and card["started"].endswith("Z")
    best = min(card["curve"], key=lambda point: point["val_bits_per_byte"])
    assert card["best_step"] == best["step"]
    assert json.loads(json.dumps(card)) == card


def test_everything_that_determines_the_weights_changes_their_name() -> None:
    ids = {
        TrainedHere(**{**RECIPE, **changes}).checkpoint_id(wanted(name))
        for name in tiny.MODELS
        for changes in ({}, {"seed": 1}, {"num_tokens": 1201}, {"learning_rates": (1e-3,)}, {"lengths": (48, 16)})
    }
    assert len(ids) == 15


def test_trained_for_more_positions_than_the_model_has() -> None:
    with pytest.raises(ValueError, match=r"train.lengths has 600, more than model.max_positions=576"):
        TrainedHere(**{**RECIPE, "lengths": (600,), "batch_tokens": 600}).trained_len(wanted("ar"))


def test_random_weights_follow_their_seed_and_depend_on_nothing_before() -> None:
    def parameters(seed: int) -> torch.Tensor:
        torch.rand(3)
        found = RandomWeights(seed=seed).load(wanted("ssm"), report=lambda what, done, total: None)
        assert found.card == {}
        return torch.cat([parameter.flatten() for parameter in found.model.parameters()])

    assert torch.equal(parameters(0), parameters(0)) and not torch.equal(parameters(0), parameters(1))
    assert RandomWeights(seed=0).checkpoint_id(wanted("ssm")) != RandomWeights(seed=1).checkpoint_id(wanted("ssm"))
    assert RandomWeights().trained_len(wanted("ssm")) is None
