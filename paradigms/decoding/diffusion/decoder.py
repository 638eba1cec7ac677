"""Masked diffusion: a canvas of masks becomes text, in the order that a sampler chooses.

The canvas starts as the prompt, what is given behind it, and one mask for each token to come. At each step the model
gives a distribution for masked positions, all at once and independently; some of them become tokens. Fewer steps than
tokens make several tokens in one step without seeing each other: faster, and worse.

The canvas is decided as a whole, or in blocks from left to right (semi-autoregressive decoding; block diffusion where
the model was trained so). Rows that have nothing left to decide leave the forwards.

Dimension letters: B rows, T columns of the input, W positions of a block, N open positions, M positions looked at, V
vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from paradigms.decoding.diffusion.caches.error import cache_error
from paradigms.decoding.diffusion.caches.none import NoCache
from paradigms.decoding.diffusion.canvas import Canvas
from paradigms.decoding.diffusion.contract import Block, Cache, Reader, Sampler, Step
from paradigms.decoding.diffusion.ending import end_of, leave_what_comes_after
from paradigms.decoding.diffusion.guess import CONFIDENCES, Guess
from paradigms.decoding.diffusion.plan import forwards_of, paced, stretches
from paradigms.decoding.diffusion.samplers.random import Random
from paradigms.decoding.diffusion.schedule import MOST_STEPS
from paradigms.decoding.pace import check_pace
from paradigms.decoding.sampling import Sampling
from paradigms.decoding.stopping import Vocabulary, never_mask
from paradigms.models.config import ModelConfig
from paradigms.models.network import NetworkConfig
from paradigms.models.stack import Model
from paradigms.paradigm import Event, Outline, Request
from paradigms.work import BatchShape, ForwardShape

EOS = ("free", "suppressed", "early")


@dataclass(frozen=True, kw_only=True)
class MaskedDiffusion(Sampling):
    """Denoising of a canvas.

    Attributes:
        sampler: which masked positions become tokens at a step; see `samplers`.
        cache: how the model's logits are had; see `caches`.
        block_len: positions of a block; None decides the canvas as a whole, or in the model's own blocks where it was
            trained with them (model.canvas_block).
        confidence: samplers that rank positions, or compare them with a threshold, take probabilities `before`
            temperature, top-k and top-p, as LLaDA does, or `after` them, as Dream does.
        eos: end-of-text is a token like others, at which a full row is cut (`free`), is never said (`suppressed`), or
            ends its row (`early`): nothing behind it is worked on any more, and the row leaves when all before it is
            decided, by a stop string too. Samplers that revise have decided a block when it ends.
    """

    sampler: Sampler = field(default_factory=Random)
    cache: Cache = field(default_factory=NoCache)
    block_len: int | None = None
    confidence: str = "before"
    eos: str = "free"
    engine: ClassVar[str] = "native"
    infills: ClassVar[bool] = True
    takes_drafts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block_len is not None and self.block_len < 1:
            raise ValueError(f"decoder.block_len={self.block_len} must be at least 1, or null for the whole canvas")
        if self.confidence not in CONFIDENCES:
            raise ValueError(f"decoder.confidence={self.confidence!r} is unknown; it is {' or '.join(CONFIDENCES)}")
        if self.confidence != "before" and not self.sampler.reads_confidence:
            raise ValueError(
                f"decoder.confidence={self.confidence} has no effect with decoder.sampler="
                f"{type(self.sampler).__name__}, which looks at no probability; leave it at before"
            )
        if self.eos not in EOS:
            raise ValueError(f"decoder.eos={self.eos!r} is unknown; it is one of {', '.join(EOS)}")

    @property
    def depends_on_values(self) -> bool:
        """Whether the number of steps follows from what the model says."""
        return self.sampler.depends_on_values or self.eos == "early"

    def check(self, model: NetworkConfig, *, output_len: int) -> None:
        """Raise ValueError when this decoder cannot drive such a model, or its settings do not fit such a canvas."""
        if model.noise != "absorbing":
            raise ValueError(
                f"decoder=masked_diffusion needs a model trained to undo masks (model.noise=absorbing), "
                f"not model.noise={model.noise}"
            )
        own = _canvas_block(model)
        if own is not None and self.block_len not in (None, own):
            raise ValueError(
                f"decoder.block_len={self.block_len}, but the model was made for blocks of model.canvas_block={own}; "
                "leave decoder.block_len out (null)"
            )
        block_len = self.block_len or own
        self.cache.check(model, block_len=block_len)
        num_blocks = 1 if block_len is None else -(-output_len // block_len)
        self.sampler.check(canvas_len=output_len, num_blocks=num_blocks)

    def outline(self, model: NetworkConfig, output_len: int) -> Outline | None:
        """Known where every step does the same work: without blocks, be they the model's own, and without a cache."""
        if self.block_len is not None or _canvas_block(model) is not None or not isinstance(self.cache, NoCache):
            return None
        return self.sampler.outline(output_len)

    def forwards(
        self, model: NetworkConfig, batch: BatchShape, *, tokens_per_forward: float | None = None
    ) -> Iterator[ForwardShape]:
        """See `decoding.native.Decoder`."""
        self.check(model, output_len=batch.output_len)
        pace = check_pace(self, tokens_per_forward)
        own = _canvas_block(model)
        for stretch in stretches(batch, self.block_len or own, from_prompt=own is None):
            looks = self.sampler.looks(stretch) if pace is None else paced(self.sampler, stretch, pace)
            yield from forwards_of(model, self.cache, stretch, looks, rows=batch.rows)

    def quality_columns(self, model: Model, requests: Sequence[Request], vocabulary: Vocabulary) -> dict[str, Any]:
        """How far an approximate cache was from the uncached model on the way; see `caches.error`."""
        return {} if self.cache.exact else cache_error(self, model, [requests], vocabulary).columns()

    @torch.inference_mode()
    def decode(self, model: Model, requests: Sequence[Request], vocabulary: Vocabulary) -> Iterator[Event]:
        """One event a step, with the positions that became final; a step is one forward, or none if all is kept."""
        run = _Run(self, model, requests, vocabulary)
        own = _canvas_block(model.config)
        for block in run.canvas.blocks(self.block_len or own, from_prompt=own is None):
            if not any(run.num_left):
                return
            run.reader.begin(block)
            yield from run.decide(block)


class _Run:
    """One batch on its way.

    Attributes:
        num_left: open positions of each row that are not final yet and are still worked on.
    """

    def __init__(
        self, decoder: MaskedDiffusion, model: Model, requests: Sequence[Request], vocabulary: Vocabulary
    ) -> None:
        self.decoder, self.sampler, self.requests, self.vocabulary = decoder, decoder.sampler, requests, vocabulary
        self.canvas = Canvas(requests, vocabulary, model.device)
        self.reader: Reader = decoder.cache.open(model, self.canvas)
        self.reads_time = bool(getattr(model.config, "reads_time", False))
        self.num_left = list(self.canvas.num_open)
        self.final_at_start_BT: Tensor | None = None  # drafts, where nothing is revised; told with the first event
        if any(request.draft for request in requests):
            if self.sampler.revises:
                self.canvas.loosen_drafts()
            else:
                self.num_left = [request.max_new_tokens - len(request.draft) for request in requests]
                self.final_at_start_BT = self.canvas.decided_BT

    def decide(self, block: Block) -> Iterator[Event]:
        """All steps of one block."""
        canvas, sampler = self.canvas, self.sampler
        open_BW = canvas.waiting_BT.gather(1, block.column_BW) & block.inside_BW
        opened = open_BW.sum(-1).tolist()
        before = [total - left for total, left in zip(canvas.num_open, self.num_left, strict=True)]
        masks = list(opened)  # left in this block
        lasting = self._lasting(self._step(block, None, open_BW, opened, before, 0)) if sampler.revises else None
        drawn_BW = torch.zeros_like(open_BW, dtype=torch.float64) if sampler.keeps_drawn else None
        for index in range(MOST_STEPS):
            working = masks if lasting is None else [max(0, steps - index) for steps in lasting]
            working = [row for row, work in enumerate(working) if work]
            if not working:
                return
            rows = working if len(working) < len(masks) else None
            step = self._step(block, rows, open_BW, opened, before, index)
            if drawn_BW is not None:
                step.drawn_BW = drawn_BW[working]
            chosen_BW, num_chosen = sampler.chosen_before(step), sampler.num_chosen(step)
            chosen_BW, guess = self._look(block, rows, step, chosen_BW)
            final_BT = canvas.fill(block, rows, chosen_BW, guess.tokens_at(chosen_BW))
            if lasting is None:
                decided = chosen_BW.sum(-1).tolist() if num_chosen is None else num_chosen
            else:
                ending = {row for row in working if lasting[row] == index + 1}
                remasked_BW = sampler.remask(step, guess)
                if remasked_BW is not None:
                    if canvas.loose_BT is not None and ending:  # before a block's only step there may be drafts
                        stays_B1 = torch.tensor([[row in ending] for row in working], device=remasked_BW.device)
                        remasked_BW = remasked_BW & ~stays_B1
                    canvas.mask_again(block, rows, remasked_BW)
                if drawn_BW is not None:
                    drawn_BW[working] = torch.where(chosen_BW, guess.drawn_BW, drawn_BW[working])
                decided = [opened[row] if row in ending else 0 for row in working]
                final_BT = self._all_of(block, ending)
                canvas.settle(final_BT)
            for row, count in zip(working, decided, strict=True):
                masks[row] -= count
                self.num_left[row] -= count
            moved = [row for row, count in zip(working, decided, strict=True) if count]
            if self.decoder.eos == "early" and leave_what_comes_after(canvas, moved, self.vocabulary):
                here = (canvas.waiting_BT.gather(1, block.column_BW) & block.inside_BW).sum(-1).tolist()
                left = canvas.waiting_BT.sum(-1).tolist()
                for row in moved:
                    masks[row], self.num_left[row] = here[row], left[row]
            yield self._event(final_BT, [row for row in working if not self.num_left[row]])

    def _lasting(self, step: Step) -> list[int]:
        """Steps of each row's block, for samplers that revise."""
        steps = self.sampler.num_steps(step)
        assert steps is not None, "a sampler that revises says how many steps it takes"
        return [number if opened else 0 for number, opened in zip(steps, step.opened, strict=True)]

    def _step(
        self,
        block: Block,
        rows: Sequence[int] | None,
        open_BW: Tensor,
        opened: Sequence[int],
        before: Sequence[int],
        index: int,
    ) -> Step:
        canvas = self.canvas
        masked_BW = canvas.masked_BT.gather(1, block.column_BW) & block.inside_BW
        chosen = range(len(opened)) if rows is None else rows
        position_BW = block.position_BW
        if rows is not None:
            masked_BW, open_BW, position_BW = (tensor[list(rows)] for tensor in (masked_BW, open_BW, position_BW))
        return Step(
            seeds=[canvas.seeds[row] for row in chosen],
            position_BW=position_BW,
            masked_BW=masked_BW,
            open_BW=open_BW,
            index=index,
            draw=block.index * MOST_STEPS + index,
            opened=[opened[row] for row in chosen],
            before=[before[row] for row in chosen],
            total=[canvas.num_open[row] for row in chosen],
        )

    def _look(
        self, block: Block, rows: Sequence[int] | None, step: Step, chosen_BW: Tensor | None
    ) -> tuple[Tensor, Guess]:
        """One forward: the positions that become tokens, and what the model says about them and perhaps others."""
        wanted_BW = step.masked_BW if chosen_BW is None else chosen_BW
        logits_MV = self.reader.logits(block, rows, wanted_BW, self._time(step) if self.reads_time else None)
        logits_MV = never_mask(logits_MV, self.vocabulary)
        if self.decoder.eos == "suppressed":
            logits_MV[:, self.vocabulary.eos_id] = float("-inf")
        guess = Guess(logits_MV, wanted_BW, step, self.decoder, confidence=self.decoder.confidence)
        return self.sampler.choose(step, guess) if chosen_BW is None else chosen_BW, guess

    def _time(self, step: Step) -> Tensor:
        """What a time-conditioned model is told, float64 [B]."""
        time_B = self.sampler.times(step)
        return step.masked_BW.sum(-1) / step.open_BW.sum(-1).double() if time_B is None else time_B

    def _all_of(self, block: Block, rows: set[int]) -> Tensor:
        """Every open position of these rows' block, bool [B, T]."""
        inside_BW = block.inside_BW.clone()
        inside_BW[[row for row in range(len(inside_BW)) if row not in rows]] = False
        return self.canvas.spread(block, None, inside_BW) & self.canvas.open_BT

    def _event(self, final_BT: Tensor, ending: Sequence[int]) -> Event:
        canvas, reader = self.canvas, self.reader
        if self.final_at_start_BT is not None:
            final_BT, self.final_at_start_BT = final_BT | self.final_at_start_BT, None
        event = Event(
            phase="denoise",
            positions_K=range(max(canvas.num_open)),
            token_ids_BK=canvas.output(canvas.tokens_BT),
            final_BK=canvas.output(final_BT),
            forwards={"model": reader.forwards},
            positions_computed=reader.positions,
            state=reader.state(),
        )
        reader.forwards = reader.positions = 0
        for row in ending:
            event.finished[row], event.num_committed[row] = end_of(canvas, row, self.vocabulary)
        return event


def _canvas_block(model: object) -> int | None:
    """Positions of the blocks that a model was made for; only native models have them."""
    return model.canvas_block if isinstance(model, ModelConfig) else None
