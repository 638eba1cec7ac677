"""Masked diffusion over the full canvas: every forward sees all positions, and some masks become tokens.

The canvas starts as the prompt and one mask for each token to come. At each step the model gives a distribution for
every masked position, all at once and independently; which of them become final is the choice made here:

    random       positions in a random order, in equal shares over K steps; the order does not look at the model, so at
                 K = L the samples follow the model's own one-token conditionals exactly
    confidence   equal shares, the most probable drawn tokens first (LLaDA, 2502.09992); looking at the drawn value
                 biases the samples
    threshold    every drawn token whose probability reaches the threshold, and always the most probable one
                 (Fast-dLLM, 2505.22618); the number of steps depends on the text

Fewer steps than tokens make several tokens final in one step without seeing each other: faster, and worse. No cache is
kept: when one token changes, every position's keys and values change.

Dimension letters: B requests, T columns (prompt and canvas), L canvas, M masked positions looked at, V vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from paradigms.decoding import draws
from paradigms.decoding.prompts import right_align
from paradigms.decoding.sampling import Sampling
from paradigms.decoding.stopping import Vocabulary, finish, never_mask
from paradigms.models.network import NetworkConfig
from paradigms.models.stack import Model
from paradigms.paradigm import Event, Outline, Request

ORDERS = ("random", "confidence")


@dataclass(frozen=True, kw_only=True)
class MaskedDiffusion(Sampling):
    """Full-canvas denoising in a fixed number of steps, or until a confidence threshold has been passed everywhere.

    Attributes:
        steps: forwards for the canvas: a number, "L" (one token a step) or "L/4" (four tokens a step). None with a
            threshold.
        order: which positions become final at a step: "random" or "confidence". None with a threshold.
        threshold: probability in (0, 1] at which a drawn token becomes final; None with steps.
    """

    steps: int | str | None = "L"
    order: str | None = "random"
    threshold: float | None = None
    engine: ClassVar[str] = "native"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold is None:
            if self.order not in ORDERS:
                raise ValueError(f"decoder.order={self.order!r} is unknown; it is one of {', '.join(ORDERS)}")
            self.num_steps(1 << 30)
        else:
            if not 0 < self.threshold <= 1:
                raise ValueError(f"decoder.threshold={self.threshold} is no probability; it must lie in (0, 1]")
            if self.steps is not None or self.order is not None:
                raise ValueError(
                    "decoder.threshold decides by itself how many steps it takes and in what order; "
                    "set decoder.steps=null decoder.order=null, or decoder.threshold=null"
                )

    @property
    def depends_on_values(self) -> bool:
        """With a threshold the number of steps follows from how sure the model is."""
        return self.threshold is not None

    def check(self, model: NetworkConfig, *, output_len: int) -> None:
        """Raise ValueError when this decoder cannot drive such a model, or takes more steps than there are tokens."""
        if model.noise != "absorbing":
            raise ValueError(
                f"decoder=masked_diffusion needs a model trained to undo masks (model.noise=absorbing), "
                f"not model.noise={model.noise}"
            )
        if self.threshold is None and self.num_steps(output_len) > output_len:
            raise ValueError(
                f"decoder.steps={self.steps} is more than workload.output_len={output_len}: a step without a token to "
                f"decide computes nothing new; use at most {output_len} steps"
            )

    def num_steps(self, canvas_len: int) -> int:
        """Forwards for a canvas of `canvas_len` tokens."""
        if isinstance(self.steps, int) and not isinstance(self.steps, bool) and self.steps >= 1:
            return self.steps
        match = re.fullmatch(r"L(?:/([1-9]\d*))?", str(self.steps))
        if not match:
            raise ValueError(f'decoder.steps={self.steps!r} is not a number of steps, "L", or "L/n" with a whole n')
        return max(1, canvas_len // int(match[1] or 1))

    def outline(self, output_len: int) -> Outline | None:
        """K equal events in a random order; in an order by confidence ever fewer masks are looked at."""
        if self.threshold is not None or self.order != "random":
            return None
        return Outline(num_events=self.num_steps(output_len), grows=False)

    @torch.inference_mode()
    def decode(self, model: Model, requests: Sequence[Request], vocabulary: Vocabulary) -> Iterator[Event]:
        """One event a forward, with the whole canvas and the positions that became final."""
        canvas = _Canvas(model, requests, vocabulary)
        step = 0
        while canvas.num_masked:
            choose = self._share if self.threshold is None else self._over_threshold
            chosen_BL, tokens_BL, num_chosen = choose(canvas, step)
            canvas.fill(chosen_BL, tokens_BL, num_chosen)
            step += 1
            yield canvas.event(chosen_BL)

    def _share(self, canvas: _Canvas, step: int) -> tuple[Tensor, Tensor, int]:
        """This step's share of every row's canvas: which positions, all drawn tokens, how many positions."""
        shares = [_share(length, self.num_steps(length), step) for length in canvas.lengths]
        if self.order == "random":
            chosen_BL = canvas.next_in_order(shares)
            tokens_BL, _ = self._draw(canvas, chosen_BL, step)
        else:
            tokens_BL, confidence_BL = self._draw(canvas, canvas.masked_BL, step)
            rank_BL = confidence_BL.argsort(dim=-1, descending=True, stable=True).argsort(-1)
            chosen_BL = canvas.masked_BL & (rank_BL < torch.tensor(shares, device=rank_BL.device)[:, None])
        return chosen_BL, tokens_BL, sum(shares)

    def _over_threshold(self, canvas: _Canvas, step: int) -> tuple[Tensor, Tensor, None]:
        """Every drawn token that is probable enough, and each unfinished row's most probable one."""
        assert self.threshold is not None
        tokens_BL, confidence_BL = self._draw(canvas, canvas.masked_BL, step)
        best_BL = torch.zeros_like(canvas.masked_BL).scatter(-1, confidence_BL.argmax(-1, keepdim=True), True)
        return canvas.masked_BL & (best_BL | (confidence_BL >= self.threshold)), tokens_BL, None

    def _draw(self, canvas: _Canvas, wanted_BL: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """One forward: a token for every wanted position, and how probable the model finds it (-1 elsewhere).

        The probability is the model's own, before temperature, top-k and top-p, as LLaDA takes it.
        """
        logits_MV = canvas.logits(wanted_BL)
        uniform_M = draws.uniform(canvas.seeds, canvas.position_L, step, "token")[wanted_BL]
        token_M = self.draw(logits_MV, uniform_M)
        tokens_BL = torch.zeros_like(wanted_BL, dtype=torch.long)
        tokens_BL[wanted_BL] = token_M
        confidence_BL = torch.full(wanted_BL.shape, -1.0, dtype=torch.float64, device=wanted_BL.device)
        confidence_BL[wanted_BL] = logits_MV.double().log_softmax(-1).gather(-1, token_M[:, None])[:, 0].exp()
        return tokens_BL, confidence_BL


class _Canvas:
    """Prompts and canvases of a batch, and which positions are still masked.

    Rows are right-aligned in the model's input and left-aligned in the canvas [B, L], so that output position l is
    column l.
    """

    def __init__(self, model: Model, requests: Sequence[Request], vocabulary: Vocabulary) -> None:
        self.model, self.requests, self.vocabulary = model, requests, vocabulary
        self.seeds = [request.seed for request in requests]
        self.lengths = [request.max_new_tokens for request in requests]
        mask_id = vocabulary.mask_id
        if mask_id is None:
            raise ValueError("this tokenizer has no mask token; masked diffusion needs one (tokenizer=bpe2048 or byte)")
        rows = [[*request.prompt, *[mask_id] * request.max_new_tokens] for request in requests]
        self.tokens_BT, self.num_tokens = right_align(rows, model.device)
        self.num_columns = sum(map(len, rows))
        device, T = model.device, self.tokens_BT.shape[1]
        self.position_L = torch.arange(max(self.lengths), device=device)
        self.length_B1 = torch.tensor(self.lengths, device=device)[:, None]
        self.column_BL = (T - self.length_B1 + self.position_L) % T  # beyond a row's canvas: columns before it
        self.masked_BL = self.position_L < self.length_B1
        self.num_masked = sum(self.lengths)
        self.taken = [0] * len(requests)
        self.rank_BL: Tensor | None = None

    def next_in_order(self, shares: Sequence[int]) -> Tensor:
        """The next `shares` positions of each row, in an order drawn once for the request."""
        if self.rank_BL is None:
            order_BL = draws.uniform(self.seeds, self.position_L, 0, "order").masked_fill(~self.masked_BL, 2.0)
            self.rank_BL = order_BL.argsort(-1).argsort(-1)
        low = torch.tensor(self.taken, device=self.rank_BL.device)[:, None]
        high = low + torch.tensor(shares, device=self.rank_BL.device)[:, None]
        self.taken = [taken + share for taken, share in zip(self.taken, shares, strict=True)]
        return self.masked_BL & (self.rank_BL >= low) & (self.rank_BL < high)

    def logits(self, wanted_BL: Tensor) -> Tensor:
        """One forward over the whole input; logits [M, V] at the wanted positions, never for the mask itself."""
        wanted_BT = torch.zeros_like(self.tokens_BT, dtype=torch.bool).scatter(-1, self.column_BL, wanted_BL)
        logits_MV = self.model.logits_where(self.tokens_BT, wanted_BT, num_tokens=self.num_tokens)
        return never_mask(logits_MV, self.vocabulary)

    def fill(self, chosen_BL: Tensor, tokens_BL: Tensor, num_chosen: int | None) -> None:
        """Make the chosen tokens final; counted on the device, which waits for it, when their number is not known."""
        canvas_BL = torch.where(chosen_BL, tokens_BL, self.tokens_BT.gather(-1, self.column_BL))
        self.tokens_BT = self.tokens_BT.scatter(-1, self.column_BL, canvas_BL)
        self.masked_BL = self.masked_BL & ~chosen_BL
        self.num_masked -= int(chosen_BL.sum()) if num_chosen is None else num_chosen

    def event(self, chosen_BL: Tensor) -> Event:
        event = Event(
            phase="denoise",
            positions_K=range(max(self.lengths)),
            token_ids_BK=self.tokens_BT.gather(-1, self.column_BL),
            final_BK=chosen_BL,
            forwards={"model": 1},
            positions_computed=self.num_columns,
        )
        if not self.num_masked:
            for row, request in enumerate(self.requests):
                event.finished[row], event.num_committed[row] = self._end(row, request)
        return event

    def _end(self, row: int, request: Request) -> tuple[str, int]:
        """Finish reason and length of a full row; its tokens are looked at only when they can end it early."""
        if request.ignore_eos:
            return "length", request.max_new_tokens
        ids = self.tokens_BT.gather(-1, self.column_BL)[row, : request.max_new_tokens].tolist()
        ended = finish(request, ids, self.vocabulary)
        assert ended is not None
        return ended


def _share(length: int, num_steps: int, step: int) -> int:
    """Positions that become final at a step when `length` of them are spread evenly over `num_steps`."""
    return (step + 1) * length // num_steps - step * length // num_steps if step < num_steps else 0
