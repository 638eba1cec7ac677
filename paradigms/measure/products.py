"""What decoding cannot undercut: the bare matrix products of one token, timed.

At batch 1 a decode step multiplies one row with every weight matrix once, with one that layers share once a layer, and
whatever else it does comes on top. The same matrices, one after another, each times a row, by the fastest product that
the decoder itself uses, tell how close a decode step is to that.
"""

from __future__ import annotations

import time
from collections import Counter
from statistics import median

import torch
from torch import Tensor

from paradigms.models.kernels import row_product
from paradigms.models.stack import Model

NUM_TRIES = 15


def products_s(model: Model) -> float:
    """Seconds of one row times each matrix that a token meets, the head included: the median of a few tries.

    Raises:
        ValueError: routed experts, of which a token meets some, chosen by its values.
    """
    work = [(row_product(matrix), matrix.new_ones(1, matrix.shape[0])) for matrix in matrices(model)]
    tries_s = []
    with torch.inference_mode():
        for _ in range(NUM_TRIES + 1):
            _wait(model)
            started = time.perf_counter()
            for multiply, row in work:
                multiply(row)
            _wait(model)
            tries_s.append(time.perf_counter() - started)
    return median(tries_s[1:])


def matrices(model: Model) -> list[Tensor]:
    """Weights [E, O] that every token is multiplied with, the head included; shared ones once for each of their layers.

    Raises:
        ValueError: routed experts, of which a token meets some, chosen by its values.
    """
    if "E" in model.config.layers:
        raise ValueError(f"model.block={model.config.block!r} has routed experts; which matrices a token meets depends")
    skip = ("conv_weight", "A_log") if model.config.tied_head else ("conv_weight", "A_log", "embedding")
    places = Counter(f"shared.{part.key}" for part in model.config.parts)
    return [
        parameter
        for name, parameter in model.named_parameters()
        if parameter.dim() == 2 and name.rpartition(".")[2] not in skip
        for _ in range(places.get(name.rpartition(".")[0], 1))
    ]


def _wait(model: Model) -> None:
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
