"""What a cell asks of a network before any weight exists, whoever computes it: the native stack or `transformers`."""

from __future__ import annotations

from typing import Any, Protocol


class NetworkConfig(Protocol):
    """A network as a frozen description; `ModelConfig` and `TransformersConfig` are two."""

    @property
    def vocab_size(self) -> int:
        """Special tokens included."""
        ...

    @property
    def max_positions(self) -> int: ...

    @property
    def causal(self) -> bool: ...

    @property
    def noise(self) -> str | None: ...

    @property
    def recurrent(self) -> bool:
        """Whether it runs along one path, so that a tree of drafts cannot be read at once."""
        ...

    @property
    def has_state(self) -> bool:
        """Whether it can carry what it has read from step to step."""
        ...

    @property
    def reads_time(self) -> bool:
        """Whether forwards must be told how noisy the canvas is."""
        ...

    def state_bytes(self, *, batch_size: int, length: int, itemsize: int, kv_dtype: str | None = None) -> int | None:
        """Bytes of the state by formula; None where there is none."""
        ...

    def check_kv_dtype(self, kv_dtype: str) -> None:
        """Raise ValueError when keys and values cannot be kept in this form."""
        ...

    def build(self) -> Any:
        """The network with fresh weights."""
        ...
