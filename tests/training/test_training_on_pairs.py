"""Training on prompts with answers, from the file to the held-out score."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from paradigms import weights
from paradigms.data.pairs import LocalPairs, PairRows
from paradigms.data.tokenizers import ByteTokenizer
from paradigms.heldout import heldout_likelihood, heldout_window_len
from paradigms.models.conditioning import ConditioningConfig
from paradigms.training import loop
from paradigms.weights import TrainedHere, Wanted, Weights, load_corpus

LENGTH = 16
RECIPE: dict[str, Any] = {
    **tiny.RECIPE,
    "lengths": (LENGTH,),
    "batch_tokens": 8 * LENGTH,
    "num_tokens": 8 * LENGTH * 12,
}


@pytest.fixture(autouse=True)
def home(folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Checkpoints of this test alone."""
    monkeypatch.setattr(weights, "CHECKPOINTS", tmp_path / "checkpoints")
    monkeypatch.setattr(loop, "SAVE_EVERY_S", 0.0)
    return tmp_path / "checkpoints"


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> LocalPairs:
    """Repeat a word, twice or thrice as its length says."""
    path = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    words = [f"{a}{b}" for a in "abcdefghijklm" for b in ("", *"nopqrstuvw")]
    rows = [{"prompt": f"{word}:", "answer": word * (3 - len(word) // 2)} for word in words]
    path.write_text("\n".join(map(json.dumps, rows)))
    return LocalPairs(path=str(path))


def wanted(name: str, pairs: LocalPairs, **changes: Any) -> Wanted:
    return Wanted(dataclasses.replace(tiny.MODELS[name], **changes), pairs, ByteTokenizer())


def load(asked: Wanted, report: Any = lambda what, done, total: None, **changes: Any) -> Weights:
    return TrainedHere(**{**RECIPE, **changes}).load(asked, report)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("ar", {}),
        ("diffusion", {}),
        ("diffusion", {"canvas_block": 4, "conditioning": ConditioningConfig(width=8, frequency_dim=4)}),
    ],
    ids=["ar", "denoiser", "blocks, told the time"],
)
def test_a_training_on_answers_is_resumed_exactly_and_scored_on_answers(
    name: str, changes: dict[str, Any], pairs: LocalPairs, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = wanted(name, pairs, **changes)
    straight = load(asked)
    monkeypatch.setattr(weights, "CHECKPOINTS", home / "again")
    with pytest.raises(KeyboardInterrupt):
        load(asked, tiny.Reports(interrupt_at=7))
    assert load(asked).card["weights_sha256"] == straight.card["weights_sha256"]

    corpus = load_corpus(pairs)
    rows = PairRows.of(corpus, straight.tokenizer, "train")
    assert straight.card["epochs"] == pytest.approx(12 * 8 / len(rows.ids))
    assert heldout_window_len(straight, corpus) == LENGTH - 1
    found = heldout_likelihood(straight, corpus, num_masks=4)
    answers = PairRows.of(corpus, straight.tokenizer, "heldout")
    assert found.num_tokens == sum(LENGTH - length for length in answers.prompt_lens)
    assert found.num_bytes == sum(
        len(ids) - length for ids, length in zip(answers.ids, answers.prompt_lens, strict=True)
    )
    assert found.is_bound == (name != "ar")


def test_every_paradigm_reads_the_same_rows(pairs: LocalPairs, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[torch.Tensor]] = {"ar": [], "diffusion": []}
    loss = loop._losses
    for name, kept in seen.items():

        def spy(model: Any, tokens: torch.Tensor, scored: torch.Tensor, *rest: Any, kept: Any = kept) -> torch.Tensor:
            kept.append(torch.stack((tokens, scored.long())))
            return loss(model, tokens, scored, *rest)

        monkeypatch.setattr(loop, "_losses", spy)
        load(wanted(name, pairs))
    assert torch.equal(torch.stack(seen["ar"]), torch.stack(seen["diffusion"]))


def test_pairs_that_do_not_fit_are_refused(pairs: LocalPairs) -> None:
    with pytest.raises(
        ValueError, match=r"pairs do not fit in rows of 7 tokens, the longest of train.lengths; .*: leave them out"
    ):
        load(wanted("ar", pairs), lengths=(7,))


def test_held_out_rows_need_not_be_as_long_as_windows_of_text(pairs: LocalPairs) -> None:
    """Models that have only seen short rows are scored on short rows."""
    cell = tiny.cell("ar", trained=True)
    recipe = TrainedHere(**{**RECIPE, "lengths": (32,), "batch_tokens": 64})
    dataclasses.replace(cell, corpus=pairs, train=recipe).check()
    with pytest.raises(ValueError, match=r"513 positions \(a held-out window\) are more than the 32"):
        dataclasses.replace(cell, train=recipe).check()


def test_validation_rows_are_spread_over_the_pairs(pairs: LocalPairs) -> None:
    rows = PairRows.of(load_corpus(pairs), ByteTokenizer().load(load_corpus(pairs)), "train")
    windows = loop.validation_windows(rows, TrainedHere(**{**RECIPE, "validation_windows": 3}))
    assert windows.tokens_NT.shape == (3, LENGTH) and (windows.lengths_N == LENGTH).all()
    assert len(np.unique(windows.tokens_NT[:, 1])) == 3
