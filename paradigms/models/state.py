"""What a model carries between steps.

Slots of the key-value cache are positions: row b holds exactly its own lengths[b] tokens, padding is never stored, so
`used_bytes` counts what is needed and nothing else. Lengths live on the host: no step waits for the device to learn
them.

Dimension letters: B batch, H key-value heads, S slots, D head width, C convolution channels, W d_conv - 1, P SSM head
width, N state.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from paradigms.models.config import ModelConfig


@dataclass(slots=True)
class KVCache:
    """Keys and values of one attention layer, allocated for S positions."""

    keys_BHSD: Tensor
    values_BHSD: Tensor


@dataclass(slots=True)
class SSMState:
    """Convolution window and recurrent state of one Mamba-2 layer, constant in length."""

    conv_BCW: Tensor
    ssm_BHPN: Tensor


class State:
    """State of all layers for a batch of rows.

    Attributes:
        lengths: tokens each row has seen.
        layers: one KVCache, SSMState or None (feed-forward) a layer.
    """

    def __init__(
        self, config: ModelConfig, batch_size: int, max_len: int, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        if max_len > config.max_positions:
            raise ValueError(
                f"a state of {max_len} positions was asked for; the model has max_positions={config.max_positions}"
            )
        self.max_len = max_len
        self.lengths = [0] * batch_size
        self.layers: list[KVCache | SSMState | None] = []
        kv_shape = (batch_size, config.num_kv_heads, max_len, config.head_dim)
        conv_shape = (batch_size, config.conv_dim, config.d_conv - 1)
        ssm_shape = (batch_size, config.num_ssm_heads, config.ssm_head_dim, config.d_state)
        ssm_dtype = torch.promote_types(dtype, torch.float32)
        for layer in config.layers:
            if layer == "A":
                self.layers.append(KVCache(*(torch.zeros(kv_shape, device=device, dtype=dtype) for _ in range(2))))
            elif layer == "M":
                self.layers.append(
                    SSMState(
                        torch.zeros(conv_shape, device=device, dtype=dtype),
                        torch.zeros(ssm_shape, device=device, dtype=ssm_dtype),
                    )
                )
            else:
                self.layers.append(None)

    @property
    def uniform_length(self) -> int | None:
        """The length of every row when all are equal, else None."""
        first = self.lengths[0]
        return first if all(length == first for length in self.lengths) else None

    @property
    def used_bytes(self) -> int:
        """Bytes of the slots that hold tokens, and of the recurrent states."""
        used = 0
        for layer in self.layers:
            if isinstance(layer, KVCache):
                per_token = layer.keys_BHSD[0, :, 0].nbytes + layer.values_BHSD[0, :, 0].nbytes
                used += per_token * sum(self.lengths)
            elif isinstance(layer, SSMState):
                used += layer.conv_BCW.nbytes + layer.ssm_BHPN.nbytes
        return used

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the tensors' storage."""
        tensors = [
            tensor
            for layer in self.layers
            for tensor in (
                (layer.keys_BHSD, layer.values_BHSD)
                if isinstance(layer, KVCache)
                else (layer.conv_BCW, layer.ssm_BHPN)
                if isinstance(layer, SSMState)
                else ()
            )
        ]
        return sum(tensor.untyped_storage().nbytes() for tensor in tensors)
