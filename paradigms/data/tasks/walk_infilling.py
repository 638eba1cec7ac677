"""Gaps in a walk: places between given ones are filled so that all neighbours are edges of a graph that is learnt.

The graph follows from `graph_seed`: `degree` edges lead out of every place and as many into it, and no prompt tells
them. Walks are drawn uniformly; the ends of gaps are given, and any filling that fits them is right. As every walk is
as likely, so is every filling of the same gaps. One that walks on without looking ahead stands where an edge leads to
what is given behind a gap 17 times in 100 (expected over the gaps of the held-out walks of the default size).

A denoiser sees what is given on both sides of a gap, as it did in training. A causal model is trained on plain rows,
left to right, in which a given place is read where it stands and not scored. Asked, it reads what is given behind a
gap ahead of the prompt too, as any canvas (`decoding.prompts`): an order that it was never trained on.

`Graph` is what other tasks of fixed graphs share with this one.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from paradigms.data.stream import draw as seed_of
from paradigms.data.tasks.task import Instance, Task, Verdict

ASK = "walk:"
SWITCHES = 20  # tried for each edge, to get from a ring to a random graph

Allowed = Sequence[Collection[int]]  # of each place of a walk, the nodes that may stand there


@dataclass(frozen=True)
class Graph:
    """A random graph in which every node has `degree` edges out of it and as many into it, none of them to itself.

    A ring in which each node leads to those next to it is mixed by switches: two edges exchange their ends where that
    makes no loop and no edge twice. A walk that starts anywhere and goes on at random is then any walk, all alike.
    """

    num_nodes: int
    degree: int
    seed: int

    def __post_init__(self) -> None:
        if not 1 <= self.degree < self.num_nodes:
            raise ValueError(
                f"corpus.degree={self.degree} must be at least 1 and less than the {self.num_nodes} nodes of the graph"
            )

    @cached_property
    def follows(self) -> tuple[tuple[int, ...], ...]:
        """Where each node leads to, ascending."""
        source = random.Random(seed_of("graph", self.num_nodes, self.degree, self.seed))
        steps = range(1, self.degree + 1)
        edges = [(node, (node + step) % self.num_nodes) for node in range(self.num_nodes) for step in steps]
        known = set(edges)
        for _ in range(SWITCHES * len(edges)):
            one, other = source.sample(range(len(edges)), 2)
            (start, end), (begin, stop) = edges[one], edges[other]
            new = {(start, stop), (begin, end)}
            if start != stop and begin != end and known.isdisjoint(new):
                known -= {edges[one], edges[other]}
                known |= new
                edges[one], edges[other] = (start, stop), (begin, end)
        return tuple(tuple(sorted(stop for start, stop in edges if start == node)) for node in range(self.num_nodes))

    def walk(self, length: int, source: random.Random) -> list[int]:
        """So many nodes; all walks are equally likely."""
        nodes = [source.randrange(self.num_nodes)]
        while len(nodes) < length:
            nodes.append(source.choice(self.follows[nodes[-1]]))
        return nodes

    def possible(self, allowed: Allowed) -> list[set[int]]:
        """Nodes of each place that some walk through allowed nodes has there."""
        ahead = [set(allowed[-1])]  # nodes from which the rest can be walked
        for here in reversed(allowed[:-1]):
            ahead.append({node for node in here if not ahead[-1].isdisjoint(self.follows[node])})
        found = [ahead.pop()]
        while ahead:
            reached = {after for node in found[-1] for after in self.follows[node]}
            found.append(ahead.pop() & reached)
        return found

    def wrong(self, allowed: Allowed, places: Sequence[int], source: random.Random) -> list[int]:
        """For each of these places a node that no walk through allowed nodes has there.

        Raises:
            ValueError: every node is right in one of them.
        """
        possible = self.possible(allowed)
        wrong = [[node for node in range(self.num_nodes) if node not in possible[place]] for place in places]
        if not all(wrong):
            raise ValueError(
                f"workload.planted={len(places)}: every symbol is right at place {places[wrong.index([])]} of some "
                "answer, so that no error can be planted there; plant fewer, or lower corpus.degree"
            )
        return [source.choice(nodes) for nodes in wrong]

    def faults(self, allowed: Allowed, nodes: Sequence[int | None]) -> list[str | None]:
        """What is wrong at each place that an answer and its walks have: "unknown" (no node), "place" (not allowed
        there), "edge" (does not follow the node before), or None.
        """
        found: list[str | None] = []
        for place, (here, node) in enumerate(zip(allowed, nodes, strict=False)):
            before = nodes[place - 1] if place else None
            if node is None:
                found.append("unknown")
            elif node not in here:
                found.append("place")
            elif place and (before is None or node not in self.follows[before]):
                found.append("edge")
            else:
                found.append(None)
        return found


def judge(faults: Sequence[str | None], *, length: int, wanted: int, says: Mapping[str, str]) -> Verdict:
    """The verdict on a walk of `length` nodes where `wanted` are right; its share is that of places without a fault.

    Args:
        faults: of `Graph.faults`.
        says: what this task calls each kind of fault.
    """
    share = faults.count(None) / max(length, wanted)
    if not length:
        return Verdict(False, 0.0, "no answer")
    if length != wanted:
        return Verdict(False, share, "too short" if length < wanted else "too long")
    first = next((fault for fault in faults if fault is not None), None)
    return Verdict(True, 1.0) if first is None else Verdict(False, share, says[first])


@dataclass(frozen=True, kw_only=True)
class WalkInfilling(Task):
    """Attributes:
    num_nodes, degree, graph_seed: of the graph.
    num_gaps, gap_len: gaps, and open places in each; a place is given before, between and behind them.
    """

    num_nodes: int = 20
    degree: int = 3
    num_gaps: int = 3
    gap_len: int = 3
    graph_seed: int = 0
    name: ClassVar[str] = "walk_infilling"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_gaps < 1 or self.gap_len < 1:
            raise ValueError(f"corpus.num_gaps={self.num_gaps} and gap_len={self.gap_len}: at least 1 gap of 1 place")
        _ = self.graph  # which has its own conditions

    @cached_property
    def graph(self) -> Graph:
        return Graph(self.num_nodes, self.degree, self.graph_seed)

    @property
    def symbols(self) -> tuple[str, ...]:
        return (*self.answer_symbols, ASK)

    @property
    def answer_symbols(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.num_nodes)))

    @property
    def prompt_len(self) -> int:
        return 1

    @property
    def answer_len(self) -> int:
        return self.num_gaps * (self.gap_len + 1) + 1

    def draw(self, source: random.Random) -> Instance:
        walk = tuple(map(str, self.graph.walk(self.answer_len, source)))
        given = tuple((place, walk[place]) for place in range(0, self.answer_len, self.gap_len + 1))
        return Instance((ASK,), walk, given)

    def check(self, instance: Instance, answer: Sequence[str]) -> Verdict:
        """Right is every walk that passes what is given."""
        faults = self.graph.faults(self._allowed(instance), [self._node.get(symbol) for symbol in answer])
        says = {"unknown": "no place", "place": "changed what is given", "edge": "no edge"}
        return judge(faults, length=len(answer), wanted=self.answer_len, says=says)

    def planted(self, instance: Instance, count: int, source: random.Random) -> tuple[str, ...]:
        """Places that no right filling has there."""
        given = dict(instance.given)
        places = [place for place in range(self.answer_len) if place not in given][:count]
        return tuple(map(str, self.graph.wrong(self._allowed(instance), places, source)))

    @cached_property
    def _node(self) -> dict[str, int]:
        return {symbol: node for node, symbol in enumerate(self.answer_symbols)}

    def _allowed(self, instance: Instance) -> list[Collection[int]]:
        given = dict(instance.given)
        everywhere = range(self.num_nodes)
        return [{int(given[place])} if place in given else everywhere for place in range(self.answer_len)]
