"""Rows of a task against rows written by hand, and what is scored of them against what may be asked."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import tiny
import torch

from paradigms.data.symbols import SymbolTokenizer
from paradigms.data.tasks.rows import TaskRows
from paradigms.data.tasks.task import Instance, Task, Verdict, compare
from paradigms.data.tokenizers import BOS_ID, EOS_ID, MASK_ID
from paradigms.models.config import ModelConfig
from paradigms.quality.likelihood import evaluate
from paradigms.quality.masks import draw_masks

LETTERS = "abcdef"


@dataclass(frozen=True, kw_only=True)
class Backwards(Task):
    """Two to four letters and their mirror image, of which the second letter is given where there are four."""

    name: ClassVar[str] = "backwards"
    prompt_len: ClassVar[int] = 5  # type: ignore[assignment]
    answer_len: ClassVar[int] = 4  # type: ignore[assignment]
    symbols: ClassVar[tuple[str, ...]] = (*LETTERS, "=")  # type: ignore[assignment]

    def draw(self, source: random.Random) -> Instance:
        letters = tuple(source.choices(LETTERS, k=source.randint(2, 4)))
        return instance("".join(letters))

    def check(self, instance: Instance, answer: Sequence[str]) -> Verdict:
        return compare(answer, instance.answer)


def instance(letters: str) -> Instance:
    answer = tuple(reversed(letters))
    return Instance((*letters, "="), answer, ((1, answer[1]),) if len(letters) == 4 else ())


TASK = Backwards(num_heldout=40, num_validation=30)
TOKENIZER = SymbolTokenizer(TASK.symbols)


def rows(split: str) -> TaskRows:
    return TaskRows(task=TASK, tokenizer=TOKENIZER, split=split)


def by_hand(instance: Instance, length: int) -> tuple[list[int], list[bool]]:
    """Ids and what is scored, symbol by symbol; a prompt is filled in front to the five symbols of the longest."""
    ids, scored = [BOS_ID], [False]
    while len(ids) < 1 + 5 - len(instance.prompt):
        ids.append(EOS_ID)
        scored.append(False)
    for name in instance.prompt:
        ids.append(3 + TASK.symbols.index(name))
        scored.append(False)
    for place, name in enumerate(instance.answer):
        ids.append(3 + TASK.symbols.index(name))
        scored.append(place not in [given for given, _ in instance.given])
    return ids + [EOS_ID] * (length - len(ids)), scored + [True] * (length - len(scored))


def test_a_row_known_in_advance() -> None:
    tokens, scored = by_hand(instance("abca"), 12)
    assert tokens == [0, 3, 4, 5, 3, 9, 3, 5, 4, 3, 1, 1]
    assert [column for column in range(12) if scored[column]] == [6, 8, 9, 10, 11]
    tokens, scored = by_hand(instance("ab"), 12)
    assert tokens == [0, 1, 1, 3, 4, 9, 4, 3, 1, 1, 1, 1]
    assert [column for column in range(12) if scored[column]] == [6, 7, 8, 9, 10, 11]


def test_batches_are_instances_of_the_training_split_as_rows() -> None:
    length = TASK.row_tokens + 2
    tokens_BT, scored_BT = rows("train").batch(seed=3, step=5, length=length, num_rows=50)
    assert (
        tokens_BT.dtype == np.int64 and scored_BT.dtype == bool and tokens_BT.shape == scored_BT.shape == (50, length)
    )
    drawn = [TASK.training_instance(3, 5, row) for row in range(50)]
    assert {len(one.answer) for one in drawn} == {2, 3, 4} and any(one.given for one in drawn)
    for row, one in enumerate(drawn):
        assert TASK.split(one) == "train"
        assert (tokens_BT[row].tolist(), scored_BT[row].tolist()) == by_hand(one, length)


def test_a_row_depends_on_seed_step_and_its_number_alone() -> None:
    def tokens(seed: int, step: int, num_rows: int = 20) -> list[list[int]]:
        return rows("train").batch(seed=seed, step=step, length=11, num_rows=num_rows)[0].tolist()

    assert tokens(0, 0) == tokens(0, 0) and tokens(0, 0, 7) == tokens(0, 0)[:7]
    assert len({str(tokens(*where)) for where in ((0, 0), (0, 1), (1, 0), (1, 1))}) == 4
    assert len({str(row) for row in tokens(0, 0)}) > 10, "rows of a step differ"


@pytest.mark.parametrize("split", ["heldout", "validation"])
def test_windows_are_the_fixed_set_in_its_order(split: str) -> None:
    fixed: tuple[Instance, ...] = getattr(TASK, split)
    windows = rows(split).windows(12)
    assert len(windows.tokens_NT) == len(fixed) and (windows.lengths_N == 12).all()
    for number, one in enumerate(fixed):
        tokens, scored = by_hand(one, 12)
        assert windows.tokens_NT[number].tolist() == tokens and windows.scored_NT[number].tolist() == scored
        assert windows.first_scored_N[number] == 1 + 5
    some = rows(split).windows(12, count=7)
    assert np.array_equal(some.tokens_NT, windows.tokens_NT[:7]) and np.array_equal(
        some.scored_NT, windows.scored_NT[:7]
    )


def test_bytes_are_those_of_what_is_scored() -> None:
    windows = rows("heldout").windows(12)
    wanted = [2 * (len(one.answer) - len(one.given)) for one in TASK.heldout]  # a letter and its separator
    assert windows.num_bytes_N(TOKENIZER.token_bytes).tolist() == wanted
    assert {len(one.given) for one in TASK.heldout} == {0, 1}, "or the test says little"


def test_what_is_given_is_never_masked() -> None:
    windows = rows("heldout").windows(12)
    masks = draw_masks(windows.scored_NT, 8, block=None, seed=0)
    assert not (masks.masked_RT & ~windows.scored_NT[masks.text_R]).any()
    asked_NT = np.zeros_like(windows.scored_NT)
    np.logical_or.at(asked_NT, masks.text_R, masks.masked_RT)
    assert np.array_equal(asked_NT, windows.scored_NT), "and all else is, now or then"


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "denoiser"])
def test_a_model_that_knows_nothing_pays_for_the_scored_tokens_alone(causal: bool) -> None:
    """Each token costs ln(V - 1): all ids but the mask are equally likely."""
    more: dict[str, Any] = {} if causal else {"causal": False, "noise": "absorbing"}
    config = ModelConfig(vocab_size=TASK.vocab_size, d_model=32, num_blocks=1, **more)
    model = tiny.random_model(config)
    with torch.no_grad():
        model.embedding.zero_()  # and so the tied head
    windows = rows("heldout").windows(12)
    found = evaluate(model, windows, TOKENIZER.token_bytes, mask_id=MASK_ID, num_masks=4)
    scored = sum(sum(by_hand(one, 12)[1]) for one in TASK.heldout)
    assert found.num_tokens == scored
    assert found.nats == pytest.approx(scored * math.log(TASK.vocab_size - 1), rel=1e-9)


def test_the_longest_instance_fits_exactly() -> None:
    assert rows("train").longest == TASK.row_tokens == 1 + 5 + 4 + 1
    rows("train").check(11, "the longest of train.lengths")
    with pytest.raises(
        ValueError,
        match=r"backwards needs rows of 11 tokens, begin- and end-of-text included, and the longest of train\.lengths, "
        r"is 10: raise it, or make the task smaller",
    ):
        rows("train").check(10, "the longest of train.lengths")
