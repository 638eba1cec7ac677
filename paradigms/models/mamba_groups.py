"""A Mamba mixer in groups of channels, the heads of Zamba (2405.16712). They share the projections in and out, nothing
else: each group selects dt, B and C from its own channels, and has a recurrence of its own.

The weights have the shapes of a mixer of one group: a group's part of `x_proj` are the rows of its channels, its part
of `dt_proj` their columns. One group is the paper's Mamba.

Dimension letters: as in `mamba`; G groups, J channels of a group.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from paradigms.models.mamba import Mamba, MambaState
from paradigms.models.one_token import Step
from paradigms.models.selective_scan import selective_update


class GroupedMamba(Mamba):
    """B and C are [B, T, G, N] here; everything else is as in a mixer of one group."""

    def one_token(self, state: MambaState) -> Step | None:
        """None: the layer's own forward runs."""
        return None

    def _parts(self, *values: Tensor) -> Iterator[list[Tensor]]:
        """For each group its part of every tensor [..., I]; views."""
        width = self.d_inner // self.config.num_groups
        for start in range(0, self.d_inner, width):
            yield [value.narrow(-1, start, width) for value in values]

    def _selected(self, u_RI: Tensor, batch_size: int, wide: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        G, N, Q = self.config.num_groups, self.config.d_state, self.rank
        u_GRJ = u_RI.view(len(u_RI), G, -1).transpose(0, 1)
        low_GRQ, B_GRN, C_GRN = (u_GRJ @ self.x_proj.view(G, -1, Q + 2 * N)).split((Q, N, N), -1)
        dt_proj_GQJ = self.dt_proj.view(Q, G, -1).transpose(0, 1)
        dt_GRJ = torch.baddbmm(self.dt_bias.view(G, 1, -1).to(wide), low_GRQ.to(wide), dt_proj_GQJ.to(wide))
        dt_RGJ, B_RGN, C_RGN = (value.transpose(0, 1) for value in (dt_GRJ, B_GRN, C_GRN))
        dt_BTI = F.softplus(dt_RGJ.reshape(batch_size, -1, self.d_inner))
        B_BTGN, C_BTGN = (value.reshape(batch_size, -1, G, N).to(wide) for value in (B_RGN, C_RGN))
        return dt_BTI, B_BTGN, C_BTGN

    def _read(
        self,
        u_BTI: Tensor,
        dt_BTI: Tensor,
        A_NI: Tensor,
        B_BTN: Tensor,
        C_BTN: Tensor,
        D_I: Tensor,
        ssm_BNI: Tensor | None,
        *,
        is_step: bool,
        write: bool,
    ) -> Tensor:
        kept = () if ssm_BNI is None else (ssm_BNI,)
        said = []
        for (u, dt, A, D, *ssm), B, C in zip(
            self._parts(u_BTI, dt_BTI, A_NI, D_I, *kept), B_BTN.unbind(2), C_BTN.unbind(2), strict=True
        ):
            said.append(super()._read(u, dt, A, B, C, D, ssm[0] if ssm else None, is_step=is_step, write=write))
        return torch.cat(said, -1)

    def _update(self, u_BI: Tensor, dt_BI: Tensor, A_NI: Tensor, B_BN: Tensor, ssm_BNI: Tensor) -> None:
        parts = self._parts(u_BI, dt_BI, A_NI, ssm_BNI)
        for (u, dt, A, ssm), B in zip(parts, B_BN.unbind(1), strict=True):
            selective_update(u, dt, A, B, ssm)
