"""Layers of attention and state space: Jamba and Zamba against `transformers`; Samba and Hymba, which it does not have,
against a loop over tokens written from the papers' equations."""

from __future__ import annotations

import copy
import dataclasses
import json
import math

import pytest
import torch
from models.hf import check_equal_logits, check_there_and_back, native_of, random_transformers_model
from models.test_exactness import CONFIGS, assert_close, random_model, tokens
from torch import Tensor

from paradigms.models.config import ModelConfig
from paradigms.models.families import family_of, to_native, to_theirs
from paradigms.models.mamba import MambaConfig
from paradigms.models.parallel_heads import ParallelHeadsConfig
from paradigms.models.shared_attention import SharedAttentionConfig
from paradigms.models.stack import Model
from paradigms.training.optimizer import Optimizer

SIZES = {"vocab_size": 60, "hidden_size": 32, "intermediate_size": 48, "max_position_embeddings": 64}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "mamba_d_state": 8}
JAMBA = {"model_type": "jamba", **SIZES, **HEADS, "num_hidden_layers": 4, "num_experts": 4, "attn_layer_period": 4}
ZAMBA = {"model_type": "zamba", **SIZES, **HEADS, "num_hidden_layers": 5, "n_mamba_heads": 1}
ZAMBA["layers_block_type"] = ["linear_attention", "hybrid", "linear_attention", "hybrid", "hybrid"]
THEIRS = {
    "jamba": {**JAMBA, "attn_layer_offset": 2},
    "jamba, no experts": {
        **JAMBA,
        "attn_layer_offset": 1,
        "num_experts": 1,
        "mamba_conv_bias": False,
        "rms_norm_eps": 1e-2,
    },
    "jamba, no attention": {**JAMBA, "attn_layer_offset": 3, "num_hidden_layers": 3, "tie_word_embeddings": True},
    "zamba": ZAMBA,
    "zamba, Mamba of two heads": {**ZAMBA, "n_mamba_heads": 2, "rms_norm_eps": 1e-2},
    "zamba, wide heads": {**ZAMBA, "attention_head_dim": 10, "num_key_value_heads": 4, "mamba_conv_bias": False},
}


def louder(theirs) -> None:
    """What `random_transformers_model` leaves small: experts, and what Mamba layers select by."""
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "experts" in name:
                parameter.mul_(4)
            elif name.endswith(("x_proj_weight", "dt_proj_weight")):
                parameter.mul_(20)
            elif name.endswith("dt_proj_bias"):
                parameter.add_(3)


@pytest.mark.parametrize("config", THEIRS.values(), ids=THEIRS)
def test_logits_are_those_of_transformers(config):
    theirs = random_transformers_model(config)
    louder(theirs)
    native = native_of(theirs)
    check_equal_logits(theirs, native)
    check_there_and_back(theirs, native)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_act": "silu"}, "hidden_act='silu'"),
        ({"hidden_mamba_act": "gelu"}, "hidden_mamba_act='gelu'"),
        ({"mamba_proj_bias": True}, "mamba_proj_bias=True"),
        ({"attention_hidden_size": 40}, "attention_hidden_size=40"),
    ],
    ids=str,
)
def test_a_zamba_that_is_computed_otherwise_is_refused(change, words):
    config = random_transformers_model(ZAMBA).config.to_dict() | change
    with pytest.raises(ValueError, match=words):
        family_of(config).from_transformers(config)


# ---------------------------------------------------------------- one token after the other, from the equations

Weights = dict[str, Tensor]  # of one layer


def part_of(model: Model, prefix: str) -> Weights:
    """The weights below a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in model.state_dict().items() if name.startswith(prefix)}


def norm(x_X: Tensor, weight_X: Tensor, eps: float = 1e-5) -> Tensor:
    return x_X / (x_X.pow(2).mean() + eps).sqrt() * weight_X


def silu(x: Tensor) -> Tensor:
    return x / (1 + (-x).exp())


def turned(x_D: Tensor, position: int, theta: float = 10_000.0) -> Tensor:
    """Rotary positions: the pairs (i, i + D / 2) turned by position x theta^(-2 i / D)."""
    half, y_D = len(x_D) // 2, x_D.clone()
    for i in range(half):
        angle = position * theta ** (-2 * i / len(x_D))
        a, b = x_D[i], x_D[i + half]
        y_D[i], y_D[i + half] = a * math.cos(angle) - b * math.sin(angle), b * math.cos(angle) + a * math.sin(angle)
    return y_D


def attention_loop(w: Weights, x_TE: Tensor, num_heads: int, num_kv_heads: int, window: int | None) -> Tensor:
    """Heads side by side, [T, H D]: token t sees those at positions above t - window."""
    D = w["qkv"].shape[1] // (num_heads + 2 * num_kv_heads)
    keys_SKD: list[list[Tensor]] = []
    values_SKD: list[Tensor] = []
    rows = []
    for t, x_E in enumerate(x_TE):
        q_HD, k_KD, v_KD = (x_E @ w["qkv"]).view(-1, D).split((num_heads, num_kv_heads, num_kv_heads))
        keys_SKD.append([turned(k_D, t) for k_D in k_KD])
        values_SKD.append(v_KD)
        seen = [s for s in range(t + 1) if window is None or s > t - window]
        heads = []
        for head in range(num_heads):
            kv, q_D = head // (num_heads // num_kv_heads), turned(q_HD[head], t)
            score_S = torch.stack([q_D @ keys_SKD[s][kv] for s in seen]) / math.sqrt(D)
            weight_S = score_S.exp() / score_S.exp().sum()
            heads.append(sum(weight * values_SKD[s][kv] for weight, s in zip(weight_S, seen, strict=True)))
        rows.append(torch.cat(heads))
    return torch.stack(rows)


def mamba_loop(w: Weights, x_TE: Tensor) -> Tensor:
    """What a Mamba mixer says before its projection out (2312.00752, algorithm 2), [T, I]."""
    inner, states = w["A_log"].shape
    rank = w["dt_proj"].shape[0]
    h_IN = torch.zeros_like(w["A_log"])
    window_KI = [torch.zeros(inner, dtype=x_TE.dtype)] * w["conv_weight"].shape[1]
    rows = []
    for x_E in x_TE:
        x_I, z_I = (x_E @ w["in_proj"]).split(inner)
        window_KI = [*window_KI[1:], x_I]
        u_I = silu(sum(w["conv_weight"][:, k] * past_I for k, past_I in enumerate(window_KI)) + w["conv_bias"])
        low_Q, B_N, C_N = (u_I @ w["x_proj"]).split((rank, states, states))
        dt_I = (1 + (low_Q @ w["dt_proj"] + w["dt_bias"]).exp()).log()
        for i in range(inner):
            h_IN[i] = (dt_I[i] * -w["A_log"][i].exp()).exp() * h_IN[i] + dt_I[i] * u_I[i] * B_N
        rows.append((h_IN @ C_N + w["D"] * u_I) * silu(z_I))
    return torch.stack(rows)


def layer_loop(model: Model, i: int, letter: str, x_TE: Tensor) -> Tensor:
    """One layer of a Samba or a Hymba."""
    w, part = part_of(model, f"layers.{i}."), model.config.parts[i]
    a_TE = torch.stack([norm(x_E, w["norm"]) for x_E in x_TE])
    w = part_of(model, f"layers.{i}.mixer.")
    match letter:
        case "S":
            return x_TE + mamba_loop(w, a_TE) @ w["out"]
        case "W":
            return x_TE + attention_loop(w, a_TE, part.num_heads, part.kv_heads, part.window) @ w["out"]
        case "F":
            gate_TI, up_TI = (a_TE @ w["gate_up"]).chunk(2, -1)
            return x_TE + (silu(gate_TI) * up_TI) @ w["down"]
        case "P":
            seen_TI = attention_loop(
                part_of(model, f"layers.{i}.mixer.attention."),
                a_TE,
                part.num_heads,
                part.num_kv_heads or part.num_heads,
                part.window,
            )
            scanned_TI = mamba_loop(part_of(model, f"layers.{i}.mixer.mamba."), a_TE)
            beta_1, beta_2 = w["attention_norm"], w["mamba_norm"]
            y_TI = [(norm(a, beta_1) + norm(b, beta_2)) / 2 for a, b in zip(seen_TI, scanned_TI, strict=True)]
            return x_TE + torch.stack(y_TI) @ w["out"]
    raise AssertionError(letter)


@pytest.mark.parametrize("name", ["samba", "hymba"])
def test_logits_are_those_of_a_loop_over_tokens(name):
    model = random_model(dataclasses.replace(CONFIGS[name], d_model=16), torch.float64)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "norm" in parameter_name:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    tokens_1T = tokens(model, 1, 14)
    x_TE = model.embedding.t()[tokens_1T[0]]
    for i, letter in enumerate(model.config.layers):
        x_TE = layer_loop(model, i, letter, x_TE)
    want_TV = torch.stack([norm(x_E, model.norm) for x_E in x_TE]) @ model.embedding
    assert_close(model(tokens_1T)[0], want_TV)
    if name == "hymba":
        assert [part.window for part in model.config.parts if isinstance(part, ParallelHeadsConfig)] == [6, None]


def test_a_layer_of_parallel_heads_is_one_closure_of_the_plan():
    """`test_one_token` holds what it computes against the whole."""
    model = random_model(CONFIGS["hymba"], torch.float32)
    state = model.new_state(1, 8)
    mixers = [(layer.mixer, part) for layer, part in zip(model.typed_layers(), state.layers, strict=True)]
    assert all(mixer.one_token(part) is not None for mixer, part in mixers)


# ---------------------------------------------------------------- weights that layers share

SHARED = ("norm", "qkv", "out", "inner_norm", "gate_up", "down")


def test_shared_weights_exist_once():
    model = random_model(CONFIGS["zamba"], torch.float64)
    shared = [name for name in model.state_dict() if "shared" in name]
    assert sorted(shared) == sorted(f"shared.shared_attention.{name}" for name in SHARED)
    assert {id(p) for p in model.parameters()} == {id(p) for _, p in model.named_parameters(remove_duplicate=False)}
    assert len(list(model.parameters())) == len(list(model.named_parameters(remove_duplicate=False)))
    twin = copy.deepcopy(model)
    text = tokens(model, 1, 9)
    before = model(text)
    with torch.no_grad():
        twin.get_parameter("shared.shared_attention.down").zero_()
    assert torch.equal(model(text), before) and not torch.equal(twin(text), before)


def test_shared_weights_learn_from_every_place():
    """Their gradient is the sum of what the places would give copies of their own, and one step moves them once."""
    model = random_model(dataclasses.replace(CONFIGS["zamba"], num_blocks=1, block="ZSZ"), torch.float64)
    text = tokens(model, 2, 12)
    places = [layer.mixer for layer in model.layers if hasattr(layer.mixer, "_shared")]
    originals = [place._shared for place in places]
    model.requires_grad_(True)
    model(text).square().sum().backward()
    together = {name: model.get_parameter(f"shared.shared_attention.{name}").grad.clone() for name in SHARED}
    model.zero_grad()
    for place in places:
        place._shared = (copy.deepcopy(place._shared[0]),)
    model(text).square().sum().backward()
    for name in SHARED:
        assert_close(sum(place._shared[0].get_parameter(name).grad for place in places), together[name])
    for place, original in zip(places, originals, strict=True):
        place._shared = original
    optimizer = Optimizer(model, weight_decay=0.0)
    parameters = [p for part in optimizer._parts for group in part.param_groups for p in group["params"]]
    assert len({p.data_ptr() for p in parameters}) == len(parameters)
    assert sum(p.numel() for p in parameters) == sum(p.numel() for p in model.parameters())


def test_copies_of_shared_weights_that_differ_are_refused():
    """transformers ties them by `tie_word_embeddings`: with a head of its own, every place has weights of its own."""
    theirs = random_transformers_model({**ZAMBA, "tie_word_embeddings": False})
    config = theirs.config.to_dict()
    family = family_of(config)
    native = family.from_transformers(config)
    tensors = dict(theirs.state_dict())
    with pytest.raises(ValueError, match=r"shared_transf.* differs"):
        to_native(family, native, tensors)
    first = {name: value for name, value in tensors.items() if "shared_transf" not in name or "layers.1." in name}
    ours = to_native(family, native, first)
    written = to_theirs(family, native, ours)
    assert written.keys() == tensors.keys()
    name = "shared_transf.self_attn.o_proj.weight"
    assert torch.equal(written[f"model.layers.3.{name}"], tensors[f"model.layers.1.{name}"])


# ---------------------------------------------------------------- configs


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"block": "P", "parallel_heads": ParallelHeadsConfig(num_heads=3)}, ["num_heads=3", "128"]),
        ({"block": "PF", "parallel_heads": ParallelHeadsConfig(global_layers=(0,))}, ["global_layers=[0]", "window"]),
        (
            {"block": "PF", "parallel_heads": ParallelHeadsConfig(window=4, global_layers=(1,))},
            ["global_layers=[1]", "below 1"],
        ),
        ({"block": "P", "parallel_heads": ParallelHeadsConfig(window=0)}, ["window=0"]),
        ({"block": "P", "parallel_heads": ParallelHeadsConfig(mamba=MambaConfig(proj_bias=True))}, ["proj_bias"]),
        ({"block": "Z", "shared_attention": SharedAttentionConfig(num_heads=5)}, ["num_heads=5", "128", "head_dim"]),
        ({"block": "Z", "shared_attention": SharedAttentionConfig(num_kv_heads=3)}, ["num_kv_heads=3"]),
        ({"block": "Z", "shared_attention": SharedAttentionConfig(width=0)}, ["width=0"]),
        ({"block": "S", "mamba": MambaConfig(num_groups=3)}, ["num_groups=3", "128"]),
        ({"block": "S", "mamba": MambaConfig(num_groups=2, inner_norms="plain")}, ["num_groups=2", "inner_norms"]),
    ],
    ids=str,
)
def test_impossible_configs_say_why(changes, words):
    with pytest.raises(ValueError) as error:
        ModelConfig(vocab_size=50, d_model=64, max_positions=64, **changes)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("name", ["jamba", "zamba", "samba", "hymba"])
def test_a_card_gives_the_config_back(name):
    config = CONFIGS[name]
    assert ModelConfig.from_dict(json.loads(json.dumps(dataclasses.asdict(config)))) == config


def test_more_places_cost_a_matrix_and_a_mamba_layer_each():
    sizes = {"vocab_size": 50, "d_model": 64}
    one, two = (ModelConfig(**sizes, block="Z", num_blocks=n) for n in (1, 2))
    mamba = ModelConfig(**sizes, block="S", num_blocks=1)
    rest = 50 * 64 + 64  # embedding and last norm
    assert two.num_parameters() - one.num_parameters() == 64 * 64 + mamba.num_parameters() - rest
