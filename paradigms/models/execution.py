"""How the forwards of a model run: operator by operator, compiled, or as CUDA graphs; the same for every paradigm.

At a few million parameters most of a decode step is Python and the launching of operators. Two ways out are offered;
both run what was prepared for fixed shapes (`programs`):

    compile        torch.compile: one program of fused kernels a shape
    cuda_graph     the operators of a step are recorded once and replayed as one launch

Decoders do not know: `execute` gives a `PreparedModel`, which is the same model with the same weights and answers the
same calls. Forwards that have a fixed shape run prepared:

    one token a row behind a state     any batch, rows of different lengths too; where a token stands is computed on the
                                       device (`device_span`), and attention looks at a bucket of slots that serves many
                                       steps: 128, 256, 512, ... One program a bucket.
    a prompt, rows of one length       compiled for its length; with CUDA graphs it runs eagerly
    a canvas without a state           one program a canvas; the head runs eagerly, on the wanted positions only
    a text without a state that grows  one compiled program for all lengths, attention only; graphs cannot

Everything else (trees, drafts that are verified, marked states, padded rows, models that read the time) runs eagerly
and is counted: `num_eager` of `num_forwards`. The programs of all buckets that a state can reach are made at its first
forward, so that a warm-up which reads the prompt has made all of them; `compile_s` is the time that this took.

Dimension letters: B batch, T tokens in, E model width, V vocabulary.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paradigms.models import programs
from paradigms.models.programs import Backend, Body, CudaGraphs, Inductor, Program
from paradigms.models.span import device_span, host_span
from paradigms.models.stack import Model, Write
from paradigms.models.state import Form, LayerState, State

BUCKET = 128  # slots of the smallest bucket; each of the others is twice as large
MAX_LENGTHS = 4  # different prompts or canvases that get a program of their own; later ones run eagerly


def execute(model: Any, execution: str) -> Any:
    """The model, run in this way ("eager", "compile" or "cuda_graph"); see the module.

    A model that is not native is told (`execution`), since the engine that runs it must do it.

    Raises:
        ValueError: `missing` names what this machine lacks.
    """
    if execution == "eager":
        return model
    if lacking := missing(execution, has_cuda=model.device.type == "cuda"):
        raise ValueError(lacking)
    if not isinstance(model, Model):
        model.execution, model.compile_s = execution, 0.0
        return model
    return PreparedModel(model, Inductor(model.device) if execution == "compile" else CudaGraphs())


@dataclass(slots=True)
class Prepared:
    """What a model has done so far: seconds spent preparing, forwards run, and those that ran operator by operator."""

    compile_s: float
    num_forwards: int
    num_eager: int

    @staticmethod
    def of(model: Any) -> Prepared:
        """Now; a model that runs eagerly does not count."""
        return Prepared(*(getattr(model, name, 0) for name in ("compile_s", "num_forwards", "num_eager")))

    def eager_share(self, now: Prepared) -> float | None:
        """Share of the forwards since that ran operator by operator; None when none was counted."""
        forwards = now.num_forwards - self.num_forwards
        return (now.num_eager - self.num_eager) / forwards if forwards else None


def missing(execution: str, *, has_cuda: bool) -> str | None:
    """What keeps a machine from running like this, in one line, or None."""
    if execution == "cuda_graph" and not has_cuda:
        return "device.execution=cuda_graph needs an NVIDIA GPU; use device.execution=eager or compile here"
    if execution != "compile" or has_cuda:
        return None
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler) is None:
        return (
            f"device.execution=compile needs a C++ compiler, and there is no {compiler}; install one (Debian, Ubuntu: "
            "apt install g++), name yours in CXX, or use device.execution=eager"
        )
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.exists():
        return (
            f"device.execution=compile needs Python's headers, and there is no {header}; install them (Debian, Ubuntu: "
            "apt install python3-dev), or use device.execution=eager"
        )
    return None


def keep_compiled(folder: Path) -> None:
    """Let torch keep compiled programs in `folder` (unless told otherwise), so that other processes find them; and
    compile in this process, without helpers that would live on beside what is measured.
    """
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")


def bucket_of(length: int, capacity: int) -> int:
    """Slots that a step looks at when its longest row has `length` of at most `capacity`."""
    bucket = BUCKET
    while bucket < length:
        bucket *= 2
    return min(bucket, capacity)


class PreparedModel(Model):
    """A model whose forwards of fixed shape are prepared once and then only run; it shares the weights of `model`.

    Attributes:
        execution, execution_prompts, compile_flags: how forwards run, how prompts do, and how torch.compile is called
            for them, for the records.
        compile_s: seconds spent preparing.
        num_forwards, num_eager: forwards, and those of them that ran operator by operator.
    """

    def __init__(self, model: Model, backend: Backend) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(model.__dict__)
        self.__dict__["eager"] = model  # not a part of this module: its parameters are these
        self.backend = backend
        self.execution, self.execution_prompts, self.compile_flags = backend.name, backend.prompts, backend.flags
        self.compile_s = 0.0
        self.num_forwards = self.num_eager = 0
        self._programs: dict[tuple[object, ...], Program] = {}
        self._signatures: weakref.WeakKeyDictionary[State, tuple[object, ...]] = weakref.WeakKeyDictionary()
        self._lengths: dict[object, set[int]] = {}
        self._growing: dict[int, bool] = {}

    def new_state(self, batch_size: int, max_len: int, *, form: Form = "static", kv_dtype: str | None = None) -> State:
        """As `Model.new_state`; static unless a growing one is asked for, and with room for a whole bucket, so that
        states of similar length share their programs.
        """
        make = super().new_state
        if form == "growing" or max_len > self.config.max_positions:
            return make(batch_size, max_len, form=form, kv_dtype=kv_dtype)
        capacity = bucket_of(max_len, self.config.max_positions)
        state = self.backend.new_state(
            lambda: make(batch_size, capacity, form="static", kv_dtype=kv_dtype), (batch_size, capacity, kv_dtype)
        )
        state.max_len = max_len
        return state

    def forward(
        self,
        tokens_BT: Tensor,
        state: State | None = None,
        *,
        num_tokens: Sequence[int] | None = None,
        positions_BT: Tensor | None = None,
        among_BTT: Tensor | None = None,
        write: Write = "append",
        over: Sequence[int] | Tensor | None = None,
        time_B: Tensor | None = None,
        logits_at: Tensor | slice | None = None,
    ) -> Tensor:
        """As `Model.forward`."""
        plain = positions_BT is None and among_BTT is None and write == "append" and not self.config.reads_time
        if plain and (num_tokens is None or min(num_tokens) == tokens_BT.shape[1]):
            logits = self._prepared(tokens_BT, state, logits_at)
            if logits is not None:
                return logits
        self._count(eager=True)
        logits = super().forward(
            tokens_BT,
            state,
            num_tokens=num_tokens,
            positions_BT=positions_BT,
            among_BTT=among_BTT,
            write=write,
            over=over,
            time_B=time_B,
            logits_at=logits_at,
        )
        if state is not None and self.config.causal:
            self._prepare_steps(state)
        return logits

    def logits_where(
        self,
        tokens_BT: Tensor,
        wanted_BT: Tensor,
        state: State | None = None,
        *,
        num_tokens: Sequence[int] | None = None,
        positions_BT: Tensor | None = None,
        among_BTT: Tensor | None = None,
        write: Write = "append",
        over: Sequence[int] | Tensor | None = None,
        time_B: Tensor | None = None,
    ) -> Tensor:
        """As `Model.logits_where`."""
        plain = state is None and positions_BT is None and among_BTT is None and not self.config.reads_time
        if plain and (num_tokens is None or min(num_tokens) == tokens_BT.shape[1]):
            hidden_BTE = self._alone(tokens_BT)
            if hidden_BTE is not None:
                return self._head(self._select(hidden_BTE, None)[wanted_BT])
        self._count(eager=True)
        return super().logits_where(
            tokens_BT,
            wanted_BT,
            state,
            num_tokens=num_tokens,
            positions_BT=positions_BT,
            among_BTT=among_BTT,
            write=write,
            over=over,
            time_B=time_B,
        )

    # The forwards that are prepared; None for one that is not

    def _prepared(self, tokens_BT: Tensor, state: State | None, logits_at: Tensor | slice | None) -> Tensor | None:
        """Tokens that simply follow, in rows without padding."""
        if state is None:
            hidden_BTE = self._alone(tokens_BT)
        elif state.form != "static" or state.is_marked or max(state.lengths) + tokens_BT.shape[1] > state.max_len:
            return None
        elif tokens_BT.shape[1] > 1:
            hidden_BTE = self._prompt(tokens_BT, state)
        elif isinstance(logits_at, Tensor):
            return None
        else:
            logits_B1V = self._step(tokens_BT, state)
            return logits_B1V if logits_at is None else logits_B1V[:, logits_at]
        return None if hidden_BTE is None else self._head(self._select(hidden_BTE, logits_at))

    def _step(self, tokens_B1: Tensor, state: State) -> Tensor:
        """One token a row: logits [B, 1, V]."""
        key = self._step_key(state, max(state.lengths) + 1)
        program = self._programs.get(key)
        if program is None:
            self._prepare_steps(state)
            program = self._programs[key]
        logits_B1V = program(tokens_B1, state)
        state.advance([1] * len(state.lengths), told=True)
        self._count(eager=False)
        return logits_B1V

    def _prompt(self, tokens_BT: Tensor, state: State) -> Tensor | None:
        """The first tokens of an empty state: hidden [B, T, E]."""
        B, T = tokens_BT.shape
        kind = ("prompt", B, self._signature(state))
        if self.execution_prompts == "eager" or any(state.lengths) or not self._may_prepare(kind, T):
            return None
        hidden_BTE = self._run((*kind, T), self._whole_body(), tokens_BT, state)
        state.advance([T] * B, told=True)
        self._prepare_steps(state)
        return hidden_BTE

    def _alone(self, tokens_BT: Tensor) -> Tensor | None:
        """No state: hidden [B, T, E]."""
        B, T = tokens_BT.shape
        if self.config.max_positions < T:
            return None
        if self.config.causal:  # a text that grows: another length at each step
            can = self.backend.any_length and not self.config.recurrent
            return self._run_any_length(tokens_BT) if can else None
        if not self._may_prepare(("canvas", B), T):
            return None
        return self._run(("canvas", B, T), self._whole_body(), tokens_BT, None)

    # Preparing

    def _prepare_steps(self, state: State) -> None:
        """The programs of all buckets that one-token steps of this state can reach; the state stays as it is."""
        length = max(state.lengths) + 1
        if state.form != "static" or state.is_marked or length > state.max_len:
            return
        while length <= state.capacity:
            key = self._step_key(state, length)
            stop = key[1]
            if key not in self._programs:
                token_B1 = torch.zeros(len(state.lengths), 1, dtype=torch.long, device=self.device)
                self._prepare(key, self._step_body(stop), token_B1, state)
            length = stop + 1

    def _step_key(self, state: State, length: int) -> tuple[str, int, tuple[object, ...]]:
        capacity = state.capacity
        return "step", bucket_of(length, capacity) if self._grows(capacity) else capacity, self._signature(state)

    def _grows(self, capacity: int) -> bool:
        """Whether a step looks at more when there is more: not so with recurrences and short windows alone."""
        grows = self._growing.get(capacity)
        if grows is None:
            lengths = (min(BUCKET, capacity), capacity)
            first, last = (self.config.state_bytes(batch_size=1, length=length, itemsize=4) for length in lengths)
            grows = self._growing[capacity] = first != last
        return grows

    def _step_body(self, stop: int) -> Body:
        model: Model = self.__dict__["eager"]  # and not self: programs must not hold all the other programs

        def step(tokens_B1: Tensor, lengths_B: Tensor | None, layers: Sequence[LayerState | None] | None) -> Tensor:
            assert lengths_B is not None
            span = device_span(model.tables, lengths_B, stop)
            logits_B1V = model._head(model.through_layers(tokens_B1, span, layers))
            lengths_B.add_(1)
            return logits_B1V

        return step

    def _whole_body(self) -> Body:
        model: Model = self.__dict__["eager"]
        config, tables, device = model.config, model.tables, model.device

        def whole(tokens_BT: Tensor, lengths_B: Tensor | None, layers: Sequence[LayerState | None] | None) -> Tensor:
            write = lengths_B is not None
            span = host_span(config, tables, device, tokens_BT.shape, None, None, None, None, write)
            hidden_BTE = model.through_layers(tokens_BT, span, layers)
            if lengths_B is not None:
                lengths_B.fill_(tokens_BT.shape[1])
            return hidden_BTE

        return whole

    def _run(self, key: tuple[object, ...], body: Body, tokens_BT: Tensor, state: State | None) -> Tensor:
        if key not in self._programs:
            self._prepare(key, body, tokens_BT, state)
        self._count(eager=False)
        return self._programs[key](tokens_BT, state)

    def _prepare(self, key: tuple[object, ...], body: Body, tokens_BT: Tensor, state: State | None) -> None:
        """Make a program; it runs for that and changes the state, which is put back."""
        started = time.perf_counter()
        kept = [(tensor, tensor.clone()) for tensor in programs.tensors_of(state)]
        self._programs[key] = self.backend.program(body, tokens_BT, state)
        for tensor, before in kept:
            tensor.copy_(before)
        self.compile_s += time.perf_counter() - started

    def _run_any_length(self, tokens_BT: Tensor) -> Tensor:
        """One compiled program for all lengths; a forward that compiles counts as preparing, as a whole."""
        key = ("any length", tokens_BT.shape[0])
        if key not in self._programs:
            self._programs[key] = programs.any_length(self._whole_body())
        before, started = programs.num_compiled(), time.perf_counter()
        hidden_BTE = self._programs[key](tokens_BT, None)
        if programs.num_compiled() != before:
            self.compile_s += time.perf_counter() - started
        self._count(eager=False)
        return hidden_BTE

    def _may_prepare(self, kind: object, length: int) -> bool:
        lengths = self._lengths.setdefault(kind, set())
        if len(lengths) < MAX_LENGTHS:
            lengths.add(length)
        return length in lengths

    def _signature(self, state: State) -> tuple[object, ...]:
        signature = self._signatures.get(state)
        if signature is None:
            signature = self._signatures[state] = self.backend.signature(state)
        return signature

    def _count(self, *, eager: bool) -> None:
        self.num_forwards += 1
        self.num_eager += eager
