"""Prompts with their answers, from JSON lines: the answer alone is learnt and scored, the prompt is given.

A row is <bos> prompt answer <eos> <eos> ..., filled with end-of-text to its length. Everything after the prompt is
scored, what fills the row included: so a denoiser, which must fill a canvas, learns to leave the rest of it empty
(LLaDA, 2502.09992, section 2.3). The same holds for causal models, to which all but the first <eos> cost next to
nothing, so that figures of both speak of the same tokens.

Behind a short prompt a row has more places than behind a long one, and a denoiser counts them: only where prompts are
of one length is it asked on canvases as it was trained on. (Tasks fill theirs, `data.tasks.rows.filled_prompt`.)

Splits go by a hash of the prompt: answers to one prompt are never both trained on and scored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from . import splits
from .splits import SPLITS, Corpus
from .stream import EvaluationWindows, draw
from .text_files import find_files, require_utf8
from .tokenizers import Tokenizer

SUFFIXES = (".jsonl", ".json")


@dataclass(frozen=True, kw_only=True)
class LocalPairs:
    """JSON lines of one's own, an object with a prompt and an answer in each.

    Attributes:
        path: a file, a folder (its *.jsonl and *.json at any depth), a glob, or several of them.
        prompt_field, answer_field: where the texts stand; what is between them (a space, a line break) belongs to one.
        validation_fraction, heldout_fraction: shares of the prompts.
    """

    path: str | Sequence[str]
    prompt_field: str = "prompt"
    answer_field: str = "answer"
    validation_fraction: float = splits.VALIDATION_FRACTION
    heldout_fraction: float = splits.HELDOUT_FRACTION

    scores_answers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.path, str):
            object.__setattr__(self, "path", tuple(self.path))  # YAML gives a list, and a config must be hashable
        if not self._paths or not all(self._paths):
            raise ValueError("corpus.path is empty; name a file of JSON lines, a folder or a glob")
        if self.prompt_field == self.answer_field:
            raise ValueError(f"corpus.prompt_field and answer_field are both {self.prompt_field!r}; name two fields")
        for name in ("validation_fraction", "heldout_fraction"):
            if not 0 < getattr(self, name) < 0.5:
                raise ValueError(f"corpus.{name}={getattr(self, name)} must be above 0 and below 0.5")

    @property
    def _paths(self) -> tuple[str, ...]:
        return (self.path,) if isinstance(self.path, str) else tuple(self.path)

    def check(self) -> None:
        """Raises ValueError when the files are missing or empty."""
        find_files(self._paths, SUFFIXES)

    def load(self) -> Corpus:
        """The pairs, joined as documents; `Corpus.prompt_lens` says where each prompt ends.

        Raises:
            ValueError: for files that are missing, empty or not UTF-8, lines that are no such object, empty texts, and
                for a split without a prompt.
        """
        by_prompt: dict[bytes, set[tuple[str, str]]] = {}
        for prompt, answer in self._read():
            digest = hashlib.sha256(" ".join(prompt.split()).encode()).digest()
            by_prompt.setdefault(digest, set()).add((prompt, answer))
        pairs: dict[str, list[tuple[str, str]]] = {split: [] for split in SPLITS}
        for digest in sorted(by_prompt):
            split = splits.split_of(
                digest, validation_fraction=self.validation_fraction, heldout_fraction=self.heldout_fraction
            )
            pairs[split] += sorted(by_prompt[digest])
        name = ",".join(self._paths)
        for split, members in pairs.items():
            if not members:
                raise ValueError(
                    f"corpus {name!r} leaves the {split} split empty: it has only {len(by_prompt)} distinct prompts; "
                    "give it more, or larger split fractions"
                )
        return Corpus(
            name=name,
            documents={split: tuple(map("".join, members)) for split, members in pairs.items()},
            sha256=hashlib.sha256(json.dumps(["pairs", pairs]).encode()).hexdigest(),
            num_bytes={split: sum(len("".join(pair).encode()) for pair in members) for split, members in pairs.items()},
            prompt_lens={split: tuple(len(prompt) for prompt, _ in members) for split, members in pairs.items()},
        )

    def _read(self) -> Iterator[tuple[str, str]]:
        for file in find_files(self._paths, SUFFIXES):
            require_utf8(file)
            for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), 1):
                if line.strip():
                    yield self._pair(line, file, number)

    def _pair(self, line: str, file: Path, number: int) -> tuple[str, str]:
        try:
            row = json.loads(line)
            texts = row[self.prompt_field], row[self.answer_field]
        except ValueError as error:
            raise ValueError(f"{file}, line {number}, is not JSON ({error}); write one object a line") from None
        except (KeyError, TypeError):
            raise ValueError(
                f"{file}, line {number}, has no {self.prompt_field!r} and {self.answer_field!r}; "
                "name its fields with corpus.prompt_field and corpus.answer_field"
            ) from None
        for name, text in zip((self.prompt_field, self.answer_field), texts, strict=True):
            if not isinstance(text, str) or not text:
                raise ValueError(f"{file}, line {number}: {name!r} is {text!r}; it must be text, and not empty")
            try:
                text.encode()
            except UnicodeEncodeError:
                raise ValueError(f"{file}, line {number}: {name!r} has a lone surrogate; repair its encoding") from None
        return texts


@dataclass(frozen=True, kw_only=True)
class PairRows:
    """The pairs of a split as tokens.

    Attributes:
        ids: tokens of each pair, <bos> included and <eos> not.
        prompt_lens: how many of them are given, <bos> included.
        eos_id: what ends an answer and fills its row.
    """

    ids: tuple[np.ndarray, ...] = field(repr=False)
    prompt_lens: tuple[int, ...] = field(repr=False)
    eos_id: int

    @classmethod
    def of(cls, corpus: Corpus, tokenizer: Tokenizer, split: str) -> PairRows:
        """Prompt and answer are encoded each by itself, as a prompt alone would be."""
        assert corpus.prompt_lens is not None
        texts = list(zip(corpus.documents[split], corpus.prompt_lens[split], strict=True))
        prompts = tokenizer.encode_batch([text[:length] for text, length in texts])
        answers = tokenizer.encode_batch([text[length:] for text, length in texts])
        return cls(
            ids=tuple(
                np.array([tokenizer.bos_id, *prompt, *answer], np.int64)
                for prompt, answer in zip(prompts, answers, strict=True)
            ),
            prompt_lens=tuple(1 + len(prompt) for prompt in prompts),
            eos_id=tokenizer.eos_id,
        )

    @property
    def longest(self) -> int:
        """Columns that the longest pair needs, one <eos> included."""
        return 1 + max(map(len, self.ids))

    def check(self, length: int, which: str) -> None:
        """Raise ValueError unless every pair fits in rows of so many columns; `which` says where these come from."""
        if self.longest > length:
            count = sum(len(ids) >= length for ids in self.ids)
            raise ValueError(
                f"{count} of {len(self.ids)} pairs do not fit in rows of {length} tokens, {which}; the longest needs "
                f"{self.longest}, begin- and end-of-text included: leave them out, or train on longer rows"
            )

    def batch(self, *, seed: int, step: int, length: int, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Random pairs among those that fit: tokens int64 and what is scored, bool, each [num_rows, length].

        The pair of a row depends on (seed, step, row) only.
        """
        fitting = [number for number, ids in enumerate(self.ids) if len(ids) < length]
        if not fitting:
            raise ValueError(f"train.lengths has {length}, and no pair fits in it; leave it out")
        return self._rows([fitting[draw("pair", seed, step, row) % len(fitting)] for row in range(num_rows)], length)

    def windows(self, length: int, *, count: int | None = None) -> EvaluationWindows:
        """Rows of so many columns of all pairs, or of at most `count` evenly spread ones."""
        chosen = range(len(self.ids))
        if count is not None:
            chosen = np.unique(np.linspace(0, len(self.ids) - 1, min(count, len(self.ids))).round().astype(int))
        tokens_NT, _ = self._rows(chosen, length)
        return EvaluationWindows(
            tokens_NT=tokens_NT,
            lengths_N=np.full(len(tokens_NT), length),
            first_scored_N=np.array([self.prompt_lens[number] for number in chosen]),
        )

    def _rows(self, numbers: Sequence[int] | np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        tokens_RT = np.full((len(numbers), length), self.eos_id, np.int64)
        for row, number in enumerate(numbers):
            tokens_RT[row, : len(self.ids[number])] = self.ids[number]
        first_R1 = np.array([self.prompt_lens[number] for number in numbers])[:, None]
        return tokens_RT, np.arange(length) >= first_R1
