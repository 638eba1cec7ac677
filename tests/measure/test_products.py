"""The bare products of a token: every matrix that it meets, and no other."""

from __future__ import annotations

import dataclasses

import pytest
import tiny

from paradigms.measure.products import matrices, products_s
from paradigms.models.config import ModelConfig
from paradigms.models.experts import ExpertsConfig


@pytest.mark.parametrize("name", ["ar", "ssm"])
def test_each_matrix_of_a_token_once_and_a_head_that_is_the_embedding(name):
    config = tiny.MODELS[name]
    tied, free = config.build(), dataclasses.replace(config, tied_head=False).build()
    d, V = config.d_model, config.vocab_size
    vectors = sum(p.numel() for n, p in tied.named_parameters() if p.dim() == 1 or "conv_weight" in n)
    assert sum(m.numel() for m in matrices(tied)) == config.num_parameters() - vectors
    assert [m.shape for m in matrices(free)].count((d, V)) == 1
    assert products_s(tied) > 0


def test_a_matrix_that_layers_share_is_met_in_each_of_them():
    model = ModelConfig(vocab_size=50, d_model=32, block="SZ", num_blocks=3).build()
    shared = [id(parameter) for parameter in model.shared.parameters() if parameter.dim() == 2]
    met = [id(matrix) for matrix in matrices(model)]
    assert len(shared) == 4 and all(met.count(one) == 3 for one in shared)
    assert all(met.count(one) == 1 for one in set(met) - set(shared))


def test_routed_experts_are_met_by_choice():
    model = ModelConfig(vocab_size=50, d_model=32, block="AE", num_blocks=1, experts=ExpertsConfig(width=16)).build()
    with pytest.raises(ValueError, match="routed experts"):
        products_s(model)
