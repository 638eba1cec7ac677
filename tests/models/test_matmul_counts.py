"""Matrix products by formula against torch's counter, for every network that conf/ names and odder ones.

The counter sees attention's products only under its plain form (`SDPBackend.MATH`), and no product that is written as
something else: in float32 one row times a matrix may be a weighted sum of embedding rows (`kernels.product`), hence
float64. The other way round, a single row's step on a CPU turns its heads by a product (`one_token.Place.turns`), which
by definition is none: `turns` says how many operations the counter then sees on top.

Blocks are all alike, so two of each network are counted, and large ones without their numbers, on the meta device.
"""

from __future__ import annotations

import dataclasses
from functools import cache

import pytest
import torch
from models.shaped import NAMES, forwards, network
from models.test_exactness import CONFIGS
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from paradigms.models.config import ModelConfig

LARGE = 2_000_000  # parameters


@cache
def check(config: ModelConfig) -> None:
    """Hold all forwards of this network against the counter; paradigms that share a network are checked once."""
    large = config.num_parameters() > LARGE
    config = dataclasses.replace(config, num_blocks=min(config.num_blocks, 2), target_parameters=None)
    with torch.device("meta" if large else "cpu"):
        model = config.build().to(torch.float64).eval().requires_grad_(False)
    if config.conditioning is not None:
        with torch.no_grad():
            next(forwards(model, 2, (2,))).call()  # modulations that depend on weights alone are computed once
    for rows in (2,) if large else (2, 1):
        pieces = (longest(config), 21, 1, 3, 1) if rows > 1 else (5, 1, 3, 1)
        for call, shape in forwards(model, rows, pieces, room=config.max_positions):
            with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
                call()
            turned = turns(config) if rows == 1 and shape.tokens == 1 and shape.written and model.plain else 0
            counted = config.counts(shape, itemsize=8).matmul_flops
            assert counter.get_total_flops() == counted + turned, shape


def longest(config: ModelConfig) -> int:
    """Tokens that fill two windows and more than a chunk."""
    windows = [2 * (getattr(part, "window", None) or 0) for part in config.parts]
    chunks = [part.chunk_len for part in config.parts if part.key in ("mamba2", "mamba3")]
    return min(config.max_positions - 30, 9 + max(16, *windows, *chunks))


def turns(config: ModelConfig) -> int:
    """Operations of the products with a [D, D] matrix that turn the heads of one token."""
    total = 0
    for part in config.parts:
        if part.key == "latent_attention":
            total += 2 * (part.num_heads + 1) * part.rope_dim**2
        heads = part.heads(config.d_model) if part.key == "parallel_heads" else part
        if heads.key in ("attention", "sliding_attention") and heads.rope_theta is not None and not heads.qk_norm:
            total += 2 * (heads.num_heads + heads.kv_heads) * heads.head_width(config.d_model) ** 2
    return total


@pytest.mark.parametrize("name", NAMES)
def test_every_network_of_conf(tmp_path, name):
    check(network(name, tmp_path))


@pytest.mark.parametrize("name", CONFIGS)
def test_odder_networks(name):
    check(CONFIGS[name])


@pytest.mark.parametrize("length", [7, 8, 9, 15, 16, 17, 24, 25])
def test_texts_around_one_and_two_windows(length):
    """Below two windows every pair is computed, from there on blocks of one window against two."""
    config = CONFIGS["window"]
    window = dataclasses.replace(config.part("W"), window=8)
    model = dataclasses.replace(config, sliding_attention=window).build().double()
    for call, shape in forwards(model, 1, (length, 9, 1)):
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):  # with gradients: no plan
            call()
        assert counter.get_total_flops() == model.config.counts(shape, itemsize=8).matmul_flops, shape
