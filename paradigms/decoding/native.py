"""A paradigm of our own: one of the suite's models and one of its decoders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from paradigms.decoding.stopping import Vocabulary
from paradigms.models.stack import Model
from paradigms.paradigm import Event, Request


class Decoder(Protocol):
    """The order in which tokens become final. A frozen dataclass: config and behaviour in one."""

    def check(self, *, causal: bool, noise: str | None, output_len: int) -> None: ...

    def decode(self, model: Model, requests: Sequence[Request], vocabulary: Vocabulary) -> Iterator[Event]: ...


class NativeParadigm:
    """Runs requests through `decoder` on `model`."""

    def __init__(self, model: Model, decoder: Decoder, vocabulary: Vocabulary) -> None:
        self.model, self.decoder, self.vocabulary = model, decoder, vocabulary
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        self.weight_bytes = model.weight_bytes

    def run(self, requests: Sequence[Request]) -> Iterator[Event]:
        return self.decoder.decode(self.model, requests, self.vocabulary)

    def describe(self) -> dict[str, Any]:
        return {"kernels": self.model.kernels(), "execution": "eager"}
