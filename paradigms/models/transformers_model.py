"""Any causal language model of the `transformers` library with the interface of a native one.

The library's own code computes; this turns its calls into ours, so that native decoders drive architectures that the
native stack lacks. Where its caches are known to be wrong, they are not trusted: several tokens that continue a Mamba-1
state are fed one by one, positions and attention masks are always said. What a cache of the library cannot do (trees,
going back) is refused.

Dimension letters: B batch, T tokens in, K columns wanted, S columns cached, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib import metadata
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from paradigms.models import checkpoint_files, pretrained
from paradigms.models.config import ModelConfig
from paradigms.models.counts import Counts
from paradigms.models.transformers_cache import (
    TransformersState,
    cache_argument,
    holds_recurrence,
    keeps_cache,
    new_cache,
)
from paradigms.work import ForwardShape

NO_LIMIT = 1 << 20  # positions of a model whose config names no limit, as Mamba's
CONTINUE = (  # recurrent models that take several tokens at once behind a state; tests/models holds them to it
    "mamba2",
    "zamba",
    "zamba2",
    "bamba",
    "falcon_h1",
    "nemotron_h",
    "granitemoehybrid",
    "qwen3_next",
)


def transformers_config(path: str, max_positions: int | None = None) -> TransformersConfig:
    """The network of a checkpoint, computed by `transformers`: a causal language model, or a denoiser on a canvas.

    Args:
        path: folder (config.json is enough for random weights), GGUF file, or name on the hub.
        max_positions: longest text; None is what the checkpoint was made for.

    Raises:
        ValueError: nothing there, or a model of the library that writes no text by itself.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    from paradigms.models import canvas_model

    values = checkpoint_files.read_config(path)
    if values.get("model_type") in canvas_model.MODEL_TYPES:
        return canvas_model.canvas_config(path, values, max_positions)
    if values.get("model_type") not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ValueError(
            f"model.path={path} is a {values.get('model_type')!r}, no causal language model of transformers "
            f"{metadata.version('transformers')}"
        )
    if _sees_both_ways(values):
        raise ValueError(
            f"model.path={path} is a {values['model_type']!r}, an encoder that sees both ways; it was trained to fill "
            "a few masks, and neither writes left to right nor undoes noise, so no decoder fits it"
        )
    text = values.get("text_config") or values
    known = text.get("max_position_embeddings") or NO_LIMIT
    return TransformersConfig(path=path, max_positions=max_positions or known, vocab_size=text["vocab_size"])


def _sees_both_ways(values: Mapping[str, Any]) -> bool:
    """Whether a config is of an encoder, as BERT's, which the library lists among causal models too."""
    from transformers.models.auto import modeling_auto

    encoders = modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES.keys()
    encoders -= modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES.keys()  # whose decoders are causal
    return values.get("model_type") in encoders and not (values.get("is_decoder") or values.get("causal"))


@dataclass(frozen=True, kw_only=True)
class TransformersConfig:
    """A causal language model that `transformers` computes.

    Attributes:
        path: where its config lies, and its weights if there are any.
        max_positions: longest text.
        vocab_size: rows of its embedding.
    """

    path: str
    max_positions: int
    vocab_size: int

    causal: ClassVar[bool] = True
    noise: ClassVar[None] = None
    recurrent: ClassVar[bool] = True  # its caches cannot read a tree

    @property
    def theirs(self) -> dict[str, Any]:
        """The library's config, defaults filled in."""
        return checkpoint_files.read_config(self.path)

    @property
    def has_state(self) -> bool:
        """Whether the library keeps its state in a cache that can be handed over."""
        return _has_cache(self.path)

    @property
    def reads_time(self) -> bool:
        return False

    def state_bytes(self, *, batch_size: int, length: int, itemsize: int, kv_dtype: str | None = None) -> None:
        """No formula: bytes are read off the cache."""

    def counts(
        self,
        shape: ForwardShape,
        *,
        itemsize: int,
        kv_dtype: str | None = None,
        experts_touched: float | None = None,
    ) -> Counts:
        """As the native stack computes the same function; see `ModelConfig.counts`.

        Raises:
            ValueError: an architecture that the native stack does not have.
        """
        native = _native_config(self.path, self.max_positions)
        return native.counts(shape, itemsize=itemsize, kv_dtype=kv_dtype, experts_touched=experts_touched)

    def activation_bytes(self, shape: ForwardShape, *, itemsize: int, kv_dtype: str | None = None) -> int:
        """As the native stack keeps them; see `counts`."""
        return _native_config(self.path, self.max_positions).activation_bytes(
            shape, itemsize=itemsize, kv_dtype=kv_dtype
        )

    def check_kv_dtype(self, kv_dtype: str) -> None:
        """Raise ValueError: the library's cache is kept as computed."""
        raise ValueError(
            f"decoder.kv_dtype={kv_dtype} is of the native stack, and transformers keeps keys and values as computed; "
            "set decoder.kv_dtype=null, or use model=pretrained"
        )

    def build(self) -> TransformersModel:
        """Random weights, in float32."""
        from transformers import AutoModelForCausalLM

        config = checkpoint_files.transformers_config(checkpoint_files.locate(self.path))
        return TransformersModel(AutoModelForCausalLM.from_config(config, dtype=torch.float32), self)

    def load(self) -> TransformersModel:
        """The checkpoint's weights, in float32."""
        return TransformersModel(pretrained.transformers_model(self.path, dtype=torch.float32), self)


class TransformersModel(nn.Module):
    """A `transformers` model that is called as a native one.

    Attributes:
        theirs: the library's model.
        config: its description.
    """

    def __init__(self, theirs: Any, config: TransformersConfig) -> None:
        super().__init__()
        from transformers import GenerationConfig

        self.theirs, self.config = theirs.eval(), config
        theirs.generation_config = GenerationConfig()  # whoever generates says how; no hidden end of text or top-k
        self._takes = set(inspect.signature(theirs.forward).parameters)
        self.cache_name = cache_argument(theirs)

    def _apply(self, fn, recurse=True):
        """Change the dtype of weights, but keep what the library keeps: buffers (rotary frequencies) and some gates."""
        kept = [(module, name, buffer) for module in self.modules() for name, buffer in module._buffers.items()]
        super()._apply(fn, recurse)
        for module, name, buffer in kept:
            if buffer is not None and buffer.is_floating_point():
                module._buffers[name] = buffer.to(self.device)
        keep_wide(self.theirs)
        return self

    @property
    def device(self) -> torch.device:
        return self.theirs.device

    @property
    def dtype(self) -> torch.dtype:
        return self.theirs.get_input_embeddings().weight.dtype

    @property
    def weight_bytes(self) -> int:
        return sum(parameter.nbytes for parameter in self.parameters())

    def new_state(
        self, batch_size: int, max_len: int, *, form: str = "growing", kv_dtype: str | None = None
    ) -> TransformersState:
        """An empty state for `batch_size` rows of at most `max_len` positions.

        Raises:
            ValueError: more positions than the model was made for, or a state that it cannot keep.
        """
        self._check_state(max_len, form, kv_dtype)
        cache = new_cache(self.theirs) if self.config.has_state else None
        if cache is None:
            raise ValueError(
                f"a {self.theirs.config.model_type} keeps its state in a way of its own; "
                "use decoder=autoregressive_uncached or decoder=transformers_generate"
            )
        return TransformersState(cache, batch_size, max_len)

    def forward(
        self,
        tokens_BT: Tensor,
        state: TransformersState | None = None,
        *,
        num_tokens: Sequence[int] | None = None,
        positions_BT: Tensor | None = None,
        among_BTT: Tensor | None = None,
        write: Literal["append", "none"] = "append",
        logits_at: Tensor | slice | None = None,
    ) -> Tensor:
        """Logits [B, K, V]; see `paradigms.models.stack.Model.forward`.

        Raises:
            ValueError: more positions than there are, a tree, or rows that bring different numbers of tokens to a state
                that holds some already.
        """
        if positions_BT is not None or among_BTT is not None:
            raise ValueError("a transformers model reads one text a row; for trees use a native one (model=pretrained)")
        B, T = tokens_BT.shape
        added = list(num_tokens) if num_tokens is not None else [T] * B
        padded = min(added) < T
        self._check(state, added, padded)
        if state is None:
            return self._select(self._call(tokens_BT, None, added, logits_at), logits_at)
        if write == "none":
            state = state.copy()
        if not state.num_columns or T == 1 or self._continues:
            return self._select(self._call(tokens_BT, state, added, logits_at), logits_at)
        steps = [self._call(tokens_BT[:, t : t + 1], state, [1] * B, None) for t in range(T)]
        return self._select(torch.cat(steps, 1), logits_at)

    def logits_where(self, tokens_BT: Tensor, wanted_BT: Tensor, *, num_tokens: Sequence[int] | None = None) -> Tensor:
        """Logits [number wanted, V] at the True places of a mask, in row-major order, without a state."""
        return self(tokens_BT, num_tokens=num_tokens)[wanted_BT]

    def kernels(self) -> str:
        """What runs the layers here, for the records."""
        return f"transformers {metadata.version('transformers')}, {self.theirs.config._attn_implementation}"

    @cached_property
    def _continues(self) -> bool:
        """Whether several tokens may follow a state at once."""
        cache = new_cache(self.theirs)
        return cache is None or not holds_recurrence(cache) or self.theirs.config.model_type in CONTINUE

    @cached_property
    def _purely_recurrent(self) -> bool:
        """Whether nothing looks back at columns: a mask is then for the first call alone, and wrong in later ones."""
        cache = new_cache(self.theirs)
        return cache is not None and all(cache.is_linear)

    def _check_state(self, max_len: int, form: str, kv_dtype: str | None) -> None:
        if form != "growing" or kv_dtype is not None:
            raise ValueError(
                f"a transformers model keeps a growing state as computed, not form={form} kv_dtype={kv_dtype}"
            )
        if max_len > self.config.max_positions:
            raise ValueError(
                f"a state of {max_len} positions was asked for; the model has max_positions={self.config.max_positions}"
            )

    def _check(self, state: TransformersState | None, added: Sequence[int], padded: bool) -> None:
        lengths = state.lengths if state is not None else [0] * len(added)
        stop = max(length + new for length, new in zip(lengths, added, strict=True))
        limit = self.config.max_positions if state is None else state.max_len
        if stop > limit:
            raise ValueError(f"{stop} positions asked for, {limit} are available (max_positions or the state's length)")
        if padded and state is not None and state.num_columns:
            raise ValueError(
                "rows that bring different numbers of tokens cannot follow in a cache of transformers; "
                "use a native model (model=pretrained) for this decoder"
            )

    def _call(
        self, tokens_BT: Tensor, state: TransformersState | None, added: Sequence[int], logits_at: Tensor | slice | None
    ) -> Tensor:
        """Logits [B, T or 1, V] of one forward of theirs; the state takes the tokens up."""
        B, T = tokens_BT.shape
        start = state.num_columns if state is not None else 0
        seen_BS = self._seen(state, added, T)
        options: dict[str, Any] = {"use_cache": state is not None}
        if seen_BS is not None and not (start and self._purely_recurrent):
            options["attention_mask"] = seen_BS
        if "position_ids" in self._takes:
            if seen_BS is None:
                options["position_ids"] = torch.arange(start, start + T, device=self.device).expand(B, T)
            else:
                options["position_ids"] = (seen_BS.cumsum(-1) - 1).clamp(min=0)[:, start:]
        if logits_at == slice(-1, None) and "logits_to_keep" in self._takes:
            options["logits_to_keep"] = 1
        if state is not None:
            options[self.cache_name] = state.cache
        logits_BTV = self.theirs(tokens_BT, **options).logits
        if state is not None:
            state.lengths = [length + new for length, new in zip(state.lengths, added, strict=True)]
            state.num_columns, state.seen_BS = start + T, seen_BS
        return logits_BTV

    def _seen(self, state: TransformersState | None, added: Sequence[int], T: int) -> Tensor | None:
        """Which columns hold tokens, int64 [B, S + T]; None when all do."""
        before_BS = state.seen_BS if state is not None else None
        if min(added) == T and before_BS is None:
            return None
        column_T = torch.arange(T, device=self.device)
        new_BT = (column_T >= T - torch.tensor(list(added), device=self.device)[:, None]).long()
        return new_BT if before_BS is None else torch.cat((before_BS, new_BT), 1)

    @staticmethod
    def _select(logits_BTV: Tensor, logits_at: Tensor | slice | None) -> Tensor:
        if logits_at is None:
            return logits_BTV
        if isinstance(logits_at, Tensor) and logits_at.dim() == 2:
            return logits_BTV.gather(1, logits_at[..., None].expand(-1, -1, logits_BTV.shape[-1]))
        return logits_BTV[:, logits_at]


@lru_cache(maxsize=64)
def _native_config(path: str, max_positions: int) -> ModelConfig:
    """The same network of the native stack, whose operations are known by formula."""
    try:
        return pretrained.native_config(path, max_positions)
    except ValueError as error:
        raise ValueError(
            f"model.path={path}: operations are counted by formula where the native stack has the same network, and "
            "this one runs by the library's own code alone; measure it instead"
        ) from error


@lru_cache(maxsize=64)
def _has_cache(path: str) -> bool:
    from transformers import AutoModelForCausalLM

    config = checkpoint_files.transformers_config(checkpoint_files.locate(path))
    return keeps_cache(AutoModelForCausalLM._model_mapping[type(config)], config)


def keep_wide(theirs: Any) -> None:
    """Give parameters that the library keeps in float32 that dtype back, as its `from_pretrained` would."""
    wide: tuple[str, ...] = tuple(getattr(theirs, "_keep_in_fp32_modules_strict", None) or ())
    if wide:
        for name, parameter in theirs.named_parameters():
            if any(part in name for part in wide) and parameter.dtype in (torch.float16, torch.bfloat16):
                parameter.data = parameter.data.float()
