"""Latent attention: one network in three computations and two kinds of cache."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from models.hf import check_equal_logits, check_there_and_back, native_of, random_transformers_model
from models.test_exactness import LATENT, SIZES, assert_close, random_model, tokens

from paradigms import zoo
from paradigms.models.config import ModelConfig
from paradigms.models.families import family_of
from paradigms.models.latent_attention import FORMS, LatentAttentionConfig, LatentCache
from paradigms.models.layers import rms_norm
from paradigms.models.stack import Model
from paradigms.training import checkpoint

WIDE_LATENT = LatentAttentionConfig(num_heads=2, kv_rank=48, nope_dim=8, rope_dim=4, value_dim=12, q_rank=20)


def in_form(config: LatentAttentionConfig, form: str, dtype: torch.dtype = torch.float64) -> Model:
    latent = dataclasses.replace(config, form=form)
    return random_model(ModelConfig(**SIZES, block="LF", latent_attention=latent), dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("config", [LATENT, WIDE_LATENT], ids=["wide heads", "wide latent"])
def test_all_forms_are_one_function(config, dtype):
    """Chunks short enough to be absorbed and long enough to be expanded, one at a time, ragged rows included."""
    sizes = (9, 1, 2, 1, 20)
    assert {dataclasses.replace(config, form="absorbed").absorbs(size) for size in sizes} >= {True}
    models = {form: in_form(config, form, dtype) for form in FORMS}
    text = tokens(models["latent"], 2, sum(sizes))
    want = models["expanded"](text)
    for model in models.values():
        assert torch.equal(model(text), want)  # without a cache, bit for bit
        state, start = model.new_state(2, 40), 0
        for size in sizes:
            assert_close(model(text[:, start : start + size], state), want[:, start : start + size])
            start += size
        ragged = model.new_state(2, 40)
        model(text[:, :6], ragged, num_tokens=[6, 2])
        logits = model(torch.stack((text[0, 6:9], text[1, 4 - 3 + 0 : 4])), ragged, num_tokens=[3, 2])
        assert_close(logits[0], want[0, 6:9])


def test_a_long_chunk_is_expanded_and_a_short_one_absorbed():
    """Products a slot: rank x (nope + value) to expand, against what scores in the latent space cost more."""
    config = dataclasses.replace(WIDE_LATENT, form="absorbed")
    saved, extra = 48 * (8 + 12), 2 * 48 + 4 - (8 + 4 + 12)
    assert [config.absorbs(size) for size in (1, saved // extra, saved // extra + 1)] == [True, True, False]
    assert not any(dataclasses.replace(config, form=form).absorbs(1) for form in ("latent", "expanded"))


def test_what_each_form_keeps():
    length = 13
    for form, numbers in (("expanded", 3 * (16 + 8 + 20)), ("latent", 40 + 8), ("absorbed", 40 + 8)):
        model = in_form(LATENT, form)
        state = model.new_state(1, 20)
        model(tokens(model, 1, length), state)
        assert state.used_bytes == 2 * length * numbers * 8
        assert isinstance(state.layers[0], LatentCache) == (form != "expanded")


@pytest.mark.parametrize("form", FORMS)
def test_a_layer_is_the_paper_s_equations(form):
    """2405.04434, equations 9 to 19, a token and a head at a time; rotary pairs are (i, i + P / 2) here."""
    model = in_form(dataclasses.replace(LATENT, q_rank=12), form)
    layer, c = model.layers[0].mixer, LATENT
    x = torch.randn(1, 7, 64, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    cos, sin = layer.rotary.tables(7)

    def turned(value, position):
        half = c.rope_dim // 2
        swapped = torch.cat((value[half:], value[:half]))
        return value * cos[position] + swapped * sin[position]

    projected = x[0] @ layer.in_proj
    q_latent, k_rope, kv_latent = projected.split((12, c.rope_dim, c.kv_rank), -1)
    queries = rms_norm(q_latent, layer.q_norm, 1e-6) @ layer.q_up
    latents = rms_norm(kv_latent, layer.kv_norm, 1e-6)
    want = torch.zeros(7, 64, dtype=torch.float64)
    for t in range(7):
        heads = []
        for h in range(c.num_heads):
            q_plain = queries[t, h * c.nope_dim : (h + 1) * c.nope_dim]
            first = c.num_heads * c.nope_dim + h * c.rope_dim
            q = torch.cat((q_plain, turned(queries[t, first : first + c.rope_dim], t)))
            up = layer.kv_up[:, h * (c.nope_dim + c.value_dim) : (h + 1) * (c.nope_dim + c.value_dim)]
            made = [latents[s] @ up for s in range(t + 1)]
            keys = [torch.cat((made[s][: c.nope_dim], turned(k_rope[s], s))) for s in range(t + 1)]
            scores = torch.stack([q @ key for key in keys]) * (c.nope_dim + c.rope_dim) ** -0.5
            weights = scores.softmax(0)
            heads.append(sum(weights[s] * made[s][c.nope_dim :] for s in range(t + 1)))
        want[t] = torch.cat(heads) @ layer.out
    state = model.new_state(1, 7)
    got = []
    for start, size in ((0, 4), (4, 1), (5, 2)):
        span = model._span((1, size), state, None, None, None, "append", None)
        got.append(layer(x[0, start : start + size], span, state.layers[0]))
        state.advance([size])
    assert_close(torch.cat(got), want)


def test_the_form_is_no_other_network():
    configs = [in_form(LATENT, form).config for form in FORMS]
    assert not zoo.differences(configs[0], configs[1])
    assert checkpoint.network_dict(configs[0]) == checkpoint.network_dict(configs[2])
    other = dataclasses.replace(configs[0], latent_attention=dataclasses.replace(LATENT, kv_rank=24))
    assert "latent_attention.kv_rank is 24 there, not 40" in zoo.differences(configs[0], other)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rope_dim": 7}, ["rope_dim=7", "even"]),
        ({"form": "folded"}, ["form='folded'", "expanded, latent, absorbed"]),
        ({"kv_rank": 0}, ["kv_rank=0", "at least 1"]),
        ({"q_rank": 0}, ["q_rank=0", "at least 1"]),
    ],
    ids=str,
)
def test_impossible_layers_say_why(changes, words):
    with pytest.raises(ValueError) as error:
        ModelConfig(**SIZES, block="LF", latent_attention=LatentAttentionConfig(**changes))
    assert all(word in str(error.value) for word in words)


def test_latents_are_kept_as_computed():
    with pytest.raises(ValueError, match="kv_dtype"):
        in_form(LATENT, "absorbed").new_state(1, 8, kv_dtype="int8")


DEEPSEEK = {
    "vocab_size": 60,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
}
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 16}
MODELS = {
    "v3": {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 3,
        "first_k_dense_replace": 1,
        "n_group": 4,
        "topk_group": 2,
    },
    "v3 dense": {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 2,
        "first_k_dense_replace": 2,
        "q_lora_rank": None,
        "rms_norm_eps": 1e-2,
    },
    "v3 without groups": {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 2,
        "first_k_dense_replace": 0,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": False,
        "n_shared_experts": 2,
    },
    "v3 with yarn": {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 2,
        "first_k_dense_replace": 1,
        "n_group": 2,
        "topk_group": 1,
        "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7},
    },
    "v2": {
        "model_type": "deepseek_v2",
        "num_hidden_layers": 3,
        "first_k_dense_replace": 1,
        "n_group": 4,
        "topk_group": 2,
        "topk_method": "group_limited_greedy",
        "routed_scaling_factor": 4.0,
    },
    "v2 lite": {"model_type": "deepseek_v2", "num_hidden_layers": 2, "first_k_dense_replace": 1, "q_lora_rank": None},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_logits_are_those_of_transformers(config, form):
    theirs = random_transformers_model({**DEEPSEEK, **config})
    for name, bias in theirs.named_buffers():
        if name.endswith("e_score_correction_bias"):
            bias.copy_(torch.linspace(0.2, -0.2, len(bias)))
    native = native_of(theirs)
    latent = dataclasses.replace(native.config.latent_attention, form=form)
    other = dataclasses.replace(native.config, latent_attention=latent).build()
    other.load_state_dict(native.state_dict())
    with torch.no_grad():
        check_equal_logits(theirs, other.eval())
    check_there_and_back(theirs, native)


@pytest.mark.parametrize(
    "changes",
    [{"attention_bias": True}, {"rope_interleave": False}, {"hidden_act": "gelu"}, {"num_key_value_heads": 2}],
    ids=str,
)
def test_what_is_not_computed_is_refused(changes):
    (name, value), *_ = changes.items()
    config = random_transformers_model({**DEEPSEEK, **MODELS["v3 dense"]}).config.to_dict()
    with pytest.raises(ValueError, match=f"{name}={value!r} is not computed"):
        family_of(config).from_transformers({**config, **changes})
