"""What most of their models name alike: tensors and settings that several families share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from paradigms.models.attention import AttentionConfig
from paradigms.models.config import ModelConfig
from paradigms.models.families.family import Entry

UNLIMITED = 2**20  # positions of a model that says no limit of its own


def only(config: Mapping[str, Any], computed: Mapping[str, Any]) -> None:
    """Raise ValueError for a setting of theirs with another value than the native stack computes."""
    for name, value in computed.items():
        if config.get(name, value) != value:
            raise ValueError(f"{name}={config[name]!r} is not computed by the native stack; it has {value!r}")


def shortest_block(layers: str) -> tuple[str, int]:
    """The shortest block, and how often it repeats to give these layers."""
    size = next(size for size in range(1, len(layers) + 1) if layers[:size] * (len(layers) // size) == layers)
    return layers[:size], len(layers) // size


def ends(config: ModelConfig, embedding: str, norm: str) -> Iterable[Entry]:
    """Embedding, last norm and head."""
    yield Entry("embedding", (f"{embedding}.weight",), transpose=True)
    yield Entry("norm", (f"{norm}.weight",))
    if not config.tied_head:
        yield Entry("head", ("lm_head.weight",), transpose=True)


def attention(ours: str, theirs: str, part: AttentionConfig, d_model: int) -> Iterable[Entry]:
    """An attention layer."""
    heads = (part.num_heads, part.kv_heads, part.kv_heads)
    sizes = tuple(count * part.head_width(d_model) for count in heads)
    qkv = [f"{theirs}.{name}_proj" for name in "qkv"]
    yield Entry(f"{ours}.qkv", tuple(f"{name}.weight" for name in qkv), sizes, transpose=True)
    if part.qkv_bias:
        yield Entry(f"{ours}.qkv_bias", tuple(f"{name}.bias" for name in qkv), sizes)
    if part.qk_norm:
        yield Entry(f"{ours}.q_norm", (f"{theirs}.q_norm.weight",))
        yield Entry(f"{ours}.k_norm", (f"{theirs}.k_norm.weight",))
    yield Entry(f"{ours}.out", (f"{theirs}.o_proj.weight",), transpose=True)


def swiglu(ours: str, theirs: str, width: int) -> Iterable[Entry]:
    """A feed-forward."""
    gate_up = tuple(f"{theirs}.{name}_proj.weight" for name in ("gate", "up"))
    yield Entry(f"{ours}.gate_up", gate_up, (width, width), transpose=True)
    yield Entry(f"{ours}.down", (f"{theirs}.down_proj.weight",), transpose=True)


def experts(ours: str, theirs: str, router: str = "gate") -> Iterable[Entry]:
    """A router and the stacks of routed experts."""
    yield Entry(f"{ours}.router", (f"{theirs}.{router}.weight",), transpose=True)
    yield Entry(f"{ours}.gate_up", (f"{theirs}.experts.gate_up_proj",), transpose=True)
    yield Entry(f"{ours}.down", (f"{theirs}.experts.down_proj",), transpose=True)
