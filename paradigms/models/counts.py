"""What a token costs, by formula: parameters it uses, bytes of weights a forward reads, matrix products it computes.

Only experts make these differ from the parameter count, and only attention makes them grow with the context. Each kind
of layer tells its own part (`LayerConfig.matmul_flops`, `LayerConfig.idle_parameters`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paradigms.models import operations
from paradigms.models.forward_pass import ForwardPass
from paradigms.work import ForwardShape

if TYPE_CHECKING:
    from paradigms.models.config import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Operations and bytes of a forward, all rows together.

    Attributes:
        matmul_flops: of matrix products as the plain computation makes them, two for a multiplication and addition.
        hidden_flops: the part of them whose results a causal mask, a window or padding to a chunk throws away; a kernel
            that skips it saves so much.
        other_flops: norms, activations, softmax, rotary positions, convolutions and scans; one an arithmetic operation,
            exponentials and roots included.
        weight_bytes: weights that are read, each once.
        state_read_bytes, state_written_bytes: of the state.
    """

    matmul_flops: int
    hidden_flops: int
    other_flops: int
    weight_bytes: int
    state_read_bytes: int
    state_written_bytes: int

    @property
    def flops(self) -> int:
        """All that is computed."""
        return self.matmul_flops + self.other_flops

    @property
    def bytes_moved(self) -> int:
        """Weights and state; activations are taken to stay near."""
        return self.weight_bytes + self.state_read_bytes + self.state_written_bytes


def active_parameters(config: ModelConfig) -> int:
    """Parameters that one token uses: all but the routed experts it is not sent to."""
    return config.num_parameters() - _idle(config, None)


def weight_bytes_read(config: ModelConfig, *, itemsize: int, experts_touched: float | None = None) -> int:
    """Bytes of weights that one forward reads.

    Args:
        experts_touched: distinct experts that the forward's tokens touched, a mean over the expert layers; None is
            those of one token.

    An embedding that is not the output head as well is left out: of it a forward reads one row a token.
    """
    embedding = 0 if config.tied_head else config.vocab_size * config.d_model
    return (config.num_parameters() - _idle(config, experts_touched) - embedding) * itemsize


def matmul_flops(config: ModelConfig, *, num_tokens: int, context: int, num_logits: int | None = None) -> int:
    """Floating-point operations of the matrix products in a forward of one row, two for a multiplication and addition.

    Args:
        num_tokens: new tokens, which a state takes up.
        context: slots that attention computes for each of them: all of the state and all new tokens, since the half
            that a causal mask hides is computed by plain attention too.
        num_logits: tokens whose logits are wanted; None is all.
    """
    logits = num_tokens if num_logits is None else num_logits
    run = ForwardPass.of_row(config, num_tokens=num_tokens, context=context, num_logits=logits)
    return round(_matmul_flops(run))


def count(
    config: ModelConfig,
    shape: ForwardShape,
    *,
    itemsize: int,
    kv_dtype: str | None = None,
    experts_touched: float | None = None,
) -> Counts:
    """Operations and bytes of one forward of this shape (`shape.times` is not looked at), all rows together.

    Rows are taken to be equally long, and new tokens to see each other as the model's own text does: in a tree of
    drafts fewer pairs are visible than `hidden_flops` says.

    Args:
        itemsize: bytes of a number of the weights and activations.
        kv_dtype: form in which keys and values are stored; see `Model.new_state`.
        experts_touched: distinct experts that the tokens touch, a mean over the expert layers; None expects what evenly
            drawn choices would touch, top_k for one token.
    """
    run = ForwardPass(model=config, shape=shape, itemsize=itemsize, kv_dtype=kv_dtype)
    if experts_touched is None and config.experts is not None:
        experts_touched = config.experts.touched_by(shape.positions)
    weights = weight_bytes_read(config, itemsize=itemsize, experts_touched=experts_touched)
    if not shape.logits:
        weights -= (config.d_model + config.head_bias) * config.vocab_size * itemsize
    return Counts(
        matmul_flops=round(_matmul_flops(run)),
        hidden_flops=_layers(run, "hidden_flops"),
        other_flops=round(_other_flops(run)),
        weight_bytes=weights,
        state_read_bytes=_layers(run, "state_read_bytes"),
        state_written_bytes=_layers(run, "state_written_bytes"),
    )


def activation_bytes(config: ModelConfig, shape: ForwardShape, *, itemsize: int, kv_dtype: str | None = None) -> int:
    """Bytes of what lives beside weights and state at the widest moment of a forward without gradients, logits
    included.

    In a layer: the residual stream, the embedding that some layers read again, the normed input, and what the mixer
    keeps; at the end: the stream, its norm, and the logits. Attention is taken to keep no scores, as torch's fused
    kernels do not, and what layers derive of their weights once is left out. Tests hold it against the tensors that
    live: see tests/models/test_activation_bytes.py for how close it comes to which kind of layer.
    """
    run = ForwardPass(model=config, shape=shape, itemsize=itemsize, kv_dtype=kv_dtype)
    stream = run.positions * config.d_model * itemsize
    told, beside = 0, 3
    if config.conditioning is not None:
        told, beside = config.conditioning.activation_bytes(run), 4  # the normed input before and after its shift
    widest = max((beside - part.reads_stream) * stream + part.activation_bytes(run) for part in config.block_parts)
    head = shape.logits * (config.d_model + (1 + config.head_bias) * config.vocab_size) * itemsize
    return max(told + widest, 2 * told, (2 + config.shift_logits) * stream + round(head))


def _layers(run: ForwardPass, name: str) -> int:
    """Sum over the layers of what each says by this name."""
    return run.model.num_blocks * sum(getattr(part, name)(run) for part in run.model.block_parts)


def _matmul_flops(run: ForwardPass) -> float:
    """Of the layers, the conditioning and the head."""
    model = run.model
    told = model.conditioning.matmul_flops(run) if model.conditioning is not None else 0
    return _layers(run, "matmul_flops") + told + 2 * run.shape.logits * model.d_model * model.vocab_size


def _other_flops(run: ForwardPass) -> float:
    """Of the layers, their norms and additions, the conditioning, the last norm and the bias of the head."""
    model = run.model
    norm = operations.NORMS[model.norm](model.d_model)
    normed = sum(not part.reads_stream for part in model.block_parts) * model.num_blocks
    layers = _layers(run, "other_flops") + run.positions * (len(model.layers) * model.d_model + normed * norm)
    bias = run.shape.logits * model.head_bias * model.vocab_size
    if model.conditioning is None:
        return layers + run.shape.logits * norm + bias
    return layers + run.positions * norm + model.conditioning.other_flops(run) + bias


def _idle(config: ModelConfig, experts_touched: float | None) -> int:
    """Parameters of routed experts that are not touched."""
    return sum(part.idle_parameters(config.d_model, experts_touched) for part in config.parts)
