"""What a run asked of the machine: its forwards by phase, and by formula their operations and bytes.

The forwards are observed where ours is the loop that makes them: the model is handed to the decoder in a wrapper that
notes each call's shape, in the pass where memory is watched and no clock runs. Elsewhere (engines of others, runs that
are not made whole, units without that pass) they are those that the decoder says it makes. The column `ledger` tells
which: `observed` or `formula`.

Dimension letters: B batch, T columns in, C positions of a canvas, V vocabulary.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from torch import Tensor

from paradigms.models.config import ModelConfig
from paradigms.models.counts import Counts
from paradigms.paradigm import Event
from paradigms.work import ForwardShape

COLUMNS = ("forwards", *(field.name for field in fields(Counts)))  # each with `_<phase>` behind it


class Ledger:
    """Notes the forwards behind each event, under its phase.

    Attributes:
        shapes: what was noted, in order; equal ones that follow each other are one entry.
    """

    def __init__(self) -> None:
        self.shapes: list[ForwardShape] = []
        self._noted: list[ForwardShape] = []

    def noting(self, model: Any) -> Any:
        """The model, with the same weights and answers, whose forwards are noted."""
        return _Noting(model, self._noted.append)

    def of(self, events: Iterator[Event]) -> Iterator[Event]:
        """The same events."""
        for event in events:
            for shape in self._noted:
                self._add(replace(shape, phase=event.phase))
            self._noted.clear()
            yield event

    def _add(self, shape: ForwardShape) -> None:
        last = self.shapes[-1] if self.shapes else None
        if last is not None and replace(last, times=1) == shape:
            self.shapes[-1] = replace(last, times=last.times + 1)
        else:
            self.shapes.append(shape)


def work_columns(
    model: Any,
    shapes: Iterable[ForwardShape],
    *,
    itemsize: int,
    kv_dtype: str | None = None,
    experts_touched: Mapping[str, float] | None = None,
) -> dict[str, float | None]:
    """`<name>_<phase>` for each of `COLUMNS`: sums over the forwards, all rows together.

    Args:
        model: its config; of a network without formulas only forwards are told, and None for the rest.
        itemsize: bytes of a number of the weights.
        kv_dtype: how keys and values are stored, where not as computed.
        experts_touched: phase -> distinct experts, a mean over layers and forwards, where somebody counted them.
    """
    alike: Counter[ForwardShape] = Counter()
    for shape in shapes:
        alike[replace(shape, times=1)] += shape.times  # type: ignore[assignment]  # a mean number of times too
    counted = bool(alike) and _has_formulas(model, next(iter(alike)))
    sums: dict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(COLUMNS, 0))
    for shape, times in alike.items():
        phase = sums[shape.phase]
        phase["forwards"] += times
        if counted:
            touched = (experts_touched or {}).get(shape.phase)
            one = model.counts(shape, itemsize=itemsize, kv_dtype=kv_dtype, experts_touched=touched)
            for name in COLUMNS[1:]:
                phase[name] += times * getattr(one, name)
    return {
        f"{name}_{phase}": value if counted or name == "forwards" else None
        for phase, values in sums.items()
        for name, value in values.items()
    }


def _has_formulas(model: Any, shape: ForwardShape) -> bool:
    """Native networks do, and of those of `transformers` the ones that the native stack has too."""
    if isinstance(model, ModelConfig):
        return True
    try:
        model.counts(shape, itemsize=4)
    except ValueError:
        return False
    return True


class _Noting:
    """A model that notes what it is asked; everything else it leaves to the model itself.

    Not a module: it owns nothing, and whoever looks for parameters finds the model's.
    """

    def __init__(self, model: Any, note: Callable[[ForwardShape], None]) -> None:
        self._model, self._note = model, note

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, tokens_BT: Tensor, state: Any = None, **options: Any) -> Tensor:
        shape = _shape(tokens_BT, state, **options)
        logits_BKV = self._model(tokens_BT, state, **options)
        self._note(replace(shape, logits=logits_BKV.shape[0] * logits_BKV.shape[1]))
        return logits_BKV

    forward = __call__

    def logits_where(self, tokens_BT: Tensor, wanted_BT: Tensor, *state: Any, **options: Any) -> Tensor:
        shape = _shape(tokens_BT, *state, **options)
        logits_MV = self._model.logits_where(tokens_BT, wanted_BT, *state, **options)
        self._note(replace(shape, logits=len(logits_MV)))
        return logits_MV

    def hidden(self, tokens_BT: Tensor, **options: Any) -> Tensor:
        self._note(_shape(tokens_BT, **options))
        return self._model.hidden(tokens_BT, **options)

    # The two networks of a `CanvasModel`

    def read(self, tokens_BT: Tensor, state: Any, **options: Any) -> None:
        self._note(replace(_shape(tokens_BT, state, **options), model="encoder"))
        self._model.read(tokens_BT, state, **options)

    def denoiser(self, state: Any) -> Callable[[Tensor, Tensor | None], Tensor]:
        denoise = self._model.denoiser(state)

        def noting(canvas_BC: Tensor, before_BCV: Tensor | None) -> Tensor:
            self._note(replace(_shape(canvas_BC, state, write="none"), logits=canvas_BC.numel(), model="decoder"))
            return denoise(canvas_BC, before_BCV)

        return noting


def _shape(
    tokens_BT: Tensor,
    state: Any = None,
    *,
    num_tokens: Sequence[int] | None = None,
    write: str = "append",
    **_: Any,
) -> ForwardShape:
    """Of a forward that is about to run, with no logits; the arguments are those of `Model.forward`."""
    B, T = tokens_BT.shape
    if state is None:
        seen = T
    elif write == "overwrite":
        seen = max(state.lengths)
    else:
        seen = max(length + new for length, new in zip(state.lengths, num_tokens or [T] * B, strict=True))
    kept = max(0, seen - T)
    written = 0 if state is None or write == "none" else T
    return ForwardShape(phase="", rows=B, tokens=T, seen=seen, kept=kept, written=written, logits=0)
