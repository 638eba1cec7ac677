"""What a run asks of a machine, as shapes: one entry a forward, known before any weight exists or noted while it runs.

A decoder says which forwards it will make (`Decoder.forwards`), a model's config counts the operations and bytes of
one (`ModelConfig.counts`), and a device says how long it takes (`paradigms.costs`). The ledger of a cell is the same
shapes, noted as they were run (`measure.ledger`). A leaf: no torch, nothing else of the package.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShape:
    """A batch of equal requests.

    Attributes:
        rows: B.
        prompt_len, output_len: tokens of each request, begin-of-text included.
    """

    rows: int
    prompt_len: int
    output_len: int

    def __post_init__(self) -> None:
        for name in ("rows", "prompt_len", "output_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} is too small; it must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardShape:
    """One forward of a network, or several of one shape.

    Attributes:
        phase: `prefill`, `decode` or `denoise`, as the event behind it says.
        rows: B, rows that are in it.
        tokens: T, columns that are computed in each row, padding included.
        seen: positions that attention computes for each of them: what the state holds and the new ones. Half of it may
            be hidden by a causal mask.
        kept: slots of each row's state that it reads, 0 without a state. What it computes itself is not among them,
            also where that is written over slots which were filled: `seen` - `tokens` behind every state.
        written: slots of each row's state that it writes, behind those that are filled or over some of them.
        forgotten: of these, slots that are given up again before the next forward. Whoever watches a forward cannot
            tell, so shapes that differ in this alone are equal.
        logits: positions whose logits are computed, summed over the rows.
        model: whose forward it is, where several run (`Event.forwards`).
        times: how often.
    """

    phase: str
    rows: int
    tokens: int
    seen: int
    kept: int = 0
    written: int = 0
    forgotten: int = field(default=0, compare=False)
    logits: float
    model: str = "model"
    times: float = 1

    @property
    def positions(self) -> int:
        """Positions pushed through the model by one of them, padding included."""
        return self.rows * self.tokens
