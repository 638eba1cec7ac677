"""Spans: where the new tokens of a forward stand, who sees whom, and which slots they take.

    host_span       from lengths that the host knows: any shape of input, the least work for each
    device_span     one token a row, everything computed on the device from lengths there: the same operators at every
                    step, so that a step can be compiled or captured once and run at any length

Dimension letters: B batch, T tokens in, S slots.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paradigms.models.config import ModelConfig
from paradigms.models.layers import Span
from paradigms.models.state import State

Tables = Sequence[tuple[Tensor, Tensor]]  # cos and sin of every position, one pair a kind of rotary positions


def host_span(
    config: ModelConfig,
    tables: Tables,
    device: torch.device,
    shape: Sequence[int],
    state: State | None,
    num_tokens: Sequence[int] | None,
    positions_BT: Tensor | None,
    among_BTT: Tensor | None,
    write: bool,
    over: Sequence[int] | Tensor | None = None,
) -> Span:
    """The span of one forward of `shape` [B, T]; the arguments are those of `Model.forward`.

    Args:
        over: the slots that the new tokens are written over: the first of each row, or all, [B, T].

    Raises:
        ValueError: see `Model.forward`.
    """
    B, T = shape
    added = list(num_tokens) if num_tokens is not None else [T] * B
    if over is not None:
        assert state is not None
        return _over(tables, device, T, state, added, over)
    lengths = state.lengths if state is not None else [0] * B
    stop = max(length + new for length, new in zip(lengths, added, strict=True))
    limit = config.max_positions if state is None else state.max_len
    placed_BT = positions_BT if state is None else None  # several columns may stand at one position
    furthest = stop if placed_BT is None else int(placed_BT.max()) + 1
    if furthest > limit:
        raise ValueError(f"{furthest} positions asked for, {limit} are available (max_positions or the state's length)")
    if config.recurrent and (positions_BT is not None or among_BTT is not None):
        raise ValueError("this model has recurrent layers, which run along one path; it cannot read a tree")
    if state is not None:
        state.reserve(stop)
    aligned = num_tokens is None or min(added) == T
    if aligned and positions_BT is None and among_BTT is None and min(lengths) == max(lengths):
        return _uniform(config, tables, device, B, T, lengths[0], stop, write)
    stored = state is not None
    if among_BTT is None and config.canvas_block is not None:
        among_BTT = _block_causal(config.canvas_block, device, T, lengths, added, positions_BT)
    return _ragged(config, tables, device, T, lengths, added, stop, positions_BT, among_BTT, write, stored=stored)


def _uniform(
    config: ModelConfig, tables: Tables, device: torch.device, B: int, T: int, start: int, stop: int, write: bool
) -> Span:
    """Every row stands at the same positions."""
    mask = None
    if config.causal and start and T > 1:
        mask = torch.ones(T, stop, dtype=torch.bool, device=device).tril(start)[None, None]
    elif config.canvas_block is not None and start // config.canvas_block < (stop - 1) // config.canvas_block:
        block_S = torch.arange(stop, device=device) // config.canvas_block
        mask = (block_S <= block_S[start:, None])[None, None]
    return Span(
        batch_size=B,
        num_tokens=[T] * B,
        write=write,
        rotary=[(cos[start:stop], sin[start:stop]) for cos, sin in tables],
        start=start,
        stop=stop,
        mask_B1TS=mask,
        is_causal=config.causal and T > 1 and not start,
        pads_B=None,
        position_BT=None,
        scatter=None,
    )


def _ragged(
    config: ModelConfig,
    tables: Tables,
    device: torch.device,
    T: int,
    lengths: list[int],
    added: list[int],
    stop: int,
    positions_BT: Tensor | None,
    among_BTT: Tensor | None,
    write: bool,
    *,
    stored: bool,
) -> Span:
    """Rows differ in what they have seen or bring, or say themselves who sees whom."""
    lengths_B1, added_B1 = (torch.tensor(values, device=device)[:, None] for values in (lengths, added))
    pads_B1 = T - added_B1
    column_T = torch.arange(T, device=device)
    token_BT = column_T >= pads_B1
    slot_BT = lengths_B1 - pads_B1 + column_T  # means nothing in padding
    if among_BTT is None:
        among_BTT = torch.ones(T, T, dtype=torch.bool, device=device)
        among_BTT = among_BTT.tril() if config.causal else among_BTT
    among_BTT = (among_BTT & token_BT[:, None]).expand(len(lengths), T, T)
    if stored:  # what is seen are slots: all of the past, and of the new ones those that `among_BTT` names
        slot_S = torch.arange(stop, device=device)
        column_BS = slot_S - lengths_B1 + pads_B1  # where slot S comes from, when it is new
        is_new_BS = (slot_S >= lengths_B1) & (column_BS < T)
        new_BTS = among_BTT.gather(2, column_BS.clamp(0, T - 1)[:, None].expand(-1, T, -1))
        mask_BTS = (slot_S < lengths_B1)[:, None] | (new_BTS & is_new_BS[:, None])
    else:
        mask_BTS = among_BTT
    mask_BTS = mask_BTS | ~token_BT[..., None]  # padding sees anything: an empty row would be 0 / 0
    place_BT = (slot_BT if positions_BT is None else positions_BT.expand(len(lengths), T)).clamp(min=0)
    row, column = token_BT.nonzero(as_tuple=True)
    return Span(
        batch_size=len(lengths),
        num_tokens=added,
        write=write,
        rotary=[(cos[place_BT][:, None], sin[place_BT][:, None]) for cos, sin in tables],
        start=None,
        stop=stop,
        mask_B1TS=mask_BTS[:, None],
        is_causal=False,
        pads_B=pads_B1[:, 0] if min(added) < T else None,
        position_BT=place_BT,
        scatter=(row, column, slot_BT[row, column]),
    )


def _block_causal(
    canvas_block: int, device: torch.device, T: int, lengths: list[int], added: list[int], positions_BT: Tensor | None
) -> Tensor:
    """Those of a token's own block and before, among the new ones: [B, T, T]."""
    if positions_BT is None:
        first_B1 = torch.tensor([length + new - T for length, new in zip(lengths, added, strict=True)], device=device)
        positions_BT = first_B1[:, None] + torch.arange(T, device=device)
    block_BT = positions_BT.expand(len(lengths), T).div(canvas_block, rounding_mode="floor")
    return block_BT[:, None, :] <= block_BT[:, :, None]


def _over(
    tables: Tables,
    device: torch.device,
    T: int,
    state: State,
    added: list[int],
    over: Sequence[int] | Tensor,
) -> Span:
    """Tokens that take the places of others; all see the whole of their row."""
    lengths, B = state.lengths, len(state.lengths)
    stop = max(lengths)
    uniform = min(lengths) == stop and min(added) == T
    common = {"batch_size": B, "num_tokens": added, "write": True, "overwrites": True, "stop": stop}
    if uniform and not isinstance(over, Tensor) and min(over) == max(over):
        start = over[0]
        return Span(
            **common,
            rotary=[(cos[start : start + T], sin[start : start + T]) for cos, sin in tables],
            start=start,
            mask_B1TS=None,
            is_causal=False,
            pads_B=None,
            position_BT=None,
            scatter=None,
        )
    pads_B1 = torch.tensor([T - new for new in added], device=device)[:, None]
    column_T = torch.arange(T, device=device)
    if not isinstance(over, Tensor):
        over = torch.tensor(list(over), device=device)[:, None] - pads_B1 + column_T
    slot_BT = over.expand(B, T).clamp(min=0)
    row, column = (column_T >= pads_B1).nonzero(as_tuple=True)
    mask = None
    if min(lengths) < stop:
        mask = (torch.arange(stop, device=device) < torch.tensor(lengths, device=device)[:, None])[:, None, None]
    return Span(
        **common,
        rotary=[(cos[slot_BT][:, None], sin[slot_BT][:, None]) for cos, sin in tables],
        start=None,
        mask_B1TS=mask,
        is_causal=False,
        pads_B=pads_B1[:, 0] if min(added) < T else None,
        position_BT=slot_BT,
        scatter=(row, column, slot_BT[row, column]),
    )


def device_span(tables: Tables, lengths_B: Tensor, stop: int) -> Span:
    """One token a row at slot lengths_B[b]; the first `stop` slots are looked at, those beyond a row's own masked.

    `stop` is fixed for many steps, and nothing else depends on a number that the host knows: see `Span.on_device`.
    """
    place_B1 = lengths_B[:, None]
    slot_S = torch.arange(stop, device=lengths_B.device)
    row_B = torch.arange(lengths_B.shape[0], device=lengths_B.device)
    return Span(
        batch_size=lengths_B.shape[0],
        num_tokens=[1] * lengths_B.shape[0],
        write=True,
        rotary=[(cos[place_B1][:, None], sin[place_B1][:, None]) for cos, sin in tables],
        start=None,
        stop=stop,
        mask_B1TS=(slot_S <= place_B1)[:, None, None],
        is_causal=False,
        pads_B=None,
        position_BT=place_B1,
        scatter=(row_B, torch.zeros_like(row_B), lengths_B),
        on_device=True,
    )
