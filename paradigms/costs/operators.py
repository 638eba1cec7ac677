"""How many operators and kernels a forward is made of, which is what a small model's time is made of.

`EAGER` are the operators that the native stack calls for one layer, its norm and the addition behind it included,
counted at one token of a row behind a state (tests/costs counts them again); views, which launch nothing, are left out.
`FUSED` are the kernels that remain when everything between two matrix products is one: norm, product, what is done to
its result, attention in two parts, product.
"""

from __future__ import annotations

from paradigms.models.config import LAYERS, ModelConfig

EAGER = {
    "attention": 14, "feed_forward": 10, "mamba2": 34, "mamba": 35, "mamba3": 79, "latent_attention": 27,
    "experts": 29, "sliding_attention": 14, "parallel_heads": 54, "shared_attention": 57, "mlp": 10,
}  # fmt: skip
EAGER_AROUND = 7  # embedding, positions, norm, head
FUSED = {
    "attention": 6, "feed_forward": 4, "mamba2": 6, "mamba": 7, "mamba3": 6, "latent_attention": 9,
    "experts": 9, "sliding_attention": 6, "parallel_heads": 12, "shared_attention": 16, "mlp": 4,
}  # fmt: skip
FUSED_AROUND = 3


def eager(model: ModelConfig) -> int:
    """Operators of a forward, called one by one."""
    return EAGER_AROUND + sum(EAGER[LAYERS[letter].key] for letter in model.layers)


def fused(model: ModelConfig) -> int:
    """Kernels of a compiled forward."""
    return FUSED_AROUND + sum(FUSED[LAYERS[letter].key] for letter in model.layers)
