"""Numbers that count what is done to them, and small references written with them, loop by loop.

What `paradigms.models.operations` calls an operation counts one: + - x / and elementary functions. Matrix products
(`product`, `dot`) are left out: torch's counter has them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor


class Number:
    """A float; `Number.operations` is how many there have been."""

    operations = 0
    __slots__ = ("value",)

    def __init__(self, value: float) -> None:
        self.value = value

    def _with(self, other: Any, what: Callable[[float, float], float]) -> Number:
        Number.operations += 1
        return Number(what(self.value, other.value if isinstance(other, Number) else other))

    def __add__(self, other: Any) -> Number:
        return self._with(other, lambda a, b: a + b)

    def __sub__(self, other: Any) -> Number:
        return self._with(other, lambda a, b: a - b)

    def __mul__(self, other: Any) -> Number:
        return self._with(other, lambda a, b: a * b)

    def __truediv__(self, other: Any) -> Number:
        return self._with(other, lambda a, b: a / b)

    def __neg__(self) -> Number:
        return Number(-self.value)


Row = list[Number]


def elementary(what: Callable[[float], float]) -> Callable[[Number], Number]:
    def of(x: Number) -> Number:
        Number.operations += 1
        return Number(what(x.value))

    return of


exp = elementary(math.exp)
sigmoid = elementary(lambda x: 1 / (1 + math.exp(-x)))
softplus = elementary(lambda x: math.log1p(math.exp(x)))
tanh, erf, cos, sin = (elementary(what) for what in (math.tanh, math.erf, math.cos, math.sin))
reciprocal_root = elementary(lambda x: x**-0.5)


def row(values: Sequence[float]) -> Row:
    return [Number(value) for value in values]


def zeros(count: int) -> Row:
    return row([0.0] * count)


def dot(a: Sequence[Number], b: Sequence[Number]) -> Number:
    """Part of a matrix product."""
    return Number(sum(x.value * y.value for x, y in zip(a, b, strict=True)))


def product(x: Row, weights: Tensor) -> Row:
    """x @ weights, not counted."""
    return [Number(sum(a.value * w for a, w in zip(x, column, strict=True))) for column in weights.t().tolist()]


def total(values: Sequence[Number]) -> Number:
    first, *rest = values
    for value in rest:
        first = first + value
    return first


def added(a: Row, b: Row) -> Row:
    return [x + y for x, y in zip(a, b, strict=True)]


def times(a: Row, b: Any) -> Row:
    return [x * y for x, y in zip(a, b, strict=True)]


def rms_norm(x: Row, weight: Tensor | None, eps: float) -> Row:
    scale = reciprocal_root(total([value * value for value in x]) / len(x) + eps)
    normed = [value * scale for value in x]
    return normed if weight is None else times(normed, weight.tolist())


def layer_norm(x: Row, weight: Tensor, eps: float) -> Row:
    mean = total(x) / len(x)
    return rms_norm([value - mean for value in x], weight, eps)


def softmax(x: Row) -> Row:
    largest = max(value.value for value in x)
    powers = [exp(value - largest) for value in x]
    whole = total(powers)
    return [power / whole for power in powers]


def silu(x: Number) -> Number:
    return x * sigmoid(x)


def gelu(x: Number) -> Number:
    return x * (erf(x / math.sqrt(2)) + 1) / 2


def gelu_tanh(x: Number) -> Number:
    return x * 0.5 * (tanh((x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)) + 1)


def rotated(x: Row, position: int, theta: float) -> Row:
    half = len(x) // 2
    angle = [position * theta ** (-2 * (j % half) / len(x)) for j in range(len(x))]
    turned = [x[(j + half) % len(x)] * (math.sin(a) * (-1 if j < half else 1)) for j, a in enumerate(angle)]
    return [value * math.cos(a) + other for value, a, other in zip(x, angle, turned, strict=True)]


def attended(
    queries: list[Row], keys: list[Row], values: list[Row], scale: float, sees: Callable[[int, int], bool]
) -> list[Row]:
    """One head's answers, every score computed and those that are not seen put out."""
    answers = []
    for i, query in enumerate(queries):
        scores = [dot(query, key) * scale for key in keys]
        weights = softmax([score if sees(i, j) else Number(-math.inf) for j, score in enumerate(scores)])
        answers.append([dot(weights, column) for column in zip(*values, strict=True)])
    return answers


def chunked(
    u: list[list[Row]], decay: list[Row], B: list[list[Row]], C: list[list[Row]], length: int
) -> list[list[Row]]:
    """State-space duality from nothing: u [T][H][P], decay [T][H], B and C [T][G][N]; y [T][H][P]."""
    T, H, P = len(u), len(u[0]), len(u[0][0])
    G, N = len(B[0]), len(B[0][0])
    length = min(length, T)
    nothing = -T % length
    u = u + [[zeros(P) for _ in range(H)] for _ in range(nothing)]
    decay = decay + [zeros(H) for _ in range(nothing)]
    B, C = (value + [[zeros(N) for _ in range(G)] for _ in range(nothing)] for value in (B, C))
    y: list[list[Row]] = [[[] for _ in range(H)] for _ in u]
    state: list[list[Row] | None] = [None] * H
    for start in range(0, len(u), length):
        chunk = range(start, start + length)
        for h in range(H):
            g = h * G // H
            since = [decay[start][h]]
            for t in chunk[1:]:
                since.append(since[-1] + decay[t][h])
            before = state[h]
            answers = None if before is None else [[dot(C[t][g], line) for line in before] for t in chunk]
            for i, t in enumerate(chunk):
                gaps = [since[i] - since[j] for j in range(length)]
                weights = [
                    dot(C[t][g], B[s][g]) * exp(gap if j <= i else Number(-math.inf))
                    for j, (s, gap) in enumerate(zip(chunk, gaps, strict=True))
                ]
                y[t][h] = [dot(weights, [u[s][h][p] for s in chunk]) for p in range(P)]
                if answers is not None:
                    carried = exp(since[i])
                    y[t][h] = [w + answer * carried for w, answer in zip(y[t][h], answers[i], strict=True)]
            if start + length == len(u):
                continue  # nobody asks where it ends
            to_end = [exp(since[-1] - each) for each in since]
            weighted = [[value * end for value in u[t][h]] for t, end in zip(chunk, to_end, strict=True)]
            whole = exp(since[-1])
            new = [
                [dot([each[p] for each in weighted], [B[t][g][n] for t in chunk]) for n in range(N)] for p in range(P)
            ]
            if before is not None:
                new = [
                    [whole * old + more for old, more in zip(*lines, strict=True)]
                    for lines in zip(before, new, strict=True)
                ]
            state[h] = new
    return y[:T]
