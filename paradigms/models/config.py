"""A network as a frozen description: what it is made of, how many parameters it has, what state it carries.

The counts are formulas on the config, so that a cell can be checked, matched in size and predicted before any weight
exists; the tests hold each formula against the tensors. No torch here.

A stack is written as a string of layers, repeated: `AF` is a Transformer block, `M` a Mamba-2 block.

    A  attention (rotary positions)      F  feed-forward (SwiGLU)      M  Mamba-2 (state-space duality)

Every layer is residual: x + layer(norm(x)).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paradigms.models.stack import Model

LAYERS = {"A": "attention", "F": "feed-forward", "M": "Mamba-2"}
NOISES = ("absorbing",)
_GRAIN = {"ff_width": 8, "d_state": 4}  # steps in which a free width is solved


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A decoder-only or bidirectional network over tokens.

    Attributes:
        vocab_size: V, special tokens included.
        d_model: width of the residual stream.
        block, num_blocks: layer letters of one block, and how often it repeats.
        causal: False lets every position see every other (attention layers only).
        noise: None, or what a denoiser was trained to undo; `absorbing` replaces tokens by the mask token.
        shift_logits: a denoiser reads its prediction for position i at position i - 1, as an autoregressive model does.
        max_positions: positions the model was built for; longer input is refused.
        num_heads, num_kv_heads, rope_theta: attention; head width is d_model / num_heads.
        ff_width: inner width of the SwiGLU feed-forward.
        expand, ssm_head_dim, d_state, num_groups, d_conv, chunk_len: Mamba-2, in its paper's words (2405.21060).
        target_parameters: solve the free width (ff_width, or d_state in a stack without feed-forward) so that
            `num_parameters()` comes within 1 % of this; None keeps the widths as given.
    """

    vocab_size: int
    d_model: int = 128
    block: str = "AF"
    num_blocks: int = 4
    causal: bool = True
    noise: str | None = None
    shift_logits: bool = False
    max_positions: int = 576
    num_heads: int = 4
    num_kv_heads: int = 4
    rope_theta: float = 10_000.0
    ff_width: int = 344
    expand: int = 2
    ssm_head_dim: int = 64
    d_state: int = 64
    num_groups: int = 1
    d_conv: int = 4
    chunk_len: int = 32
    target_parameters: int | None = None

    def __post_init__(self) -> None:
        for name in ("vocab_size", "d_model", "num_blocks", "max_positions", "num_heads", "num_kv_heads", "ff_width"):
            _positive(name, getattr(self, name))
        for name in ("expand", "ssm_head_dim", "d_state", "num_groups", "d_conv", "chunk_len"):
            _positive(name, getattr(self, name))
        unknown = sorted(set(self.block) - set(LAYERS))
        if unknown or not self.block:
            allowed = ", ".join(f"{letter} ({name})" for letter, name in LAYERS.items())
            raise ValueError(f"model.block={self.block!r} is not a string of layer letters; they are {allowed}")
        if self.noise is not None and self.noise not in NOISES:
            raise ValueError(f"model.noise={self.noise!r} is unknown; it is null or one of {', '.join(NOISES)}")
        if "A" in self.block:
            if self.d_model % self.num_heads or self.head_dim % 2:
                raise ValueError(
                    f"model.d_model={self.d_model} does not split into num_heads={self.num_heads} heads of even width"
                )
            if self.num_heads % self.num_kv_heads:
                raise ValueError(f"model.num_kv_heads={self.num_kv_heads} must divide num_heads={self.num_heads}")
        if "M" in self.block:
            if self.d_inner % self.ssm_head_dim:
                raise ValueError(
                    f"model.ssm_head_dim={self.ssm_head_dim} must divide expand x d_model = {self.d_inner}"
                )
            if self.num_ssm_heads % self.num_groups:
                raise ValueError(f"model.num_groups={self.num_groups} must divide the {self.num_ssm_heads} SSM heads")
            if not self.causal:
                raise ValueError("model.block has Mamba-2 layers (M), which only run forwards; set model.causal=true")
        if self.noise is not None and self.causal:
            raise ValueError("model.noise is set, so every position must see the whole canvas; set model.causal=false")
        if self.shift_logits and self.noise is None:
            raise ValueError(
                "model.shift_logits is for denoisers (model.noise); a causal model predicts the next token anyway"
            )
        if self.target_parameters is not None:
            self._solve(self.target_parameters)

    # Derived sizes

    @property
    def layers(self) -> str:
        return self.block * self.num_blocks

    @property
    def head_dim(self) -> int:
        return self.d_model // self.num_heads

    @property
    def d_inner(self) -> int:
        return self.expand * self.d_model

    @property
    def num_ssm_heads(self) -> int:
        return self.d_inner // self.ssm_head_dim

    @property
    def conv_dim(self) -> int:
        """Channels that pass the short convolution: x, B and C."""
        return self.d_inner + 2 * self.num_groups * self.d_state

    # Counts

    def layer_parameters(self, layer: str) -> int:
        """Parameters of one layer and the norm before it."""
        d = self.d_model
        if layer == "A":
            return d + d * (self.num_heads + 2 * self.num_kv_heads) * self.head_dim + self.num_heads * self.head_dim * d
        if layer == "F":
            return d + 3 * d * self.ff_width
        heads, inner = self.num_ssm_heads, self.d_inner
        in_proj = d * (inner + self.conv_dim + heads)  # z, xBC, dt
        return d + in_proj + self.conv_dim * (self.d_conv + 1) + 3 * heads + inner + inner * d

    def num_parameters(self) -> int:
        """All parameters; the embedding is counted once, since the output head shares it."""
        return (
            self.vocab_size * self.d_model + self.d_model + sum(self.layer_parameters(layer) for layer in self.layers)
        )

    def state_bytes(self, *, batch_size: int, length: int, itemsize: int) -> int:
        """Bytes that must be kept after `length` positions so that the next step needs no look back.

        Attention keeps 2 x kv_heads x head_dim numbers a position and layer. Mamba-2 keeps the last d_conv - 1 inputs
        of the convolution and heads x head_dim x d_state numbers a layer whatever the length, the latter in at least
        float32. A model that sees the whole canvas keeps nothing.
        """
        if not self.causal:
            return 0
        kv = 2 * self.num_kv_heads * self.head_dim * length * itemsize
        conv = self.conv_dim * (self.d_conv - 1) * itemsize
        ssm = self.d_inner * self.d_state * max(itemsize, 4)
        return batch_size * (self.layers.count("A") * kv + self.layers.count("M") * (conv + ssm))

    # Building

    def build(self) -> Model:
        """The network with freshly initialised weights (torch's global generator decides them)."""
        from paradigms.models.stack import Model

        return Model(self)

    def _solve(self, target: int) -> None:
        free = "ff_width" if "F" in self.block else "d_state"
        grain = _GRAIN[free]
        at = {
            width: dataclasses.replace(self, target_parameters=None, **{free: width}).num_parameters()
            for width in (grain, 2 * grain)
        }
        slope = at[2 * grain] - at[grain]
        width = grain * max(1, 1 + round((target - at[grain]) / slope))
        solved = dataclasses.replace(self, target_parameters=None, **{free: width})
        if abs(solved.num_parameters() - target) > 0.01 * target:
            raise ValueError(
                f"model.target_parameters={target} is out of reach: the nearest {free} is {width} with "
                f"{solved.num_parameters()} parameters; change d_model or num_blocks"
            )
        object.__setattr__(self, free, width)


def _positive(name: str, value: float) -> None:
    if value < 1:
        raise ValueError(f"model.{name}={value} must be at least 1")
