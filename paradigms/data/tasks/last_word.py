"""A text of so many words that begins with one given word and ends with another: a constraint on the future.

The prompt is the first word, the last word and their number; a fixed graph (`graph_seed`) says which words may follow
which, and is learnt. Texts are drawn uniformly among all that the graph allows: every answer of a prompt is as likely
as the others, and any is right. Each step is easy by itself; one that takes any allowed word ends with the wanted one
16 times in 1,000 (expected over the held-out prompts of the default size).
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from paradigms.data.tasks.task import Instance, Task, Verdict
from paradigms.data.tasks.walk_infilling import Graph, judge

ANSWER = "="


@dataclass(frozen=True, kw_only=True)
class LastWord(Task):
    """Attributes:
    min_len, max_len: words of an answer, its first and last included.
    num_words: of the lexicon: "w0", "w1", ...
    degree: words that may follow a word, and that it may follow.
    graph_seed: which ones.
    """

    min_len: int = 6
    max_len: int = 9
    num_words: int = 64
    degree: int = 3
    graph_seed: int = 0
    name: ClassVar[str] = "last_word"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.min_len <= self.max_len:
            raise ValueError(
                f"corpus.min_len={self.min_len} and max_len={self.max_len}: a text has at least 2 words, its first and "
                "its last, and min_len is not above max_len"
            )
        _ = self.graph  # which has its own conditions

    @cached_property
    def graph(self) -> Graph:
        return Graph(self.num_words, self.degree, self.graph_seed)

    @property
    def symbols(self) -> tuple[str, ...]:
        return (*self.answer_symbols, *map(str, range(self.min_len, self.max_len + 1)), ANSWER)

    @property
    def answer_symbols(self) -> tuple[str, ...]:
        return tuple(f"w{number}" for number in range(self.num_words))

    @property
    def prompt_len(self) -> int:
        return 4

    @property
    def answer_len(self) -> int:
        return self.max_len

    def draw(self, source: random.Random) -> Instance:
        length = source.randint(self.min_len, self.max_len)
        answer = tuple(f"w{node}" for node in self.graph.walk(length, source))
        return Instance((answer[0], answer[-1], str(length), ANSWER), answer)

    def check(self, instance: Instance, answer: Sequence[str]) -> Verdict:
        """Right is every text that the graph allows, of that length and between these words."""
        allowed = self._allowed(instance)
        faults = self.graph.faults(allowed, [self._node.get(word) for word in answer])
        end = "wrong first word" if faults[:1] == ["place"] else "wrong last word"
        says = {"unknown": "no word", "place": end, "edge": "must not follow"}
        return judge(faults, length=len(answer), wanted=len(allowed), says=says)

    def planted(self, instance: Instance, count: int, source: random.Random) -> tuple[str, ...]:
        """Words that no right answer has there."""
        allowed = self._allowed(instance)
        return tuple(f"w{node}" for node in self.graph.wrong(allowed, range(len(allowed))[:count], source))

    @cached_property
    def _node(self) -> dict[str, int]:
        return {word: node for node, word in enumerate(self.answer_symbols)}

    def _allowed(self, instance: Instance) -> list[Collection[int]]:
        first, last, length, _ = instance.prompt
        between = [range(self.num_words)] * (int(length) - 2)
        return [{self._node[first]}, *between, {self._node[last]}]
