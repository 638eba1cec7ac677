"""Cached = uncached, state-space duality = recurrence, causality, batch and padding invariance: on random and trained
weights."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paradigms import zoo
from paradigms.models import kernels, ssd
from paradigms.models.attention import AttentionConfig
from paradigms.models.config import ModelConfig
from paradigms.models.experts import ExpertsConfig
from paradigms.models.latent_attention import LatentAttentionConfig
from paradigms.models.mamba import MambaConfig
from paradigms.models.mamba2 import Mamba2Config
from paradigms.models.mamba3 import Mamba3Config
from paradigms.models.parallel_heads import ParallelHeadsConfig
from paradigms.models.rotary import RopeScaling
from paradigms.models.shared_attention import SharedAttentionConfig
from paradigms.models.sliding_attention import SlidingAttentionConfig
from paradigms.models.stack import Model
from paradigms.training import checkpoint

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
V = 50
SIZES = {"vocab_size": V, "d_model": 64, "num_blocks": 2, "max_positions": 64}
LATENT = LatentAttentionConfig(num_heads=3, kv_rank=40, nope_dim=16, rope_dim=8, value_dim=20, form="latent")
GROUPED = ExpertsConfig(
    num_experts=12, top_k=3, width=24, scoring="sigmoid", num_groups=4, top_groups=2, group_best=2, routed_scale=1.5
)
ONCE = {**SIZES, "num_blocks": 1}
CONFIGS = {
    "attention": ModelConfig(**SIZES),
    "grouped-query": ModelConfig(**SIZES, attention=AttentionConfig(num_kv_heads=2)),
    "multi-query": ModelConfig(**SIZES, attention=AttentionConfig(num_kv_heads=1, head_dim=24), tied_head=False),
    "bias, norms, YaRN": ModelConfig(
        **SIZES,
        attention=AttentionConfig(
            qkv_bias=True,
            qk_norm=True,
            num_kv_heads=2,
            rope_scaling=RopeScaling(kind="yarn", factor=4.0, original_max_positions=16),
        ),
    ),
    "window": ModelConfig(**SIZES, block="WF", sliding_attention=SlidingAttentionConfig(window=6, num_kv_heads=2)),
    "window and all": ModelConfig(
        **SIZES, block="WAM", mamba2=Mamba2Config(chunk_len=8), sliding_attention=SlidingAttentionConfig(window=13)
    ),
    "no positions": ModelConfig(**SIZES, attention=AttentionConfig(rope_theta=None)),
    "mamba2": ModelConfig(**SIZES, block="MM", mamba2=Mamba2Config(chunk_len=8)),
    "mamba2 groups": ModelConfig(
        **SIZES, block="M", mamba2=Mamba2Config(num_groups=2, d_state=16, head_dim=16, chunk_len=5)
    ),
    "mamba2 norm before gate": ModelConfig(
        **SIZES,
        block="M",
        mamba2=Mamba2Config(
            num_groups=2, d_state=8, head_dim=16, chunk_len=5, norm="before_gate", dt_max=0.05, conv_bias=False
        ),
    ),
    "jamba": ModelConfig(
        **ONCE,
        block="SEAF",
        attention=AttentionConfig(num_kv_heads=2, rope_theta=None),
        mamba=MambaConfig(inner_norms="weighted"),
        experts=ExpertsConfig(num_experts=4, normalise_top_k=False),
    ),
    "zamba": ModelConfig(**SIZES, block="SZ", shared_attention=SharedAttentionConfig(num_kv_heads=2)),
    "mamba groups": ModelConfig(**SIZES, block="S", mamba=MambaConfig(num_groups=2, d_state=8)),
    "samba": ModelConfig(**ONCE, block="SFWF", sliding_attention=SlidingAttentionConfig(window=5)),
    "hymba": ModelConfig(
        **ONCE,
        block="PFP",
        parallel_heads=ParallelHeadsConfig(num_kv_heads=2, window=6, global_layers=(1,)),
    ),
    "mamba": ModelConfig(**SIZES, block="S"),
    "mamba odd": ModelConfig(
        **SIZES,
        block="SF",
        mamba=MambaConfig(
            d_inner=40,
            d_state=3,
            d_conv=3,
            dt_rank=5,
            conv_bias=False,
            proj_bias=True,
            inner_norms="weighted",
            chunk_len=7,
        ),
    ),
    "mamba3": ModelConfig(**SIZES, block="T", mamba3=Mamba3Config(head_dim=16, d_state=8, num_groups=2, chunk_len=5)),
    "denoiser": ModelConfig(**SIZES, causal=False, noise="absorbing", shift_logits=True),
    "latent attention": ModelConfig(**SIZES, block="LF", latent_attention=LatentAttentionConfig(kv_rank=24, q_rank=40)),
    "latent expanded at each step": ModelConfig(**SIZES, block="LF", latent_attention=LATENT),
    "latent kept expanded": ModelConfig(
        **SIZES, block="LF", latent_attention=dataclasses.replace(LATENT, form="expanded", value_dim=24)
    ),
    "experts": ModelConfig(**SIZES, block="AE", experts=ExpertsConfig(width=40, num_shared=1, shared_gate=True)),
    "experts in groups": ModelConfig(**SIZES, block="LE", latent_attention=LATENT, experts=GROUPED),
    "hybrid": ModelConfig(**SIZES, block="AMF", mamba2=Mamba2Config(chunk_len=8)),
}


def random_model(config: ModelConfig, dtype: torch.dtype) -> Model:
    """Weights large enough that attention and states matter; fresh ones are nearly linear."""
    torch.manual_seed(0)
    model = config.build()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() in (2, 3) and "conv" not in name:
                parameter.mul_(4)
    return model.to(dtype).eval().requires_grad_(False)


def trained_model(name: str, dtype: torch.dtype) -> Model:
    folder = zoo.FOLDER / name
    return checkpoint.load_model(folder, checkpoint.read_card(folder)).to(dtype).eval().requires_grad_(False)


MODELS = [("random", name) for name in CONFIGS] + [("zoo", name) for name in zoo.names()]


DTYPES = [torch.float64, torch.float32]


def make(case: tuple[str, str], dtype: torch.dtype) -> Model:
    kind, name = case
    return random_model(CONFIGS[name], dtype) if kind == "random" else trained_model(name, dtype)


def is_causal(case: tuple[str, str]) -> bool:
    kind, name = case
    return CONFIGS[name].causal if kind == "random" else checkpoint.read_card(zoo.FOLDER / name)["model"]["causal"]


def case_id(case: object) -> str:
    return " ".join(case) if isinstance(case, tuple) else str(case)


@pytest.fixture(params=itertools.product(MODELS, DTYPES), ids=lambda pair: f"{case_id(pair[0])} {pair[1]}")
def model(request):
    return make(*request.param)


@pytest.fixture(
    params=itertools.product(filter(is_causal, MODELS), DTYPES), ids=lambda pair: f"{case_id(pair[0])} {pair[1]}"
)
def causal_model(request):
    return make(*request.param)


def tokens(model: Model, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(3, model.config.vocab_size, shape, generator=generator)


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    error = (actual - expected).abs().max().item()
    scale = max(1.0, expected.abs().max().item())
    assert error <= TOLERANCE[expected.dtype] * scale, f"largest difference {error:.1e}, of values up to {scale:.1f}"


@pytest.mark.parametrize(
    "chunks", [[1] * 40, [40], [7, 1, 13, 2, 17], [1, 1, 38]], ids=["by token", "whole", "mixed", "late"]
)
def test_cached_equals_uncached(causal_model, chunks):
    tokens_BT = tokens(causal_model, 3, 40)
    state = causal_model.new_state(3, 48)
    pieces, start = [], 0
    for size in chunks:
        pieces.append(causal_model(tokens_BT[:, start : start + size], state))
        start += size
    assert_close(torch.cat(pieces, 1), causal_model(tokens_BT))
    assert state.lengths == [40] * 3


def test_looking_without_writing_changes_nothing(causal_model):
    tokens_BT = tokens(causal_model, 2, 20)
    state = causal_model.new_state(2, 24)
    causal_model(tokens_BT[:, :12], state)
    looked = causal_model(tokens_BT[:, 12:], state, write="none")
    assert state.lengths == [12, 12]
    assert_close(causal_model(tokens_BT[:, 12:], state), looked)


def test_left_padding_and_batching_change_nothing(model):
    tokens_BT = tokens(model, 3, 30)
    lengths = [30, 17, 2]
    padded_BT = torch.zeros_like(tokens_BT)
    for row, length in enumerate(lengths):
        padded_BT[row, 30 - length :] = tokens_BT[row, :length]
    together = model(padded_BT, num_tokens=lengths)
    for row, length in enumerate(lengths):
        alone = model(tokens_BT[row : row + 1, :length])
        first = 1 if model.config.shift_logits else 0  # a shifted denoiser's column 0 means nothing
        assert_close(together[row, 30 - length + first :], alone[0, first:])


def test_ragged_rows_continue_exactly(causal_model):
    tokens_BT = tokens(causal_model, 3, 40)
    first, second = [20, 9, 3], [2, 8, 5]
    state = causal_model.new_state(3, 40)
    for starts, sizes in (([0, 0, 0], first), (first, second)):
        T = max(sizes)
        padded_BT = torch.zeros(3, T, dtype=torch.long)
        for row, (start, size) in enumerate(zip(starts, sizes, strict=True)):
            padded_BT[row, T - size :] = tokens_BT[row, start : start + size]
        logits = causal_model(padded_BT, state, num_tokens=sizes)
    lengths = [a + b for a, b in zip(first, second, strict=True)]
    assert state.lengths == lengths
    next_B1 = torch.stack([tokens_BT[row, length : length + 1] for row, length in enumerate(lengths)])
    after = causal_model(next_B1, state)
    for row, length in enumerate(lengths):
        alone = causal_model(tokens_BT[row : row + 1, : length + 1])[0]
        assert_close(logits[row, -second[row] :], alone[first[row] : length])
        assert_close(after[row, 0], alone[length])


def test_rows_without_a_token_stay_as_they_are(causal_model):
    tokens_BT = tokens(causal_model, 2, 9)
    state, one = causal_model.new_state(2, 12), causal_model.new_state(1, 12)
    with torch.no_grad():
        for T in (5, 1):
            causal_model(tokens_BT[:, :T], state, num_tokens=[0, T])
        for count in (1, 0):  # also where a single token has a path of its own
            causal_model(tokens_BT[:1, :1], one, num_tokens=[count])
        assert state.lengths == [0, 6] and one.lengths == [1]
        after = causal_model(tokens_BT[:, 1:3], state)
        assert_close(after[0], causal_model(tokens_BT[:1, 1:3])[0])
        history = torch.cat((tokens_BT[1, :5], tokens_BT[1, :1], tokens_BT[1, 1:3]))
        assert_close(after[1], causal_model(history[None])[0, -2:])
        assert_close(causal_model(tokens_BT[:1, 1:2], one), causal_model(tokens_BT[:1, :2])[:, 1:])


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize(
    ("shape", "num_tokens", "message"),
    [
        ((2, 3), [4, 3], r"num_tokens=\[4, 3\] must be 0 to 3"),
        ((2, 3), [-1, 3], r"num_tokens=\[-1, 3\] must be 0 to 3"),
        ((2, 3), [3], "for each of 2 rows"),
        ((2, 0), None, "at least one column"),
        ((1, 3), None, "for a state of 2 rows"),
        ((1, 1), None, "for a state of 2 rows"),
    ],
)
def test_tokens_that_do_not_fit_are_refused(cached, shape, num_tokens, message):
    model = random_model(CONFIGS["hybrid"], torch.float64)
    state = model.new_state(2, 9)
    if cached or "state" not in message:
        with torch.no_grad(), pytest.raises(ValueError, match=message):
            model(torch.ones(shape, dtype=torch.long), state if cached else None, num_tokens=num_tokens)
    assert state.lengths == [0, 0]


def test_causality(causal_model):
    """A later token changes nothing before it, and something after it."""
    tokens_BT = tokens(causal_model, 1, 24)
    changed_BT = tokens_BT.clone()
    changed_BT[0, 15] = (changed_BT[0, 15] + 1) % causal_model.config.vocab_size
    before, after = causal_model(tokens_BT), causal_model(changed_BT)
    assert_close(after[:, :15], before[:, :15])
    assert (after[:, 15:] - before[:, 15:]).abs().max() > 1e-4


def test_logits_at_selects_columns(model):
    tokens_BT = tokens(model, 2, 12)
    everything = model(tokens_BT)
    columns_BK = torch.tensor([[3, 7], [11, 1]])
    rows = torch.arange(2)[:, None]
    assert_close(model(tokens_BT, logits_at=slice(-1, None)), everything[:, -1:])
    assert_close(model(tokens_BT, logits_at=columns_BK[0]), everything[:, columns_BK[0]])
    assert_close(model(tokens_BT, logits_at=columns_BK), everything[rows, columns_BK])
    wanted_BT = torch.zeros(2, 12, dtype=torch.bool)
    wanted_BT[rows, columns_BK] = True
    assert_close(model.logits_where(tokens_BT, wanted_BT), everything[wanted_BT])


def test_a_denoiser_sees_both_ways():
    config = dataclasses.replace(CONFIGS["attention"], causal=False, noise="absorbing")
    model = random_model(config, torch.float64)
    tokens_BT = tokens(model, 1, 12)
    changed_BT = tokens_BT.clone()
    changed_BT[0, 9] += 1
    difference_T = (model(tokens_BT) - model(changed_BT)).abs().amax(-1)[0]
    assert (difference_T > 1e-6).all()


def test_shifted_logits_are_read_one_to_the_left():
    config = dataclasses.replace(CONFIGS["attention"], causal=False, noise="absorbing")
    plain = random_model(config, torch.float64)
    shifted = random_model(dataclasses.replace(config, shift_logits=True), torch.float64)
    tokens_BT = tokens(plain, 2, 12)
    assert torch.equal(shifted(tokens_BT)[:, 1:], plain(tokens_BT)[:, :-1])


@settings(max_examples=40, deadline=None)
@given(
    length=st.integers(1, 40),
    chunk_len=st.integers(1, 17),
    groups=st.sampled_from([1, 2, 4]),
    from_state=st.booleans(),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)
def test_chunked_duality_is_the_recurrence(length, chunk_len, groups, from_state, dtype):
    """Outputs, and behind a state where it ends, whatever the chunk."""
    generator = torch.Generator().manual_seed(length * 100 + chunk_len)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    x, B, C = normal(2, length, 4, 3), normal(2, length, groups, 5), normal(2, length, groups, 5)
    dt, A = torch.nn.functional.softplus(normal(2, length, 4)), -normal(4).exp()
    start = normal(2, 4, 3, 5) if from_state else None
    y, state = ssd.ssd_chunked(x, dt, A, B, C, start, chunk_len)
    y_reference, state_reference = ssd.ssd_recurrence(
        x, dt, A, B, C, torch.zeros(2, 4, 3, 5, dtype=dtype) if start is None else start
    )
    assert_close(y, y_reference)
    if from_state:
        assert_close(state, state_reference)
    else:
        assert state is None


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("length", [1, 5])
def test_the_convolution_and_its_gradient(length, has_bias):
    """Against torch's grouped convolution and finite differences."""
    generator = torch.Generator().manual_seed(length)
    shapes = ((2, length + 3, 6), (6, 4), (6,))
    seen, weight, bias = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes)
    values = [value.requires_grad_() for value in (seen, weight, bias)][: 2 + has_bias]
    found = kernels.causal_conv(seen, weight, bias if has_bias else None)
    reference = torch.nn.functional.conv1d(seen.mT, weight[:, None], bias if has_bias else None, groups=6).mT
    assert_close(found, reference)
    gradients, references = (torch.autograd.grad(y.square().sum(), values) for y in (found, reference))
    for ours, theirs in zip(gradients, references, strict=True):
        assert_close(ours, theirs)
    assert torch.autograd.gradcheck(
        lambda *inputs: kernels.causal_conv(*inputs, *(() if has_bias else (None,))), values
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"), [(1, 640, 256), (1, 256, 256), (1, 256, 640), (1, 96, 32), (3, 640, 256)]
)
def test_the_product_is_the_matrix_product(rows, inputs, outputs, dtype):
    generator = torch.Generator().manual_seed(0)
    x, weights = (torch.randn(shape, generator=generator, dtype=dtype) for shape in ((rows, inputs), (inputs, outputs)))
    with torch.no_grad():
        assert_close(kernels.product(x, weights), x @ weights)
    assert torch.equal(kernels.product(x, weights.requires_grad_()), x @ weights)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_one_row_of_the_duality_is_its_step(groups):
    generator = torch.Generator().manual_seed(0)
    x, B, C, state, D, dt, A = (
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in ((1, 4, 3), (1, groups, 5), (1, groups, 5), (1, 4, 3, 5), (4,), (1, 4), (4,))
    )
    stepped = state.clone()
    y = ssd.ssd_step(x, dt.exp(), -A.exp(), B, C, stepped) + D[:, None] * x
    y_row = ssd.ssd_row(x[0], dt.exp().t(), -A.exp()[:, None], B[0, :, None], C[0, :, :, None], D[:, None], state[0])
    assert_close(y_row, y[0])
    assert_close(state, stepped)


def test_recurrence_by_hand():
    """One head of width 1, state 1: h = exp(dt A) h + dt x B, y = h C."""
    x, dt = torch.tensor([[[[2.0]], [[3.0]]]]), torch.tensor([[[1.0], [0.5]]])
    A, B, C = torch.tensor([-1.0]), torch.tensor([[[[1.0]], [[4.0]]]]), torch.tensor([[[[1.0]], [[10.0]]]])
    y, state = ssd.ssd_recurrence(x, dt, A, B, C, torch.zeros(1, 1, 1, 1))
    h1 = 1.0 * 2.0 * 1.0
    h2 = h1 * torch.exp(torch.tensor(-0.5)).item() + 0.5 * 3.0 * 4.0
    assert y.flatten().tolist() == pytest.approx([h1, 10 * h2])
    assert state.item() == pytest.approx(h2)
