"""No cache: every forward reads the whole row again, which is exact for every model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from paradigms.decoding.diffusion.canvas import Canvas
from paradigms.decoding.diffusion.contract import Block
from paradigms.models.network import NetworkConfig
from paradigms.models.stack import Model


@dataclass(frozen=True, kw_only=True)
class NoCache:
    """Reads everything at every step."""

    exact: ClassVar[bool] = True

    def check(self, model: NetworkConfig, *, block_len: int | None) -> None:
        """Serves every model."""

    def open(self, model: Model, canvas: Canvas) -> NoCacheReader:
        return NoCacheReader(model, canvas)


class NoCacheReader:
    """See `contract.Reader`."""

    def __init__(self, model: Model, canvas: Canvas) -> None:
        self.model, self.canvas = model, canvas
        self.forwards = self.positions = 0

    def begin(self, block: Block) -> None:
        """Nothing is kept."""

    def logits(self, block: Block, rows: Sequence[int] | None, wanted_BW: Tensor, time_B: Tensor | None) -> Tensor:
        canvas = self.canvas
        tokens_BT, wanted_BT, num_tokens = canvas.tokens_BT, canvas.spread(block, rows, wanted_BW), canvas.num_tokens
        if rows is not None:
            tokens_BT, wanted_BT = tokens_BT[list(rows)], wanted_BT[list(rows)]
            num_tokens = num_tokens and [num_tokens[row] for row in rows]
        self.forwards += 1
        self.positions += sum(num_tokens) if num_tokens else tokens_BT.numel()
        told: dict[str, Any] = {} if time_B is None else {"time_B": time_B}
        return self.model.logits_where(tokens_BT, wanted_BT, num_tokens=num_tokens, **told)

    def end(self, block: Block) -> None:
        """Nothing is kept."""

    def state(self) -> None:
        """Nothing is kept."""
