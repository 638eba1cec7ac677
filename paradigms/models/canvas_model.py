"""Denoisers of `transformers` that undo uniform noise on a canvas behind a text: DiffusionGemma.

Two networks share their weights. The encoder is causal: it reads the prompt, and each canvas once that is final, and
leaves keys and values. The decoder sees all of them and the whole canvas both ways, and leaves nothing. It is told what
it said in the step before (self-conditioning), the only weights that it has for itself.

Text alone is read, so the vision tower is let go: parameters and bytes are those of the text model.

Dimension letters: B batch, T tokens in, C positions of a canvas, S columns cached, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor

from paradigms.models import checkpoint_files, pretrained
from paradigms.models.transformers_cache import TransformersState
from paradigms.models.transformers_model import TransformersConfig, TransformersModel

MODEL_TYPES = ("diffusion_gemma",)
AUTO_CLASS = "AutoModelForImageTextToText"  # where the library lists it
Denoiser = Callable[[Tensor, Tensor | None], Tensor]


def canvas_config(path: str, values: Mapping[str, Any], max_positions: int | None) -> CanvasConfig:
    """The network of a checkpoint whose config says `values`; `max_positions` None is what it was made for."""
    text = values["text_config"]
    return CanvasConfig(
        path=path,
        max_positions=max_positions or text["max_position_embeddings"],
        vocab_size=text["vocab_size"],
        canvas_len=values["canvas_length"],
    )


@dataclass(frozen=True, kw_only=True)
class CanvasConfig(TransformersConfig):
    """A denoiser of uniform noise that `transformers` computes.

    Attributes:
        canvas_len: C, positions of one canvas; a longer text is several of them.
    """

    canvas_len: int

    causal: ClassVar[bool] = False
    noise: ClassVar[str] = "uniform"  # type: ignore[assignment]

    @property
    def has_state(self) -> bool:
        """The encoder's keys and values."""
        return True

    @property
    def experts(self) -> int | None:
        """Routed experts of a layer."""
        return self.theirs["text_config"].get("num_experts")

    def build(self) -> CanvasModel:
        """Random weights, in float32."""
        import transformers

        config = checkpoint_files.transformers_config(checkpoint_files.locate(self.path))
        return CanvasModel(getattr(transformers, AUTO_CLASS).from_config(config, dtype=torch.float32), self)

    def load(self) -> CanvasModel:
        """The checkpoint's weights, in float32."""
        return CanvasModel(pretrained.transformers_model(self.path, auto=AUTO_CLASS, dtype=torch.float32), self)


class CanvasModel(TransformersModel):
    """A denoiser of `transformers`; `read` and `denoiser` are its two networks.

    Attributes:
        theirs: the library's model, without its vision tower.
        config: its description.
    """

    config: CanvasConfig

    def __init__(self, theirs: Any, config: CanvasConfig) -> None:
        super().__init__(theirs, config)
        theirs.generation_config = type(theirs).generation_config_class()  # whoever generates says how
        theirs.model.encoder.vision_tower = theirs.model.encoder.embed_vision = None

    def new_state(
        self, batch_size: int, max_len: int, *, form: str = "growing", kv_dtype: str | None = None
    ) -> TransformersState:
        """An empty state of the encoder for `batch_size` rows of at most `max_len` positions.

        Raises:
            ValueError: more positions than the model was made for, or another form than the library keeps.
        """
        from transformers import DynamicCache

        self._check_state(max_len, form, kv_dtype)
        return TransformersState(DynamicCache(config=self._text_config), batch_size, max_len)

    @property
    def _text_config(self) -> Any:
        return self.theirs.config.get_text_config(decoder=True)

    def forward(self, *_: Any, **__: Any) -> NoReturn:
        """No logits without a canvas."""
        raise ValueError(
            f"a {self.theirs.config.model_type} undoes noise on a canvas and has no logits of a plain text; decode it "
            "with decoder=uniform_diffusion or decoder=canvas_generate"
        )

    def logits_where(self, *_: Any, **__: Any) -> NoReturn:
        """No logits without a canvas."""
        self.forward()

    def read(self, tokens_BT: Tensor, state: TransformersState, *, num_tokens: Sequence[int] | None = None) -> None:
        """One forward of the encoder: the state takes up the prompts, or a canvas that is final.

        Args:
            num_tokens: of each row, where some are padded on the left; of prompts only.

        Raises:
            ValueError: more positions than the state holds, or padded rows behind others.
        """
        B, T = tokens_BT.shape
        added = list(num_tokens) if num_tokens is not None else [T] * B
        self._check(state, added, min(added) < T)
        start, seen_BS = state.num_columns, self._seen(state, added, T)
        options: dict[str, Any] = {self.cache_name: state.cache}
        if seen_BS is None:
            options["position_ids"] = torch.arange(start, start + T, device=self.device).expand(B, T)
        else:
            options["position_ids"] = (seen_BS.cumsum(-1) - 1).clamp(min=0)[:, start:]
            options["attention_mask"] = seen_BS
        self.theirs.model.encoder.language_model(input_ids=tokens_BT, **options)
        state.lengths = [length + new for length, new in zip(state.lengths, added, strict=True)]
        state.num_columns, state.seen_BS = start + T, seen_BS

    def denoiser(self, state: TransformersState) -> Denoiser:
        """The decoder behind this state: from a canvas [B, C] and the logits [B, C, V] of the step before, as they were
        drawn from (None at the first step), to logits float32 [B, C, V]. Each call is one forward.
        """
        B, C = len(state.lengths), self.config.canvas_len
        length_B1 = torch.tensor(state.lengths, device=self.device)[:, None]
        position_BC = length_B1 + torch.arange(C, device=self.device)
        seen_BS = state.seen_BS
        if seen_BS is not None:
            seen_BS = torch.cat((seen_BS, torch.ones_like(position_BC)), 1)
        masks = self.theirs.model.decoder.create_diffusion_decoder_attention_mask(
            config=self.theirs.config,
            inputs_embeds=torch.empty(B, C, 0, device=self.device, dtype=self.dtype),
            decoder_attention_mask=seen_BS,
            **{self.cache_name: state.cache},
        )

        def denoise(canvas_BC: Tensor, before_BCV: Tensor | None) -> Tensor:
            return self.theirs(
                decoder_input_ids=canvas_BC,
                self_conditioning_logits=None if before_BCV is None else before_BCV.to(self.dtype),
                decoder_attention_mask=masks,
                decoder_position_ids=position_BC,
                **{self.cache_name: state.cache},
            ).logits

        return denoise
