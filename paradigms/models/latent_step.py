"""One token of one row through latent attention on a CPU; see `one_token`. The layer's own forward is the reference.

Dimension letters: S slots seen, H heads, C = kv_rank, N = nope_dim, P = rope_dim, V = value_dim, D = N + P, X a head's
plain key and value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paradigms.models.kernels import row_product
from paradigms.models.one_token import Place, Step

if TYPE_CHECKING:
    from paradigms.models.kv_cache import KVCache
    from paradigms.models.latent_attention import LatentAttention, LatentCache


def one_token(layer: LatentAttention, cache: KVCache | LatentCache) -> Step:
    """The layer for one token, everything looked up once."""
    c, scale = layer.config, layer.scale
    H, C, N, P, V = c.num_heads, c.kv_rank, c.nope_dim, c.rope_dim, c.value_dim
    in_proj, kv_up, kv_norm, out, table = layer.in_proj, layer.kv_up, layer.kv_norm, row_product(layer.out), layer.table
    q_norm, q_up = (layer.q_norm, layer.q_up) if c.q_rank is not None else (None, None)
    mm, bmm, addmm, baddbmm, cat, softmax = torch.mm, torch.bmm, torch.addmm, torch.baddbmm, torch.cat, torch.softmax
    zero = torch.zeros((), dtype=kv_up.dtype)
    up_HCX = kv_up.detach().view(C, H, N + V).transpose(0, 1)
    to_query_HNC, to_value_HCV = up_HCX[..., :N].transpose(1, 2), up_HCX[..., N:]
    plain, first = H * N, (H * N if c.q_rank is None else c.q_rank)

    def project(x_1E: Tensor, place: Place) -> tuple[Tensor, Tensor, Tensor]:
        """Queries without positions [H, N], all heads' turned parts and the turned key below them, the latent [C]."""
        joined_1X = mm(x_1E, in_proj)
        if q_up is None:
            q_HN = joined_1X.narrow(1, 0, plain).view(H, N)
            turn_HP = joined_1X.narrow(1, plain, (H + 1) * P).view(H + 1, P)
            after = plain + (H + 1) * P
        else:
            assert q_norm is not None
            made_1X = mm(_normed(joined_1X[0].narrow(0, 0, first), q_norm, c.latent_eps, zero)[None], q_up)
            q_HN = made_1X.narrow(1, 0, plain).view(H, N)
            turn_HP = cat((made_1X.narrow(1, plain, H * P).view(H, P), joined_1X.narrow(1, first, P)))
            after = first + P
        latent_C = _normed(joined_1X[0].narrow(0, after, C), kv_norm, c.latent_eps, zero)
        return q_HN, mm(turn_HP, place.turns[table]), latent_C

    def kept(latent_C: Tensor, turned_HP: Tensor, place: Place) -> Tensor:
        """Latents of all slots, [S, C + P]."""
        latents_SC = cache.tensors()[0][0]
        torch.cat((latent_C, turned_HP[H]), out=latents_SC[place.start])
        return latents_SC.narrow(0, 0, place.stop)

    def absorbed(x_1E: Tensor, place: Place) -> Tensor:
        q_HN, turned_HP, latent_C = project(x_1E, place)
        latents_SC = kept(latent_C, turned_HP, place)
        q_HC = cat((bmm(q_HN[:, None], to_query_HNC)[:, 0], turned_HP.narrow(0, 0, H)), 1)
        weights_HS = softmax(addmm(zero, q_HC, latents_SC.t(), beta=0, alpha=scale), -1)
        y_H1C = mm(weights_HS, latents_SC.narrow(1, 0, C))[:, None]
        return out(bmm(y_H1C, to_value_HCV).view(1, H * V))

    def attend(q_HN: Tensor, turned_HP: Tensor, k_HSD: Tensor, v_HSV: Tensor) -> Tensor:
        q_H1D = cat((q_HN, turned_HP.narrow(0, 0, H)), 1)[:, None]
        weights_H1S = softmax(baddbmm(zero, q_H1D, k_HSD.transpose(1, 2), beta=0, alpha=scale), -1)
        return out(bmm(weights_H1S, v_HSV).view(1, H * V))

    def latent(x_1E: Tensor, place: Place) -> Tensor:
        q_HN, turned_HP, latent_C = project(x_1E, place)
        k_1HSD, v_1HSV = layer.expand(kept(latent_C, turned_HP, place)[None])
        return attend(q_HN, turned_HP, k_1HSD[0], v_1HSV[0])

    def expanded(x_1E: Tensor, place: Place) -> Tensor:
        q_HN, turned_HP, latent_C = project(x_1E, place)
        made_HX = mm(latent_C[None], kv_up).view(H, N + V)
        k_HD = cat((made_HX.narrow(1, 0, N), turned_HP.narrow(0, H, 1).expand(H, P)), 1)
        v_1H1V = made_HX.narrow(1, N, V).view(1, H, 1, V)
        k_1HSD, v_1HSV = cache.take_one(k_HD.view(1, H, 1, N + P), v_1H1V, place.start)  # type: ignore[union-attr]
        return attend(q_HN, turned_HP, k_1HSD[0], v_1HSV[0])

    return {"absorbed": absorbed, "latent": latent, "expanded": expanded}[c.form]


def _normed(row: Tensor, weight: Tensor, eps: float, zero: Tensor) -> Tensor:
    """RMS norm of one row; its size is read on the host, which costs no wait on a CPU."""
    scale = (torch.dot(row, row).item() / len(row) + eps) ** -0.5
    return torch.addcmul(zero, row, weight, value=scale)
