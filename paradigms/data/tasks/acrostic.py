"""Acrostics: words whose first letters spell the prompt, each of which may follow the one before it.

A fixed graph over a lexicon (`graph_seed`) says which words may follow which; it is in no prompt, so it is learnt.
A text is drawn uniformly among all that the graph allows, and its first letters are the prompt: every answer of a
prompt is as likely as the others, and any is right.

Many allowed words lead nowhere, since none of the few that may follow them has the next letter. One that takes any
allowed word of the right letter, and looks no further, is stuck before the end 79 times in 100 (expected over the
held-out prompts of the default size). What decides a word by the letters ahead of it need not guess.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from string import ascii_lowercase
from typing import ClassVar

from paradigms.data.tasks.task import Instance, Task, Verdict
from paradigms.data.tasks.walk_infilling import Graph, judge

ANSWER = "="


@dataclass(frozen=True, kw_only=True)
class Acrostic(Task):
    """Attributes:
    length: letters of a prompt, words of an answer.
    num_letters, words_per_letter: of the lexicon: "a1", "a2", ..., "b1", ...
    degree: words that may follow a word, and that it may follow.
    graph_seed: which ones.
    """

    length: int = 8
    num_letters: int = 5
    words_per_letter: int = 4
    degree: int = 5
    graph_seed: int = 0
    name: ClassVar[str] = "acrostic"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.num_letters <= len(ascii_lowercase):
            raise ValueError(f"corpus.num_letters={self.num_letters} must be from 1 to {len(ascii_lowercase)}")
        for name in ("length", "words_per_letter"):
            if getattr(self, name) < 1:
                raise ValueError(f"corpus.{name}={getattr(self, name)} must be at least 1")
        _ = self.graph  # which has its own conditions

    @cached_property
    def graph(self) -> Graph:
        return Graph(self.num_letters * self.words_per_letter, self.degree, self.graph_seed)

    @property
    def letters(self) -> str:
        return ascii_lowercase[: self.num_letters]

    @property
    def symbols(self) -> tuple[str, ...]:
        return (*self.letters, ANSWER, *self.answer_symbols)

    @property
    def answer_symbols(self) -> tuple[str, ...]:
        return tuple(f"{letter}{number + 1}" for letter in self.letters for number in range(self.words_per_letter))

    @property
    def prompt_len(self) -> int:
        return self.length + 1

    @property
    def answer_len(self) -> int:
        return self.length

    def draw(self, source: random.Random) -> Instance:
        words = self.answer_symbols
        answer = tuple(words[node] for node in self.graph.walk(self.length, source))
        return Instance((*(word[0] for word in answer), ANSWER), answer)

    def check(self, instance: Instance, answer: Sequence[str]) -> Verdict:
        """Right is every text that the graph allows and that spells the prompt."""
        faults = self.graph.faults(self._allowed(instance), [self._node.get(word) for word in answer])
        says = {"unknown": "no word", "place": "wrong letter", "edge": "must not follow"}
        return judge(faults, length=len(answer), wanted=self.length, says=says)

    def planted(self, instance: Instance, count: int, source: random.Random) -> tuple[str, ...]:
        """Words that no right answer has there."""
        nodes = self.graph.wrong(self._allowed(instance), range(self.length)[:count], source)
        return tuple(self.answer_symbols[node] for node in nodes)

    @cached_property
    def _node(self) -> dict[str, int]:
        return {word: node for node, word in enumerate(self.answer_symbols)}

    def _allowed(self, instance: Instance) -> list[Collection[int]]:
        starts = [self.letters.index(letter) * self.words_per_letter for letter in instance.prompt[:-1]]
        return [range(start, start + self.words_per_letter) for start in starts]
