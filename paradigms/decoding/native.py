"""A paradigm from a model and what drives it: a decoder of ours, or an engine that takes the same weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Protocol

from paradigms.decoding.stopping import Vocabulary
from paradigms.models.network import NetworkConfig
from paradigms.models.stack import Model
from paradigms.paradigm import Event, Outline, Request
from paradigms.work import BatchShape, ForwardShape


class Decoder(Protocol):
    """The order in which tokens become final. A frozen dataclass: config and behaviour in one."""

    engine: ClassVar[str]

    @property
    def depends_on_values(self) -> bool:
        """Whether the work done depends on which tokens come out, so that random weights would mislead."""
        ...

    def check(self, model: NetworkConfig, *, output_len: int) -> None:
        """Raise ValueError when it cannot drive such a model."""
        ...

    def decode(self, model: Model, requests: Sequence[Request], vocabulary: Vocabulary) -> Iterator[Event]:
        """Events of one batch, as `paradigms.paradigm` describes them."""
        ...

    def forwards(
        self, model: NetworkConfig, batch: BatchShape, *, tokens_per_forward: float | None = None
    ) -> Iterator[ForwardShape]:
        """The forwards that `decode` makes of such a batch, in order; what is drawn enters as its mean.

        Args:
            tokens_per_forward: tokens that become final by one forward on average, where `depends_on_values`.

        Raises:
            ValueError: the text decides how many there are, and nobody says.
        """
        ...


class NativeParadigm:
    """Runs requests through `decoder` on `model`."""

    def __init__(self, model: Model, decoder: Decoder, vocabulary: Vocabulary) -> None:
        self.model, self.decoder, self.vocabulary = model, decoder, vocabulary
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        self.weight_bytes = model.weight_bytes

    def run(self, requests: Sequence[Request]) -> Iterator[Event]:
        return self.decoder.decode(self.model, requests, self.vocabulary)

    def outline(self, output_len: int) -> Outline | None:
        """What is known of a run of fixed length before it is made; None for a decoder that does not say."""
        known = getattr(self.decoder, "outline", None)
        return known(self.model.config, output_len) if known else None

    def quality_columns(self, requests: Sequence[Request]) -> dict[str, Any]:
        """What a decoder tells of its own exactness, away from any clock: columns of the records; most have none."""
        own = getattr(self.decoder, "quality_columns", None)
        return own(self.model, requests, self.vocabulary) if own else {}

    def weights_read(self) -> list[Any]:
        """The weights that a run reads: the model's, or an engine's own copy of them, laid out its way."""
        own = getattr(self.decoder, "weights_read", None)
        return list(own(self.model) if own else self.model.parameters())

    def describe(self) -> dict[str, Any]:
        execution, own = getattr(self.model, "execution", "eager"), getattr(self.decoder, "compile_flags", None)
        return {
            "engine": self.decoder.engine,
            "kernels": self.model.kernels(),
            "execution": execution,
            "compile_flags": own(self.model) if own else getattr(self.model, "compile_flags", None),
            "execution_prompts": getattr(self.decoder, "execution_prompts", None)  # of engines that differ there
            or getattr(self.model, "execution_prompts", execution),
        }
