"""Training: the loss falls, everybody sees the same text, and an interruption changes nothing."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from paradigms.data.tokenizers import Tokenizer
from paradigms.training import loop
from paradigms.training.loop import Trained, train
from paradigms.training.recipe import Recipe

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _folders(folders: Path) -> None:
    """Caches of the session."""


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Bit-equal means equal order of additions."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def recipe(num_steps: int = 12, **changes: Any) -> Recipe:
    """Steps of 96 tokens, in rows of 16 and of 48."""
    fixed = {"num_tokens": 96 * num_steps, "batch_tokens": 96, "lengths": (16, 48), "warmup_steps": 3}
    return Recipe(**{**fixed, "num_validations": 4, "validation_windows": 3, "validation_len": 32, **changes})


def run(name: str, chosen: Recipe, *, rate: float = 4e-3, **more: Any) -> Trained:
    tokenizer = Tokenizer()
    return train(
        tiny.MODELS[name],
        chosen,
        tiny.streams(tokenizer),
        tokenizer,
        num_tokens=chosen.num_tokens,
        learning_rate=rate,
        device=CPU,
        **more,
    )


def without_speed(curve: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in point.items() if key != "tokens_per_s"} for point in curve]


@pytest.mark.parametrize("save_every_s", [0.0, math.inf], ids=["saved each step", "saved at validations"])
@pytest.mark.parametrize("name", tiny.MODELS)
def test_an_interrupted_training_ends_with_the_same_bits(name, save_every_s, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "SAVE_EVERY_S", save_every_s)
    straight = run(name, recipe())

    unfinished, reports = tmp_path / "unfinished.safetensors", tiny.Reports(interrupt_at=8)
    with pytest.raises(KeyboardInterrupt):
        run(name, recipe(), resume_from=unfinished, report=reports)
    torch.manual_seed(99)  # whatever happens between the two
    resumed = run(name, recipe(), resume_from=unfinished, report=reports)
    first_again = 9 if save_every_s == 0 else 7
    assert reports.seen == [*range(1, 9), *range(first_again, 13)], "it went on where it had saved"

    assert resumed.best_step == straight.best_step
    assert resumed.best_bits_per_byte == straight.best_bits_per_byte
    assert without_speed(resumed.curve) == without_speed(straight.curve)
    assert resumed.best.keys() == straight.best.keys()
    for key, tensor in straight.best.items():
        assert torch.equal(tensor, resumed.best[key]), key


def test_interrupted_before_the_first_validation_and_after_the_last(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "SAVE_EVERY_S", 0.0)
    straight = run("ar", recipe())
    for step in (1, 12):
        unfinished = tmp_path / f"{step}.safetensors"
        with pytest.raises(KeyboardInterrupt):
            run("ar", recipe(), resume_from=unfinished, report=tiny.Reports(interrupt_at=step))
        resumed = run("ar", recipe(), resume_from=unfinished)
        assert without_speed(resumed.curve) == without_speed(straight.curve)
        assert all(torch.equal(tensor, resumed.best[key]) for key, tensor in straight.best.items())


def test_a_truncated_unfinished_file_is_one_clear_error(tmp_path):
    unfinished = tmp_path / "unfinished.safetensors"
    with pytest.raises(KeyboardInterrupt):
        run("ar", recipe(), resume_from=unfinished, report=tiny.Reports(interrupt_at=4))
    data = unfinished.read_bytes()
    for damaged in (data[: len(data) // 2], data[:4], b""):
        unfinished.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"unfinished\.safetensors cannot be read .* delete it and run again"):
            run("ar", recipe(), resume_from=unfinished)


@pytest.mark.parametrize("name", tiny.MODELS)
def test_training_lowers_the_loss(name):
    trained = run(name, recipe(num_steps=60, lengths=(48,), batch_tokens=384, num_tokens=384 * 60))
    first, last = trained.curve[0], trained.curve[-1]
    assert last["train_nats"] < 0.8 * math.log(tiny.VOCAB_SIZE)
    assert last["val_bits_per_byte"] < 0.9 * first["val_bits_per_byte"]
    assert trained.best_bits_per_byte == min(point["val_bits_per_byte"] for point in trained.curve)
    assert trained.best_step == next(
        point["step"] for point in trained.curve if point["val_bits_per_byte"] == trained.best_bits_per_byte
    )


def test_every_paradigm_sees_the_same_text_of_the_training_split(monkeypatch):
    seen: dict[str, list[np.ndarray]] = {}
    batch = loop.training_batch
    for name in tiny.MODELS:
        kept = seen[name] = []

        def spy(stream: np.ndarray, kept: list[np.ndarray] = kept, **more: Any) -> np.ndarray:
            kept.append(batch(stream, **more))
            return kept[-1]

        monkeypatch.setattr(loop, "training_batch", spy)
        run(name, recipe())
    first = seen["ar"]
    assert [rows.shape for rows in first] == [(6, 16), (2, 48)] * 6
    assert len({rows.tobytes() for rows in first}) == len(first), "another batch each step"
    for name in tiny.MODELS:
        assert all(np.array_equal(a, b) for a, b in zip(seen[name], first, strict=True)), name
    text = tiny.streams(Tokenizer())["train"].astype("<u2").tobytes()
    assert all(row[1:].astype("<u2").tobytes() in text for rows in first for row in rows)


def test_the_curve_counts_steps_tokens_and_rates():
    chosen = recipe()
    curve = run("ar", chosen).curve
    assert [point["step"] for point in curve] == [3, 6, 9, 12]
    assert [point["tokens"] for point in curve] == [96 * step for step in (3, 6, 9, 12)]
    assert [point["lr"] for point in curve] == [chosen.rate_at(step - 1, 12, 4e-3) for step in (3, 6, 9, 12)]
    assert all(point["tokens_per_s"] > 0 and math.isfinite(point["train_nats"]) for point in curve)


def test_tokens_are_counted_where_rows_do_not_fill_a_batch():
    chosen = recipe(lengths=(16, 47), num_tokens=96 * 5)
    assert run("ar", chosen).curve[-1]["tokens"] == 3 * 96 + 3 * 94, "six steps: five would be 476"


def test_the_seed_decides():
    one, same, other = (run("ar", recipe(seed=seed)) for seed in (1, 1, 2))
    assert without_speed(one.curve) == without_speed(same.curve) != without_speed(other.curve)


def test_a_diverging_training_says_so():
    with pytest.raises(ValueError, match=r"diverged at step \d+ with learning rate .*; lower it"):
        run("ar", recipe(), rate=1e30)


def test_validation_windows_are_full_spread_and_fixed():
    stream = np.arange(1000, dtype=np.uint16)
    windows = loop.validation_windows(stream, recipe(validation_windows=5))
    assert (windows.lengths_N == 33).all() and len(windows.tokens_NT) == 5
    starts = windows.tokens_NT[:, 1]
    assert starts[0] == 0 and starts[-1] == 960 and (np.diff(starts) > 200).all()
    clipped = loop.validation_windows(stream, dataclasses.replace(recipe(), validation_len=500))
    assert clipped.tokens_NT.shape[1] <= recipe().longest, "no longer than what is trained on"
