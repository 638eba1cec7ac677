"""DiffusionGemma by its own `generate` of `transformers`, as a peer of the native decoder of uniform noise.

It runs in its documented setting for eager execution: a growing cache, SDPA attention, the sampler and the early stop
of its checkpoint. Drafts come as they come to users of the library, after every step of the decoder; the encoder's
forwards are seen by a hook. When the denoising of a row ends is told by the stopping rule that `generate` itself asks:
from then on the row stays as it is, and is computed with the others until the last of them has ended. When all texts
have ended, `generate` is left where it stands.

Draws come from torch's generator in float32, so texts differ from the native ones. Compiled steps behind a static
cache, which the library has for GPUs, are not driven.

Dimension letters: B requests, T columns of the padded prompts, C positions of a canvas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from paradigms.decoding.canvases import Canvases, check_model, check_positions, check_requests, planned_forwards
from paradigms.decoding.prompts import right_align
from paradigms.decoding.stopping import Vocabulary, never_mask
from paradigms.decoding.uniform_samplers import EntropyBound
from paradigms.engines.streaming import stream
from paradigms.models.canvas_model import CanvasModel
from paradigms.models.network import NetworkConfig
from paradigms.models.transformers_cache import cache_bytes
from paradigms.paradigm import Event, Request, StateBytes
from paradigms.work import BatchShape, ForwardShape


@dataclass(frozen=True, kw_only=True)
class CanvasGenerate:
    """Decoding of canvases by `transformers`.

    Attributes:
        sampler: the settings that are handed to `generate`.
    """

    sampler: EntropyBound = field(default_factory=EntropyBound)
    engine: ClassVar[str] = "transformers"
    executions: ClassVar[tuple[str, ...]] = ("eager",)

    @property
    def depends_on_values(self) -> bool:
        """Whether a canvas may end early, where the model is sure."""
        return self.sampler.depends_on_values

    def check(self, model: NetworkConfig, *, output_len: int) -> None:
        """Raise ValueError when this engine cannot drive such a model."""
        check_model(model, "canvas_generate", output_len=output_len)

    def forwards(
        self, model: NetworkConfig, batch: BatchShape, *, tokens_per_forward: float | None = None
    ) -> Iterator[ForwardShape]:
        """See `decoding.native.Decoder`."""
        return planned_forwards(self, model, batch, tokens_per_forward)

    def decode(self, model: CanvasModel, requests: Sequence[Request], vocabulary: Vocabulary) -> Iterator[Event]:
        """One event a forward: `prefill` of the encoder, `denoise` of the decoder.

        Raises:
            ValueError: text given behind a gap, more positions than the model has, or requests of which only some
                ignore end-of-text.
        """
        check_requests(requests)
        natural = {not request.ignore_eos for request in requests}
        if len(natural) > 1:
            raise ValueError(
                "generate ends all rows of a batch by one rule; let all requests ignore end-of-text, or none"
            )
        C, longest = model.config.canvas_len, max(request.max_new_tokens for request in requests)
        prompt_BT, num_tokens = right_align([request.prompt for request in requests], model.device)
        B, T = prompt_BT.shape
        check_positions(model.config, prompt_len=T, output_len=longest)
        lengths = num_tokens or [T] * B
        state, column_T = model.new_state(B, T + longest), torch.arange(T, device=prompt_BT.device)
        pads_B1 = T - torch.tensor(lengths, device=prompt_BT.device)[:, None]
        confidence = self.sampler.confidence_threshold
        arguments: dict[str, Any] = {
            "input_ids": prompt_BT,
            "attention_mask": column_T >= pads_B1,
            model.cache_name: state.cache,
            "generation_config": self._config(model.theirs, vocabulary, longest, natural=natural.pop()),
            # None in a config means the default, None as an argument means none
            "stability_threshold": self.sampler.stability_threshold,
            "confidence_threshold": None if confidence is None else float(confidence),
        }
        if vocabulary.mask_id is not None:
            arguments["logits_processor"] = _no_mask(vocabulary)

        def generate(hand_out: Callable[[Any], Any]) -> None:
            torch.manual_seed(requests[0].seed)
            with _watched(model.theirs, hand_out) as streamer:
                model.theirs.generate(**arguments, streamer=streamer)

        canvases, step = Canvases(requests, vocabulary, C), 0
        with closing(stream(generate)) as seen:
            for drafts_BC, ended in seen:
                before = canvases.index * C
                held = _state_bytes(state.cache, [length + before for length in lengths], T + before)
                if drafts_BC is None:
                    positions = B * (C if before else T)
                    yield Event(phase="prefill", forwards={"encoder": 1}, positions_computed=positions, state=held)
                    continue
                step += 1
                if step == self.sampler.num_steps:
                    ended = list(range(B))
                yield canvases.event(drafts_BC, ended, forwards={"decoder": 1}, positions_computed=B * C, state=held)
                if not canvases.unfinished:
                    return
                if len(ended) == B:
                    canvases.next()
                    step = 0

    def _config(self, theirs: Any, vocabulary: Vocabulary, longest: int, *, natural: bool) -> Any:
        from transformers import EntropyBoundSamplerConfig

        sampler = self.sampler
        return type(theirs).generation_config_class(
            max_new_tokens=longest,
            max_denoising_steps=sampler.num_steps,
            sampler_config=EntropyBoundSamplerConfig(entropy_bound=float(sampler.entropy_bound)),
            t_min=sampler.t_min,
            t_max=sampler.t_max,
            eos_token_id=vocabulary.eos_id if natural else None,
            pad_token_id=vocabulary.eos_id,
        )


class _Streamer:
    """What generate calls with the prompt and each canvas, known by then, and with a draft after each step."""

    def __init__(self, draft: Callable[[Tensor], Any]) -> None:
        self.draft = draft

    def put_draft(self, value: Tensor) -> None:
        self.draft(value)

    def put(self, tokens: Tensor) -> None:
        """Nothing new."""

    def end(self) -> None:
        """Nothing is held back."""


@contextmanager
def _watched(theirs: Any, hand_out: Callable[[Any], Any]) -> Iterator[_Streamer]:
    """Hand out (None, []) after each forward of the encoder, and (draft, rows that have ended) after each step."""
    ended: list[int] = []

    def rule(config: Any) -> Any:
        plain = type(theirs)._prepare_diffusion_stopping_criteria(theirs, config)
        return None if plain is None else _Rule(plain, ended)

    def after_encoder(*_: Any) -> None:
        ended.clear()
        hand_out((None, []))

    hook = theirs.model.encoder.register_forward_hook(after_encoder)
    theirs._prepare_diffusion_stopping_criteria = rule
    try:
        yield _Streamer(lambda draft_BC: hand_out((draft_BC, list(ended))))
    finally:
        del theirs._prepare_diffusion_stopping_criteria
        hook.remove()


class _Rule:
    """Their stopping rule, which tells what it says: rows that end, of those that had not yet."""

    def __init__(self, plain: Any, ended: list[int]) -> None:
        self.plain, self.ended = plain, ended

    def __call__(self, *arguments: Any) -> Tensor:
        stop_B = self.plain(*arguments)
        self.ended += [row for row, stop in enumerate(stop_B.tolist()) if stop and row not in self.ended]
        return stop_B

    def reset(self) -> None:
        self.plain.reset()


def _state_bytes(cache: Any, lengths: Sequence[int], num_columns: int) -> Callable[[], StateBytes]:
    """Bytes of the encoder's keys and values; the engine may be further when somebody asks."""
    return lambda: StateBytes(*cache_bytes(cache, lengths, num_columns))


def _no_mask(vocabulary: Vocabulary) -> Any:
    """Keeps the mask token out of what is drawn."""
    from transformers import LogitsProcessor, LogitsProcessorList

    class NoMask(LogitsProcessor):
        def __call__(self, input_ids: Tensor, scores: Tensor, cur_step: Any) -> Tensor:
            return never_mask(scores.flatten(0, 1), vocabulary).view(scores.shape)

    return LogitsProcessorList([NoMask()])
