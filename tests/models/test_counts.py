"""Parameters used, bytes read and matrix products by formula, against models' tensors and what torch counts."""

from __future__ import annotations

import dataclasses
import json

import pytest
import theirs
import torch
from models.test_exactness import CONFIGS, GROUPED, LATENT, SIZES, random_model, tokens
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from paradigms.models.attention import AttentionConfig
from paradigms.models.config import ModelConfig
from paradigms.models.experts import ExpertsConfig
from paradigms.models.latent_attention import FORMS
from paradigms.models.mamba import MambaConfig
from paradigms.models.mamba2 import Mamba2Config
from paradigms.models.parallel_heads import ParallelHeadsConfig
from paradigms.models.pretrained import native_config
from paradigms.models.shared_attention import SharedAttentionConfig
from paradigms.models.sliding_attention import SlidingAttentionConfig
from paradigms.models.transformers_model import transformers_config
from paradigms.work import ForwardShape

SQUARE = dataclasses.replace(LATENT, value_dim=24)  # values as wide as keys: nothing is padded for torch's attention
CASES = {
    "attention": {"block": "AF"},
    "grouped-query": {"block": "AF", "attention": AttentionConfig(num_kv_heads=2, head_dim=24), "tied_head": False},
    **{
        f"latent attention, {form}": {"block": "LF", "latent_attention": dataclasses.replace(SQUARE, form=form)}
        for form in FORMS
    },
    "a latent of queries": {"block": "LF", "latent_attention": dataclasses.replace(SQUARE, q_rank=20)},
    "experts": {"block": "AE", "experts": dataclasses.replace(GROUPED, num_shared=2)},
    "shared experts with a gate": {"block": "AE", "experts": ExpertsConfig(width=24, num_shared=1, shared_gate=True)},
    "mamba": {"block": "S", "mamba": MambaConfig(d_state=8)},
    "mamba2": {"block": "M", "mamba2": Mamba2Config(chunk_len=8, num_groups=2, d_state=12, head_dim=16)},
    "hybrid": {"block": "AMF", "mamba2": Mamba2Config(chunk_len=8)},
    "shared attention": {"block": "SZ", "shared_attention": SharedAttentionConfig(num_kv_heads=2, width=40)},
    "parallel heads": {"block": "PF", "parallel_heads": ParallelHeadsConfig(num_kv_heads=2)},
}


def counted(call) -> int:
    """What torch counts; it knows attention's products only when they are computed one by one."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        call()
    return counter.get_total_flops()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_matrix_products_by_formula_are_those_that_torch_counts(case):
    """A prompt, a chunk after it, single tokens; two rows. Float64, where no product is hidden in another operator."""
    model = random_model(ModelConfig(**SIZES, **case), torch.float64)
    text, state = tokens(model, 2, 40), model.new_state(2, 40)
    start = 0
    for size, num_logits in ((21, 1), (6, 6), (1, 1), (1, 1)):
        at = slice(-num_logits, None)
        flops = counted(lambda piece=text[:, start : start + size], at=at: model(piece, state, logits_at=at))
        start += size
        assert flops == 2 * model.config.matmul_flops(num_tokens=size, context=start, num_logits=num_logits)


def test_a_window_is_all_that_a_step_sees():
    config = ModelConfig(**SIZES, block="WF", sliding_attention=SlidingAttentionConfig(window=8))
    model = random_model(config, torch.float64)
    state = model.new_state(2, 40)
    model(tokens(model, 2, 20), state)
    flops = counted(lambda: model(tokens(model, 2, 1), state))
    for context in (8, 21):
        assert flops == 2 * config.matmul_flops(num_tokens=1, context=context)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_token_uses_all_but_the_experts_it_is_not_sent_to(name):
    model = random_model(CONFIGS[name], torch.float32)
    config = model.config
    stacks = [p for key, p in model.named_parameters() if p.dim() == 3 and key.endswith((".gate_up", ".down"))]
    idle = sum(p[0].numel() * (config.experts.num_experts - config.experts.top_k) for p in stacks)
    assert config.active_parameters() == config.num_parameters() - idle
    assert config.num_parameters() * 4 == model.weight_bytes
    embedding = 0 if config.tied_head else model.embedding.nbytes
    assert config.weight_bytes_read(itemsize=4) == 4 * config.active_parameters() - embedding
    if config.experts is not None:
        everything = config.weight_bytes_read(itemsize=4, experts_touched=config.experts.num_experts)
        assert everything == model.weight_bytes - embedding
        between = config.weight_bytes_read(itemsize=4, experts_touched=config.experts.top_k + 0.5)
        assert config.weight_bytes_read(itemsize=4) < between < everything


@pytest.mark.parametrize("model_type", ["llama", "mamba2", "bamba"])
def test_networks_of_transformers_are_counted_where_the_native_stack_has_them(tmp_path, model_type):
    values = {"model_type": model_type, **theirs.SIZES, **theirs.ARCHITECTURES[model_type]}
    (tmp_path / "config.json").write_text(json.dumps(values))
    config = transformers_config(str(tmp_path))
    shape = ForwardShape(phase="decode", rows=2, tokens=1, seen=9, kept=8, written=1, logits=2)
    if model_type == "bamba":
        with pytest.raises(ValueError, match="measure it instead"):
            config.counts(shape, itemsize=4)
        return
    native = native_config(str(tmp_path), config.max_positions)
    assert config.counts(shape, itemsize=4) == native.counts(shape, itemsize=4)
    assert config.activation_bytes(shape, itemsize=4) == native.activation_bytes(shape, itemsize=4)


def test_weights_are_those_of_the_experts_that_tokens_touch_and_of_a_head_that_is_asked():
    """Expected of choices that are drawn evenly: 2 of 8 experts, n tokens."""
    config = CONFIGS["experts"]
    part = config.part("E")

    def weights(rows: int, logits: int, touched: float | None = None) -> int:
        shape = ForwardShape(phase="decode", rows=rows, tokens=1, seen=5, kept=4, written=1, logits=logits)
        return config.counts(shape, itemsize=4, experts_touched=touched).weight_bytes

    drawn = torch.rand(20_000, 3, part.num_experts).topk(part.top_k, -1).indices.flatten(1)
    distinct = sum(len(set(row)) for row in drawn.tolist()) / len(drawn)
    assert part.touched_by(3) == pytest.approx(distinct, rel=0.01)
    assert part.touched_by(1) == part.top_k
    assert weights(1, 1) == weights(1, 1, part.top_k) == config.weight_bytes_read(itemsize=4)
    assert weights(3, 3) == weights(3, 3, part.touched_by(3)) < weights(3, 3, part.num_experts)
    assert weights(1, 1) - weights(1, 0) == 4 * config.d_model * config.vocab_size
