"""How many experts the forwards of a run touch, and so how many bytes of weights they read, by phase.

A forward reads only the experts that its tokens are sent to: with one row those are top_k of each layer whatever the
text, with more rows it depends on how much they agree. Counted in the memory pass, where nothing is timed, and only of
forwards that run operator by operator: of a phase that was compiled or recorded there is no figure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from paradigms.models.config import ModelConfig
from paradigms.models.experts import count_touched
from paradigms.paradigm import Event


class WeightReads:
    """Sums over the events of a run; of networks without experts it says nothing, since they read all at every step."""

    def __init__(self, model: Any) -> None:
        self.model = model if isinstance(model, ModelConfig) and model.experts is not None else None
        self._sums: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))  # phase -> distinct experts, layers run

    def of(self, events: Iterator[Event]) -> Iterator[Event]:
        """The same events; the forwards behind each are counted under its phase."""
        if self.model is None:
            yield from events
            return
        with count_touched() as touched:
            for event in events:
                distinct, num_layers = touched.take()
                before = self._sums[event.phase]
                self._sums[event.phase] = (before[0] + distinct, before[1] + num_layers)
                yield event

    @property
    def experts_touched(self) -> dict[str, float]:
        """Phase -> distinct experts, a mean over layers and forwards."""
        return {phase: distinct / num_layers for phase, (distinct, num_layers) in self._sums.items() if num_layers}

    def columns(self, itemsize: int) -> dict[str, float]:
        """`experts_touched_<phase>`, a mean over layers and forwards, and `weight_bytes_read_<phase>`, a forward's."""
        columns: dict[str, float] = {}
        for phase, mean in self.experts_touched.items():
            if self.model is not None:
                columns[f"experts_touched_{phase}"] = mean
                columns[f"weight_bytes_read_{phase}"] = self.model.weight_bytes_read(
                    itemsize=itemsize, experts_touched=mean
                )
        return columns
