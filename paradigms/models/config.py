"""A network as a frozen description: what it is made of, how many parameters it has, what state it carries.

The counts are formulas on the config, so that a cell can be checked, matched in size and predicted before any weight
exists; the tests hold each formula against the tensors.

A stack is written as a string of layers, repeated: `AF` is a Transformer block, `M` a Mamba-2 block. Each letter is one
kind of layer, described by a part of the config (`layer_config` says what such a part tells), in one file; `LAYERS`
lists them. Every layer is residual: x + layer(norm(x)).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paradigms.models import counts
from paradigms.models.attention import AttentionConfig
from paradigms.models.conditioning import ConditioningConfig
from paradigms.models.experts import ExpertsConfig
from paradigms.models.feed_forward import FeedForwardConfig
from paradigms.models.latent_attention import LatentAttentionConfig
from paradigms.models.layer_config import LayerConfig
from paradigms.models.layers import NORM_EPS, NORMS, positive
from paradigms.models.mamba import MambaConfig
from paradigms.models.mamba2 import Mamba2Config
from paradigms.models.mamba3 import Mamba3Config
from paradigms.models.mlp import MLPConfig
from paradigms.models.parallel_heads import ParallelHeadsConfig
from paradigms.models.shared_attention import SharedAttentionConfig
from paradigms.models.sliding_attention import SlidingAttentionConfig
from paradigms.work import ForwardShape

if TYPE_CHECKING:
    from paradigms.models.counts import Counts
    from paradigms.models.stack import Model

LAYERS: dict[str, Any] = {  # letter -> config of that kind of layer; its `key` is the part of ModelConfig
    "A": AttentionConfig,
    "F": FeedForwardConfig,
    "M": Mamba2Config,
    "S": MambaConfig,
    "T": Mamba3Config,
    "L": LatentAttentionConfig,
    "E": ExpertsConfig,
    "W": SlidingAttentionConfig,
    "P": ParallelHeadsConfig,
    "Z": SharedAttentionConfig,
    "G": MLPConfig,
}
PARTS: dict[str, Any] = {kind.key: kind for kind in (*LAYERS.values(), ConditioningConfig)}  # sections of ModelConfig
NOISES = ("absorbing",)
# What target_parameters resizes: the first.
FREE = ("feed_forward", "mlp", "shared_attention", "mamba2", "mamba", "mamba3", "experts")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A decoder-only or bidirectional network over tokens.

    Attributes:
        vocab_size: V, special tokens included.
        d_model: width of the residual stream.
        block, num_blocks: layer letters of one block, and how often it repeats.
        causal: False lets every position see every other (attention layers only).
        canvas_block: of a denoiser, positions of one block of block diffusion (2503.09573): a position sees its own
            block and all before it, so that what earlier blocks keep never changes. Blocks count from position 0. None
            sees everything.
        noise: None, or what a denoiser was trained to undo; `absorbing` replaces tokens by the mask token.
        shift_logits: a denoiser reads its prediction for position i at position i - 1, as an autoregressive model does.
        max_positions: positions the model was built for; longer input is refused.
        norm: before each layer and the head: `rms`, or `layer` (LayerNorm without a bias).
        norm_eps: added to the mean square in every norm.
        tied_head: the output head is the embedding; otherwise it has a matrix of its own.
        head_bias: the output head adds a bias.
        conditioning: of a denoiser, how it is told the time; None tells it nothing.
        attention, feed_forward, mamba2, mamba, mamba3, latent_attention, experts, sliding_attention, parallel_heads,
            shared_attention, mlp: the layers that the block's letters name; None takes the defaults of a kind that is
            named, and a kind that is not named must be left out.
        target_parameters: solve a free width (of the feed-forward; in a stack without one, the `free` field of the
            first part in `FREE`) so that `num_parameters()` comes within 1 % of this; None keeps the widths as given.
    """

    vocab_size: int
    d_model: int = 128
    block: str = "AF"
    num_blocks: int = 4
    causal: bool = True
    noise: str | None = None
    canvas_block: int | None = None
    shift_logits: bool = False
    max_positions: int = 576
    norm: str = "rms"
    norm_eps: float = NORM_EPS
    tied_head: bool = True
    head_bias: bool = False
    conditioning: ConditioningConfig | None = None
    attention: AttentionConfig | None = None
    feed_forward: FeedForwardConfig | None = None
    mamba2: Mamba2Config | None = None
    mamba: MambaConfig | None = None
    mamba3: Mamba3Config | None = None
    latent_attention: LatentAttentionConfig | None = None
    experts: ExpertsConfig | None = None
    sliding_attention: SlidingAttentionConfig | None = None
    parallel_heads: ParallelHeadsConfig | None = None
    shared_attention: SharedAttentionConfig | None = None
    mlp: MLPConfig | None = None
    target_parameters: int | None = None

    def __post_init__(self) -> None:
        positive(
            "model",
            canvas_block=self.canvas_block,
            vocab_size=self.vocab_size,
            d_model=self.d_model,
            num_blocks=self.num_blocks,
            max_positions=self.max_positions,
        )
        unknown = sorted(set(self.block) - set(LAYERS))
        if unknown or not self.block:
            allowed = ", ".join(f"{letter} ({kind.key})" for letter, kind in LAYERS.items())
            raise ValueError(f"model.block={self.block!r} is not a string of layer letters; they are {allowed}")
        if self.noise is not None and self.noise not in NOISES:
            raise ValueError(f"model.noise={self.noise!r} is unknown; it is null or one of {', '.join(NOISES)}")
        for letter, kind in LAYERS.items():
            part = getattr(self, kind.key)
            if letter in self.block:
                if part is None:
                    object.__setattr__(self, kind.key, kind())
                self.part(letter).check(self)
                if kind.recurrent and not self.causal:
                    raise ValueError(
                        f"model.block has {kind.key} layers ({letter}), which only run forwards; set model.causal=true"
                    )
            elif part is not None:
                raise ValueError(
                    f"model.{kind.key} is given, but model.block={self.block!r} has no such layer ({letter}); "
                    "leave it out (null)"
                )
        if self.norm not in NORMS:
            raise ValueError(f"model.norm={self.norm!r} is unknown; it is one of {', '.join(NORMS)}")
        if self.norm != "rms" and any(LAYERS[letter].reads_stream for letter in self.block):
            raise ValueError(
                f"model.norm={self.norm} with model.block={self.block!r}, which has layers of RMS norms only"
            )
        if self.conditioning is not None and self.noise is None:
            raise ValueError("model.conditioning is for denoisers (model.noise); a causal model sees no noise")
        if self.noise is not None and self.causal:
            raise ValueError("model.noise is set, so every position must see the whole canvas; set model.causal=false")
        if self.canvas_block is not None and self.noise is None:
            raise ValueError("model.canvas_block is for denoisers (model.noise); a causal model has no canvas")
        if self.shift_logits and self.noise is None:
            raise ValueError(
                "model.shift_logits is for denoisers (model.noise); a causal model predicts the next token anyway"
            )
        if self.target_parameters is not None:
            self._solve(self.target_parameters)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ModelConfig:
        """The config that `dataclasses.asdict` was taken of; fields that it lacks keep their defaults."""
        parts = {key: PARTS[key](**value) for key, value in values.items() if key in PARTS and value is not None}
        return cls(**{**values, **parts})

    @property
    def layers(self) -> str:
        return self.block * self.num_blocks

    @property
    def has_state(self) -> bool:
        """Whether what it has read can be carried on exactly; not where every position sees what comes later."""
        return self.causal or self.canvas_block is not None

    @property
    def reads_time(self) -> bool:
        """Whether forwards must be told how noisy the canvas is (`time_B`)."""
        return self.conditioning is not None and self.conditioning.reads_time

    @property
    def keeps_slots(self) -> bool:
        """Whether a state is one slot a position, which may be written over."""
        return all(part.keeps_slots for part in self.parts)

    @property
    def recurrent(self) -> bool:
        """Whether some layer runs along one path, so that a tree of drafts cannot be read at once."""
        return any(LAYERS[letter].recurrent for letter in self.block)

    def part(self, letter: str) -> Any:
        """Config of a layer, with what it takes from other parts filled in (`within`)."""
        part: LayerConfig = getattr(self, LAYERS[letter].key)
        return part.within(self)

    @property
    def parts(self) -> list[Any]:
        """Config of each layer in turn."""
        return self.block_parts * self.num_blocks

    @property
    def block_parts(self) -> list[Any]:
        """Config of each layer of one block in turn."""
        parts, seen = [], dict.fromkeys(self.block, 0)
        for letter in self.block:
            parts.append(self.part(letter).at(seen[letter]))
            seen[letter] += 1
        return parts

    # Counts

    def num_parameters(self) -> int:
        """All parameters; an embedding that is the output head too, and what layers share, are counted once."""
        layers = sum(self.d_model + part.num_parameters(self.d_model) for part in self.parts)
        kinds = [self.part(letter) for letter in sorted(set(self.block))]
        shared = sum(kind.shared_parameters(self.d_model) for kind in kinds)
        told = self.conditioning.num_parameters(self.d_model, len(self.layers)) if self.conditioning else 0
        ends = (1 if self.tied_head else 2) * self.vocab_size * self.d_model + self.head_bias * self.vocab_size
        return ends + self.d_model + layers + shared + told

    def state_bytes(self, *, batch_size: int, length: int, itemsize: int, kv_dtype: str | None = None) -> int:
        """Bytes that must be kept after `length` positions so that the next step needs no look back.

        Of a denoiser: of a cache of so many positions, which its decoder may do without. `kv_dtype` is that of
        `Model.new_state`.
        """

        def bytes_of(part: Any) -> int:
            stored = {"kv_dtype": kv_dtype} if part.kv_dtypes else {}
            return part.state_bytes(self.d_model, length=length, itemsize=itemsize, **stored)

        return batch_size * sum(bytes_of(part) for part in self.parts)

    def check_kv_dtype(self, kv_dtype: str | None) -> None:
        """Raise ValueError unless all keys and values of this model can be stored so, and there are some."""
        if kv_dtype is None:
            return
        storing = [part for part in self.parts if part.kv_dtypes]
        if not storing:
            raise ValueError(f"kv_dtype={kv_dtype}: model.block={self.block!r} has no layer of keys and values")
        for part in self.parts:
            one, two = (part.state_bytes(self.d_model, length=length, itemsize=4) for length in (1, 2))
            if part not in storing and two > one:
                raise ValueError(
                    f"kv_dtype={kv_dtype}: what {part.key} layers keep of each position is stored as computed only; "
                    "leave it out (null)"
                )
            if part in storing and kv_dtype not in part.kv_dtypes:
                allowed = ", ".join(part.kv_dtypes)
                raise ValueError(f"kv_dtype={kv_dtype!r} is unknown; it is null (as computed) or one of {allowed}")

    def active_parameters(self) -> int:
        """Parameters that one token uses; see `counts`."""
        return counts.active_parameters(self)

    def weight_bytes_read(self, *, itemsize: int, experts_touched: float | None = None) -> int:
        """Bytes of weights that a forward reads; see `counts.weight_bytes_read`."""
        return counts.weight_bytes_read(self, itemsize=itemsize, experts_touched=experts_touched)

    def matmul_flops(self, *, num_tokens: int, context: int, num_logits: int | None = None) -> int:
        """Operations of a forward's matrix products, of one row; see `counts.matmul_flops`."""
        return counts.matmul_flops(self, num_tokens=num_tokens, context=context, num_logits=num_logits)

    def counts(
        self,
        shape: ForwardShape,
        *,
        itemsize: int,
        kv_dtype: str | None = None,
        experts_touched: float | None = None,
    ) -> Counts:
        """Operations and bytes of one forward; see `counts.count`."""
        return counts.count(self, shape, itemsize=itemsize, kv_dtype=kv_dtype, experts_touched=experts_touched)

    def activation_bytes(self, shape: ForwardShape, *, itemsize: int, kv_dtype: str | None = None) -> int:
        """Bytes beside weights and state at the widest moment of a forward; see `counts.activation_bytes`."""
        return counts.activation_bytes(self, shape, itemsize=itemsize, kv_dtype=kv_dtype)

    # Building

    def build(self) -> Model:
        """The network with freshly initialised weights (torch's global generator decides them)."""
        from paradigms.models.stack import Model

        return Model(self)

    def _solve(self, target: int) -> None:
        key = next((key for key in FREE if getattr(self, key) is not None), None)
        if key is None:
            raise ValueError(f"model.target_parameters={target}: model.block={self.block!r} has no width to solve for")
        field, grain = PARTS[key].free

        def resized(width: int) -> ModelConfig:
            part = dataclasses.replace(getattr(self, key), **{field: width})
            return dataclasses.replace(self, target_parameters=None, **{key: part})

        at = {width: resized(width).num_parameters() for width in (grain, 2 * grain)}
        slope = at[2 * grain] - at[grain]
        width = grain * max(1, 1 + round((target - at[grain]) / slope))
        solved = resized(width)
        if abs(solved.num_parameters() - target) > 0.01 * target:
            raise ValueError(
                f"model.target_parameters={target} is out of reach: the nearest {key}.{field} is {width} with "
                f"{solved.num_parameters()} parameters; change d_model or num_blocks"
            )
        object.__setattr__(self, key, getattr(solved, key))
