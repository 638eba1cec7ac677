"""A part of the training text of another corpus: for what happens when text runs out and is read again.

Documents stand in the order of their hashes, so the first of them are a random choice, and a smaller part lies within a
larger one. Validation and held-out text stay whole, so that figures of different parts are of the same text.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from dataclasses import dataclass
from typing import Any, Protocol

from .splits import Corpus


class WholeCorpus(Protocol):
    def load(self) -> Corpus: ...


@dataclass(frozen=True, kw_only=True)
class Part:
    """Attributes:
    of: the corpus, a config of its own.
    train_share: of its training documents, that are kept.
    """

    of: WholeCorpus
    train_share: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.train_share <= 1:
            raise ValueError(f"corpus.train_share={self.train_share} must be above 0, and at most 1: the whole text")

    @property
    def scores_answers(self) -> bool:
        """Whether the corpus holds prompts with answers."""
        return getattr(self.of, "scores_answers", False)

    def check(self) -> None:
        """What the corpus checks before it is read."""
        check: Any = getattr(self.of, "check", None)
        if check is not None:
            check()

    def load(self) -> Corpus:
        """The corpus with its first training documents, at least one.

        Raises:
            ValueError: a task, which has no training documents; or what the corpus raises.
        """
        whole = self.of.load()
        if whole.task is not None:
            raise ValueError(
                f"corpus.of={whole.task.name} is a task, which draws fresh instances for ever: there is no part of "
                "them; train on fewer with train.num_tokens"
            )
        count = math.ceil(self.train_share * len(whole.documents["train"]))
        if count == len(whole.documents["train"]):
            return whole
        documents = {**whole.documents, "train": whole.documents["train"][:count]}
        lens = whole.prompt_lens
        return dataclasses.replace(
            whole,
            name=f"{100 * self.train_share:g} % of {whole.name}",
            documents=documents,
            sha256=hashlib.sha256(f"{whole.sha256} {count} training documents".encode()).hexdigest(),
            num_bytes={**whole.num_bytes, "train": sum(len(text.encode()) for text in documents["train"])},
            prompt_lens=None if lens is None else {**lens, "train": lens["train"][:count]},
        )
