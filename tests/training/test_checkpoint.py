"""Checkpoint folders: what is written is read back, and every kind of damage is one clear error."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import tiny
import torch

from paradigms.data.tokenizers import Tokenizer
from paradigms.models.stack import Model
from paradigms.training import checkpoint
from paradigms.weights import SavedCheckpoint, Wanted, Weights

CONFIG = tiny.MODELS["ssm"]


@pytest.fixture
def model() -> Model:
    return tiny.random_model(CONFIG, dtype=torch.float32)


@pytest.fixture
def folder(tmp_path: Path, model: Model) -> Path:
    path = tmp_path / "mine"
    card = {"model": checkpoint.config_dict(CONFIG), "recipe": {"longest": 520}}
    checkpoint.write_checkpoint(path, model.state_dict(), Tokenizer(), card)
    return path


def load(folder: Path) -> Weights:
    """As a cell with train=checkpoint does."""
    wanted = Wanted(CONFIG, tiny.TinyText(), tiny.ByteTokenizer())
    return SavedCheckpoint(path=str(folder)).load(wanted, report=lambda what, done, total: None)


def error_of(folder: Path) -> str:
    with pytest.raises(ValueError) as error:
        load(folder)
    message = str(error.value)
    assert "\n" not in message and str(folder) in message
    return message


def test_what_was_written_is_read_back(folder: Path, model: Model) -> None:
    weights = load(folder)
    assert all(torch.equal(a, b) for a, b in zip(weights.model.parameters(), model.parameters(), strict=True))
    assert weights.tokenizer.sha256 == Tokenizer().sha256
    assert weights.checkpoint == json.loads((folder / "card.json").read_text())["weights_sha256"][:16]
    assert sorted(path.name for path in folder.iterdir()) == ["card.json", "model.safetensors", "tokenizer.json"]


def test_a_changed_byte_of_the_weights_is_noticed(folder: Path) -> None:
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    message = error_of(folder)
    assert "model.safetensors is damaged: its SHA-256 is" in message and "train again" in message


def test_missing_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert "model.safetensors is missing" in error_of(folder)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '"card"', "{}", '{"model": {}}', "\udcff"],
    ids=["empty", "cut", "list", "text", "bare", "no hash", "not UTF-8"],
)
def test_a_damaged_card(folder: Path, text: str) -> None:
    (folder / "card.json").write_bytes(text.encode(errors="surrogateescape"))
    message = error_of(folder)
    assert "card.json is damaged" in message and "train again" in message


@pytest.mark.parametrize(
    "changes",
    [{"d_model": 48}, {"d_model": "wide"}, {"colour": "red"}, {"vocab_size": None}],
    ids=["other width", "not a number", "unknown field", "null"],
)
def test_a_card_that_describes_no_such_model(folder: Path, changes: dict[str, object]) -> None:
    card = json.loads((folder / "card.json").read_text())
    (folder / "card.json").write_text(json.dumps({**card, "model": {**card["model"], **changes}}))
    assert "holds another model than the config" in (message := error_of(folder)) or "card.json is damaged" in message


def test_a_card_without_its_recipe(folder: Path) -> None:
    card = json.loads((folder / "card.json").read_text())
    (folder / "card.json").write_text(json.dumps({key: value for key, value in card.items() if key != "recipe"}))
    with pytest.raises(ValueError, match=r"card\.json is damaged"):
        SavedCheckpoint(path=str(folder)).trained_len(Wanted(CONFIG, tiny.TinyText(), tiny.ByteTokenizer()))


def test_weights_of_another_shape_under_a_right_hash(tmp_path: Path, model: Model) -> None:
    folder = tmp_path / "mixed up"
    wider = dataclasses.replace(CONFIG, mamba2=dataclasses.replace(CONFIG.part("M"), d_state=12))
    card = {"model": checkpoint.config_dict(CONFIG), "recipe": {"longest": 520}}
    checkpoint.write_checkpoint(folder, wider.build().state_dict(), Tokenizer(), card)
    assert "does not hold the model of its card" in error_of(folder)


def test_missing_and_damaged_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    assert "tokenizer.json is not a tokenizer file" in error_of(folder)
    (folder / "tokenizer.json").unlink()
    assert "tokenizer.json is missing" in error_of(folder)


def test_no_folder_and_no_card(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path):
        message = error_of(path)
        assert "no checkpoint in" in message and "card.json is missing" in message


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    checkpoint.replace_file(path, b"old")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.replace_file(path, b"new")
    assert path.read_bytes() == b"old" and [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_fields_younger_than_a_card_keep_their_defaults() -> None:
    model = checkpoint.config_dict(CONFIG)
    del model["tied_head"], model["mamba2"]["d_conv"]
    card = {"model": model}
    assert checkpoint.model_config(card) == CONFIG
