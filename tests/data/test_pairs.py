"""Prompts with answers: what is read, how it is split, what a row looks like and what of it is scored."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paradigms.data.pairs import LocalPairs, PairRows
from paradigms.data.splits import SPLITS
from paradigms.data.tokenizers import BOS_ID, EOS_ID, Tokenizer

PAIRS = [(f"What is {a} + {b}?", f" {a + b}, ä" + "!" * (a % 5)) for a in range(20) for b in range(10)]


def write(path: Path, rows: list[Any]) -> LocalPairs:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return LocalPairs(path=str(path))


def objects(pairs: list[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"prompt": prompt, "answer": answer, "note": "x"} for prompt, answer in pairs]


def pairs_of(corpus: Any, split: str) -> list[tuple[str, str]]:
    texts = zip(corpus.documents[split], corpus.prompt_lens[split], strict=True)
    return [(text[:length], text[length:]) for text, length in texts]


def test_every_pair_once_in_a_split_that_its_prompt_decides(tmp_path: Path) -> None:
    more = [(prompt, answer + "?") for prompt, answer in PAIRS]  # a second answer to each prompt
    corpus = write(tmp_path / "a.jsonl", [*objects(PAIRS + more), *objects(PAIRS[:5]), ""]).load()
    found = {split: pairs_of(corpus, split) for split in SPLITS}
    assert sorted(itertools.chain(*found.values())) == sorted(PAIRS + more), "duplicates once"
    prompts = [{prompt for prompt, _ in found[split]} for split in SPLITS]
    assert not prompts[0] & prompts[1] and not prompts[0] & prompts[2] and not prompts[1] & prompts[2]
    assert corpus.num_bytes["train"] == sum(len((prompt + answer).encode()) for prompt, answer in found["train"])
    shuffled = write(tmp_path / "b.jsonl", objects((PAIRS + more)[::-1])).load()
    assert shuffled.sha256 == corpus.sha256
    moved = [(prompt + answer[:1], answer[1:]) for prompt, answer in PAIRS + more]
    assert write(tmp_path / "c.jsonl", objects(moved)).load().sha256 != corpus.sha256, "where a prompt ends matters"


@pytest.fixture
def rows(tmp_path: Path) -> PairRows:
    return PairRows.of(write(tmp_path / "a.jsonl", objects(PAIRS)).load(), Tokenizer(), "train")


def test_a_row_is_a_prompt_an_answer_and_end_of_text_and_all_after_the_prompt_is_scored(rows: PairRows) -> None:
    tokens_RT, scored_RT = rows.batch(seed=0, step=3, length=rows.longest + 3, num_rows=40)
    assert (tokens_RT[:, 0] == BOS_ID).all() and (tokens_RT[:, -4:] == EOS_ID).any()
    for tokens_T, scored_T in zip(tokens_RT, scored_RT, strict=True):
        first = int(scored_T.argmax())
        assert scored_T[first:].all() and not scored_T[:first].any()
        pair = tuple(Tokenizer().decode_bytes(part).decode() for part in (tokens_T[:first], tokens_T[first:]))
        assert pair in PAIRS
        ends = int((tokens_T == EOS_ID).argmax())
        assert (tokens_T[ends:] == EOS_ID).all() and ends < rows.longest
    again, _ = rows.batch(seed=0, step=3, length=rows.longest + 3, num_rows=20)
    assert np.array_equal(again, tokens_RT[:20])
    assert not np.array_equal(rows.batch(seed=0, step=4, length=rows.longest + 3, num_rows=40)[0], tokens_RT)


def test_short_rows_hold_the_pairs_that_fit(rows: PairRows) -> None:
    short = min(map(len, rows.ids)) + 1
    tokens_RT, _ = rows.batch(seed=0, step=0, length=short, num_rows=30)
    assert (tokens_RT[:, -1] == EOS_ID).all() and (tokens_RT[:, -2] != EOS_ID).all()
    with pytest.raises(ValueError, match=rf"train\.lengths has {short - 1}, and no pair fits in it"):
        rows.batch(seed=0, step=0, length=short - 1, num_rows=1)
    rows.check(rows.longest, "the longest")
    with pytest.raises(
        ValueError, match=rf"\d+ of {len(rows.ids)} pairs do not fit in rows of {rows.longest - 1} tokens, the l"
    ):
        rows.check(rows.longest - 1, "the longest")


def test_windows_score_the_bytes_of_answers(rows: PairRows) -> None:
    windows = rows.windows(rows.longest)
    assert len(windows.tokens_NT) == len(rows.ids)
    token_bytes = Tokenizer().token_bytes
    answers = {prompt: answer for prompt, answer in PAIRS}
    for n, count in enumerate(windows.num_bytes_N(token_bytes)):
        prompt = Tokenizer().decode_bytes(windows.tokens_NT[n, : windows.first_scored_N[n]]).decode()
        assert count == len(answers[prompt].encode())
    some = rows.windows(rows.longest, count=5)
    assert len(some.tokens_NT) == 5 and (some.tokens_NT[0] == windows.tokens_NT[0]).all()
    assert (some.tokens_NT[-1] == windows.tokens_NT[-1]).all()


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("{", "line 201, is not JSON"),
        ({"prompt": "x"}, "line 201, has no 'prompt' and 'answer'; name its fields with corpus.prompt_field"),
        (["x"], "line 201, has no 'prompt'"),
        ({"prompt": "x", "answer": ""}, "line 201: 'answer' is ''; it must be text, and not empty"),
        ({"prompt": None, "answer": "y"}, "line 201: 'prompt' is None"),
        ('{"prompt": "\\ud800", "answer": "y"}', "line 201: 'prompt' has a lone surrogate"),
    ],
    ids=str,
)
def test_a_bad_line_is_named(tmp_path: Path, row: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        write(tmp_path / "a.jsonl", [*objects(PAIRS), row]).load()


def test_too_little_text_and_bad_settings(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="split empty: it has only 2 distinct prompts"):
        write(tmp_path / "a.jsonl", objects(PAIRS[:2])).load()
    with pytest.raises(ValueError, match=r"corpus\.path='nowhere' is neither a file"):
        LocalPairs(path="nowhere").check()
    for changes, words in (
        ({"path": []}, r"corpus\.path is empty"),
        ({"answer_field": "prompt"}, "are both 'prompt'"),
        ({"heldout_fraction": 0.5}, r"corpus\.heldout_fraction=0\.5 must be above 0 and below 0\.5"),
    ):
        with pytest.raises(ValueError, match=words):
            LocalPairs(**{"path": "a.jsonl", **changes})
