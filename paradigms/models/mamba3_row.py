"""One token of one row through a Mamba-3 mixer, in the fewest operators; see `one_token`.

Dimension letters as in `mamba3`. B and C are normed, biased and turned together, as the two rows of one tensor.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from paradigms.models import kernels
from paradigms.models.one_token import Place, Step

if TYPE_CHECKING:
    from paradigms.models.mamba3 import Mamba3, Mamba3State

SLOWEST = 1e-4  # least -A, as in the reference


def one_token_step(mixer: Mamba3, state: Mamba3State) -> Step:
    """What the mixer makes of the next token of a state's only row."""
    c, H, inner = mixer.config, mixer.num_heads, mixer.d_inner
    (G, N, S), P = (c.num_groups, c.d_state, c.num_angles), c.head_dim
    in_proj, D_H1, constants, width = mixer.in_proj, mixer.D[:, None], mixer.row_constants, sum(mixer.columns)
    weights = (mixer.dt_bias, mixer.B_norm, mixer.C_norm, mixer.B_bias, mixer.C_bias)
    parts, turned, shared = (inner, inner, 2 * G * N, 2 * H, H, S), (S, S, N - 2 * S), (2, G, 1, N)
    eps = torch.tensor(mixer.norm_eps, dtype=in_proj.dtype)
    out, mm, addcmul, softplus, silu = kernels.row_product(mixer.out), torch.mm, torch.addcmul, F.softplus, F.silu

    def step(x_1E: Tensor, place: Place) -> Tensor:
        dt_A_bias_2H, norm_211N, bias_2GRN = constants(*weights)
        projected = mm(x_1E, in_proj)
        if state.is_marked:
            state.log((projected.narrow(1, inner, width).view(1, 1, width),), [1])
        z_1I, x_1I, BC, dt_A, mix_1H, theta_1S = projected.split_with_sizes(parts, -1)
        dt_H1, rate_H1 = softplus(dt_A.view(2, H) + dt_A_bias_2H).view(2, H, 1).unbind()
        now_H1 = dt_H1 * mix_1H.view(H, 1).sigmoid()
        decay_H11 = (dt_H1 * rate_H1.clamp(min=SLOWEST)).neg_().exp_().view(H, 1, 1)

        angle_HS = state.angle_BHS.view(H, S)
        angle_HS.addcmul_(dt_H1, theta_1S.tanh(), value=math.pi).remainder_(2 * math.pi)
        cos_HS, sin_HS = angle_HS.cos(), angle_HS.sin()
        BC_2G1N = BC.view(shared)
        size = torch.linalg.vector_norm(BC_2G1N, dim=-1, keepdim=True)
        normed_2G1N = BC_2G1N * addcmul(eps, size, size, value=1 / N).rsqrt_()
        first, second, rest = addcmul(bias_2GRN, normed_2G1N, norm_211N).view(2, H, N).split_with_sizes(turned, -1)
        real = addcmul(first * cos_HS, second, sin_HS, value=-1)
        key_HN, query_HN = torch.cat((real, addcmul(first * sin_HS, second, cos_HS), rest), -1).unbind()

        x_HP, last_HP, last_key_HN = x_1I.view(H, P), state.x_BHP.view(H, P), state.key_BHN.view(H, N)
        ssm_HPN = state.ssm_BHPN.view(H, P, N)
        ssm_HPN.addcmul_(((dt_H1 - now_H1) * last_HP).view(H, P, 1), last_key_HN.view(H, 1, N)).mul_(decay_H11)
        ssm_HPN.addcmul_((now_H1 * x_HP).view(H, P, 1), key_HN.view(H, 1, N))
        y_HP = addcmul(torch.bmm(ssm_HPN, query_HN.view(H, N, 1)).view(H, P), D_H1, x_HP)
        last_HP.copy_(x_HP)
        last_key_HN.copy_(key_HN)
        return out(silu(z_1I).mul_(y_HP.view(1, inner)))

    return step


def row_constants(
    num_groups: int, dt_bias_H: Tensor, B_norm_N: Tensor, C_norm_N: Tensor, B_bias_X: Tensor, C_bias_X: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The bias of dt above zeros for A; norms and biases of B above those of C."""
    dt_A_bias_2H = torch.stack((dt_bias_H, torch.zeros_like(dt_bias_H)))
    N = B_norm_N.shape[0]
    norm_211N = torch.stack((B_norm_N, C_norm_N)).view(2, 1, 1, N)
    return dt_A_bias_2H, norm_211N, torch.stack((B_bias_X, C_bias_X)).view(2, num_groups, -1, N)
