"""Oracles of the bound on texts that are short enough to read every mask: slow, and nothing of what they check is used.

`losses` reads each mask in a plain forward. The forms of the bound are then sums over them.

Dimension letters: L scored tokens, T columns, V vocabulary.
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import tiny
import torch

from paradigms.models.config import ModelConfig
from paradigms.models.stack import Model

Losses = dict[frozenset[int], dict[int, float]]  # masked columns -> of each of them, −ln p of its token


def network(config: ModelConfig) -> Model:
    """Random weights, the modulations of time among them, that begin as nothing."""
    model = tiny.random_model(config).requires_grad_(False)
    if config.conditioning is not None:
        draw = torch.Generator().manual_seed(1)
        for name, parameter in model.named_parameters():
            if "modulation" in name:
                parameter.copy_(0.5 * torch.randn(parameter.shape, generator=draw))
    return model


def subsets(columns: Sequence[int], size: int) -> list[frozenset[int]]:
    return [frozenset(chosen) for chosen in itertools.combinations(columns, size)]


def losses(model, text: Sequence[int], columns: Sequence[int], *, mask_id: int, stop: int | None = None) -> Losses:
    """For every set of masked columns out of `columns`, what each costs given the rest of text[:stop]; a model that
    reads the time is told the share that is masked.
    """
    sets = [chosen for size in range(1, len(columns) + 1) for chosen in subsets(columns, size)]
    rows = [[mask_id if i in chosen else token for i, token in enumerate(text[:stop])] for chosen in sets]
    told = {}
    if model.config.reads_time:
        told = {"time_B": torch.tensor([len(chosen) / len(columns) for chosen in sets], dtype=torch.float64)}
    with torch.no_grad():
        logits = model(torch.tensor(rows), **told)
    logits[..., mask_id] = -math.inf
    log_p = logits.log_softmax(-1)
    return {chosen: {i: -log_p[row, i, text[i]].item() for i in sorted(chosen)} for row, chosen in enumerate(sets)}


def columns_of(found: Losses) -> list[int]:
    return sorted(max(found, key=len))


def by_counts(found: Losses) -> float:
    """E over l and masks of l of the L columns of (L / l) Σ −ln p."""
    columns = columns_of(found)
    L = len(columns)
    return (
        sum(
            (L / size) * np.mean([sum(found[masked].values()) for masked in subsets(columns, size)])
            for size in range(1, L + 1)
        )
        / L
    )


def by_time(found: Losses, low: float = 0.0, rate: float = 1.0) -> float:
    """∫ (1/t) Σ_masks p^l (1 − p)^(L − l) Σ −ln p dt over t from `low` to 1, divided by 1 − low, with p = rate x t:
    the bound itself with low = 0 and rate = 1. By Gauss and Legendre.
    """
    L = len(columns_of(found))
    nodes, weights = np.polynomial.legendre.leggauss(30)
    t = low + (1 - low) * (nodes + 1) / 2
    p = rate * t
    return sum(
        (weights / 2 / t * p ** len(masked) * (1 - p) ** (L - len(masked))).sum() * sum(loss.values())
        for masked, loss in found.items()
    )


def order_nlls(found: Losses) -> list[float]:
    """−ln of the probability that deciding one column after another gives the text, order by order."""
    orders = itertools.permutations(columns_of(found))
    return [sum(found[frozenset(order[k:])][order[k]] for k in range(len(order))) for order in orders]


def variances(found: Losses, low: float) -> dict[str, float]:
    """Variance of the mean of 128 draws of each estimator of the bound, exactly but for the quadrature over t.

    Times run from `low` to 1: from 0 the variance of (1/t) Σ is infinite.
    """
    columns, draws = columns_of(found), 128
    L = len(columns)
    total = {masked: sum(loss.values()) for masked, loss in found.items()}

    def at_count(size: int) -> list[float]:
        return [L / size * total[masked] for masked in subsets(columns, size)]

    within = np.mean([np.var(at_count(size)) for size in range(1, L + 1)])
    between = np.var([np.mean(at_count(size)) for size in range(1, L + 1)])

    def moments(left: float, right: float) -> tuple[float, float]:
        """Mean of the estimate and of its square over t uniform between them."""
        nodes, weights = np.polynomial.legendre.leggauss(30)
        t = left + (right - left) * (nodes + 1) / 2
        chance = {masked: weights / 2 * t ** len(masked) * (1 - t) ** (L - len(masked)) for masked in total}
        return (
            sum((chance[masked] / t).sum() * total[masked] for masked in total),
            sum((chance[masked] / t**2).sum() * total[masked] ** 2 for masked in total),
        )

    edges = np.linspace(low, 1, draws + 1)
    strata = [moments(left, right) for left, right in itertools.pairwise(edges)]
    mean, square = np.mean([m for m, _ in strata]), np.mean([s for _, s in strata])
    return {
        "counts, stratified": within / draws,
        "counts, independent": (within + between) / draws,
        "times, independent": (square - mean**2) / draws,
        "times, stratified": sum(s - m * m for m, s in strata) / draws**2,
    }
