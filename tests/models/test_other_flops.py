"""Operations that are no matrix product: formulas against whole small networks, computed in numbers that count.

Each reference computes the function itself, so that its logits must be the model's and nothing is left out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from models import counting
from models.counting import Number, Row, added, dot, product, rms_norm, row, silu, softplus, times, zeros
from models.test_exactness import random_model

from paradigms.models.attention import AttentionConfig
from paradigms.models.conditioning import ConditioningConfig
from paradigms.models.config import ModelConfig
from paradigms.models.experts import ExpertsConfig
from paradigms.models.feed_forward import FeedForwardConfig
from paradigms.models.latent_attention import LatentAttentionConfig
from paradigms.models.mamba import MambaConfig
from paradigms.models.mamba2 import Mamba2Config
from paradigms.models.mamba3 import Mamba3Config
from paradigms.models.mlp import MLPConfig
from paradigms.models.parallel_heads import ParallelHeadsConfig
from paradigms.models.shared_attention import SharedAttentionConfig
from paradigms.work import ForwardShape

SIZES: dict[str, Any] = {"vocab_size": 7, "d_model": 8, "num_blocks": 1, "max_positions": 16}
MAMBA = MambaConfig(d_state=3, d_conv=3, dt_rank=2, inner_norms="weighted", proj_bias=True)
PLAIN = MambaConfig(d_state=2)
HEADS = AttentionConfig(num_heads=2, head_dim=4)
CASES: dict[str, dict[str, Any]] = {
    "attention": {"block": "AF", "attention": HEADS, "feed_forward": FeedForwardConfig(width=5)},
    "attention, all options": {
        "block": "A",
        "attention": dataclasses.replace(HEADS, num_kv_heads=1, qkv_bias=True, qk_norm=True),
        "head_bias": True,
    },
    "latent attention": {
        "block": "L",
        "latent_attention": LatentAttentionConfig(
            num_heads=2, kv_rank=5, q_rank=3, nope_dim=4, rope_dim=2, value_dim=3
        ),
    },
    "experts": {
        "block": "E",
        "experts": ExpertsConfig(num_experts=4, top_k=2, width=3, num_shared=1, shared_width=4, shared_gate=True),
    },
    "experts in groups": {
        "block": "E",
        "experts": ExpertsConfig(
            num_experts=4,
            top_k=1,
            width=3,
            scoring="sigmoid",
            routing_bias=True,
            num_groups=2,
            group_best=2,
            routed_scale=2.5,
        ),
    },
    "mamba": {"block": "S", "mamba": MAMBA},
    "mamba, plain": {"block": "S", "mamba": PLAIN},
    "mamba2": {"block": "M", "mamba2": Mamba2Config(head_dim=4, d_state=3, num_groups=2, chunk_len=2)},
    "mamba2, other options": {
        "block": "M",
        "mamba2": Mamba2Config(head_dim=8, d_state=3, chunk_len=3, norm="before_gate", proj_bias=True, conv_bias=False),
    },
    "mamba3": {"block": "T", "mamba3": Mamba3Config(head_dim=4, d_state=6, num_groups=2, chunk_len=2)},
    "parallel heads": {"block": "P", "parallel_heads": ParallelHeadsConfig(num_heads=2, mamba=PLAIN)},
    "shared attention": {"block": "Z", "shared_attention": SharedAttentionConfig(num_heads=2, width=5, mamba=PLAIN)},
    "conditioned denoiser": {
        "block": "AG",
        "attention": HEADS,
        "mlp": MLPConfig(width=5),
        "norm": "layer",
        "causal": False,
        "noise": "absorbing",
        "conditioning": ConditioningConfig(width=3, frequency_dim=4),
    },
}


@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_operations_are_those_of_numbers_that_count(case, length):
    model = random_model(ModelConfig(**SIZES, **case), torch.float64)
    tokens = torch.arange(length)[None] % 7
    time = {"time_B": torch.tensor([0.4])} if model.config.reads_time else {}
    Number.operations = 0
    logits = torch.tensor([[number.value for number in line] for line in _logits(model, tokens[0].tolist())])
    torch.testing.assert_close(logits.double(), model(tokens, **time)[0], atol=1e-6, rtol=1e-5)
    shape = ForwardShape(phase="prefill", rows=1, tokens=length, seen=length, logits=length)
    assert model.config.counts(shape, itemsize=8).other_flops == Number.operations
    many = ForwardShape(phase="prefill", rows=3, tokens=length, seen=length, logits=3 * length)
    once = 2 * (case["conditioning"].frequency_dim // 2) if "conditioning" in case else 0  # frequencies, for all rows
    assert model.config.counts(many, itemsize=8).other_flops == 3 * (Number.operations - once) + once


def _logits(model: Any, tokens: list[int]) -> list[Row]:
    config = model.config
    stream = [row(model.embedding[:, token].tolist()) for token in tokens]
    embedded, norm = stream, counting.layer_norm if config.norm == "layer" else rms_norm
    parts: list[Any] = _modulations(model, 0.4) if config.conditioning else [None] * (len(model.layers) + 1)
    for layer, part, told in zip(model.layers, config.parts, parts, strict=False):
        mixer, mix = layer.mixer, MIXERS[part.key]
        if part.reads_stream:
            said = mix(mixer, part, stream, config, embedded)
        else:
            x = [norm(line, layer.norm, config.norm_eps) for line in stream]
            if told:
                scale = [value + 1 for value in told[1]]
                x = [added(times(line, scale), told[0]) for line in x]
            said = mix(mixer, part, x, config)
            said = [times(line, told[2]) for line in said] if told else said
        stream = [added(line, more) for line, more in zip(stream, said, strict=True)]
    stream = [norm(line, model.norm, config.norm_eps) for line in stream]
    if parts[-1]:
        scale = [value + 1 for value in parts[-1][1]]
        stream = [added(times(line, scale), parts[-1][0]) for line in stream]
    logits = [product(line, model.head_weight) for line in stream]
    return [added(line, row(model.head_bias.tolist())) for line in logits] if config.head_bias else logits


def _modulations(model: Any, time: float) -> list[list[Row]]:
    """Shift, scale and gate of each layer; shift and scale of the last norm."""
    told, c = model.conditioning, model.config.conditioning
    sigma = -counting.elementary(math.log1p)(Number(time) * (c.eps - 1))
    half = c.frequency_dim // 2
    angles = [sigma * counting.exp(Number(j) * (math.log(1e-4) / half)) for j in range(half)]
    waves = [counting.cos(angle) for angle in angles] + [counting.sin(angle) for angle in angles]
    x = [silu(value) for value in added(product(waves, told.embed), row(told.embed_bias.tolist()))]
    x = [silu(value) for value in added(product(x, told.mix), row(told.mix_bias.tolist()))]
    made = added(product(x, told.modulation), row(told.modulation_bias.tolist()))
    parts = [made[start : start + model.config.d_model] for start in range(0, len(made), model.config.d_model)]
    return [parts[start : start + 3] for start in range(0, len(parts), 3)]


def _split(x: Row, *widths: int) -> list[Row]:
    parts, start = [], 0
    for width in widths:
        parts.append(x[start : start + width])
        start += width
    return parts


def _by_heads(x: Row, width: int) -> list[Row]:
    return [x[start : start + width] for start in range(0, len(x), width)]


def _joined(heads: list[list[Row]]) -> list[Row]:
    """[H][T][D] to [T][H D]."""
    return [[value for part in token for value in part] for token in zip(*heads, strict=True)]


def attention(mixer: Any, part: Any, x: list[Row], config: Any, *, merge: bool = True) -> list[Row]:
    H, K, D = part.num_heads, part.kv_heads, part.head_width(config.d_model)
    tokens = []
    for position, line in enumerate(x):
        qkv = product(line, mixer.qkv)
        qkv = added(qkv, row(mixer.qkv_bias.tolist())) if part.qkv_bias else qkv
        heads = _by_heads(qkv, D)
        for h in range(H + K):
            if part.qk_norm:
                heads[h] = rms_norm(heads[h], mixer.q_norm if h < H else mixer.k_norm, config.norm_eps)
            heads[h] = counting.rotated(heads[h], position, part.rope_theta)
        tokens.append(heads)
    said = []
    for h in range(H):
        k = H + h * K // H
        queries, keys, values = ([token[place] for token in tokens] for place in (h, k, k + K))
        said.append(counting.attended(queries, keys, values, D**-0.5, _sees(config)))
    joined = _joined(said)
    return [product(line, mixer.out) for line in joined] if merge else joined


def _sees(config: Any) -> Callable[[int, int], bool]:
    return (lambda i, j: j <= i) if config.causal else (lambda i, j: True)


def latent_attention(mixer: Any, c: Any, x: list[Row], config: Any) -> list[Row]:
    H, N, P = c.num_heads, c.nope_dim, c.rope_dim
    plain: list[list[Row]] = []
    turned: list[list[Row]] = []
    keys: list[Row] = []
    made: list[list[Row]] = []
    for position, line in enumerate(x):
        low, key, latent = _split(product(line, mixer.in_proj), c.q_rank, P, c.kv_rank)
        q, q_turned = _split(product(rms_norm(low, mixer.q_norm, c.latent_eps), mixer.q_up), H * N, H * P)
        plain.append(_by_heads(q, N))
        turned.append([counting.rotated(head, position, c.rope_theta) for head in _by_heads(q_turned, P)])
        keys.append(counting.rotated(key, position, c.rope_theta))
        latent = rms_norm(latent, mixer.kv_norm, c.latent_eps)
        made.append(_by_heads(product(latent, mixer.kv_up), N + c.value_dim))
    said = []
    for h in range(H):
        q = [one[h] + other[h] for one, other in zip(plain, turned, strict=True)]
        k = [one[h][:N] + key for one, key in zip(made, keys, strict=True)]
        v = [one[h][N:] for one in made]
        said.append(counting.attended(q, k, v, c.key_dim**-0.5, _sees(config)))
    return [product(line, mixer.out) for line in _joined(said)]


def _gated(line: Row, gate_up: Any, down: Any) -> Row:
    both = product(line, gate_up)
    half = len(both) // 2
    return product([silu(gate) * up for gate, up in zip(both[:half], both[half:], strict=True)], down)


def feed_forward(mixer: Any, part: Any, x: list[Row], config: Any) -> list[Row]:
    return [_gated(line, mixer.gate_up, mixer.down) for line in x]


def mlp(mixer: Any, part: Any, x: list[Row], config: Any) -> list[Row]:
    said = []
    for line in x:
        up = added(product(line, mixer.up), row(mixer.up_bias.tolist()))
        back = product([counting.gelu_tanh(value) for value in up], mixer.down)
        said.append(added(back, row(mixer.down_bias.tolist())))
    return said


def experts(mixer: Any, c: Any, x: list[Row], config: Any) -> list[Row]:
    said = []
    for line in x:
        logits = product(line, mixer.router)
        scores = counting.softmax(logits) if c.scoring == "softmax" else [counting.sigmoid(value) for value in logits]
        ranks = added(scores, row(mixer.routing_bias.tolist())) if c.routing_bias else scores
        allowed = range(len(ranks))
        if c.num_groups > 1:
            size = len(ranks) // c.num_groups
            groups = [sorted(allowed[g * size :][:size], key=lambda e: -ranks[e].value) for g in range(c.num_groups)]
            best = [counting.total([ranks[e] for e in group[: c.group_best]]).value for group in groups]
            chosen_groups = sorted(range(c.num_groups), key=lambda g: -best[g])[: c.top_groups]
            allowed = [e for g in chosen_groups for e in groups[g]]
        chosen = sorted(allowed, key=lambda e: -ranks[e].value)[: c.top_k]
        weights = [scores[e] for e in chosen]
        if c.normalise_top_k:
            whole = counting.total(weights) + 1e-20
            weights = [weight / whole for weight in weights]
        weights = [weight * c.routed_scale for weight in weights] if c.routed_scale != 1 else weights
        parts = [
            [value * weight for value in _gated(line, mixer.gate_up[e], mixer.down[e])]
            for e, weight in zip(chosen, weights, strict=True)
        ]
        y = parts[0]
        for part in parts[1:]:
            y = added(y, part)
        if c.num_shared:
            beside = _gated(line, mixer.shared.gate_up, mixer.shared.down)
            if c.shared_gate:
                gate = counting.sigmoid(product(line, mixer.shared_gate)[0])
                beside = [value * gate for value in beside]
            y = added(y, beside)
        said.append(y)
    return said


def _convolved(x: list[Row], weight: list[list[float]], bias: list[float] | None) -> list[Row]:
    K, said = len(weight[0]), []
    seen = [zeros(len(weight)) for _ in range(K - 1)] + x
    for t in range(len(x)):
        line = []
        for channel, taps in enumerate(weight):
            value = counting.total([seen[t + k][channel] * tap for k, tap in enumerate(taps)])
            line.append(silu(value if bias is None else value + bias[channel]))
        said.append(line)
    return said


def mamba(mixer: Any, c: Any, x: list[Row], config: Any, *, merge: bool = True) -> list[Row]:
    inner, rank, N = c.inner(config.d_model), c.rank(config.d_model), c.d_state
    eps, biased = config.norm_eps, c.proj_bias
    projected = [product(line, mixer.in_proj) for line in x]
    projected = [added(line, row(mixer.in_bias.tolist())) for line in projected] if biased else projected
    convolved = _convolved([line[:inner] for line in projected], mixer.conv_weight.tolist(), mixer.conv_bias.tolist())
    A, said = [[-math.exp(value) for value in line] for line in mixer.A_log.tolist()], []
    state = [zeros(N) for _ in range(inner)]
    for u, z in zip(convolved, (line[inner:] for line in projected), strict=True):
        low, B, C = _split(product(u, mixer.x_proj), rank, N, N)
        if c.inner_norms:
            norms = mixer.dt_norm, mixer.B_norm, mixer.C_norm
            low, B, C = (rms_norm(value, norm, eps) for value, norm in zip((low, B, C), norms, strict=True))
        dt = [softplus(v) for v in added(product(low, mixer.dt_proj), row(mixer.dt_bias.tolist()))]
        y = []
        for i in range(inner):
            taken = dt[i] * u[i]
            state[i] = [counting.exp(dt[i] * A[i][n]) * state[i][n] + taken * B[n] for n in range(N)]
            y.append(dot(C, state[i]) + u[i] * mixer.D[i].item())
        said.append([value * silu(gate) for value, gate in zip(y, z, strict=True)])
    if not merge:
        return said
    out = [product(line, mixer.out) for line in said]
    return [added(line, row(mixer.out_bias.tolist())) for line in out] if biased else out


def mamba2(mixer: Any, c: Any, x: list[Row], config: Any) -> list[Row]:
    inner, conv, H = c.inner(config.d_model), c.conv_dim(config.d_model), c.num_heads(config.d_model)
    projected = [product(line, mixer.in_proj) for line in x]
    projected = [added(line, row(mixer.in_bias.tolist())) for line in projected] if c.proj_bias else projected
    bias = mixer.conv_bias.tolist() if c.conv_bias else None
    convolved = _convolved([line[inner : inner + conv] for line in projected], mixer.conv_weight.tolist(), bias)
    dt = [[softplus(v) for v in added(line[inner + conv :], row(mixer.dt_bias.tolist()))] for line in projected]
    A = [-math.exp(value) for value in mixer.A_log.tolist()]
    shared = c.num_groups * c.d_state
    xs, Bs, Cs = zip(*(_split(line, inner, shared, shared) for line in convolved), strict=True)
    heads = [_by_heads(line, c.head_dim) for line in xs]
    u = [
        [[v * step for v in head] for head, step in zip(token, steps, strict=True)]
        for token, steps in zip(heads, dt, strict=True)
    ]
    decay = [times(steps, A) for steps in dt]
    B, C = ([_by_heads(line, c.d_state) for line in lines] for lines in (Bs, Cs))
    y = counting.chunked(u, decay, B, C, c.chunk_len)
    said = []
    for t, token in enumerate(y):
        line = [
            value + skip * mixer.D[h].item()
            for h in range(H)
            for value, skip in zip(token[h], heads[t][h], strict=True)
        ]
        said.append(_mamba2_gated(mixer, c, line, projected[t][:inner], config.norm_eps))
    out = [product(line, mixer.out) for line in said]
    return [added(line, row(mixer.out_bias.tolist())) for line in out] if c.proj_bias else out


def _mamba2_gated(mixer: Any, c: Any, y: Row, z: Row, eps: float) -> Row:
    width = len(y) // c.num_groups

    def normed(line: Row) -> Row:
        weights = mixer.inner_norm.view(c.num_groups, width)
        groups = zip(_by_heads(line, width), weights, strict=True)
        return [value for group, weight in groups for value in rms_norm(group, weight, eps)]

    y = normed(y) if c.norm == "before_gate" else y
    y = [silu(gate) * value for gate, value in zip(z, y, strict=True)]
    return normed(y) if c.norm == "after_gate" else y


def mamba3(mixer: Any, c: Any, x: list[Row], config: Any) -> list[Row]:
    inner, H, N, S = c.inner(config.d_model), c.num_heads(config.d_model), c.d_state, c.num_angles
    angles = [zeros(S) for _ in range(H)]
    tokens = []
    for line in x:
        z, x_I, B, C, dt, A, mix, theta = _split(product(line, mixer.in_proj), inner, *c.columns(config.d_model))
        dt = [softplus(value) for value in added(dt, row(mixer.dt_bias.tolist()))]
        decay = [step * -Number(max(softplus(rate).value, 1e-4)) for step, rate in zip(dt, A, strict=True)]
        now = [step * counting.sigmoid(value) for step, value in zip(dt, mix, strict=True)]
        before = [step - part for step, part in zip(dt, now, strict=True)]
        turn = [counting.tanh(value) * math.pi for value in theta]
        angles = [added(angle, [value * step for value in turn]) for angle, step in zip(angles, dt, strict=True)]
        waves = [([counting.cos(a) for a in angle], [counting.sin(a) for a in angle]) for angle in angles]

        def of_heads(shared: Row, norm: Any, bias: Any, waves: Any = waves) -> list[Row]:
            groups, said = [rms_norm(group, norm, config.norm_eps) for group in _by_heads(shared, N)], []
            for h, (cosine, sine) in enumerate(waves):
                head = added(groups[h * c.num_groups // H], row(bias[h * N : h * N + N].tolist()))
                first, second, rest = head[:S], head[S : 2 * S], head[2 * S :]
                pairs = list(zip(first, second, cosine, sine, strict=True))
                said.append(
                    [a * co - b * si for a, b, co, si in pairs] + [a * si + b * co for a, b, co, si in pairs] + rest
                )
            return said

        keys, queries = of_heads(B, mixer.B_norm, mixer.B_bias), of_heads(C, mixer.C_norm, mixer.C_bias)
        tokens.append((z, _by_heads(x_I, c.head_dim), keys, queries, decay, now, before))
    z, heads, keys, queries, decay, now, before = map(list, zip(*tokens, strict=True))
    rest = [*before[1:], zeros(H)]
    u = [
        [[value * weight for value in head] for head, weight in zip(token, added(a, b), strict=True)]
        for token, a, b in zip(heads, now, rest, strict=True)
    ]
    y = counting.chunked(u, decay, keys, queries, c.chunk_len)
    said = []
    for t in range(len(x)):
        line = []
        for h in range(H):
            own = counting.total(times(queries[t][h], keys[t][h])) * rest[t][h]
            for value, skip in zip(y[t][h], heads[t][h], strict=True):
                line.append(value - skip * own + skip * mixer.D[h].item())
        said.append(product([silu(gate) * value for gate, value in zip(z[t], line, strict=True)], mixer.out))
    return said


def parallel_heads(mixer: Any, part: Any, x: list[Row], config: Any) -> list[Row]:
    eps = config.norm_eps
    seen = attention(mixer.attention, part.heads(config.d_model), x, config, merge=False)
    scanned = mamba(mixer.mamba, part.mamba, x, config, merge=False)
    said = []
    for one, other in zip(seen, scanned, strict=True):
        both = added(rms_norm(one, mixer.attention_norm, eps), rms_norm(other, mixer.mamba_norm, eps))
        said.append(product([value / 2 for value in both], mixer.out))
    return said


def shared_attention(mixer: Any, part: Any, x: list[Row], config: Any, embedded: list[Row]) -> list[Row]:
    block, eps, H, D = mixer._shared[0], config.norm_eps, part.num_heads, part.head_width(config.d_model)
    tokens = [
        _by_heads(product(rms_norm(line + first, block.norm, eps), block.qkv), D)
        for line, first in zip(x, embedded, strict=True)
    ]
    said = []
    for h in range(H):
        queries, keys, values = ([token[place] for token in tokens] for place in (h, H + h, 2 * H + h))
        said.append(counting.attended(queries, keys, values, (D / 2) ** -0.5, _sees(config)))
    given = []
    for line, read in zip(x, _joined(said), strict=True):
        both = product(rms_norm(product(read, block.out), block.inner_norm, eps), block.gate_up)
        half = len(both) // 2
        made = [counting.gelu(gate) * up for gate, up in zip(both[:half], both[half:], strict=True)]
        given.append(rms_norm(added(line, product(product(made, block.down), mixer.out)), mixer.norm, eps))
    return mamba(mixer.mamba, part.mamba, given, config)


MIXERS: dict[str, Callable[..., list[Row]]] = {
    each.__name__: each
    for each in (
        attention,
        latent_attention,
        feed_forward,
        mlp,
        experts,
        mamba,
        mamba2,
        mamba3,
        parallel_heads,
        shared_attention,
    )
}
