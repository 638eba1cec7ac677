"""Star graphs (2403.06963): several paths leave a source, and the one that ends at the goal is to be written down.

The edges come in random order, then source and goal, then the path. All after its second node follows by looking up the
next edge; which second node is right is known only from the other end. Next-token prediction learns to look up and
never to look ahead: it ends at 1 / degree. What decides the end first need not guess.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

from paradigms.data.tasks.task import Instance, Task, Verdict, compare

EDGE, ASK, ANSWER = "|", "/", "="


@dataclass(frozen=True, kw_only=True)
class StarGraph(Task):
    """Attributes:
    degree: paths that leave the source.
    path_len: nodes of a path, source and end included.
    num_nodes: names of nodes to draw from.
    """

    degree: int = 2
    path_len: int = 4
    num_nodes: int = 20
    name: ClassVar[str] = "star_graph"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.degree < 1 or self.path_len < 2:
            raise ValueError(f"corpus.degree={self.degree} and path_len={self.path_len}: at least 1 path of 2 nodes")
        if self._nodes_of_a_graph > self.num_nodes:
            raise ValueError(
                f"corpus.num_nodes={self.num_nodes} is less than the {self._nodes_of_a_graph} nodes of a graph with "
                f"degree={self.degree} and path_len={self.path_len}"
            )

    @property
    def _nodes_of_a_graph(self) -> int:
        return 1 + self.degree * (self.path_len - 1)

    @property
    def symbols(self) -> tuple[str, ...]:
        return (*map(str, range(self.num_nodes)), EDGE, ASK, ANSWER)

    @property
    def answer_symbols(self) -> tuple[str, ...]:
        return self.symbols[: self.num_nodes]

    @property
    def prompt_len(self) -> int:
        return 3 * self.degree * (self.path_len - 1) + 4

    @property
    def answer_len(self) -> int:
        return self.path_len

    def draw(self, source: random.Random) -> Instance:
        first, *others = map(str, source.sample(range(self.num_nodes), self._nodes_of_a_graph))
        steps = self.path_len - 1
        paths = [(first, *others[start : start + steps]) for start in range(0, len(others), steps)]
        edges = [edge for path in paths for edge in pairwise(path)]
        source.shuffle(edges)
        path = paths[source.randrange(self.degree)]
        prompt = [symbol for edge in edges for symbol in (*edge, EDGE)]
        return Instance((*prompt, ASK, first, path[-1], ANSWER), path)

    def check(self, instance: Instance, answer: Sequence[str]) -> Verdict:
        """Right is the one path; the first error is at the fork, or later."""
        verdict = compare(answer, instance.answer)
        if verdict.problem == "wrong symbol":
            first = next(
                i for i, (said, right) in enumerate(zip(answer, instance.answer, strict=True)) if said != right
            )
            problem = "wrong source" if first == 0 else "wrong branch" if first == 1 else "lost on the way"
            return Verdict(False, verdict.share, problem)
        return verdict

    def identity(self, instance: Instance) -> Any:
        """The order of edges asks nothing."""
        edges = instance.prompt[: 3 * self.degree * (self.path_len - 1)]
        return [sorted(zip(edges[::3], edges[1::3], strict=True)), instance.prompt[-3:]]
