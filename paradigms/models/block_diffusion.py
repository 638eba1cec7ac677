"""Block diffusion in training and scoring (BD3-LM, 2503.09573): what a block-causal denoiser says of all blocks of a
text in one forward.

A block is denoised with the true tokens of the blocks before it in view. Reading block after block would take a forward
each; instead the noisy text stands beside the clean one, at the same positions, and the mask keeps them apart (section
3.1):

    noisy sees    noisy tokens of its own block; clean tokens of the blocks before
    clean sees    clean tokens of its own block and before

so each noisy block sees just what it would see behind a cache of clean blocks. The last block of the clean half is seen
by nobody and left out; with one block only the noisy half is left, which is a denoiser of the whole canvas.

With `shift_logits` a position is read one column to the left. Left of a block's first position stands a clean column:
with blocks of one token no noisy column is read at all, and the model is an autoregressive one, exactly.

Dimension letters: B rows, T columns, U columns of both halves, M wanted positions, E model width, V vocabulary.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from paradigms.models.stack import Model


def block_logits_where(
    model: Model,
    noisy_BT: Tensor,
    clean_BT: Tensor,
    wanted_BT: Tensor,
    *,
    lengths_B: Tensor | None = None,
    time_BT: Tensor | None = None,
) -> Tensor:
    """Logits [M, V] at the True places of a mask [B, T], in row-major order; each of them given its own noisy block and
    the clean blocks before.

    Args:
        model: a denoiser with `canvas_block`; blocks count from column 0.
        noisy_BT, clean_BT: the text with masks and without.
        lengths_B: tokens of each row, where rows differ; the columns behind them are padding.
        time_BT: how noisy each token's block is, for a model that reads the time; clean tokens are told 0.

    Raises:
        ValueError: a model without blocks, or with layers that do not keep one slot a position.
    """
    config, T = model.config, noisy_BT.shape[1]
    if config.canvas_block is None or not config.keeps_slots:
        raise ValueError(
            f"block diffusion needs model.canvas_block (it is {config.canvas_block}) and layers of one slot a position "
            f"(model.block={config.block!r}); set the one, or use attention without a window"
        )
    among_UU, positions_U, read_T = layout(T, config.canvas_block, model.device, shifted=config.shift_logits)
    tokens_BU = torch.cat((noisy_BT, clean_BT[:, : len(positions_U) - T]), 1)
    if lengths_B is not None:  # padding sees itself: an empty row would be 0 / 0
        token_BU = positions_U < lengths_B[:, None]
        among_UU = (among_UU & token_BU[:, None]) | torch.eye(len(positions_U), dtype=torch.bool, device=model.device)
    time_BU = None if time_BT is None else F.pad(time_BT, (0, len(positions_U) - T))
    hidden_BUE = model.hidden(tokens_BU, positions_BT=positions_U, among_BTT=among_UU, time_B=time_BU)
    return model.logits_of(hidden_BUE[:, read_T][wanted_BT])


def layout(num_columns: int, block: int, device: torch.device, *, shifted: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Who sees whom [U, U]; the positions [U] of both halves; the column [T] at which each position is read."""
    position_T = torch.arange(num_columns, device=device)
    last_start = (num_columns - 1) // block * block
    positions_U = torch.cat((position_T, position_T[:last_start]))
    block_U = positions_U // block
    clean_U = torch.arange(len(positions_U), device=device) >= num_columns
    query, key = block_U[:, None], block_U[None]
    beside = (query == key) & (clean_U[:, None] == clean_U)
    among_UU = beside | ((key < query) & clean_U)
    if not shifted:
        return among_UU, positions_U, position_T
    left_T = (position_T - 1).clamp(min=0)  # of column 0 nothing is asked
    starts_T = (position_T % block == 0) & (position_T > 0)
    return among_UU, positions_U, torch.where(starts_T, num_columns + left_T, left_T)
