"""What a task is: a generator of instances, an exact checker of answers, and splits that cannot leak.

An instance is a prompt and an answer in symbols. Training instances are drawn afresh, each a function of (seed, step,
row); the held-out set is fixed. Which split an instance belongs to is decided by a hash of what it asks (`identity`),
so that no held-out question, however it is drawn again, is ever trained on.

A task is a corpus: `load` gives its held-out and validation instances as prompts with answers, and itself for training.
"""

from __future__ import annotations

import hashlib
import json
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, ClassVar

from paradigms.data.splits import Corpus, split_of
from paradigms.data.stream import draw as seed_of

HELDOUT_SHARE = VALIDATION_SHARE = 0.05
MOST_DRAWS = 20_000  # for one instance of a split, which takes 20 on the average
SEPARATOR = " "


@dataclass(frozen=True, slots=True)
class Instance:
    """Attributes:
    prompt, answer: symbols; where several answers are right, the one that was drawn.
    given: answer position -> symbol, where part of the answer is given: known ahead, as what stands behind a gap, or
        reached one after another, as questions are (`Task.given_in_order`).
    """

    prompt: tuple[str, ...]
    answer: tuple[str, ...]
    given: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """Attributes:
    correct: whether the answer is right, by the task's rules and not by comparison with the reference.
    share: of the answer's symbols that are right, 0 to 1; by comparison with the reference where only one is right,
        else by the rules that hold.
    problem: what is wrong first, in a few words that are the same for the same kind of error; None when right.
    """

    correct: bool
    share: float
    problem: str | None = None


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """A task of a given size. Subclasses add its parameters, and check them in `__post_init__`.

    Attributes:
        num_heldout, num_validation: instances of the fixed sets.
    """

    num_heldout: int = 500
    num_validation: int = 200

    name: ClassVar[str]
    scores_answers: ClassVar[bool] = True
    given_in_order: ClassVar[bool] = False  # what is given of an answer is never read ahead, see `Request.in_order`

    def __post_init__(self) -> None:
        for name in ("num_heldout", "num_validation"):
            if getattr(self, name) < 1:
                raise ValueError(f"corpus.{name}={getattr(self, name)} must be at least 1: an empty set scores nothing")

    @property
    @abstractmethod
    def symbols(self) -> tuple[str, ...]:
        """All symbols, those of prompts and answers."""

    @property
    @abstractmethod
    def prompt_len(self) -> int:
        """Symbols of the longest prompt."""

    @property
    @abstractmethod
    def answer_len(self) -> int:
        """Symbols of the longest answer."""

    @abstractmethod
    def draw(self, source: random.Random) -> Instance:
        """An instance, by this generator alone."""

    @abstractmethod
    def check(self, instance: Instance, answer: Sequence[str]) -> Verdict:
        """Judge an answer: all symbols before end-of-text, whatever they are."""

    def planted(self, instance: Instance, count: int, source: random.Random) -> tuple[str, ...]:
        """Wrong symbols for the first `count` open positions of an answer: each occurs in some answer, and none is
        right there.
        """
        places = [place for place in range(len(instance.answer)) if place not in dict(instance.given)][:count]
        return tuple(
            source.choice([symbol for symbol in self.answer_symbols if symbol != instance.answer[place]])
            for place in places
        )

    @property
    def answer_symbols(self) -> tuple[str, ...]:
        """Symbols that stand at open places of answers."""
        return self.symbols

    def identity(self, instance: Instance) -> Any:
        """What an instance asks, JSON-able: instances that ask the same have the same. Prompts whose order of parts
        means nothing sort them here.
        """
        return [instance.prompt, instance.given]

    @property
    def vocab_size(self) -> int:
        """Ids: begin- and end-of-text, the mask, and the symbols."""
        return 3 + len(self.symbols)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the longest prompt, begin-of-text included."""
        return 1 + self.prompt_len

    @property
    def output_tokens(self) -> int:
        """Tokens of the longest answer, end-of-text included."""
        return self.answer_len + 1

    @property
    def row_tokens(self) -> int:
        """Tokens of a training row."""
        return self.prompt_tokens + self.output_tokens

    def split(self, instance: Instance) -> str:
        """The split that an instance belongs to, whoever draws it."""
        text = json.dumps([self.name, self.identity(instance)])
        digest = hashlib.sha256(text.encode()).digest()
        return split_of(digest, validation_fraction=VALIDATION_SHARE, heldout_fraction=HELDOUT_SHARE)

    def training_instance(self, seed: int, step: int, row: int) -> Instance:
        """The instance of a row of a training batch; never one of another split."""
        return next(self._of_split("train", seed_of(f"task {self.name}", seed, step, row)))

    @cached_property
    def heldout(self) -> tuple[Instance, ...]:
        """The fixed held-out set, all different; the same for every seed and size of training."""
        return self._fixed("heldout", self.num_heldout)

    @cached_property
    def validation(self) -> tuple[Instance, ...]:
        """The fixed set that chooses learning rates and checkpoints."""
        return self._fixed("validation", self.num_validation)

    def load(self) -> Corpus:
        """The task as a corpus.

        Raises:
            ValueError: the task has too few different instances.
        """
        sets = {"train": (), "validation": self.validation, "heldout": self.heldout}
        documents = {split: tuple(text(each.prompt + each.answer) for each in sets[split]) for split in sets}
        about = {"task": self.name, "config": asdict(self), "documents": documents}
        return Corpus(
            name=self.title,
            documents=documents,
            sha256=hashlib.sha256(json.dumps(about).encode()).hexdigest(),
            num_bytes={split: sum(len(each.encode()) for each in documents[split]) for split in documents},
            prompt_lens={split: tuple(len(text(each.prompt)) for each in sets[split]) for split in sets},
            symbols=self.symbols,
            separator=SEPARATOR,
            task=self,
        )

    @property
    def title(self) -> str:
        """The name with what differs from the defaults, for captions."""
        own = [field.name for field in fields(self) if field.name not in ("num_heldout", "num_validation")]
        return ", ".join([self.name.replace("_", " "), *(f"{name} {getattr(self, name)}" for name in own)])

    def _fixed(self, split: str, count: int) -> tuple[Instance, ...]:
        found: dict[str, Instance] = {}
        for instance in self._of_split(split, seed_of(f"task {self.name} {split}")):
            found.setdefault(json.dumps(self.identity(instance)), instance)
            if len(found) == count:
                break
        return tuple(found.values())

    def _of_split(self, split: str, seed: int) -> Iterator[Instance]:
        """Instances of a split for ever, not all different."""
        source = random.Random(seed)
        seen: set[str] = set()
        draws = 0
        while True:
            instance = self.draw(source)
            draws += 1
            if self.split(instance) == split:
                new = (key := json.dumps(self.identity(instance))) not in seen
                if new:
                    seen.add(key)
                    draws = 0
                yield instance
            if draws > MOST_DRAWS:
                raise ValueError(
                    f"{self.title} has too few different instances: {MOST_DRAWS} draws gave no new one for its {split} "
                    f"split after {len(seen)}; make it larger, or ask for fewer (corpus.num_heldout, num_validation)"
                )


def text(symbols: Sequence[str]) -> str:
    """Symbols as a text that `data.symbols` reads."""
    return "".join(symbol + SEPARATOR for symbol in symbols)


def compare(answer: Sequence[str], reference: Sequence[str]) -> Verdict:
    """Judge an answer of which exactly one is right, symbol by symbol."""
    right = sum(said == wanted for said, wanted in zip(answer, reference, strict=False))
    share = right / max(len(reference), len(answer), 1)
    if tuple(answer) == tuple(reference):
        return Verdict(True, 1.0)
    if not len(answer):
        return Verdict(False, 0.0, "no answer")
    if len(answer) != len(reference):
        return Verdict(False, share, "too short" if len(answer) < len(reference) else "too long")
    return Verdict(False, share, "wrong symbol")
