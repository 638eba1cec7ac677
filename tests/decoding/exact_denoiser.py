"""A denoiser that is exact, of a chain that can be enumerated: what samplers do to a distribution is then theirs alone.

Dimension letters: B rows, T columns of the input, L positions of the canvas, N sequences, V tokens of the chain.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise, product
from math import exp, prod
from types import SimpleNamespace
from typing import Any

import torch
from scipy.stats import chi2
from torch import Tensor

from paradigms.decoding.diffusion.decoder import MaskedDiffusion
from paradigms.paradigm import Request

DECIMALS = 12
SEEDS = 2000


@dataclass(frozen=True, eq=False)
class Chain:
    """A Markov chain of order 1 over the tokens 0 to V - 1.

    Attributes:
        first_V: distribution of the first token.
        next_VV: distribution of the next token, a row for each token before it.
        length: L.
    """

    first_V: Tensor
    next_VV: Tensor
    length: int

    @classmethod
    def of(cls, first: list[float], rows: list[list[float]], length: int) -> Chain:
        return cls(torch.tensor(first, dtype=torch.float64), torch.tensor(rows, dtype=torch.float64), length)

    @classmethod
    def independent(cls, probabilities: list[float], length: int) -> Chain:
        return cls.of(probabilities, [probabilities] * len(probabilities), length)

    @property
    def vocab_size(self) -> int:
        return len(self.first_V)

    @cached_property
    def probabilities(self) -> Tensor:
        """Of all V^L sequences, in lexicographic order."""
        sequences_NL = torch.tensor(list(product(range(self.vocab_size), repeat=self.length)))
        probability_N = self.first_V[sequences_NL[:, 0]].clone()
        for left, right in zip(sequences_NL.T[:-1], sequences_NL.T[1:], strict=True):
            probability_N *= self.next_VV[left, right]
        return probability_N

    def counts(self, sequences_NL: Tensor) -> Tensor:
        """How often each sequence is among these, in the order of `probabilities`."""
        places = torch.tensor([self.vocab_size**power for power in reversed(range(self.length))])
        return (sequences_NL * places).sum(-1).bincount(minlength=self.vocab_size**self.length)


class ExactDenoiser:
    """The conditionals of a chain given whatever is visible, behind a prompt of one token, as a model gives logits.

    They are rounded, so that positions that are alike are so to the last bit, and ties are broken from the left.
    """

    device = torch.device("cpu")
    config = SimpleNamespace(noise="absorbing")

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.bos_id, self.mask_id = chain.vocab_size, chain.vocab_size + 1
        self.vocabulary = SimpleNamespace(eos_id=self.bos_id, mask_id=self.mask_id, vocab_size=self.mask_id + 1)
        self.forwards = 0

    def logits_where(self, tokens_BT: Tensor, wanted_BT: Tensor, *, num_tokens: Any = None) -> Tensor:
        assert num_tokens is None and bool((tokens_BT[:, 0] == self.bos_id).all())
        self.forwards += 1
        tokens_BL, L = tokens_BT[:, 1:], tokens_BT.shape[1] - 1
        assert self.chain.length == L
        seen_LBV = torch.ones(L, len(tokens_BT), self.chain.vocab_size, dtype=torch.float64)
        visible_LB = (tokens_BL != self.mask_id).T
        seen_LBV[visible_LB] = torch.eye(self.chain.vocab_size, dtype=torch.float64)[tokens_BL.T[visible_LB]]
        left, right = [self.chain.first_V.expand_as(seen_LBV[0])], [torch.ones_like(seen_LBV[0])]
        for place in range(1, L):  # forward and backward messages, normalised so that long ones do not vanish
            left.append(_normal(left[-1] * seen_LBV[place - 1]) @ self.chain.next_VV)
            right.append(_normal(right[-1] * seen_LBV[L - place]) @ self.chain.next_VV.T)
        posterior_BLV = _normal(torch.stack(left, 1) * torch.stack(right[::-1], 1)).round(decimals=DECIMALS)
        logits_MV = torch.full((int(wanted_BT.sum()), self.vocabulary.vocab_size), float("-inf"), dtype=torch.float64)
        logits_MV[:, : self.chain.vocab_size] = posterior_BLV[wanted_BT[:, 1:]].log()
        return logits_MV


class Independent(ExactDenoiser):
    """Independent positions: the same logits wherever it is asked, for any length."""

    def __init__(self, probabilities, length):
        super().__init__(Chain.independent(probabilities, length))
        self.logits_V = torch.tensor([*probabilities, 0.0, 0.0], dtype=torch.float64).log()

    def logits_where(self, tokens_BT, wanted_BT, *, num_tokens=None):
        self.forwards += 1
        return self.logits_V.repeat(int(wanted_BT.sum()), 1)


def _normal(weights: Tensor) -> Tensor:
    return weights / weights.sum(-1, keepdim=True)


@lru_cache(maxsize=4)
def requests(model: ExactDenoiser, number: int, first_seed: int = 0) -> list[Request]:
    length = model.chain.length
    return [
        Request(id=str(seed), prompt=(model.bos_id,), max_new_tokens=length, seed=seed)
        for seed in range(first_seed, first_seed + number)
    ]


@dataclass(frozen=True)
class Samples:
    """What one decode call wrote.

    Attributes:
        sequences_NL: the sequences.
        decided_SNL: what became final at which step.
    """

    sequences_NL: Any
    decided_SNL: Tensor

    @property
    def steps_N(self) -> Tensor:
        """Steps after which each row was done."""
        last_SN = self.decided_SNL.any(-1) * torch.arange(1, len(self.decided_SNL) + 1)[:, None]
        return last_SN.amax(0)


def sample(decoder: MaskedDiffusion, model: ExactDenoiser, number: int, first_seed: int = 0) -> Samples:
    """As many sequences as seeds, in one batch."""
    batch = requests(model, number, first_seed)
    events = list(decoder.decode(model, batch, model.vocabulary))  # type: ignore[arg-type]
    assert len(events) == sum(event.forwards["model"] for event in events)
    assert sorted(row for event in events for row in event.finished) == list(range(number))
    decided_SNL = torch.stack([event.final_BK for event in events])  # type: ignore[arg-type]
    assert bool((decided_SNL.sum(0) == 1).all()), "every position is final once"
    return Samples(events[-1].token_ids_BK, decided_SNL)


def forwards(sampler, model, number=SEEDS, **more):
    """Of each row: the steps until it is done, and of those the ones that decided something."""
    samples = sample(MaskedDiffusion(sampler=sampler, **more), model, number)
    return samples.steps_N.double(), samples.decided_SNL.any(-1).sum(0).double()


def close(values_N, expected):
    """Within 3 standard errors."""
    return abs(float(values_N.mean()) - expected) < 3 * float(values_N.std()) / len(values_N) ** 0.5


def p_value(counts: Tensor, probabilities: Tensor) -> float:
    """Of a chi-square test; cells with fewer than 5 expected counts are taken together."""
    expected = probabilities * counts.sum()
    small = expected < 5
    observed = torch.cat([counts[~small], counts[small].sum()[None]]).double()
    expected = torch.cat([expected[~small], expected[small].sum()[None]])
    observed, expected = observed[expected > 0], expected[expected > 0]
    return float(chi2.sf(float(((observed - expected) ** 2 / expected).sum()), len(expected) - 1))


def entropy_loss(chain: Chain, sequences_NL: Tensor) -> tuple[float, float]:
    """Entropy of the chain less that of the samples, nats a sequence, and its standard error.

    The samples' is the plug-in estimate with Miller and Madow's correction (cells seen less one, over 2 N).
    """
    counts = chain.counts(sequences_NL)
    counts, number = counts[counts > 0].double(), len(sequences_NL)
    surprise = -(counts / number).log()
    mean = float((counts / number * surprise).sum())
    variance = float((counts / number * (surprise - mean) ** 2).sum())
    return entropy(chain.probabilities) - mean - (len(counts) - 1) / (2 * number), (variance / number) ** 0.5


# ---------------------------------------------------------------- what samplers make of a chain, by enumeration

Hidden = tuple[int | None, ...]
Rule = Callable[[list[float]], set[int]]  # probabilities of the drawn tokens -> which of them stay


def conditionals(chain: Chain, state: Hidden) -> dict[int, Tensor]:
    """Distribution of each hidden position, by summing over all sequences."""
    shape = [chain.vocab_size] * chain.length
    agree = tuple(slice(None) if token is None else slice(token, token + 1) for token in state)
    seen = chain.probabilities.view(shape)[agree]
    hidden = [place for place, token in enumerate(state) if token is None]
    found = {place: seen.movedim(place, 0).flatten(1).sum(1) for place in hidden}
    return {place: (probability / probability.sum()).round(decimals=DECIMALS) for place, probability in found.items()}


def enumerated(chain: Chain, rule: Rule) -> Tensor:
    """Distribution over sequences of a sampler that draws a token everywhere and keeps those that `rule` picks."""
    states: dict[Hidden, float] = {(None,) * chain.length: 1.0}
    finished: dict[Hidden, float] = defaultdict(float)
    while states:
        following: dict[Hidden, float] = defaultdict(float)
        for state, weight in states.items():
            known = {place: row.tolist() for place, row in conditionals(chain, state).items()}
            for drawn in product(range(chain.vocab_size), repeat=len(known)):
                confidences = [row[token] for row, token in zip(known.values(), drawn, strict=True)]
                stays = rule(confidences)
                kept = {place: token for n, (place, token) in enumerate(zip(known, drawn, strict=True)) if n in stays}
                after = tuple(kept.get(place, token) for place, token in enumerate(state))
                (following if None in after else finished)[after] += weight * prod(confidences)
        states = following
    sequences = product(range(chain.vocab_size), repeat=chain.length)
    return torch.tensor([finished[sequence] for sequence in sequences], dtype=torch.float64)


def enumerated_remasking(
    chain: Chain, alphas: Sequence[float], sigmas: Sequence[float], *, by_doubt: bool = False
) -> tuple[Tensor, list[float]]:
    """Distribution over sequences of ReMDM, and the expected share that is decided after each step.

    Args:
        alphas: share to be decided at each time, from 0 to 1.
        sigmas: probability of each step that a decided token becomes a mask again. `by_doubt`: shared among the decided
            tokens by exp(-ψ), ψ being the probability each had when drawn; masks then become tokens as with 0.
    """
    states: dict[tuple[tuple[int, float] | None, ...], float] = {(None,) * chain.length: 1.0}
    shares = []
    for (alpha_t, alpha_s), sigma in zip(pairwise(alphas), sigmas, strict=True):
        following: dict[Any, float] = defaultdict(float)
        rate = (alpha_s - (1 - (0 if by_doubt else sigma)) * alpha_t) / (1 - alpha_t)
        for state, weight in states.items():
            known = conditionals(chain, tuple(None if one is None else one[0] for one in state))
            doubt = sum(exp(-one[1]) for one in state if one is not None)
            outcomes: list[list[tuple[Any, float]]] = []
            for place, one in enumerate(state):
                if one is None:
                    drawn = enumerate(known[place].tolist())
                    outcomes.append([(None, 1 - rate), *(((token, p * by_doubt), rate * p) for token, p in drawn)])
                else:
                    again = sigma * exp(-one[1]) / doubt if by_doubt else sigma
                    outcomes.append([(None, again), (one, 1 - again)])
            for together in product(*outcomes):
                following[tuple(one for one, _ in together)] += weight * prod(p for _, p in together)
        states = {state: weight for state, weight in following.items() if weight}
        decided = sum(weight * sum(one is not None for one in state) for state, weight in states.items())
        shares.append(decided / chain.length)
    finished: dict[Hidden, float] = defaultdict(float)
    for state, weight in states.items():
        finished[tuple(one and one[0] for one in state)] += weight
    sequences = product(range(chain.vocab_size), repeat=chain.length)
    return torch.tensor([finished[sequence] for sequence in sequences], dtype=torch.float64), shares


def entropy(probabilities: Tensor) -> float:
    """In nats."""
    return -float(torch.special.xlogy(probabilities, probabilities).sum())
