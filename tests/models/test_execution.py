"""Compiled and recorded forwards equal the eager ones; nothing is prepared anew at another length.

Recordings are tested without a GPU by a stand-in that remembers the function instead of the device's work. It still
shows what a real one would get wrong: states that move, numbers of the host that change, buffers that are handed out.
"""

from __future__ import annotations

import dataclasses
import gc
import os
from collections.abc import Callable, Iterator
from unittest import mock

import pytest
import tiny
import torch
import torch._dynamo  # before anything that it looks at is replaced
from models.test_exactness import CONFIGS, random_model
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from paradigms.decoding.autoregressive import Autoregressive
from paradigms.models import execution
from paradigms.models.execution import BUCKET, Prepared, PreparedModel, bucket_of, execute, missing
from paradigms.models.programs import CudaGraphs, num_compiled
from paradigms.models.stack import Model
from paradigms.workload import Device

CAUSAL = [name for name, config in CONFIGS.items() if config.causal]
DENOISERS = [name for name, config in CONFIGS.items() if not config.causal]


class StandInGraph:
    """Remembers what was run; a replay runs it again and fills the same buffer."""

    def record(self, run: Callable[[], Tensor]) -> Tensor:
        with NoHostReads(), mock.patch("torch.compiler.is_compiling", return_value=True):  # no short cuts of a CPU
            run()
        self.run, self.output = run, run()
        return self.output

    def replay(self) -> None:
        self.output.copy_(self.run())


class NoHostReads(TorchDispatchMode):
    """Refuses what makes the host wait for a value, which no recording can."""

    refused = ("item", "_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "_unique2", "bincount")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().removeprefix("aten::").split(".")[0]
        assert name not in self.refused, f"{name} reads a value on the host"
        indices = args[1] if name in ("index", "index_put", "index_put_") else ()
        assert not any(index is not None and index.dtype == torch.bool for index in indices), f"{name} counts a mask"
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def compiled_programs_are_kept(tmp_path_factory, monkeypatch):
    """On disk for the whole session, and compiled without helper processes."""
    folder = tmp_path_factory.getbasetemp() / "inductor"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(folder)))
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def recorded(model: Model) -> PreparedModel:
    return PreparedModel(model, CudaGraphs(StandInGraph))


def compiled(model: Model) -> PreparedModel:
    lacking = missing("compile", has_cuda=False)
    if lacking:
        pytest.skip(lacking)
    return execute(model, "compile")


WAYS = [
    *(pytest.param(recorded, name, id=f"stand-in {name}") for name in CAUSAL),
    *(pytest.param(compiled, name, id=f"compile {name}", marks=pytest.mark.slow) for name in CAUSAL),
]


def some_tokens(*shape: int) -> Tensor:
    return torch.randint(3, 50, shape, generator=torch.Generator().manual_seed(1))


def assert_equal(prepared: Tensor, eager: Tensor) -> None:
    error, scale = (prepared - eager).abs().max().item(), eager.abs().max().item()
    assert error <= 1e-5 * max(1.0, scale), f"largest difference {error:.1e}, of values up to {scale:.1f}"


@pytest.mark.parametrize(("prepare", "name"), WAYS)
def test_steps_equal_eager_ones(prepare, name):
    """Prompts of one length and ragged ones, one row and three, each row at its own place."""
    model = random_model(CONFIGS[name], torch.float32)
    ready = prepare(model)
    for B, num_tokens in ((1, None), (3, None), (3, [9, 4, 7])):
        tokens_BT = some_tokens(B, 24)
        ours, theirs = ready.new_state(B, 40), model.new_state(B, 40)
        prompt = {"num_tokens": num_tokens, "logits_at": slice(-1, None)}
        assert_equal(ready(tokens_BT[:, :9], ours, **prompt), model(tokens_BT[:, :9], theirs, **prompt))
        for t in range(9, 24):
            assert_equal(ready(tokens_BT[:, t : t + 1], ours), model(tokens_BT[:, t : t + 1], theirs))
        assert ours.lengths == theirs.lengths == ours.lengths_B.tolist()
        assert ours.used_bytes == theirs.used_bytes


@pytest.mark.parametrize("prepare", [recorded, pytest.param(compiled, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", DENOISERS)
def test_canvases_equal_eager_ones(name, prepare):
    """The wanted positions differ from step to step; the canvas is one program."""
    model = random_model(CONFIGS[name], torch.float32)
    ready = prepare(model)
    for step in range(3):
        tokens_BT = some_tokens(2, 20) + step
        wanted_BT = tokens_BT % (step + 2) == 0
        assert_equal(ready.logits_where(tokens_BT, wanted_BT), model.logits_where(tokens_BT, wanted_BT))
    assert (ready.num_forwards, ready.num_eager) == (3, 0)
    ragged = {"num_tokens": [20, 12]}
    assert_equal(ready.logits_where(tokens_BT, wanted_BT, **ragged), model.logits_where(tokens_BT, wanted_BT, **ragged))
    assert ready.num_eager == 1


@pytest.mark.slow
def test_a_growing_text_is_one_compiled_program():
    model = random_model(CONFIGS["attention"], torch.float32)
    ready = compiled(model)
    tokens_BT = some_tokens(2, 30)
    assert_equal(ready(tokens_BT[:, :6]), model(tokens_BT[:, :6]))
    assert_equal(ready(tokens_BT[:, :7]), model(tokens_BT[:, :7]))
    before = num_compiled()
    for T in range(8, 31):
        assert_equal(ready(tokens_BT[:, :T]), model(tokens_BT[:, :T]))
    assert num_compiled() == before and ready.num_eager == 0


@pytest.mark.slow
def test_nothing_is_compiled_after_the_first_forward():
    """A hundred and fifty steps over two buckets, and another text of the same size."""
    config = CONFIGS["attention"].__class__(vocab_size=50, d_model=32, num_blocks=1, max_positions=256)
    model = random_model(config, torch.float32)
    ready = compiled(model)
    tokens_BT = some_tokens(1, 160)
    ready(tokens_BT[:, :10], ready.new_state(1, 200))
    before, programs = Prepared.of(ready), num_compiled()
    with torch.compiler.set_stance("fail_on_recompile"):
        for _ in range(2):
            state, eager = ready.new_state(1, 200), model.new_state(1, 200)
            ready(tokens_BT[:, :10], state)
            model(tokens_BT[:, :10], eager)
            for t in range(10, 160):
                assert_equal(ready(tokens_BT[:, t : t + 1], state), model(tokens_BT[:, t : t + 1], eager))
    now = Prepared.of(ready)
    assert num_compiled() == programs and now.compile_s == before.compile_s
    assert before.eager_share(now) == 0 and state.lengths == [160]


@pytest.mark.parametrize("name", CAUSAL)
def test_buckets_change_nothing(name, monkeypatch):
    """Small buckets, so that a short text crosses several."""
    monkeypatch.setattr(execution, "BUCKET", 4)
    model = random_model(CONFIGS[name], torch.float32)
    ready = recorded(model)
    tokens_BT = some_tokens(2, 40)
    ours, theirs = ready.new_state(2, 40), model.new_state(2, 40)
    for t in range(40):
        assert_equal(ready(tokens_BT[:, t : t + 1], ours), model(tokens_BT[:, t : t + 1], theirs))
    assert ready.num_eager == 0


@pytest.mark.parametrize("name", CAUSAL)
def test_going_back_and_looking_are_eager_and_right(name):
    """A marked state remembers what it is fed, which no program does; afterwards programs run on."""
    model = random_model(CONFIGS[name], torch.float32)
    ready = recorded(model)
    tokens_BT = some_tokens(2, 30)
    ours, theirs = ready.new_state(2, 40), model.new_state(2, 40)
    for one, state in ((ready, ours), (model, theirs)):
        one(tokens_BT[:, :10], state)
        one(tokens_BT[:, 10:11], state)
        mark = state.mark()
        one(tokens_BT[:, 11:12], state)
        one(tokens_BT[:, 12:16], state)
        state.rollback(mark, [3, 1])
        one(tokens_BT[:, 16:17], state, write="none")
    assert ours.lengths == theirs.lengths == [14, 12]
    for t in range(17, 25):
        assert_equal(ready(tokens_BT[:, t : t + 1], ours), model(tokens_BT[:, t : t + 1], theirs))
    assert ready.num_forwards == 5 + 8 and ready.num_eager == 4


def test_rows_put_over_others_run_on():
    model = random_model(CONFIGS["hybrid"], torch.float32)
    ready = recorded(model)
    tokens_BT = some_tokens(2, 30)
    ours, theirs = ready.new_state(2, 40), model.new_state(2, 40)
    for one, state in ((ready, ours), (model, theirs)):
        one(tokens_BT[:, :12], state)
        other = one.new_state(1, 40)
        one(tokens_BT[:1, 5:11], other)
        state.insert(other, at=[1])
    for t in range(12, 20):
        assert_equal(ready(tokens_BT[:, t : t + 1], ours), model(tokens_BT[:, t : t + 1], theirs))


# ---------------------------------------------------------------- recordings


def test_a_state_that_is_gone_serves_the_next_and_is_empty():
    model = random_model(CONFIGS["hybrid"], torch.float32)
    ready = recorded(model)
    tokens_BT = some_tokens(1, 20)

    def run(state) -> Tensor:
        ready(tokens_BT[:, :8], state)
        return torch.cat([ready(tokens_BT[:, t : t + 1], state) for t in range(8, 20)], 1)

    state = ready.new_state(1, 32)
    first, addresses = run(state), ready.backend.signature(state)
    at_once = ready.new_state(1, 32)
    assert not set(addresses) & set(ready.backend.signature(at_once)), "two states at once share nothing"
    del state
    gc.collect()
    before = Prepared.of(ready).compile_s
    again = ready.new_state(1, 32)
    assert ready.backend.signature(again) == addresses
    assert again.lengths == [0] and not any(tensor.any() for tensor in again.layers[0].tensors())
    assert torch.equal(run(again), first)
    assert Prepared.of(ready).compile_s == before, "nothing was recorded anew"


def test_what_a_replay_hands_out_stays():
    model = random_model(CONFIGS["attention"], torch.float32)
    ready = recorded(model)
    state, tokens_BT = ready.new_state(1, 20), some_tokens(1, 20)
    ready(tokens_BT[:, :5], state)
    handed_out = [ready(tokens_BT[:, t : t + 1], state) for t in range(5, 20)]
    assert_equal(torch.cat(handed_out, 1), model(tokens_BT)[:, 5:])


# ---------------------------------------------------------------- what is refused, and what is recorded


@pytest.mark.parametrize(("length", "bucket"), [(1, 128), (128, 128), (129, 256), (257, 512), (513, 576)])
def test_buckets_double_up_to_the_capacity(length, bucket):
    assert BUCKET == 128 and bucket_of(length, 576) == bucket


def test_too_many_lengths_run_eagerly(monkeypatch):
    monkeypatch.setattr(execution, "MAX_LENGTHS", 2)
    model = random_model(CONFIGS["denoiser"], torch.float32)
    ready = recorded(model)
    for T in (8, 9, 10, 8):
        tokens_BT = some_tokens(1, T)
        assert_equal(ready(tokens_BT), model(tokens_BT))
    assert (ready.num_forwards, ready.num_eager) == (4, 1)


def test_a_full_state_says_so():
    ready = recorded(random_model(CONFIGS["attention"], torch.float32))
    state = ready.new_state(1, 6)
    ready(some_tokens(1, 6), state)
    with pytest.raises(ValueError, match="7 positions asked for, 6 are available"):
        ready(some_tokens(1, 1), state)


def test_an_unknown_execution_is_refused():
    with pytest.raises(ValueError, match=r"device\.execution='fast' is unknown; it is one of eager, compile"):
        Device(execution="fast")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_graphs_are_refused_without_a_gpu():
    with pytest.raises(ValueError, match=r"device\.execution=cuda_graph needs an NVIDIA GPU"):
        dataclasses.replace(tiny.cell("ar"), device=Device(execution="cuda_graph")).check()
    with pytest.raises(ValueError, match=r"device\.execution=cuda_graph needs an NVIDIA GPU"):
        execute(random_model(CONFIGS["attention"], torch.float32), "cuda_graph")


def test_a_text_that_grows_is_refused_for_graphs():
    assert Autoregressive(cache="none").executions == ("eager", "compile")
    assert Autoregressive().executions == ("eager", "compile", "cuda_graph")


def test_a_missing_compiler_is_said_in_one_line(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    said = missing("compile", has_cuda=False)
    assert said is not None and "no-such-compiler" in said and "\n" not in said
    assert missing("eager", has_cuda=False) is None


# ---------------------------------------------------------------- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("way", ["cuda_graph", "compile"])
@pytest.mark.parametrize("name", CONFIGS)
def test_on_a_gpu_graphs_and_compiled_programs_equal_eager_steps(name, way):
    model = random_model(CONFIGS[name], torch.float32).to("cuda")
    ready = execute(model, way)
    tokens_BT = some_tokens(3, 24).to("cuda")
    if not model.config.causal:
        wanted_BT = tokens_BT % 2 == 0
        for _ in range(2):
            assert_close_on_gpu(ready.logits_where(tokens_BT, wanted_BT), model.logits_where(tokens_BT, wanted_BT))
        return
    for num_tokens in (None, [9, 4, 7]):
        ours, theirs = ready.new_state(3, 40), model.new_state(3, 40)
        prompt = {"num_tokens": num_tokens, "logits_at": slice(-1, None)}
        assert_close_on_gpu(ready(tokens_BT[:, :9], ours, **prompt), model(tokens_BT[:, :9], theirs, **prompt))
        for t in range(9, 24):
            assert_close_on_gpu(ready(tokens_BT[:, t : t + 1], ours), model(tokens_BT[:, t : t + 1], theirs))
        assert ours.lengths == ours.lengths_B.tolist()


def assert_close_on_gpu(prepared: Tensor, eager: Tensor) -> None:
    torch.testing.assert_close(prepared, eager, rtol=1e-4, atol=1e-4)
