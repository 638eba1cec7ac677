"""Sources whose hidden state is known from the letters so far: a Markov chain's last letters, a grammar's stack.

Then the belief is one state, and entropies are exact: with m_t the distribution of the state before letter t,

    H(x_1, ..., x_T) = Σ_t Σ_s m_t(s) H(x | s)        rate = Σ_s m(s) H(x | s), m stationary

Dimension letters: N documents, A letters, S states, R rows of masses over states.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import sparse

from paradigms.data.processes.process import Estimated, Process, entropy_bits, stationary


@dataclass(frozen=True, kw_only=True)
class Unifilar(Process):
    """A table of states; every document begins in state 0."""

    @property
    @abstractmethod
    def next_SA(self) -> np.ndarray:
        """The state that follows a state and a letter, impossible letters included."""

    @cached_property
    def start_S(self) -> np.ndarray:
        return np.eye(1, len(self.emission_SA))[0]

    def begin(self, num: int) -> np.ndarray:
        return np.zeros(num, np.int64)

    def predict(self, belief_N: np.ndarray) -> np.ndarray:
        return self.emission_SA[belief_N]

    def advance(self, belief_N: np.ndarray, letter_N: np.ndarray) -> np.ndarray:
        return self.next_SA[belief_N, letter_N]

    @cached_property
    def _moves(self) -> list[sparse.csr_matrix]:
        """[S, S] of each letter."""
        S, A = self.emission_SA.shape
        return [
            sparse.csr_matrix((self.emission_SA[:, a], (np.arange(S), self.next_SA[:, a])), shape=(S, S))
            for a in range(A)
        ]

    @cached_property
    def _step(self) -> sparse.csr_matrix:
        return sum(self._moves[1:], self._moves[0])

    def move(self, mass_RS: np.ndarray, letter: int) -> np.ndarray:
        return np.asarray(mass_RS @ self._moves[letter])

    def step(self, mass_RS: np.ndarray) -> np.ndarray:
        return np.asarray(mass_RS @ self._step)

    @cached_property
    def entropy_bits(self) -> Estimated:
        """Entropy of a document, H(x_1, ..., x_T) / T, in bits a letter; exact."""
        return Estimated(float((self.masses(self.document_len) @ entropy_bits(self.emission_SA)).mean()))

    @cached_property
    def entropy_rate_bits(self) -> Estimated:
        """The limit of H(x_t | x_<t), in bits a letter; exact."""
        return Estimated(float(stationary(self.step, self.start_S) @ entropy_bits(self.emission_SA)))
