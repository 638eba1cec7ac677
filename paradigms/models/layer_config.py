"""What a kind of layer tells of itself before any weight exists: the contract of the configs in `config.LAYERS`.

A subclass is a frozen dataclass whose fields are the layer's options. What is given here is what most kinds answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Self

from torch import nn

if TYPE_CHECKING:
    from paradigms.models.config import ModelConfig
    from paradigms.models.forward_pass import ForwardPass


class LayerConfig:
    """One kind of layer.

    Attributes:
        key: name of its part of ModelConfig, and in YAML.
        recurrent: whether it runs along one path, so that a tree of drafts cannot be read at once; it needs a causal
            model.
        reads_stream: whether it reads the residual stream as it is and applies its norm further in (`num_parameters`
            leaves the norm before a layer out all the same).
        kv_dtypes: other forms in which its keys and values can be stored; empty where it has none.
        keeps_slots: whether it keeps nothing, or one slot a position that may be written over, as a canvas is.
        free: the field that `target_parameters` solves for, and in which steps; None has none.
        not_weights: fields that change how the same function is computed; a checkpoint fits any of their values.
    """

    key: ClassVar[str]
    recurrent: ClassVar[bool] = False
    reads_stream: ClassVar[bool] = False
    kv_dtypes: ClassVar[tuple[str, ...]] = ()
    keeps_slots: ClassVar[bool] = False
    free: ClassVar[tuple[str, int] | None] = None
    not_weights: ClassVar[tuple[str, ...]] = ()

    def within(self, model: ModelConfig) -> Self:
        """The same with what it takes from other parts of the model filled in."""
        return self

    def at(self, number: int) -> Self:
        """The layer of this number among its kind in a block, where they differ."""
        return self

    def check(self, model: ModelConfig) -> None:
        """Raise ValueError for values that do not go together."""
        raise NotImplementedError

    def num_parameters(self, d_model: int) -> int:
        """Of one layer, without the norm before it and without what layers share."""
        raise NotImplementedError

    def shared_parameters(self, d_model: int) -> int:
        """Of what all layers of this kind share."""
        return 0

    def idle_parameters(self, d_model: int, experts_touched: float | None) -> int:
        """Those that a forward leaves out when its tokens touch so many experts; None is the experts of one token."""
        return 0

    def state_bytes(self, d_model: int, *, length: int, itemsize: int) -> int:
        """Bytes of the state of one row after `length` positions; a kind with `kv_dtypes` takes a `kv_dtype` too."""
        raise NotImplementedError

    # Work of one forward, all rows together, without the norm before the layer and the addition behind it

    def matmul_flops(self, run: ForwardPass) -> int:
        """Operations of the matrix products as plain computation makes them, two for a multiplication and addition;
        here those of every token passing all matrices once.
        """
        return 2 * run.positions * (self.num_parameters(run.d_model) + self.shared_parameters(run.d_model))

    def hidden_flops(self, run: ForwardPass) -> int:
        """Those of them whose results a mask, a window or padding throws away."""
        return 0

    def other_flops(self, run: ForwardPass) -> int:
        """Operations that are no matrix product, as `operations` counts them."""
        raise NotImplementedError

    def state_read_bytes(self, run: ForwardPass) -> int:
        """Bytes of the state that are read: slots that hold something, or a recurrent state whole."""
        return self._bytes_of_state(run, run.shape.kept) if run.has_state else 0

    def state_written_bytes(self, run: ForwardPass) -> int:
        """Bytes of the state that are written: slots of the new tokens, or a recurrent state whole."""
        return self._bytes_of_state(run, run.shape.written) if run.shape.written else 0

    def _bytes_of_state(self, run: ForwardPass, length: int) -> int:
        stored = {"kv_dtype": run.kv_dtype} if self.kv_dtypes else {}
        return run.rows * self.state_bytes(run.d_model, length=length, itemsize=run.itemsize, **stored)

    def activation_bytes(self, run: ForwardPass) -> int:
        """Bytes that live at the widest moment in the mixer, what it returns among them; what it is given is not."""
        raise NotImplementedError

    def build(self, model: ModelConfig, shared: nn.ModuleDict) -> nn.Module:
        """The mixer. What several layers use is put into `shared`, once."""
        raise NotImplementedError
