"""Processes as models, exact; and sources that are spoiled in a known way.

Dimension letters: B rows, T columns, L letters of a document, A letters, S states, V tokens, M wanted places.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from paradigms.data.processes.process import Process, draw_letters
from paradigms.data.symbols import FIRST_SYMBOL_ID
from paradigms.data.tokenizers import EOS_ID, MASK_ID


class _Source(torch.nn.Module):
    """What both kinds have in common: a model of documents of one length, in float64."""

    weight_bytes = 8
    device = torch.device("cpu")
    dtype = torch.float64

    def __init__(self, process: Process, **config: Any) -> None:
        super().__init__()
        self.process = process
        self.anchor = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
        sizes = {"vocab_size": process.vocab_size, "max_positions": process.row_tokens}
        self.config = SimpleNamespace(**sizes, canvas_block=None, reads_time=False, **config)


class SourceModel(_Source):
    """Causal: column i says the letter at i + 1, and the end behind the last.

    Attributes:
        temperature: other than 1 spoils it.
    """

    def __init__(self, process: Process, temperature: float = 1.0) -> None:
        super().__init__(process, causal=True, noise=None, has_state=False)
        self.temperature = temperature

    def forward(self, tokens_BT, state=None, *, num_tokens=None, logits_at=None):
        assert state is None and num_tokens is None
        letters_BT = np.zeros(tokens_BT.shape, np.int64)
        letters_BT[:, :-1] = tokens_BT[:, 1:].numpy() - FIRST_SYMBOL_ID
        logits_BTV = np.full((*letters_BT.shape, self.process.vocab_size), -np.inf)
        logits_BTV[..., FIRST_SYMBOL_ID:] = self.process.log_probabilities(letters_BT) / self.temperature
        logits_BTV[:, self.process.document_len :] = -np.inf
        logits_BTV[:, self.process.document_len :, EOS_ID] = 0
        return torch.from_numpy(logits_BTV)[:, slice(None) if logits_at is None else logits_at]

    def logits_where(self, tokens_BT, wanted_BT, **told):
        return self(tokens_BT)[wanted_BT]


class SourceDenoiser(_Source):
    """Each masked letter given all others, by forward and backward messages over the states; the end is certain."""

    def __init__(self, process: Process) -> None:
        super().__init__(process, causal=False, noise="absorbing")
        S = len(process.start_S)
        self.moves_ASS = np.stack([process.move(np.eye(S), a) for a in range(len(process.letters))])

    def logits_where(self, tokens_BT, wanted_BT, **told):
        logits_BTV = torch.from_numpy(np.stack([self._row(tokens_T) for tokens_T in tokens_BT.numpy()]))
        return logits_BTV[wanted_BT]

    def _row(self, tokens_T: np.ndarray) -> np.ndarray:
        L = self.process.document_len
        moves = [
            self.moves_ASS.sum(0) if token == MASK_ID else self.moves_ASS[token - FIRST_SYMBOL_ID]
            for token in tokens_T[1 : 1 + L]
        ]
        left, right = [self.process.start_S], [np.ones(len(self.process.start_S))]
        for place in range(L):
            left.append(left[-1] @ moves[place] / (left[-1] @ moves[place]).sum())
            right.append(moves[L - 1 - place] @ right[-1] / (moves[L - 1 - place] @ right[-1]).sum())
        logits_TV = np.full((len(tokens_T), self.process.vocab_size), -np.inf)
        for place in range(L):
            joint_A = np.einsum("s,ast,t->a", left[place], self.moves_ASS, right[L - 1 - place])
            with np.errstate(divide="ignore"):
                logits_TV[1 + place, FIRST_SYMBOL_ID:] = np.log(joint_A / joint_A.sum())
        logits_TV[1 + L :, EOS_ID] = 0
        logits_TV[0, EOS_ID] = 0
        return logits_TV


def tempered(process: Process, source: np.random.Generator, num: int, temperature: float) -> np.ndarray:
    """Documents each of whose letters is drawn from p^(1 / temperature)."""
    letters_NT = np.empty((num, process.document_len), np.int64)
    belief_N = process.begin(num)
    for t in range(process.document_len):
        letters_NT[:, t] = draw_letters(source, process.predict(belief_N) ** (1 / temperature))
        belief_N = process.advance(belief_N, letters_NT[:, t])
    return letters_NT


def shuffled(letters_NT: np.ndarray, source: np.random.Generator) -> np.ndarray:
    """Each document's letters in another order."""
    return source.permuted(letters_NT, axis=1)
