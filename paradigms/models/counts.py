"""What a token costs, by formula: parameters it uses, bytes of weights a forward reads, matrix products it computes.

Only experts make these differ from the parameter count, and only attention makes them grow with the context. Each kind
of layer tells its own part (`LayerConfig.matmul_flops`, `LayerConfig.idle_parameters`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

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
        num_tokens: new tokens.
        context: slots that attention computes for each of them: all of the state and all new tokens, since the half
            that a causal mask hides is computed by plain attention too.
        num_logits: tokens whose logits are wanted; None is all.

    Norms, activations, convolutions, scans and softmax are not matrix products and not counted.
    """
    logits = num_tokens if num_logits is None else num_logits
    parts, size = config.parts, config.d_model
    layers = sum(part.matmul_flops(size, num_tokens=num_tokens, context=context) for part in parts)
    told = config.conditioning.matmul_flops(size, len(parts)) if config.conditioning is not None else 0
    return layers + told + 2 * logits * config.d_model * config.vocab_size


def _idle(config: ModelConfig, experts_touched: float | None) -> int:
    """Parameters of routed experts that are not touched."""
    return sum(part.idle_parameters(config.d_model, experts_touched) for part in config.parts)
