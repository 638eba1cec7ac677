"""Training batches and evaluation windows of a task, as tokens.

A row is <bos> <eos> ... prompt answer <eos> <eos> ...: all behind the prompt is learnt and scored, but for what is
given there. Every prompt is filled in front to the length of the longest, so that a row has as many places behind its
prompt as an answer is given when it is asked (`filled_prompt`). Else a denoiser would learn to fill canvases of other
lengths than it is shown: it counts the places that are left, and with them knew how long an answer is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paradigms.data.stream import EvaluationWindows
from paradigms.data.symbols import SymbolTokenizer
from paradigms.data.tasks.task import Instance, Task


@dataclass(frozen=True, kw_only=True)
class TaskWindows(EvaluationWindows):
    """Windows with answers of which part may be given: context, and never scored.

    Attributes:
        open_NT: what is scored.
    """

    open_NT: np.ndarray

    @property
    def scored_NT(self) -> np.ndarray:
        return self.open_NT


@dataclass(frozen=True, kw_only=True)
class TaskRows:
    """Rows of one split: of "train", drawn for each step; of the others, the fixed set."""

    task: Task
    tokenizer: SymbolTokenizer
    split: str

    @property
    def longest(self) -> int:
        """Columns that the longest instance needs, one <eos> included."""
        return self.task.row_tokens

    def check(self, length: int, which: str) -> None:
        """Raise ValueError unless every instance fits in rows of so many columns; `which` says where they come from."""
        if self.longest > length:
            raise ValueError(
                f"{self.task.title} needs rows of {self.longest} tokens, begin- and end-of-text included, and {which}, "
                f"is {length}: raise it, or make the task smaller"
            )

    def batch(self, *, seed: int, step: int, length: int, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Fresh instances: tokens int64 and what is scored, bool, each [num_rows, length]."""
        return self._rows([self.task.training_instance(seed, step, row) for row in range(num_rows)], length)

    def windows(self, length: int, *, count: int | None = None) -> TaskWindows:
        """Rows of so many columns of the fixed set, or of its first `count`."""
        instances = getattr(self.task, self.split)[:count]
        tokens_NT, open_NT = self._rows(instances, length)
        return TaskWindows(
            tokens_NT=tokens_NT,
            open_NT=open_NT,
            lengths_N=np.full(len(tokens_NT), length),
            first_scored_N=np.full(len(tokens_NT), self.task.prompt_tokens),
        )

    def _rows(self, instances: Sequence[Instance], length: int) -> tuple[np.ndarray, np.ndarray]:
        tokens_RT = np.full((len(instances), length), self.tokenizer.eos_id, np.int64)
        scored_RT = np.zeros((len(instances), length), bool)
        first = self.task.prompt_tokens
        scored_RT[:, first:] = True
        for row, instance in enumerate(instances):
            tokens_RT[row, :first] = filled_prompt(self.task, instance, self.tokenizer)
            tokens_RT[row, first : first + len(instance.answer)] = self.tokenizer.ids(instance.answer)
            for position, _ in instance.given:
                scored_RT[row, first + position] = False
        return tokens_RT, scored_RT


def filled_prompt(task: Task, instance: Instance, tokenizer: SymbolTokenizer) -> list[int]:
    """The prompt as a model reads it: <bos>, as many <eos> as it is shorter than the longest, and its symbols."""
    ids = tokenizer.ids(instance.prompt)
    return [tokenizer.bos_id, *[tokenizer.eos_id] * (task.prompt_len - len(ids)), *ids]
