"""A Markov chain of order k: the next letter depends on the k before it, by probabilities drawn once.

Documents begin in the stationary distribution: their first letters are drawn as those of a chain that has run for ever,
from the marginals of its distribution π over k letters, P(a | h) = Σ π(h a ...) / Σ π(h ...) for a shorter history h.

Dimension letters: A letters, C = A^k contexts, S contexts of up to k letters.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from string import ascii_lowercase
from typing import ClassVar

import numpy as np

from paradigms.data.processes.process import drawn_rows, stationary
from paradigms.data.processes.unifilar import Unifilar

MAX_CONTEXTS = 4096


@dataclass(frozen=True, kw_only=True)
class Markov(Unifilar):
    """Attributes:
    order: letters that the next one depends on, 1 to 3.
    alphabet: letters.
    concentration: of the Dirichlet distribution that each context's probabilities are drawn from: 1 is uniform over
        all distributions, less makes them sharper.
    """

    order: int = 2
    alphabet: int = 8
    concentration: float = 0.5
    name: ClassVar[str] = "markov"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.order <= 3:
            raise ValueError(f"corpus.order={self.order} is not possible; it is 1, 2 or 3")
        if not 2 <= self.alphabet <= len(ascii_lowercase) or self.alphabet**self.order > MAX_CONTEXTS:
            raise ValueError(
                f"corpus.alphabet={self.alphabet} with corpus.order={self.order}: 2 to {len(ascii_lowercase)} letters, "
                f"and at most {MAX_CONTEXTS} contexts (alphabet ** order)"
            )
        if self.concentration <= 0:
            raise ValueError(f"corpus.concentration={self.concentration} must be above 0")

    @property
    def letters(self) -> tuple[str, ...]:
        return tuple(ascii_lowercase[: self.alphabet])

    @cached_property
    def rows_CA(self) -> np.ndarray:
        """Probabilities of the next letter by context, the oldest letter of a context highest."""
        source = np.random.default_rng([self.seed, self.order, self.alphabet, 0x6D61726B])
        return drawn_rows(source, self.concentration, self.alphabet**self.order, self.alphabet)

    @cached_property
    def stationary_C(self) -> np.ndarray:
        """Distribution of k letters in a row."""
        C, A = self.rows_CA.shape

        def step(mass_1C: np.ndarray) -> np.ndarray:
            said_CA = mass_1C[0][:, None] * self.rows_CA
            return said_CA.reshape(A, C // A, A).sum(0).reshape(1, C)  # the oldest letter falls out

        return stationary(step, np.full(C, 1 / C))

    @cached_property
    def emission_SA(self) -> np.ndarray:
        A, tables = self.alphabet, []
        for known in range(self.order):
            joint = self.stationary_C.reshape(A ** (known + 1), -1).sum(1).reshape(A**known, A)
            tables.append(joint / joint.sum(1, keepdims=True))
        return np.concatenate([*tables, self.rows_CA])

    @cached_property
    def next_SA(self) -> np.ndarray:
        A, tables, first = self.alphabet, [], 0
        for known in range(self.order + 1):
            number_X1 = np.arange(A**known)[:, None] * A + np.arange(A)
            if known < self.order:
                first += A**known  # where contexts of one letter more begin
                tables.append(first + number_X1)
            else:
                tables.append(first + number_X1 % A**known)
        return np.concatenate(tables)
