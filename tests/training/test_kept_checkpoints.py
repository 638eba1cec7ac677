"""Weights of every validation, where a recipe keeps them, and what a card says of the text that was trained on."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
import torch

from paradigms import weights
from paradigms.data.symbols import Symbols
from paradigms.data.tasks.star_graph import StarGraph
from paradigms.data.tokenizers import BpeTokenizer, ByteTokenizer
from paradigms.models.config import ModelConfig
from paradigms.training import checkpoint, loop
from paradigms.weights import TrainedHere, Wanted, Weights

RECIPE: dict[str, Any] = {
    **tiny.RECIPE,
    "lengths": (16, 48),
    "batch_tokens": 96,
    "num_tokens": 96 * 12,
    "num_validations": 4,
}


@pytest.fixture(autouse=True)
def home(folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Checkpoints of this test alone."""
    monkeypatch.setattr(weights, "CHECKPOINTS", tmp_path / "checkpoints")
    monkeypatch.setattr(loop, "SAVE_EVERY_S", 0.0)
    return tmp_path / "checkpoints"


def load(report: Any = lambda what, done, total: None, *, name: str = "ar", **changes: Any) -> Weights:
    asked = Wanted(tiny.MODELS[name], tiny.TinyText(), ByteTokenizer())
    return TrainedHere(**{**RECIPE, "keep_checkpoints": True, **changes}).load(asked, report)


def kept(folder: Path) -> dict[int, dict[str, torch.Tensor]]:
    return {
        int(path.stem): checkpoint.read_tensors(path)[0] for path in sorted((folder / "steps").glob("*.safetensors"))
    }


@pytest.mark.parametrize("name", tiny.MODELS)
def test_every_validation_leaves_its_weights_and_the_best_are_among_them(name: str, home: Path) -> None:
    found = load(name=name)
    steps = kept(home / found.checkpoint)
    assert sorted(steps) == [point["step"] for point in found.card["curve"]] == [3, 6, 9, 12]
    best = steps[found.card["best_step"]]
    assert best.keys() == found.model.state_dict().keys()
    assert all(torch.equal(best[key], tensor) for key, tensor in found.model.state_dict().items())
    assert not torch.equal(steps[3]["embedding"], steps[12]["embedding"])
    for point in found.card["curve"]:  # they are what the curve speaks of
        model = tiny.MODELS[name].build()
        model.load_state_dict(steps[point["step"]])
        recipe = TrainedHere(**RECIPE)
        windows = loop.validation_windows(tiny.streams(found.tokenizer)["validation"], recipe)
        bits = loop.validate(model, windows, found.tokenizer, num_masks=loop.VALIDATION_MASKS).bits_per_byte
        assert bits == pytest.approx(point["val_bits_per_byte"], rel=1e-6)


def test_they_are_kept_where_validation_got_worse_too(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise equal trainings, of which one is told that it was best at its second validation."""
    plain = load()
    monkeypatch.setattr(weights, "CHECKPOINTS", home / "again")
    said = iter((3.0, 1.0, 2.0, 4.0))
    monkeypatch.setattr(loop, "validate", lambda *rest, **more: SimpleNamespace(bits_per_byte=next(said)))
    told = load()
    before, after = kept(home / plain.checkpoint), kept(home / "again" / told.checkpoint)
    for step, tensors in before.items():
        assert all(torch.equal(tensor, after[step][key]) for key, tensor in tensors.items()), step
    assert told.card["best_step"] == 6
    for step in (3, 6, 9, 12):
        assert torch.equal(after[step]["embedding"], told.model.state_dict()["embedding"]) == (step == 6)


@pytest.mark.parametrize("interrupt_at", [2, 6, 11])
def test_an_interruption_loses_none(interrupt_at: int, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    straight = load()
    monkeypatch.setattr(weights, "CHECKPOINTS", home / "again")
    with pytest.raises(KeyboardInterrupt):
        load(tiny.Reports(interrupt_at=interrupt_at))
    resumed = load()
    before, after = kept(home / straight.checkpoint), kept(home / "again" / resumed.checkpoint)
    assert before.keys() == after.keys()
    for step, tensors in before.items():
        assert all(torch.equal(tensor, after[step][key]) for key, tensor in tensors.items()), step


def test_trials_keep_none_and_neither_do_others(home: Path) -> None:
    found = load(learning_rates=(1e-3, 4e-3), probe_tokens=600)
    assert found.card["trials_bits_per_byte"] and sorted(kept(home / found.checkpoint)) == [3, 6, 9, 12]
    plain = load(keep_checkpoints=False)
    assert not (home / plain.checkpoint / "steps").exists()
    assert plain.checkpoint != found.checkpoint


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), BpeTokenizer(vocab_size=300)], ids=["bytes", "BPE"])
def test_a_card_says_how_many_bytes_a_training_token_has(tokenizer: Any) -> None:
    config = ModelConfig(vocab_size=tokenizer.vocab_size, d_model=32, num_blocks=1)
    found = TrainedHere(**RECIPE).load(Wanted(config, tiny.TinyText(), tokenizer), lambda what, done, total: None)
    stream = tiny.streams(found.tokenizer)["train"]
    assert found.card["train_bytes_per_token"] == pytest.approx(tiny.corpus().num_bytes["train"] / len(stream))


def test_a_task_has_no_epochs_and_no_such_figure() -> None:
    task = StarGraph(path_len=3, num_nodes=8, num_heldout=5, num_validation=4)
    config = ModelConfig(vocab_size=task.vocab_size, d_model=32, num_blocks=1)
    recipe = {**RECIPE, "lengths": (task.row_tokens,), "batch_tokens": 4 * task.row_tokens, "num_tokens": 400}
    asked = Wanted(config, task, Symbols(vocab_size=task.vocab_size))
    card = TrainedHere(**recipe).load(asked, lambda what, done, total: None).card
    assert card["epochs"] is None and card["train_bytes_per_token"] is None
