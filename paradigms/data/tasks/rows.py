"""Training batches and evaluation windows of a task, as tokens.

A row is <bos> prompt answer <eos> <eos> ..., as of other prompts with answers (`data.pairs`): all behind the prompt is
learnt and scored, but for what is given there.
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
            first_scored_N=np.array([1 + len(instance.prompt) for instance in instances]),
        )

    def _rows(self, instances: Sequence[Instance], length: int) -> tuple[np.ndarray, np.ndarray]:
        tokens_RT = np.full((len(instances), length), self.tokenizer.eos_id, np.int64)
        tokens_RT[:, 0] = self.tokenizer.bos_id
        scored_RT = np.zeros((len(instances), length), bool)
        for row, instance in enumerate(instances):
            ids = self.tokenizer.ids(instance.prompt + instance.answer)
            tokens_RT[row, 1 : 1 + len(ids)] = ids
            scored_RT[row, 1 + len(instance.prompt) :] = True
            for position, _ in instance.given:
                scored_RT[row, 1 + len(instance.prompt) + position] = False
        return tokens_RT, scored_RT
