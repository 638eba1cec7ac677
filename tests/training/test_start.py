"""A training that starts from the weights of another model, and an attention that opens on the way."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from paradigms import weights, zoo
from paradigms.data.tokenizers import BpeTokenizer, ByteTokenizer
from paradigms.models.stack import Model
from paradigms.training import checkpoint, loop
from paradigms.training.objectives import anneal
from paradigms.training.recipe import Recipe
from paradigms.weights import TrainedHere, Wanted, Weights

RECIPE = {**tiny.RECIPE, "lengths": (16, 48), "batch_tokens": 96, "num_tokens": 960, "num_validations": 2}


@pytest.fixture(autouse=True)
def home(folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Checkpoints of this test alone."""
    monkeypatch.setattr(weights, "CHECKPOINTS", tmp_path / "checkpoints")
    monkeypatch.setattr(loop, "SAVE_EVERY_S", 0.0)
    return tmp_path / "checkpoints"


def wanted(name: str, tokenizer: Any = None, **changes: Any) -> Wanted:
    return Wanted(dataclasses.replace(tiny.MODELS[name], **changes), tiny.TinyText(), tokenizer or ByteTokenizer())


def load(name: str, report: Any = lambda what, done, total: None, **changes: Any) -> Weights:
    block = changes.pop("canvas_block", None)
    return TrainedHere(**{**RECIPE, **changes}).load(wanted(name, canvas_block=block), report)


@pytest.mark.parametrize(("first", "second"), [("ar", "diffusion"), ("diffusion", "ar")])
def test_the_first_step_sees_the_weights_that_it_starts_from(
    first: str, second: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = load(first)
    seen: list[dict[str, torch.Tensor]] = []
    loss = loop._losses

    def spy(model: Model, *rest: Any) -> torch.Tensor:
        seen.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        return loss(model, *rest)

    monkeypatch.setattr(loop, "_losses", spy)
    found = load(second, start_from=str(home / source.checkpoint))
    for name, tensor in source.model.state_dict().items():
        assert torch.equal(seen[0][name], tensor), name
    assert found.card["started_from"]["weights_sha256"] == source.card["weights_sha256"]
    assert found.card["started_from"]["tokens_seen"] == source.card["tokens_seen"]
    assert load(second).card["started_from"] is None
    assert found.model.config.causal == (second == "ar")


def test_where_it_starts_is_part_of_its_name_by_content_and_not_by_path(home: Path) -> None:
    one, other = load("ar"), load("ar", seed=1)
    copied = home / "copied"
    (home / one.checkpoint).rename(copied)

    def named(folder: Path | None) -> str:
        start_from = None if folder is None else str(folder)
        return TrainedHere(**{**RECIPE, "start_from": start_from}).checkpoint_id(wanted("diffusion"))

    moved = named(copied)
    copied.rename(home / one.checkpoint)
    assert moved == named(home / one.checkpoint)
    assert len({moved, named(home / other.checkpoint), named(None)}) == 3


@pytest.mark.parametrize("options", [{"canvas_block": 4}, {"anneal_tokens": 600}], ids=str)
def test_an_interruption_changes_nothing(options: dict[str, Any], home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = load("ar")
    options["start_from"] = str(home / source.checkpoint)
    straight = load("diffusion", **options)
    monkeypatch.setattr(weights, "CHECKPOINTS", home / "again")
    with pytest.raises(KeyboardInterrupt):
        load("diffusion", tiny.Reports(interrupt_at=4), **options)
    assert load("diffusion", **options).card["weights_sha256"] == straight.card["weights_sha256"]


def test_weights_that_do_not_fit_are_refused_before_anything_is_loaded(home: Path, monkeypatch) -> None:
    folder = str(home / load("ar").checkpoint)
    source = TrainedHere(**{**RECIPE, "start_from": folder})
    words = r"train\.start_from=.*: the weights in .* do not fit the model: embedding is \(32, 259\) there, \(64, 259\)"
    with pytest.raises(ValueError, match=words):
        source.trained_len(wanted("diffusion", d_model=64))
    with pytest.raises(ValueError, match=r"layers.*missing here|layers.*missing there"):
        source.trained_len(wanted("diffusion", num_blocks=2))
    monkeypatch.setattr(zoo, "names", lambda: ["ar", "ssm"])
    for name, words in (
        ("zoo:none", "train.start_from=zoo:none: the zoo has no model 'none'; it has ar, ssm"),
        ("nowhere", "train.start_from=nowhere: no checkpoint in nowhere"),
    ):
        with pytest.raises(ValueError, match=words):
            TrainedHere(**{**RECIPE, "start_from": name}).trained_len(wanted("diffusion"))


def test_weights_of_another_tokenizer_are_refused(home: Path) -> None:
    folder = home / load("ar", num_tokens=96).checkpoint
    tokenizer = BpeTokenizer(vocab_size=260).load(tiny.corpus())
    tokenizer.save(folder / checkpoint.TOKENIZER)
    with pytest.raises(ValueError, match=r"know another tokenizer \(.*; use the corpus and the tokenizer"):
        load("diffusion", start_from=str(folder))


@pytest.mark.skipif("ar" not in zoo.names(), reason="the zoo is not there yet")
def test_the_zoos_models_are_found_by_name() -> None:
    config = dataclasses.replace(
        checkpoint.model_config(checkpoint.read_card(zoo.FOLDER / "ar")),
        causal=False, noise="absorbing", shift_logits=True,
    )  # fmt: skip
    asked = Wanted(config, tiny.TinyText(), ByteTokenizer())
    assert TrainedHere(**{**RECIPE, "start_from": "zoo:ar"}).trained_len(asked) == 48


def test_attention_opens_from_causal_to_everything() -> None:
    draws = {share: anneal(40, share, torch.Generator().manual_seed(0)) for share in (0.0, 0.25, 0.75, 1.0)}
    causal = torch.ones(40, 40, dtype=torch.bool).tril()
    assert draws[1.0] is None and torch.equal(draws[0.0], causal)  # type: ignore[arg-type]
    for share in (0.25, 0.75):
        among = draws[share]
        assert among is not None and among[causal].all()
        later = among[~causal].double()
        assert abs(later.mean().item() - share) < 4 * (share * (1 - share) / len(later)) ** 0.5


def test_annealing_runs_over_its_tokens() -> None:
    recipe = Recipe(num_tokens=2000, batch_tokens=100, lengths=(20, 50), anneal_tokens=800)
    assert [recipe.opened_at(step) for step in (0, 1, 4, 8, 9)] == [0.0, 0.125, 0.5, 1.0, 1.0]
    assert dataclasses.replace(recipe, anneal_tokens=0).opened_at(0) == 1.0


def test_a_step_of_training_sees_what_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shifted denoiser that starts causal makes the predictions of the autoregressive model of its weights."""
    seen: list[torch.Tensor | None] = []
    logits_where = Model.logits_where

    def spy(self: Model, tokens: torch.Tensor, wanted: torch.Tensor, *rest: Any, **more: Any) -> torch.Tensor:
        if self.training and torch.is_grad_enabled():
            seen.append(more["among_BTT"])
            if len(seen) == 1:
                causal = dataclasses.replace(self.config, causal=True, noise=None, shift_logits=False)
                other = Model(causal)
                other.load_state_dict(self.state_dict())
                expected = other(tokens[:, :-1])[wanted[:, 1:]]
                torch.testing.assert_close(logits_where(self, tokens, wanted, **more), expected, atol=1e-5, rtol=0)
        return logits_where(self, tokens, wanted, *rest, **more)

    monkeypatch.setattr(Model, "logits_where", spy)
    load("diffusion", anneal_tokens=480, num_tokens=960)
    open_ = [1.0 if one is None else one.double().mean().item() for one in seen]
    assert np.allclose(open_[5:], 1) and open_[0] < open_[2] < open_[4] < 1


@pytest.mark.parametrize(("name", "block"), [("ar", None), ("ssm", None), ("diffusion", 4)])
def test_annealing_is_for_denoisers_of_the_whole_canvas(name: str, block: int | None) -> None:
    with pytest.raises(
        ValueError, match=r"train\.anneal_tokens=5 opens the attention of a denoiser of the whole canvas"
    ):
        TrainedHere(**{**RECIPE, "anneal_tokens": 5}).trained_len(wanted(name, canvas_block=block))


def test_a_negative_budget_of_annealing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"train\.anneal_tokens=-1 must be at least 0"):
        TrainedHere(**{**RECIPE, "anneal_tokens": -1})
