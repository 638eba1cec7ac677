"""A hidden Markov model: a state says a letter, then moves on; the letters alone never tell the state for sure.

The belief is the forward algorithm's (Rabiner 1989), normalised at each letter. The next letter depends on all before
it, so no n-gram is exact, and the entropy rate has no closed form (Blackwell 1957): it is simulated, with its error.
Documents begin in the stationary distribution.

Dimension letters: N documents, A letters, S states, R rows of masses over states.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from string import ascii_lowercase
from typing import ClassVar

import numpy as np

from paradigms.data.processes.process import Process, drawn_rows, stationary

MAX_STATES = 256


@dataclass(frozen=True, kw_only=True)
class HiddenMarkov(Process):
    """Attributes:
    states: hidden states.
    alphabet: letters.
    concentration: of the Dirichlet distributions that moves and letters of each state are drawn from.
    stay: probability of staying in a state before a move is drawn; the larger, the longer the memory.
    """

    states: int = 8
    alphabet: int = 8
    concentration: float = 0.3
    stay: float = 0.7
    name: ClassVar[str] = "hidden_markov"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.states <= MAX_STATES:
            raise ValueError(f"corpus.states={self.states} must be from 1 to {MAX_STATES}")
        if not 2 <= self.alphabet <= len(ascii_lowercase):
            raise ValueError(f"corpus.alphabet={self.alphabet} must be from 2 to {len(ascii_lowercase)} letters")
        if self.concentration <= 0:
            raise ValueError(f"corpus.concentration={self.concentration} must be above 0")
        if not 0 <= self.stay < 1:
            raise ValueError(f"corpus.stay={self.stay} must be at least 0 and below 1, or no state is ever left")

    @property
    def letters(self) -> tuple[str, ...]:
        return tuple(ascii_lowercase[: self.alphabet])

    @cached_property
    def _rows(self) -> tuple[np.ndarray, np.ndarray]:
        source = np.random.default_rng([self.seed, self.states, self.alphabet, 0x68696464])
        moves_SS = drawn_rows(source, self.concentration, self.states, self.states)
        return moves_SS, drawn_rows(source, self.concentration, self.states, self.alphabet)

    @cached_property
    def transition_SS(self) -> np.ndarray:
        """Probabilities of the next state by state."""
        return self.stay * np.eye(self.states) + (1 - self.stay) * self._rows[0]

    @property
    def emission_SA(self) -> np.ndarray:
        return self._rows[1]

    @cached_property
    def start_S(self) -> np.ndarray:
        return stationary(self.step, np.full(self.states, 1 / self.states))

    def begin(self, num: int) -> np.ndarray:
        return np.tile(self.start_S, (num, 1))

    def predict(self, belief_N: np.ndarray) -> np.ndarray:
        return belief_N @ self.emission_SA

    def advance(self, belief_N: np.ndarray, letter_N: np.ndarray) -> np.ndarray:
        joint_NS = belief_N * self.emission_SA[:, letter_N].T
        return joint_NS / joint_NS.sum(1, keepdims=True) @ self.transition_SS

    def move(self, mass_RS: np.ndarray, letter: int) -> np.ndarray:
        return mass_RS * self.emission_SA[:, letter] @ self.transition_SS

    def step(self, mass_RS: np.ndarray) -> np.ndarray:
        return mass_RS @ self.transition_SS
