"""`crossover`: the length, batch or steps at which two cells change places; of one cell, its weights and its state."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import combinations
from typing import Any

from paradigms.build import suggest
from paradigms.costs.asked import Asked, asked
from paradigms.costs.crossing import SAME, Crossing, crossings
from paradigms.costs.prediction import ITEMSIZE, predict

AXES = ("workload.output_len", "workload.prompt_len", "workload.batch_size", "decoder.sampler.steps")
METRICS = ("e2e_s", "tpot_s", "ttft_s", "state_bytes", "peak_bytes")
EXAMPLES = """examples:
  python -m paradigms.costs crossover paradigm=ar,ssm --axis workload.prompt_len --low 64 --high 65536 \\
      device=h200 model.max_positions=70000 execution=cuda_graph
  python -m paradigms.costs crossover paradigm=ar,diffusion --axis decoder.sampler.steps --low 1 --high 128
  python -m paradigms.costs crossover paradigm=ar,ssm --axis workload.batch_size --low 1 --high 64 --metric peak_bytes
  python -m paradigms.costs crossover paradigm=ar --axis workload.prompt_len --low 64 --high 60000 device=a100 \\
      model.max_positions=61000         one cell: where reading its state costs more bytes than reading its weights

The interval is where the two differ by less than the spread of the device's predictions. Times over an axis of tokens
can be compared a token at a time (--metric tpot_s). All other words are those of `predict`."""


def add_parsers(subparsers: Any) -> None:
    """The command `crossover`."""
    parser = subparsers.add_parser(
        "crossover",
        help="where two paradigms change places along a length, a batch or a number of steps",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("overrides", nargs="*", help="key=value; two or more cells, such as paradigm=ar,ssm, or one")
    parser.add_argument("--axis", required=True, help=f"one of {', '.join(AXES)}")
    parser.add_argument("--low", type=int, default=1, help="first value (1)")
    parser.add_argument("--high", type=int, required=True, help="last value")
    parser.add_argument("--metric", default="e2e_s", help=f"one of {', '.join(METRICS)} (e2e_s)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """The exit code."""
    for name, allowed in (("axis", AXES), ("metric", METRICS)):
        value = getattr(arguments, name)
        if value not in allowed:
            raise ValueError(f"--{name} {value} is unknown ({suggest(value, list(allowed))})")
    where = {"axis": arguments.axis, "low": arguments.low, "high": arguments.high}
    cells = asked(_at(arguments.overrides, arguments.axis, arguments.high))
    if len(cells) == 1:
        for line in weights_against_state(cells[0], **where):
            print(line)
        return 0
    for first, second in combinations(cells, 2):
        for line in between(first, second, metric=arguments.metric, **where):
            print(line)
    return 0


def crossover(first: Asked, second: Asked, *, axis: str, low: int, high: int, metric: str) -> list[Crossing]:
    """Where two cells change places in a figure of `prediction.Prediction`.

    Raises:
        ValueError: neither cell has the axis, a cell is impossible at an end of it, or has no such figure.
    """
    if not (first.has(axis) or second.has(axis)):
        raise ValueError(f"neither {first.name} nor {second.name} has {axis}; give cells that differ along it")
    spread = _spread((first, second), metric)
    return crossings(_along(first, axis, metric), _along(second, axis, metric), low, high, spread=spread)


def between(first: Asked, second: Asked, *, axis: str, low: int, high: int, metric: str) -> list[str]:
    """The same in words, a line a crossing."""
    found = crossover(first, second, axis=axis, low=low, high=high, metric=metric)
    cells = (first, second)
    if not found:
        ends = [[_along(cell, axis, metric)(value) for cell in cells] for value in (low, high)]
        if all(abs(one - other) <= SAME * other for one, other in ends):
            return [f"{first.name} | {second.name}: {metric} is the same at {axis}={low:,} and at {high:,}"]
        smaller = cells[0 if sum(math.log(one / other) for one, other in ends) <= 0 else 1]
        factors = [max(pair) / min(pair) for pair in ends]
        spread = _spread(cells, metric)
        near = spread is not None and min(factors) < 1 + spread
        return [
            f"{first.name} | {second.name}: {metric} changes places nowhere between {axis}={low:,} and {high:,}; "
            f"{smaller.name} is smaller, by a factor of {factors[0]:.5g} to {factors[1]:.5g}"
            + (f", and predictions that may be {spread:.0%} off cannot tell them apart at that end" if near else "")
        ]
    return [
        f"{first.name} | {second.name}: {metric} at {axis} = {each.at:,}{_interval(each, metric)}; "
        f"{cells[each.smaller_before].name} is smaller below, {cells[1 - each.smaller_before].name} from there on"
        for each in found
    ]


def weights_against_state(cell: Asked, *, axis: str, low: int, high: int) -> list[str]:
    """Where a cell's last forward moves more bytes of its state than of its weights."""

    def counts(value: int) -> Any:
        here = cell.with_value(axis, value)
        here.check()
        last = list(here.decoder.forwards(here.model, here.batch, tokens_per_forward=here.pace))[-1]
        return here.model.counts(last, itemsize=ITEMSIZE[here.dtype])

    if not cell.has(axis):
        raise ValueError(f"{cell.name} has no {axis}; give an axis that it has, or a second cell")
    if not counts(high).state_read_bytes:
        raise ValueError(f"{cell.name} reads no state, so there is nothing to hold its weights against; give two cells")
    found = crossings(
        lambda value: counts(value).weight_bytes,
        lambda value: max(1, counts(value).state_read_bytes),
        low,
        high,
        spread=None,
    )
    if not found:
        last = counts(high)
        share = last.state_read_bytes / (last.state_read_bytes + last.weight_bytes)
        return [
            f"{cell.name}: weights and state change places nowhere between {axis}={low:,} and {high:,}; "
            f"the state is {share:.1%} of the bytes read there"
        ]
    return [f"{cell.name}: reading the state costs more bytes than reading the weights from {axis} = {each.at:,} on"
            for each in found]  # fmt: skip


def _along(cell: Asked, axis: str, metric: str) -> Callable[[int], float]:
    """The figure of a cell along an axis; one that it does not have changes nothing."""

    @cache
    def figure(value: int) -> float:
        here = cell.with_value(axis, value) if cell.has(axis) else cell
        here.check()
        found = predict(
            here.model, here.decoder, here.batch, here.device, dtype=here.dtype, execution=here.execution,
            tokens_per_forward=here.pace,
        )  # fmt: skip
        result = getattr(found, metric)
        if not result:
            raise ValueError(
                f"{cell.name} has no {metric} at {axis}={value}; compare another metric, or begin at a higher --low"
            )
        return float(result)

    return figure if cell.has(axis) else lambda value: figure(0)


def _spread(cells: Sequence[Asked], metric: str) -> float | None:
    """How far predictions of times may be off on these devices; bytes are counted, not predicted."""
    spreads = [cell.device.spread for cell in cells]
    known = [spread for spread in spreads if spread is not None]
    return max(known) if len(known) == len(spreads) and not metric.endswith("_bytes") else None


def _interval(found: Crossing, metric: str) -> str:
    if found.low is None or found.high is None:
        return (
            "" if metric.endswith("_bytes") else " (no interval: nobody has looked how far predictions are off there)"
        )
    low = f"below {found.low:,}" if found.low_open else f"{found.low:,}"
    high = f"beyond {found.high:,}" if found.high_open else f"{found.high:,}"
    return f" [{low}, {high}]"


def _at(overrides: Sequence[str], axis: str, value: int) -> list[str]:
    """Overrides with the axis at its end, where cells are most likely to be impossible; steps are left as they are,
    since only some cells have them.
    """
    if any(line.partition("=")[0] == axis for line in overrides):
        raise ValueError(f"{axis} is the axis; leave it out of the overrides")
    return [*overrides, f"{axis}={value}"] if axis.startswith("workload.") else list(overrides)
