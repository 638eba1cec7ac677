"""What stands where: prompts, given tokens, decided tokens and masks of a batch.

Rows are right-aligned in the model's input, as the model takes them. A request's output are the open positions of its
canvas, in order; what is given there is context like the prompt.

Dimension letters: B requests, T columns of the input, W positions of a block, N open positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from paradigms.decoding.diffusion.contract import Block
from paradigms.decoding.prompts import right_align
from paradigms.decoding.stopping import Vocabulary
from paradigms.paradigm import Request


class Canvas:
    """Prompts and canvases of a batch.

    Attributes:
        tokens_BT: the model's input, masks included; never written to in place.
        num_tokens: tokens of each row, or None when all rows are equally long.
        totals: tokens of each row.
        prompt_lens: where each row's canvas begins.
        num_open: positions of each row that are to be decided.
        open_BT: where these stand.
        masked_BT: where there is a mask now that is to become a token.
        loose_BT: where there was a draft that may still be revised; None where no draft may.
    """

    loose_BT: Tensor | None = None

    def __init__(self, requests: Sequence[Request], vocabulary: Vocabulary, device: torch.device) -> None:
        mask_id = vocabulary.mask_id
        if mask_id is None:
            raise ValueError("this tokenizer has no mask token; masked diffusion needs one (tokenizer=bpe2048 or byte)")
        self.requests, self.mask_id = requests, mask_id
        self.seeds = [request.seed for request in requests]
        canvases = [request.layout for request in requests]
        rows = []
        for request, canvas in zip(requests, canvases, strict=True):
            draft = iter(request.draft)
            rows.append([*request.prompt, *(next(draft, mask_id) if token is None else token for token in canvas)])
        self.prompt_lens = [len(request.prompt) for request in requests]
        self.totals = [len(row) for row in rows]
        self.num_open = [request.max_new_tokens for request in requests]
        self.tokens_BT, self.num_tokens = right_align(rows, device)
        T = self.num_columns = self.tokens_BT.shape[1]
        open_rows = [
            [False] * (T - len(canvas)) + [token is None for token in canvas] for canvas in canvases
        ]  # prompts and padding are not
        self.open_BT = torch.tensor(open_rows, device=device)
        self.masked_BT = self.open_BT
        if any(request.draft for request in requests):
            self.masked_BT = self.open_BT & (self.tokens_BT == mask_id)
        self._output_BN = self._output_columns()

    @property
    def device(self) -> torch.device:
        return self.tokens_BT.device

    @property
    def decided_BT(self) -> Tensor:
        """Where there was a mask, or a draft, and is a token that stays."""
        decided_BT = self.open_BT & (self.tokens_BT != self.mask_id)
        return decided_BT if self.loose_BT is None else decided_BT & ~self.loose_BT

    @property
    def waiting_BT(self) -> Tensor:
        """What is still to be decided: masks, and drafts that may be revised."""
        return self.masked_BT if self.loose_BT is None else self.masked_BT | self.loose_BT

    def loosen_drafts(self) -> None:
        """Drafts may be revised until their block is decided."""
        self.loose_BT = self.open_BT & ~self.masked_BT

    def settle(self, final_BT: Tensor) -> None:
        """What stands here stays."""
        if self.loose_BT is not None:
            self.loose_BT = self.loose_BT & ~final_BT

    def block_of(self, index: int, starts: Sequence[int], stops: Sequence[int]) -> Block:
        """The block in which row b decides its positions starts[b] to stops[b] (counted from its prompt on)."""
        width = max(stop - start for start, stop in zip(starts, stops, strict=True))
        start_B1, stop_B1, prompt_B1, total_B1 = (
            torch.tensor(list(values), device=self.device)[:, None]
            for values in (starts, stops, self.prompt_lens, self.totals)
        )
        place_BW = start_B1 + torch.arange(width, device=self.device)
        inside_BW = place_BW < stop_B1
        return Block(
            index=index,
            column_BW=torch.where(inside_BW, self.num_columns - total_B1 + place_BW, 0),
            position_BW=place_BW - prompt_B1,
            inside_BW=inside_BW,
            starts=list(starts),
            stops=list(stops),
        )

    def blocks(self, block_len: int | None, *, from_prompt: bool = True) -> Iterator[Block]:
        """The canvas in blocks of `block_len` positions, counted from each row's canvas or (`from_prompt=False`) from
        the beginning of the row; None is one block.
        """
        ends = list(zip(self.prompt_lens, self.totals, strict=True))
        if block_len is None:
            yield self.block_of(0, self.prompt_lens, self.totals)
            return
        origins = [prompt if from_prompt else prompt - prompt % block_len for prompt, _ in ends]
        last = max(-(-(total - origin) // block_len) for origin, (_, total) in zip(origins, ends, strict=True))
        for index in range(last):
            edges = [origin + index * block_len for origin in origins]
            yield self.block_of(
                index,
                [min(max(edge, prompt), total) for edge, (prompt, total) in zip(edges, ends, strict=True)],
                [min(edge + block_len, total) for edge, (_, total) in zip(edges, ends, strict=True)],
            )

    def fill(self, block: Block, rows: Sequence[int] | None, chosen_BW: Tensor, tokens_BW: Tensor) -> Tensor:
        """Decide the chosen positions of these rows (None: all); where that is in the input, bool [B, T]."""
        chosen_BT = self.spread(block, rows, chosen_BW)
        token_BT = torch.zeros_like(self.tokens_BT)
        token_BT[_at(rows, block.column_BW)] = tokens_BW
        self.tokens_BT = torch.where(chosen_BT, token_BT, self.tokens_BT)
        self.masked_BT = self.masked_BT & ~chosen_BT
        return chosen_BT

    def mask_again(self, block: Block, rows: Sequence[int] | None, remasked_BW: Tensor) -> None:
        """Put masks where decided tokens of these rows are given up."""
        remasked_BT = self.spread(block, rows, remasked_BW)
        self.tokens_BT = self.tokens_BT.masked_fill(remasked_BT, self.mask_id)
        self.masked_BT = self.masked_BT | remasked_BT

    def leave_behind(self, end_BT: Tensor, rows: Sequence[int]) -> None:
        """Behind their first `end_BT` these rows stay as they are: masks are no longer to become tokens."""
        behind_BT = end_BT.cumsum(1) > end_BT.long()
        self._leave(behind_BT & self._among(rows))

    def leave_all(self, rows: Sequence[int]) -> None:
        """All masks of these rows stay masks."""
        self._leave(self._among(rows))

    def _leave(self, where_BT: Tensor) -> None:
        self.masked_BT = self.masked_BT & ~where_BT
        self.settle(where_BT)

    def _among(self, rows: Sequence[int]) -> Tensor:
        """Bool [B, 1]."""
        among_B1 = torch.zeros(len(self.totals), 1, dtype=torch.bool, device=self.device)
        among_B1[list(rows)] = True
        return among_B1

    def spread(self, block: Block, rows: Sequence[int] | None, where_BW: Tensor) -> Tensor:
        """Positions of a block as places in the input, bool [B, T]."""
        where_BT = torch.zeros_like(self.masked_BT)
        where_BT[_at(rows, block.column_BW)] = where_BW & (
            block.inside_BW if rows is None else block.inside_BW[list(rows)]
        )
        return where_BT

    def output(self, where_BT: Tensor) -> Tensor:
        """What the input holds at the open positions, [B, N]; rows with fewer repeat something beyond their own."""
        if self._output_BN is None:
            return where_BT[:, self.num_columns - max(self.num_open) :]
        return where_BT.gather(1, self._output_BN)

    def _output_columns(self) -> Tensor | None:
        """Columns of the open positions; None when they are the last ones of every row."""
        N, T = max(self.num_open), self.num_columns
        if self.num_tokens is None and min(self.num_open) == N and bool(self.open_BT[:, T - N :].all()):
            return None
        open_BT = self.open_BT.cpu()
        columns = [row.nonzero()[:, 0].tolist() for row in open_BT]
        padded = [found + [0] * (N - len(found)) for found in columns]  # column 0 is never open
        return torch.tensor(padded, device=self.device)


def _at(rows: Sequence[int] | None, column_BW: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column indices of a block's positions; column 0, which is never open, for those outside."""
    row_B1 = torch.arange(len(column_BW), device=column_BW.device)[:, None]
    if rows is not None:
        row_B1 = row_B1[list(rows)]
        column_BW = column_BW[list(rows)]
    return row_B1, column_BW
