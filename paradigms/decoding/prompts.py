"""Rows of token ids, right-aligned into one tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def right_align(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, list[int] | None]:
    """int64 [B, T], padded on the left with 0, and each row's length; None when all rows are equally long."""
    lengths = [len(row) for row in rows]
    T = max(lengths)
    tokens_BT = torch.tensor([[0] * (T - len(row)) + list(row) for row in rows], device=device)
    return tokens_BT, (None if min(lengths) == T else lengths)
