"""The models that ship with the package: whole, small, equal where they must be; and what an empty zoo says."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from paradigms import zoo
from paradigms.build import build
from paradigms.cli import compose
from paradigms.data.stream import evaluation_windows
from paradigms.data.tokenizers import BOS_ID, EOS_ID, ByteTokenizer, Tokenizer
from paradigms.models.feed_forward import FeedForwardConfig
from paradigms.quality.likelihood import evaluate
from paradigms.train import MODELS
from paradigms.training import checkpoint
from paradigms.weights import Wanted, Zoo

COMPARED = ("ar", "diffusion", "ssm")  # trained alike
TARGETS = {  # bits per byte on held-out text
    "ar": 1.8,
    "ssm": 1.9,
    "diffusion": 2.4,
    "block_diffusion_4": 1.95,
    "block_diffusion_8": 1.95,
    "block_diffusion_16": 1.95,
    "diffusion_5m": 2.3,
}
needs_models = pytest.mark.skipif(not zoo.names(), reason="the zoo is empty; `make train` fills it")


@pytest.fixture(scope="module")
def cards() -> dict[str, dict[str, Any]]:
    return {name: checkpoint.read_card(zoo.FOLDER / name) for name in zoo.names()}


def test_the_zoo_is_empty_or_whole():
    assert zoo.names() in ([], sorted(MODELS)) and set(MODELS) == set(TARGETS)


# ---------------------------------------------------------------- what ships


@needs_models
@pytest.mark.parametrize("name", MODELS)
def test_the_config_that_a_model_is_made_of_finds_it_in_the_zoo(name):
    network = [override for override in MODELS[name] if not override.startswith("train")]
    cell = build(compose([*network, "train=zoo"]))
    cell.check()
    folder, card = zoo.find(cell.model)
    assert folder.name == name
    weights = cell.train.load(cell.wanted, report=lambda what, done, total: None)
    assert weights.model.dtype == torch.float32 and weights.checkpoint == card["weights_sha256"][:16]
    assert weights.tokenizer.vocab_size == cell.model.vocab_size == cell.tokenizer.vocab_size
    assert all(torch.isfinite(parameter).all() for parameter in weights.model.parameters())
    ids = weights.tokenizer.encode("Return a copy of the string with leading and trailing whitespace removed.")
    windows = evaluation_windows(torch.tensor([BOS_ID, *ids, EOS_ID]).numpy(), window=64)
    found = evaluate(weights.model, windows, weights.tokenizer.token_bytes, mask_id=weights.tokenizer.mask_id)
    assert found.bits_per_byte < 3.5, "it has learnt English"


@needs_models
@pytest.mark.parametrize("name", MODELS)
def test_weights_are_small_rounded_and_those_of_the_card(name, cards):
    data = (zoo.FOLDER / name / checkpoint.WEIGHTS).read_bytes()
    assert len(data) <= 2.2 * cards[name]["parameters"]
    assert hashlib.sha256(data).hexdigest() == cards[name]["weights_sha256"]
    tensors, _ = checkpoint.read_tensors(zoo.FOLDER / name / checkpoint.WEIGHTS)
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert sum(tensor.numel() for tensor in tensors.values()) == cards[name]["parameters"]


@needs_models
@pytest.mark.parametrize("name", MODELS)
def test_a_card_is_complete(name, cards):
    card = cards[name]
    for key in ("machine", "python", "torch", "started", "learning_rate", "best_step"):
        assert card[key], key
    assert card["tokens_seen"] >= card["recipe"]["num_tokens"] and card["epochs"] > 0
    assert card["seconds"] > 0 and card["peak_bytes"] > 0
    assert len(card["corpus"]["sha256"]) == 64 and set(card["corpus"]["num_bytes"]) == {
        "train",
        "validation",
        "heldout",
    }
    steps = [point["step"] for point in card["curve"]]
    assert steps == sorted(steps) and len(steps) == card["recipe"]["num_validations"]
    assert card["best_step"] == min(card["curve"], key=lambda point: point["val_bits_per_byte"])["step"]
    rates = card["recipe"]["learning_rates"]
    assert card["learning_rate"] in rates
    assert set(card["trials_bits_per_byte"]) == ({str(rate) for rate in rates} if len(rates) > 1 else set())
    assert card["heldout"]["is_bound"] == ("diffusion" in name)
    assert card["heldout"]["bits_per_byte"] <= TARGETS[name]


@needs_models
def test_what_a_comparison_needs_equal_is_equal(cards):
    cards = {name: cards[name] for name in COMPARED}
    sizes = [card["parameters"] for card in cards.values()]
    assert max(sizes) <= 1.02 * min(sizes) and 1_000_000 <= min(sizes) <= max(sizes) <= 2_000_000
    for same in ("recipe", "tokens_seen", "epochs", "tokenizer_sha256", "corpus", "python", "torch"):
        assert len({json.dumps(card[same], sort_keys=True) for card in cards.values()}) == 1, same
    for name in cards:
        assert checkpoint.load_tokenizer(zoo.FOLDER / name).sha256 == cards[name]["tokenizer_sha256"]


# ---------------------------------------------------------------- a zoo of our own


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty zoo."""
    monkeypatch.setattr(zoo, "FOLDER", tmp_path / "zoo")
    return tmp_path / "zoo"


def publish(name: str, tmp_path: Path) -> dict[str, Any]:
    """Put fixed random weights into the zoo; the card that went in."""
    config = tiny.MODELS[name]
    card = {"model": checkpoint.config_dict(config), "recipe": {"longest": 520}}
    model = tiny.random_model(config, dtype=torch.float32)
    checkpoint.write_checkpoint(tmp_path / name, model.state_dict(), Tokenizer(), card)
    zoo.publish(tmp_path / name, name, {"heldout": {"bits_per_byte": 1.5}})
    return card


def wanted(name: str, **changes: Any) -> Wanted:
    return Wanted(dataclasses.replace(tiny.MODELS[name], **changes), tiny.TinyText(), ByteTokenizer())


def test_an_empty_zoo_says_what_to_do(own: Path) -> None:
    assert zoo.names() == []
    with pytest.raises(
        ValueError, match=r"no model of this config: .*train=quick or train=full.*train=random.*it is empty"
    ):
        zoo.find(tiny.MODELS["ar"])


def test_what_is_published_is_found_in_half_the_bytes(own: Path, tmp_path: Path) -> None:
    publish("ar", tmp_path)
    publish("ssm", tmp_path)
    assert zoo.names() == ["ar", "ssm"]
    folder, card = zoo.find(tiny.MODELS["ssm"])
    assert folder == own / "ssm" and card["heldout"] == {"bits_per_byte": 1.5}
    ratio = (folder / "model.safetensors").stat().st_size / (tmp_path / "ssm/model.safetensors").stat().st_size
    assert 0.45 < ratio < 0.6

    weights = Zoo().load(wanted("ssm"), report=lambda what, done, total: None)
    original = tiny.random_model(tiny.MODELS["ssm"], dtype=torch.float32)
    for rounded, exact in zip(weights.model.parameters(), original.parameters(), strict=True):
        assert torch.equal(rounded, exact.bfloat16().float())
    assert weights.checkpoint == Zoo().checkpoint_id(wanted("ssm")) == card["weights_sha256"][:16]
    assert Zoo().trained_len(wanted("ssm")) == 520


def test_another_config_is_told_the_nearest_and_what_differs(own: Path, tmp_path: Path) -> None:
    for name in tiny.MODELS:
        publish(name, tmp_path)
    with pytest.raises(ValueError) as error:
        Zoo().checkpoint_id(wanted("diffusion", feed_forward=FeedForwardConfig(width=72)))
    assert "the nearest is diffusion (feed_forward.width is 64 there, not 72)" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_damaged_model_of_the_zoo_is_one_clear_error(own: Path, tmp_path: Path) -> None:
    publish("ar", tmp_path)
    path = own / "ar" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged: its SHA-256"):
        Zoo().load(wanted("ar"), report=lambda what, done, total: None)
    (own / "ar" / "card.json").write_text("{")
    with pytest.raises(ValueError, match=r"card\.json is damaged"):
        zoo.find(tiny.MODELS["ar"])


def test_a_solved_width_is_the_same_network_as_a_given_one(own: Path, tmp_path: Path) -> None:
    """The zoo is found by what a network is, not by how its config was written."""
    publish("ar", tmp_path)
    target = tiny.MODELS["ar"].num_parameters()
    narrow = FeedForwardConfig(width=8)
    solved = dataclasses.replace(tiny.MODELS["ar"], feed_forward=narrow, target_parameters=target)
    assert zoo.find(solved)[0] == own / "ar"
