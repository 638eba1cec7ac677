"""Texts of a batch that are written one canvas after another: what each canvas makes final, and which rows end with it.

A row's part of a canvas is final when nothing can change it any more: where its own denoising ends, at the latest with
the canvas. Rows wait for each other between canvases.

Dimension letters: B requests, C positions of a canvas, K of them that are output.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import floor
from typing import Any

import torch
from torch import Tensor

from paradigms.decoding.pace import NEGLIGIBLE, check_pace
from paradigms.decoding.stopping import Vocabulary, finish
from paradigms.models.network import NetworkConfig
from paradigms.paradigm import Event, Request
from paradigms.work import BatchShape, ForwardShape


class Canvases:
    """Where the rows of a batch stand.

    Attributes:
        output_len: tokens of the longest row.
        index: number of the canvas, from 0.
        unfinished: rows whose text has not ended, ascending.
    """

    def __init__(self, requests: Sequence[Request], vocabulary: Vocabulary, canvas_len: int) -> None:
        self.requests, self.vocabulary, self.canvas_len = requests, vocabulary, canvas_len
        self.output_len = max(request.max_new_tokens for request in requests)
        self.index = 0
        self.unfinished = list(range(len(requests)))
        self._ended: set[int] = set()  # rows whose part of this canvas is final
        self._texts: list[list[int]] = [[] for _ in requests]  # of rows that may end by what they say

    @property
    def num_canvases(self) -> int:
        """Canvases of the longest row."""
        return num_canvases(self.output_len, self.canvas_len)

    def next(self) -> None:
        """Another canvas begins."""
        self.index += 1
        self._ended.clear()

    def event(self, tokens_BC: Tensor, ended: Sequence[int], **counts: Any) -> Event:
        """What a step made known.

        Args:
            tokens_BC: the canvas of every row, as it stands.
            ended: rows whose denoising of this canvas has ended, here or before.
            counts: forwards, positions and state, as `Event` has them.
        """
        start = self.index * self.canvas_len
        K = min(self.canvas_len, self.output_len - start)
        final_BK = torch.zeros(len(self.requests), K, dtype=torch.bool)
        event = Event(
            phase="denoise",
            positions_K=range(start, start + K),
            token_ids_BK=tokens_BC[:, :K],
            final_BK=final_BK,
            **counts,
        )
        if not ended:
            return event
        for row in sorted(set(ended) & set(self.unfinished) - self._ended):
            request = self.requests[row]
            final_BK[row, : max(0, request.max_new_tokens - start)] = True
            if request.ignore_eos:
                if request.max_new_tokens <= start + self.canvas_len:
                    event.finished[row] = "length"
            else:
                self._texts[row] += tokens_BC[row].tolist()
                if end := finish(request, self._texts[row][: request.max_new_tokens], self.vocabulary):
                    event.finished[row], event.num_committed[row] = end
        self._ended |= set(ended)
        self.unfinished = [row for row in self.unfinished if row not in event.finished]
        return event


def planned_forwards(
    decoder: Any, model: NetworkConfig, batch: BatchShape, tokens_per_forward: float | None
) -> Iterator[ForwardShape]:
    """`Decoder.forwards` of whatever writes canvases in its sampler's steps.

    Raises:
        ValueError: it cannot drive such a model, more positions than the model has, or a pace that it cannot have.
    """
    decoder.check(model, output_len=batch.output_len)
    check_positions(model, prompt_len=batch.prompt_len, output_len=batch.output_len)
    return canvas_by_canvas(
        batch,
        canvas_len=model.canvas_len,  # type: ignore[attr-defined]
        num_steps=decoder.sampler.num_steps,
        tokens_per_forward=check_pace(decoder, tokens_per_forward),
    )


def canvas_by_canvas(
    batch: BatchShape, *, canvas_len: int, num_steps: int, tokens_per_forward: float | None
) -> Iterator[ForwardShape]:
    """The forwards of a batch: the encoder reads the prompt, and every canvas before the last; the decoder looks at
    each canvas, behind all that the encoder has read.

    Args:
        num_steps: looks at a canvas, at most.
        tokens_per_forward: None runs all steps; else tokens of a row over all forwards, the encoder's too.

    Raises:
        ValueError: a pace that these steps cannot have.
    """
    number, steps = num_canvases(batch.output_len, canvas_len), float(num_steps)
    if tokens_per_forward is not None:
        steps = batch.output_len / tokens_per_forward / number - 1
        if not 1 <= steps + NEGLIGIBLE <= num_steps + 2 * NEGLIGIBLE:
            least, most = (batch.output_len / number / (looks + 1) for looks in (num_steps, 1))
            raise ValueError(
                f"tokens_per_forward={tokens_per_forward} is out of reach: with 1 to {num_steps} looks at each canvas "
                f"it lies between {least:.4g} and {most:.4g}"
            )
    whole = floor(steps + NEGLIGIBLE)
    for index in range(number):
        before = batch.prompt_len + (index - 1) * canvas_len if index else 0
        new = canvas_len if index else batch.prompt_len
        yield ForwardShape(
            phase="prefill",
            rows=batch.rows,
            tokens=new,
            seen=before + new,
            kept=before,
            written=new,
            logits=0,
            model="encoder",
        )
        look = ForwardShape(
            phase="denoise",
            rows=batch.rows,
            tokens=canvas_len,
            seen=before + new + canvas_len,
            kept=before + new,
            logits=batch.rows * canvas_len,
            model="decoder",
        )
        yield from [look] * whole
        if steps - whole > NEGLIGIBLE:
            yield replace(look, times=steps - whole)


def num_canvases(output_len: int, canvas_len: int) -> int:
    return -(-output_len // canvas_len)


def check_model(model: NetworkConfig, decoder: str, *, output_len: int) -> None:
    """Raise ValueError for a model that does not undo uniform noise on a canvas, or for more canvases than fit."""
    if model.noise != "uniform":
        raise ValueError(
            f"decoder={decoder} undoes uniform noise on a canvas, and this model has model.noise={model.noise}; it "
            "needs model=diffusion_gemma, or another decoder"
        )
    check_positions(model, prompt_len=1, output_len=output_len)


def check_positions(model: Any, *, prompt_len: int, output_len: int) -> None:
    """Raise ValueError when the prompt and whole canvases are more than the model has positions."""
    canvas_len = model.canvas_len
    columns = prompt_len + num_canvases(output_len, canvas_len) * canvas_len
    if columns > model.max_positions:
        raise ValueError(
            f"a prompt of {prompt_len} tokens and {output_len} new ones, in whole canvases of {canvas_len}, are "
            f"{columns} positions; the model has model.max_positions={model.max_positions}: ask for less"
        )


def check_requests(requests: Sequence[Request]) -> None:
    """Raise ValueError for text that is given behind the prompt."""
    for request in requests:
        if any(token is not None for token in request.layout):
            raise ValueError(
                f"request {request.id!r} gives text behind gaps; a canvas of uniform noise cannot hold it, since every "
                "step decides every position. Use decoder=masked_diffusion or autoregressive"
            )
