"""Rows of token ids, right-aligned into one tensor, and requests as a causal model reads them.

A causal model sees only what stands to the left. Text that is given after a gap therefore comes first, as a document of
its own (as in suffix-prefix-middle prompts, 2207.14255, but for models that were never trained to infill, hence
without tokens of their own), and is read again where it stands, so that what follows it continues it.

Dimension letters: B requests, T columns, N new columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paradigms.paradigm import Request


def right_align(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, list[int] | None]:
    """int64 [B, T], padded on the left with 0, and each row's length; None when all rows are equally long."""
    lengths = [len(row) for row in rows]
    T = max(lengths)
    tokens_BT = torch.tensor([[0] * (T - len(row)) + list(row) for row in rows], device=device)
    return tokens_BT, (None if min(lengths) == T else lengths)


def nothing_given(requests: Sequence[Request], decoder: str) -> None:
    """Raise ValueError for text given in a canvas, which this decoder could only ignore."""
    for request in requests:
        if any(token is not None for token in request.layout):
            raise ValueError(
                f"request {request.id!r} has text given in its canvas, and decoder={decoder} can only go on from a "
                "prompt; use decoder=autoregressive or masked_diffusion, or leave the canvas out"
            )


def rearranged(request: Request, separator: int) -> tuple[int, ...]:
    """Begin-of-text, every given stretch after the first gap with a separator behind it, then the prompt; the prompt
    alone where no text is given after a gap.
    """
    first_gap = request.layout.index(None)
    stretches: list[int] = []
    for before, token in zip(request.layout[first_gap:], [*request.layout[first_gap + 1 :], None], strict=True):
        if before is not None:
            stretches += [before] if token is not None else [before, separator]
    return (request.prompt[0], *stretches, *request.prompt) if stretches else request.prompt


def left_to_right(request: Request, beginning: Sequence[int]) -> list[tuple[int, ...]]:
    """What is read before each of the max_new_tokens that are written: `beginning` and what the canvas gives before the
    first gap, and then what it gives between one open position and the next.
    """
    read: list[list[int]] = [list(beginning)]
    for token in request.layout:
        if token is None:
            read.append([])
        else:
            read[-1].append(token)
    return [tuple(tokens) for tokens in read[:-1]]  # nothing is written after the last open position


def follow(token_B1: Tensor, given: Sequence[Sequence[int]]) -> tuple[Tensor, list[int] | None]:
    """Every row's new token, with what is given behind it: int64 [B, N], right-aligned, and each row's length; None
    when all rows are equally long.
    """
    if not any(given):
        return token_B1, None
    new_BN, lengths = right_align([(0, *tokens) for tokens in given], token_B1.device)
    first_B1 = torch.tensor([[new_BN.shape[1] - 1 - len(tokens)] for tokens in given], device=token_B1.device)
    return new_BN.scatter(1, first_B1, token_B1), lengths


def append(
    tokens_BT: Tensor, lengths: Sequence[int], new_BN: Tensor, new_lengths: Sequence[int] | None
) -> tuple[Tensor, list[int]]:
    """Right-aligned rows with right-aligned rows behind them, and each row's length."""
    T, N = tokens_BT.shape[1], new_BN.shape[1]
    added = [N] * len(lengths) if new_lengths is None else new_lengths
    both_BT = torch.cat((tokens_BT, new_BN), 1)
    if new_lengths is not None:  # close the holes that shorter rows have between old and new
        hole_B1 = torch.tensor([[N - count] for count in added], device=both_BT.device)
        column_T = torch.arange(T + N, device=both_BT.device)
        old_BT = column_T < T + hole_B1
        both_BT = both_BT.gather(1, torch.where(old_BT, (column_T - hole_B1).clamp(min=0), column_T))
    together = [length + count for length, count in zip(lengths, added, strict=True)]
    return both_BT[:, T + N - max(together) :], together


def drafts(requests: Sequence[Request], device: torch.device) -> Tensor | None:
    """What stands at the first output positions from the start, int64 [B, longest], -1 behind a shorter draft; None
    where no request has one.
    """
    longest = max(len(request.draft) for request in requests)
    if not longest:
        return None
    rows = [[*request.draft, *[-1] * (longest - len(request.draft))] for request in requests]
    return torch.tensor(rows, device=device)
