"""Uniform noise undone on one canvas after another, over a model of `transformers` that does so (DiffusionGemma).

Each canvas begins as tokens drawn uniformly. At each step the decoder reads it, behind the keys and values of all that
is before it, and a sampler says what the next step reads. When a canvas is final the encoder reads it, and the next one
begins.

A row leaves the forwards where its denoising ends, so a batch does the work of its rows one by one; `transformers` runs
all rows until the last has ended (decoder=canvas_generate). Draws are functions of the request, so texts do not depend
on the batch.

Dimension letters: B rows, T columns of the padded prompts, C positions of a canvas.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from paradigms.decoding import draws
from paradigms.decoding.canvases import Canvases, check_model, check_positions, check_requests, planned_forwards
from paradigms.decoding.prompts import right_align
from paradigms.decoding.stopping import Vocabulary, never_mask
from paradigms.decoding.uniform_samplers import EntropyBound, UniformSampler, uniform_tokens
from paradigms.models.canvas_model import CanvasModel
from paradigms.models.network import NetworkConfig
from paradigms.models.transformers_cache import TransformersState, cache_bytes
from paradigms.paradigm import Event, Request, StateBytes
from paradigms.work import BatchShape, ForwardShape


@dataclass(frozen=True, kw_only=True)
class UniformDiffusion:
    """Denoising of canvases of uniform noise.

    Attributes:
        sampler: what a step makes of a canvas; see `uniform_samplers`.
    """

    sampler: UniformSampler = field(default_factory=EntropyBound)
    engine: ClassVar[str] = "native"

    @property
    def depends_on_values(self) -> bool:
        """Whether a canvas may end early, where the model is sure."""
        return self.sampler.depends_on_values

    def check(self, model: NetworkConfig, *, output_len: int) -> None:
        """Raise ValueError when this decoder cannot drive such a model."""
        check_model(model, "uniform_diffusion", output_len=output_len)

    def forwards(
        self, model: NetworkConfig, batch: BatchShape, *, tokens_per_forward: float | None = None
    ) -> Iterator[ForwardShape]:
        """See `decoding.native.Decoder`."""
        return planned_forwards(self, model, batch, tokens_per_forward)

    @torch.inference_mode()
    def decode(self, model: CanvasModel, requests: Sequence[Request], vocabulary: Vocabulary) -> Iterator[Event]:
        """One event a forward: `prefill` of the encoder, `denoise` of the decoder.

        Raises:
            ValueError: text given behind a gap, or more positions than the model has.
        """
        check_requests(requests)
        C = model.config.canvas_len
        tokens_BT, num_tokens = right_align([request.prompt for request in requests], model.device)
        canvases, T = Canvases(requests, vocabulary, C), tokens_BT.shape[1]
        check_positions(model.config, prompt_len=T, output_len=canvases.output_len)
        state = model.new_state(len(requests), T + (canvases.num_canvases - 1) * C)
        rows = canvases.unfinished
        while rows:
            model.read(tokens_BT, state, num_tokens=num_tokens)
            positions = sum(num_tokens) if num_tokens else tokens_BT.numel()
            yield Event(phase="prefill", forwards={"encoder": 1}, positions_computed=positions, state=_bytes(state))
            canvas_BC = yield from self._canvas(model, state, rows, canvases)
            canvases.next()
            left = canvases.unfinished
            if left and left != rows:
                state.select_rows([rows.index(row) for row in left])
            rows, tokens_BT, num_tokens = left, canvas_BC[left], None

    def _canvas(
        self, model: CanvasModel, state: TransformersState, rows: Sequence[int], canvases: Canvases
    ) -> Generator[Event, None, Tensor]:
        """Denoise one canvas of these rows; returns it, [B, C] of all rows of the batch."""
        C, sampler, vocabulary = canvases.canvas_len, self.sampler, canvases.vocabulary
        position_C = canvases.index * C + torch.arange(C, device=model.device)
        seeds = [canvases.requests[row].seed for row in rows]
        tokens_BC = torch.zeros(len(canvases.requests), C, dtype=torch.long, device=model.device)
        canvas_BC = uniform_tokens(draws.uniform(seeds, position_C, 0, "noise"), model.config.vocab_size)
        denoise, before_BCV, held = model.denoiser(state), None, [state]
        row_R = torch.tensor(rows, device=model.device)
        earlier: list[Tensor] = []
        for step in range(sampler.num_steps):
            logits_BCV = denoise(canvas_BC, before_BCV)
            never_mask(logits_BCV.view(-1, logits_BCV.shape[-1]), vocabulary)

            draw = partial(draws.uniform, seeds, position_C, step + 1)
            denoised = sampler.step(canvas_BC, logits_BCV, sampler.num_steps - step, draw)
            tokens_BC = tokens_BC.index_copy(0, row_R, denoised.tokens_BC)
            ended_B = sampler.ended(denoised, earlier)
            last = step + 1 == sampler.num_steps
            ending = ended_B.tolist() if ended_B is not None and not last else [last] * len(rows)
            yield canvases.event(
                tokens_BC,
                [row for row, ends in zip(rows, ending, strict=True) if ends],
                forwards={"decoder": 1},
                positions_computed=len(rows) * C,
                state=_bytes(*held),
            )
            if all(ending):
                break
            canvas_BC, before_BCV = denoised.canvas_BC, denoised.logits_BCV
            earlier.append(denoised.tokens_BC)
            if any(ending):
                left = [index for index, ends in enumerate(ending) if not ends]
                rows, seeds, row_R = [rows[index] for index in left], [seeds[index] for index in left], row_R[left]
                canvas_BC, before_BCV = canvas_BC[left], before_BCV[left]
                earlier = [tokens[left] for tokens in earlier]
                held = [state, held[-1].rows(left)]
                denoise = model.denoiser(held[-1])
        return tokens_BC


def _bytes(state: TransformersState, *copies: TransformersState) -> Callable[[], StateBytes]:
    """Bytes of the encoder's keys and values as they are now, and of a copy that has some rows of them."""
    shapes = [(one.cache, list(one.lengths), one.num_columns) for one in (state, *copies)]

    def now() -> StateBytes:
        counted = [cache_bytes(*shape) for shape in shapes]
        return StateBytes(counted[0][0], sum(allocated for _, allocated in counted))

    return now
