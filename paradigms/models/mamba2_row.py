"""One token of one row through a Mamba-2 mixer, in the fewest operators; see `one_token`.

Dimension letters as in `mamba2`; O columns of the first projection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from paradigms.models import kernels, ssd
from paradigms.models.one_token import Place, Step, normed

if TYPE_CHECKING:
    from paradigms.models.mamba2 import Mamba2, Mamba2State


def one_token_step(mixer: Mamba2, state: Mamba2State) -> Step:
    """What the mixer makes of the next token of a state's only row."""
    c, H, out_bias, in_proj, D_H1 = mixer.config, mixer.num_heads, mixer.out_bias, mixer.in_proj, mixer.D[:, None]
    parts, row = (mixer.d_inner, mixer.conv_dim, H), (1, 1, mixer.conv_dim)
    mixed = (mixer.d_inner, c.num_groups * c.d_state, c.num_groups * c.d_state)
    heads, inputs, outputs = (H, c.head_dim), (c.num_groups, 1, c.d_state), (c.num_groups, c.d_state, 1)
    states = (H, c.head_dim, c.d_state)
    bounded, constants = c.dt_min is not None or c.dt_max is not None, mixer.row_constants
    weights = (mixer.A_log, mixer.dt_bias, mixer.in_bias, mixer.conv_weight, mixer.conv_bias)
    addmm, silu, softplus, conv_step, ssd_row = torch.addmm, F.silu, F.softplus, kernels.conv_step, ssd.ssd_row
    out, gated = kernels.row_product(mixer.out), mixer.gated
    plain = c.norm == "after_gate" and c.num_groups == 1
    normed_out = normed(mixer.inner_norm, mixer.norm_eps, lambda y_1I, place: out(y_1I)) if plain else None

    def step(x_1E: Tensor, place: Place) -> Tensor:
        A_H1, bias_O, conv_KC, bias_KC = constants(*weights)
        z_1I, xBC_1C, dt_1H = addmm(bias_O, x_1E, in_proj).split_with_sizes(parts, -1)
        dt_1H, xBC_11C = softplus(dt_1H), xBC_1C.view(row)
        if bounded:
            dt_1H = dt_1H.clamp(c.dt_min, c.dt_max)
        if state.is_marked:
            state.log((xBC_11C, dt_1H[:, None]), [1])
        x, B, C = conv_step(state.conv_BWC, xBC_11C, conv_KC, bias_KC).split_with_sizes(mixed, -1)
        ssm_HPN = state.ssm_BHPN.view(states)
        y_HP = ssd_row(x.view(heads), dt_1H.view(H, 1), A_H1, B.view(inputs), C.view(outputs), D_H1, ssm_HPN)
        y_1I = y_HP.view(z_1I.shape)
        out_1E = out(gated(y_1I, z_1I)) if normed_out is None else normed_out(silu(z_1I).mul_(y_1I), place)
        return out_1E if out_bias is None else out_1E + out_bias

    return step


def row_constants(
    d_inner: int,
    A_log_H: Tensor,
    dt_bias_H: Tensor,
    in_bias_O: Tensor | None,
    conv_weight_CK: Tensor,
    conv_bias_C: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """What the step of one row needs: A, the bias of the first projection with that of dt, and the convolution."""
    bias_O = F.pad(dt_bias_H, (d_inner + conv_weight_CK.shape[0], 0))
    bias_O = bias_O if in_bias_O is None else bias_O + in_bias_O
    return negative_rates(A_log_H)[:, None], bias_O, *kernels.conv_constants(conv_weight_CK, conv_bias_C)


def negative_rates(A_log_H: Tensor) -> Tensor:
    """A, in at least float32."""
    return -A_log_H.to(torch.promote_types(A_log_H.dtype, torch.float32)).exp()
