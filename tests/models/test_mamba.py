"""Mamba-1: the scan against its definition, its gradients, the layer against `transformers`, what CUDA's kernels are
called with."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from models.hf import check_equal_logits, check_there_and_back, native_of, random_transformers_model
from models.test_exactness import CONFIGS, assert_close, random_model, tokens

from paradigms.models import kernels, selective_scan
from paradigms.models.config import ModelConfig
from paradigms.models.families import family_of_native
from paradigms.models.families.mamba import Mamba
from paradigms.models.mamba import MambaConfig
from paradigms.models.transformers_cache import cache_argument

SIZES = {"vocab_size": 60, "hidden_size": 64, "num_hidden_layers": 2}
THEIRS = {
    "mamba": {"model_type": "mamba", **SIZES},
    "odd sizes": {
        "model_type": "mamba",
        **SIZES,
        "expand": 3,
        "state_size": 5,
        "conv_kernel": 3,
        "time_step_rank": 7,
        "use_conv_bias": False,
        "tie_word_embeddings": False,
    },
    "biases": {"model_type": "mamba", **SIZES, "use_bias": True, "layer_norm_epsilon": 1e-3},
    "falcon": {"model_type": "falcon_mamba", **SIZES, "mixer_rms_eps": 1e-2},
}


@pytest.mark.parametrize("config", THEIRS.values(), ids=THEIRS)
def test_logits_are_those_of_transformers(config):
    """Their full forward is the reference: given several tokens and a state, theirs zeroes the state."""
    theirs = random_transformers_model(config)
    native = native_of(theirs)
    # Theirs lets the bias of a padded column through the convolution into the first tokens of the row.
    check_equal_logits(theirs, native, padded=not config.get("use_bias"))
    check_there_and_back(theirs, native)


def test_where_transformers_is_wrong():
    """So that it is seen here when it no longer is: a chunk after a state, and biases of padding."""
    theirs = random_transformers_model(THEIRS["biases"])
    text, name = tokens(native_of(theirs), 2, 20), cache_argument(theirs)
    want, first = theirs(text, use_cache=False).logits, theirs(text[:, :12], use_cache=True)
    after = theirs(text[:, 12:], **{name: first[name]}, use_cache=True).logits
    assert (after - want[:, 12:]).abs().max() > 0.1
    left = torch.cat((torch.zeros_like(text[:, :5]), text), 1)
    seen = torch.cat((torch.zeros_like(text[:, :5]), torch.ones_like(text)), 1)
    padded = theirs(left, attention_mask=seen, use_cache=False).logits
    assert (padded[:, 5:] - want).abs().max() > 0.1


def test_what_transformers_lacks_stays_native():
    assert family_of_native(CONFIGS["mamba"]) is not None
    for changes in ({"d_inner": 96}, {"inner_norms": "weighted"}):
        assert family_of_native(ModelConfig(vocab_size=50, d_model=64, block="S", mamba=MambaConfig(**changes))) is None
    values = random_transformers_model(THEIRS["mamba"]).config.to_dict()
    with pytest.raises(ValueError, match="hidden_act='gelu'"):
        Mamba().from_transformers(values | {"hidden_act": "gelu"})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"inner_norms": "layer"}, ["model.mamba.inner_norms='layer'", "plain, weighted"]),
        ({"inner_norm_eps": 1e-6}, ["model.mamba.inner_norm_eps=1e-06", "inner_norms"]),
        ({"d_inner": 0}, ["model.mamba.d_inner=0", "at least 1"]),
        ({"dt_rank": -1}, ["model.mamba.dt_rank=-1"]),
        ({"chunk_len": 0}, ["model.mamba.chunk_len=0"]),
    ],
    ids=str,
)
def test_impossible_configs_say_why(changes, words):
    with pytest.raises(ValueError) as error:
        ModelConfig(vocab_size=50, block="S", mamba=MambaConfig(**changes))
    for word in words:
        assert word in str(error.value)


def test_initial_weights_are_the_papers():
    torch.manual_seed(0)
    mixer = ModelConfig(vocab_size=50, d_model=64, block="S", num_blocks=1).build().layers[0].mixer
    assert torch.allclose(-mixer.A_log.exp(), -torch.arange(1.0, 17).expand(128, 16))
    dt_I = F.softplus(mixer.dt_bias)
    assert dt_I.min() >= 0.001 and dt_I.max() <= 0.1 and 0.005 < dt_I.log().mean().exp() < 0.02
    assert 0.9 / 2 < mixer.dt_proj.abs().max() <= 1 / 2  # rank 4
    assert (mixer.D == 1).all()


def arguments(batch: int, length: int, width: int, states: int, dtype: torch.dtype, seed: int = 0) -> dict:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    return {
        "x_BTI": normal(batch, length, width),
        "dt_BTI": F.softplus(normal(batch, length, width)),
        "A_NI": -normal(states, width).exp(),
        "B_BTN": normal(batch, length, states),
        "C_BTN": normal(batch, length, states),
        "D_I": normal(width),
        "state_BNI": normal(batch, states, width),
    }


@settings(max_examples=60, deadline=None)
@given(
    length=st.integers(1, 30),
    chunk_len=st.integers(1, 33),
    width=st.integers(1, 9),
    states=st.integers(1, 5),
    from_state=st.booleans(),
    pads=st.tuples(st.integers(0, 30), st.integers(0, 30)),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)
def test_the_scan_is_the_recurrence(length, chunk_len, width, states, from_state, pads, dtype):
    """Outputs and last state, from any state, whatever the chunk; where dt is 0 nothing has happened."""
    values = arguments(2, length, width, states, dtype, seed=length)
    start = values["state_BNI"] if from_state else torch.zeros_like(values["state_BNI"])
    for row, pad in enumerate(pads):
        values["dt_BTI"][row, : min(pad, length)] = 0
    y, state = selective_scan.selective_scan(
        **values | {"state_BNI": start if from_state else None}, chunk_len=chunk_len
    )
    y_reference, state_reference = selective_scan.selective_recurrence(**values | {"state_BNI": start})
    assert_close(y, y_reference)
    assert_close(state, state_reference)
    for row, pad in enumerate(pads):
        if pad >= length:
            assert torch.equal(state[row], start[row])


def test_a_scan_continues_where_one_stopped_and_a_step_does_one_token():
    values = arguments(2, 20, 6, 3, torch.float64)
    y, last = selective_scan.selective_scan(**values, chunk_len=4)
    state, pieces = values["state_BNI"].clone(), []
    per_token = ("x_BTI", "dt_BTI", "B_BTN", "C_BTN")
    for first, size in ((0, 1), (1, 9), (10, 1), (11, 1), (12, 8)):
        part = values | {name: values[name][:, first : first + size] for name in per_token}
        if size == 1:
            x, dt, B, C = (part[name][:, 0] for name in per_token)
            pieces.append(selective_scan.selective_step(x, dt, part["A_NI"], B, C, part["D_I"], state)[:, None])
        else:
            piece, state = selective_scan.selective_scan(**part | {"state_BNI": state}, chunk_len=4)
            pieces.append(piece)
    assert_close(torch.cat(pieces, 1), y)
    assert_close(state, last)


def test_recurrence_by_hand():
    """One channel, one state: h = exp(dt A) h + dt x B, y = C h + D x."""
    x, dt = torch.tensor([[[2.0], [3.0]]]), torch.tensor([[[1.0], [0.5]]])
    A, B, C = torch.tensor([[-1.0]]), torch.tensor([[[1.0], [4.0]]]), torch.tensor([[[1.0], [10.0]]])
    y, state = selective_scan.selective_recurrence(x, dt, A, B, C, torch.tensor([0.1]), torch.zeros(1, 1, 1))
    h1 = 1.0 * 2.0 * 1.0
    h2 = h1 * torch.exp(torch.tensor(-0.5)).item() + 0.5 * 3.0 * 4.0
    assert y.flatten().tolist() == pytest.approx([h1 + 0.2, 10 * h2 + 0.3])
    assert state.item() == pytest.approx(h2)


@pytest.mark.parametrize("chunk_len", [1, 3, 20])
def test_gradients_by_hand_are_those_of_differences_and_of_autograd(chunk_len):
    values = {name: value.requires_grad_() for name, value in arguments(2, 7, 3, 2, torch.float64).items()}

    def scan(*inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return selective_scan.selective_scan(*inputs, chunk_len=chunk_len)

    assert torch.autograd.gradcheck(scan, tuple(values.values()))
    weights = arguments(2, 7, 3, 2, torch.float64, seed=1)

    def gradients(outputs: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, ...]:
        total = (outputs[0] * weights["x_BTI"]).sum() + (outputs[1] * weights["state_BNI"]).sum()
        return torch.autograd.grad(total, tuple(values.values()))

    for ours, reference in zip(
        gradients(scan(*values.values())),
        gradients(selective_scan.selective_recurrence(*values.values())),
        strict=True,
    ):
        assert_close(ours, reference)


def test_training_gradients_do_not_depend_on_the_chunk():
    def gradients(chunk_len: int) -> list[torch.Tensor]:
        config = dataclasses.replace(CONFIGS["mamba"], mamba=MambaConfig(chunk_len=chunk_len))
        model = random_model(config, torch.float64).requires_grad_(True)
        model(tokens(model, 2, 20), num_tokens=[20, 13])[:, -5:].square().mean().backward()
        return [parameter.grad for parameter in model.parameters()]

    for one, other in zip(gradients(3), gradients(64), strict=True):
        assert one is not None and one.abs().max() > 0
        assert_close(one, other)


def test_what_is_kept_of_the_weights_follows_them():
    """A step uses numbers made from the weights once; they are made again when weights change or move."""
    model = random_model(CONFIGS["mamba"], torch.float64)
    tokens_BT = tokens(model, 2, 9)

    def check() -> None:
        state = model.new_state(2, 12)
        pieces = [model(tokens_BT[:, t : t + 1], state) for t in range(9)]
        assert_close(torch.cat(pieces, 1), model(tokens_BT))

    with torch.no_grad():
        check()
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        check()
        model.load_state_dict({name: value * 1.1 for name, value in model.state_dict().items()})
        check()
        model.float()
        check()
        model.bfloat16().double()  # the weights are others now, of the dtype that they had before
        check()


def test_the_state_is_at_least_float32_under_weights_of_16_bits():
    model = random_model(CONFIGS["mamba"], torch.float32)
    small = random_model(CONFIGS["mamba"], torch.float32).bfloat16()
    state = small.new_state(1, 40)
    assert {tensor.dtype for layer in state.layers for tensor in layer.tensors()} == {torch.bfloat16, torch.float32}
    tokens_BT = tokens(model, 1, 40)
    cached = torch.cat(
        [small(tokens_BT[:, :20], state), *(small(tokens_BT[:, t : t + 1], state) for t in range(20, 40))], 1
    )
    expected = model.bfloat16().float()(tokens_BT)
    assert (cached.float() - expected).abs().max() < 0.05 * expected.abs().max()


# What would run on CUDA, with stand-ins of the same arguments.


def scan_from_zero(u, delta, A, B, C, D, return_last_state):
    """mamba-ssm's `selective_scan_fn`, by the recurrence: [B, I, T] in, from a state of zero."""
    x, dt, B, C = (value.transpose(1, 2) for value in (u, delta, B, C))
    y, last = selective_scan.selective_recurrence(x, dt, A.t(), B, C, D, x.new_zeros(x.shape[0], *A.t().shape))
    return y.transpose(1, 2), last.transpose(1, 2)


def state_update(state, x, dt, A, B, C, D, dt_bias):
    """mamba-ssm's `selective_state_update`: the state [B, I, N] in place. It fails without D and dt_bias."""
    state_BNI = state.transpose(1, 2)
    return selective_scan.selective_step(x, dt + dt_bias, A.t(), B, C, D, state_BNI)


def conv(x, weight, bias):
    """causal-conv1d's `causal_conv1d_fn`: [B, C, T], zeros before it."""
    return F.conv1d(F.pad(x, (weight.shape[1] - 1, 0)), weight[:, None], bias, groups=weight.shape[0])


def conv_update(x, conv_state, weight, bias, activation):
    """causal-conv1d's `causal_conv1d_update`: the last places [B, C, K - 1] move on in place."""
    assert activation == "silu"
    seen = torch.cat((conv_state, x), -1)
    conv_state.copy_(seen[..., x.shape[-1] :])
    return F.silu(F.conv1d(seen, weight[:, None], bias, groups=weight.shape[0]))


@pytest.mark.parametrize("name", ["mamba", "mamba odd", "mamba2"])
@pytest.mark.parametrize("length", [12, 33])
def test_arguments_and_layouts_for_cuda_kernels(monkeypatch, name, length):
    """Prefill, continuation by several tokens and steps, the kernels replaced by what they are documented to do."""
    model = random_model(CONFIGS[name], torch.float64)
    tokens_BT = tokens(model, 3, 40)
    expected = model(tokens_BT)
    used = []

    def recorded(function):
        def call(*args, **kwargs):
            used.append(function.__name__)
            return function(*args, **kwargs)

        return call

    def no_kernel(*args, **kwargs):
        raise AssertionError("Mamba-2's own kernel has its test elsewhere")

    ssm = kernels.MambaKernels(no_kernel, recorded(state_update), recorded(scan_from_zero))
    convs = kernels.ConvKernels(recorded(conv), recorded(conv_update))
    monkeypatch.setattr(kernels, "_mamba_ssm", lambda x: None if name == "mamba2" else ssm)
    monkeypatch.setattr(kernels, "_causal_conv1d", lambda x, K: convs)
    state = model.new_state(3, 40)
    with torch.no_grad():
        pieces = [model(tokens_BT[:, :length], state), model(tokens_BT[:, length:38], state)]
        pieces += [model(tokens_BT[:, t : t + 1], state) for t in (38, 39)]
    assert_close(torch.cat(pieces, 1), expected)
    assert set(used) == {"conv", "conv_update"} | (set() if name == "mamba2" else {"state_update", "scan_from_zero"})


def test_the_records_name_what_runs(monkeypatch):
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    monkeypatch.setattr(kernels, "mamba_ssm_kernels", lambda: None)
    monkeypatch.setattr(kernels, "causal_conv1d_kernels", lambda: None)
    assert kernels.in_use(cpu, "AF") == kernels.in_use(cuda, "AF") == "torch_sdpa"
    assert kernels.in_use(cuda, "SAF") == "torch_scan"
    assert kernels.in_use(cpu, "SM") == "torch_ssd+torch_scan"
    monkeypatch.setattr(kernels, "mamba_ssm_kernels", lambda: True)
    assert kernels.in_use(cuda, "S") == kernels.in_use(cuda, "M") == "mamba_ssm"
    monkeypatch.setattr(kernels, "causal_conv1d_kernels", lambda: True)
    assert kernels.in_use(cuda, "S") == "mamba_ssm+causal_conv1d"
    assert kernels.in_use(cpu, "S") == "torch_scan"
