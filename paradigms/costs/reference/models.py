"""The networks behind the published rows, from their public config.json files; no weights."""

from __future__ import annotations

from dataclasses import dataclass

from paradigms.models.attention import AttentionConfig
from paradigms.models.config import ModelConfig
from paradigms.models.feed_forward import FeedForwardConfig
from paradigms.models.mamba2 import Mamba2Config


def _transformer(
    *, vocab_size: int, d_model: int, layers: int, heads: int, kv_heads: int, width: int, bias: bool = False,
    tied: bool = False, causal: bool = True, max_positions: int = 131_072,
) -> ModelConfig:  # fmt: skip
    return ModelConfig(
        vocab_size=vocab_size,
        d_model=d_model,
        block="AF",
        num_blocks=layers,
        causal=causal,
        noise=None if causal else "absorbing",
        tied_head=tied,
        max_positions=max_positions,
        attention=AttentionConfig(num_heads=heads, num_kv_heads=kv_heads, qkv_bias=bias),
        feed_forward=FeedForwardConfig(width=width),
    )


LLADA_8B = _transformer(
    vocab_size=126_464, d_model=4096, layers=32, heads=32, kv_heads=32, width=12_288, causal=False
)  # fmt: skip
LLAMA3_8B = _transformer(vocab_size=128_256, d_model=4096, layers=32, heads=32, kv_heads=8, width=14_336)
LLAMA2_7B = _transformer(vocab_size=32_000, d_model=4096, layers=32, heads=32, kv_heads=32, width=11_008)
QWEN25 = {
    "qwen25-instruct": _transformer(
        vocab_size=151_936, d_model=896, layers=24, heads=14, kv_heads=2, width=4864, bias=True, tied=True
    ),
    "qwen25-1.5b-instruct": _transformer(
        vocab_size=151_936, d_model=1536, layers=28, heads=12, kv_heads=2, width=8960, bias=True, tied=True
    ),
}
MAMBA2_780M = ModelConfig(
    vocab_size=50_288,
    d_model=1536,
    block="M",
    num_blocks=48,
    max_positions=1 << 20,
    mamba2=Mamba2Config(d_state=128, head_dim=64),
)


@dataclass(frozen=True, kw_only=True)
class T5Decoder:
    """Decoder of a T5 v1.1: self-attention, attention to the encoded text, gated feed-forward, a head of its own.

    Attributes:
        layers, d_model, inner, width: number of layers; width of the stream, of all heads together, of the
            feed-forward.
        vocab_size: rows of the head.
    """

    layers: int
    d_model: int
    inner: int
    width: int
    vocab_size: int = 32_128

    @property
    def weights_read(self) -> int:
        """Numbers that one step reads: keys and values of the encoded text are computed once, so of that attention only
        queries and the projection back.
        """
        layer = self.d_model * (4 * self.inner + 2 * self.inner + 3 * self.width)
        return self.layers * layer + self.vocab_size * self.d_model


T5 = {  # google/t5-v1_1-*: 77M, 250M, 800M and 11B parameters with their encoders
    "t5-small": T5Decoder(layers=8, d_model=512, inner=384, width=1024),
    "t5-base": T5Decoder(layers=12, d_model=768, inner=768, width=2048),
    "t5-large": T5Decoder(layers=24, d_model=1024, inner=1024, width=2816),
    "t5-xxl": T5Decoder(layers=24, d_model=4096, inner=4096, width=10_240),
}
