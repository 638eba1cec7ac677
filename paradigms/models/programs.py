"""Programs: a forward prepared for one shape, by torch.compile or as a CUDA graph.

A body is a forward of tensors only: tokens, lengths on the device, and states whose tensors it changes in place. No
number in it may change from call to call but those in tensors; see `layers.Span.on_device`.

Dimension letters: B batch, T tokens in.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from paradigms.models.state import LayerState, State

Body = Callable[[Tensor, Tensor | None, Sequence[LayerState | None] | None], Tensor]  # tokens, lengths_B, layer states
Program = Callable[[Tensor, State | None], Tensor]


class Backend(Protocol):
    """What prepares programs.

    Attributes:
        name: "compile" or "cuda_graph".
        flags: how torch.compile is called, for the records; None where it is not.
        prompts: how prompts run, "eager" or `name`.
        any_length: whether one program can serve texts of any length.
    """

    name: str
    flags: str | None
    prompts: str
    any_length: bool

    def new_state(self, make: Callable[[], State], key: tuple[object, ...]) -> State:
        """An empty static state: made by `make`, or the tensors of one made before for the same key and free again."""
        ...

    def signature(self, state: State) -> tuple[object, ...]:
        """What must be equal for a program that was prepared on one state to run on another."""
        ...

    def program(self, body: Body, tokens_BT: Tensor, state: State | None) -> Program:
        """Prepare `body` for such tokens and states; for that it may run on these."""
        ...


class Inductor:
    """torch.compile ahead of time, one program a shape.

    So nothing asks at every call whether a program still fits, or compiles another one: that takes a third of a small
    step, and programs are looked up by all that may differ (batch, bucket, shapes and dtypes of the state). They still
    refuse tensors of another size or stride than they were made for.
    """

    name, prompts, any_length = "compile", "compile", True

    def __init__(self, device: torch.device) -> None:
        self.options: dict[str, Any] = {
            "guard_filter_fn": lambda guards: [False] * len(guards),
            "cpp_wrapper": device.type == "cpu",  # kernels are called from C++ and not from Python
        }
        told = {"fullgraph": True, "dynamic": False, "guards": False, "cpp_wrapper": device.type == "cpu"}
        self.flags: str | None = " ".join(f"{name}={value}" for name, value in told.items())

    def new_state(self, make: Callable[[], State], key: tuple[object, ...]) -> State:
        return make()

    def signature(self, state: State) -> tuple[object, ...]:
        return tuple((tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors_of(state))

    def program(self, body: Body, tokens_BT: Tensor, state: State | None) -> Program:
        compiled: Any = torch.compile(body, fullgraph=True, dynamic=False, options=self.options)
        tokens_BT = _plain(tokens_BT)
        example = (tokens_BT, None, None) if state is None else (tokens_BT, state.lengths_B, state.layers)
        ahead = compiled.aot_compile((example, {}))
        ahead.disable_guard_check()
        return _of_state(ahead)


class Graph(Protocol):
    """A recording of device work: `CudaGraph`, or a stand-in for tests without a GPU."""

    def record(self, run: Callable[[], Tensor]) -> Tensor:
        """Run and record; the result lies in a buffer that every replay fills anew."""
        ...

    def replay(self) -> None: ...


class CudaGraph:
    """A CUDA graph; all recordings share one memory pool."""

    _pool: Any = None

    def __init__(self) -> None:
        self.graph = torch.cuda.CUDAGraph()
        if CudaGraph._pool is None:
            CudaGraph._pool = torch.cuda.graph_pool_handle()

    def record(self, run: Callable[[], Tensor]) -> Tensor:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # lazy initialisation and autotuning must not fall into the recording
            for _ in range(3):
                run()
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(self.graph, pool=CudaGraph._pool):
            return run()

    def replay(self) -> None:
        self.graph.replay()


class CudaGraphs:
    """Recordings, one a shape and state.

    A recording reads and writes fixed addresses: tokens are copied into a buffer, results out of one, and the tensors
    of a state that is gone serve the next one of its size.
    """

    name, prompts, any_length = "cuda_graph", "eager", False
    flags: str | None = None

    def __init__(self, graph: Callable[[], Graph] = CudaGraph) -> None:
        self.graph = graph
        self._free: dict[tuple[object, ...], list[tuple[list[LayerState | None], Tensor | None]]] = {}

    def new_state(self, make: Callable[[], State], key: tuple[object, ...]) -> State:
        free = self._free.setdefault(key, [])
        with torch.inference_mode(False), torch.no_grad():  # tensors that outlive the caller's mode
            state = make()
            if free:
                fresh = tensors_of(state)
                state.layers, state.lengths_B = free.pop()
                for tensor, empty in zip(tensors_of(state), fresh, strict=True):
                    tensor.copy_(empty)
        weakref.finalize(state, free.append, (state.layers, state.lengths_B))
        return state

    def signature(self, state: State) -> tuple[object, ...]:
        return tuple(tensor.data_ptr() for tensor in tensors_of(state))

    def program(self, body: Body, tokens_BT: Tensor, state: State | None) -> Program:
        buffer_BT, graph = tokens_BT.clone(), self.graph()
        lengths_B, layers = (None, None) if state is None else (state.lengths_B, state.layers)
        output = graph.record(lambda: body(buffer_BT, lengths_B, layers))

        def replay(tokens_BT: Tensor, state: State | None) -> Tensor:
            buffer_BT.copy_(tokens_BT)
            graph.replay()
            return output.clone()

        return replay


def any_length(body: Body) -> Program:
    """`body` without a state, compiled once for texts of any length; torch's own guards stay and check the shapes."""
    assert isinstance(body, types.FunctionType)
    own = types.FunctionType(body.__code__.replace(), body.__globals__, body.__name__, None, body.__closure__)
    return _of_state(torch.compile(own, fullgraph=True, dynamic=True))  # torch attaches programs to code objects


def num_compiled() -> int:
    """Programs that torch.compile has made in this process."""
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


def tensors_of(state: State | None) -> list[Tensor]:
    """All tensors of a state that a step changes."""
    if state is None:
        return []
    own = [tensor for layer in state.layers if layer is not None for tensor in layer.tensors()]
    return own if state.lengths_B is None else [*own, state.lengths_B]


def _plain(tokens_BT: Tensor) -> Tensor:
    """Tokens of the one layout that programs are made for; a size of 1 does not excuse another stride."""
    is_plain = tokens_BT.stride() == (tokens_BT.shape[1], 1)
    return tokens_BT if is_plain else tokens_BT.clone(memory_format=torch.contiguous_format)


def _of_state(run: Callable[..., Tensor]) -> Program:
    def program(tokens_BT: Tensor, state: State | None) -> Tensor:
        tokens_BT = _plain(tokens_BT)
        return run(tokens_BT, None, None) if state is None else run(tokens_BT, state.lengths_B, state.layers)

    return program
