"""The parts of masked diffusion, and what passes between them.

    Canvas      what stands where: prompt, given, decided and masked positions of every row
    Block       the stretch of the canvas that is being decided: all of it, or one block after another
    Sampler     which masked positions become tokens at a step, and whether decided ones become masks again
    Guess       what the model says about masked positions, and the tokens drawn from it
    Cache       how the model's logits are had: by reading everything again, or from kept keys and values, exact or not
    Reader      a cache at work on one batch

`MaskedDiffusion.decode` is the loop that joins them. Samplers and caches are frozen configs that know nothing of each
other: each sampler runs over each cache.

What a run will do is known to the same parts before it is made: a sampler says with how many masks each look at a block
begins (`Sampler.looks`), a cache what such a look reads (`Cache.reads`), and `plan` makes forwards of them.

Everything random is a function of (request seed, canvas position, step, purpose). Every canvas position has one draw of
purpose "order", uniform in (0, 1): its time. Random order, first-hitting and ancestral sampling read the same times, in
groups of a fixed number, one by one, or in bins of equal width; so what they share and where they differ can be seen.

Dimension letters: B rows that still have work in this block, W positions of the block, M positions asked for, V
vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from torch import Tensor

from paradigms.models.network import NetworkConfig
from paradigms.models.stack import Model
from paradigms.paradigm import Outline, StateBytes

if TYPE_CHECKING:
    from paradigms.decoding.diffusion.canvas import Canvas
    from paradigms.decoding.diffusion.guess import Guess


@dataclass(slots=True)
class Block:
    """One block of the canvas; rows are all rows of the batch.

    Attributes:
        index: number of the block, from 0.
        column_BW: where its positions stand in the model's input (`Canvas.tokens_BT`); 0, a column that is never open,
            for those outside.
        position_BW: canvas positions, from 0 after the prompt; what random draws are for.
        inside_BW: False beyond the end of a row's block.
        starts, stops: of each row, the first position and the one after the last, counted from the beginning of the row
            (prompt included); equal where the row has no part in this block.
    """

    index: int
    column_BW: Tensor
    position_BW: Tensor
    inside_BW: Tensor
    starts: list[int]
    stops: list[int]


@dataclass(slots=True)
class Step:
    """One step, as a sampler sees it: the rows that still have work in this block.

    Attributes:
        seeds: of the requests.
        position_BW: canvas positions.
        masked_BW: positions that are masked now.
        open_BW: positions that were masked when the block began (decided meanwhile where not masked_BW).
        index: number of the step within the block, from 0.
        draw: number of the step for random draws, another one for each step of each block; the same for a row whatever
            its batch.
        opened: positions of each row that were masked when the block began.
        before, total: open positions of each row's earlier blocks, and of its whole canvas.
        drawn_BW: probability that each decided position's token had when it was drawn, for samplers with `keeps_drawn`.
    """

    seeds: list[int]
    position_BW: Tensor
    masked_BW: Tensor
    open_BW: Tensor
    index: int
    draw: int
    opened: list[int]
    before: list[int]
    total: list[int]
    drawn_BW: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A block of every row of a batch of equal requests, before anything is run; nothing is given in it.

    Attributes:
        start, stop: first position and the one after the last, counted from the beginning of the row.
        prompt_len, row_len: of each row.
    """

    start: int
    stop: int
    prompt_len: int
    row_len: int

    @property
    def opened(self) -> int:
        """Positions to decide."""
        return self.stop - self.start

    @property
    def before(self) -> int:
        """Positions that earlier blocks decided."""
        return self.start - self.prompt_len

    @property
    def total(self) -> int:
        """Positions of the whole canvas."""
        return self.row_len - self.prompt_len


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look of a row at a block, as it is expected: means over what is drawn, of rows that take part.

    Attributes:
        index: number of the look, from 0.
        working: probability that a row takes part; rows are independent.
        masked: masks of the block when it begins.
        changed: positions of the block that ceased to be masks with the look before.
        wanted: positions whose logits are needed.
        idle: probability that a row has neither masks nor changed positions in the block.
        varying: positions of which it is drawn, for each by itself, how far they have come; of the others as many are
            masked, changed or wanted in every row. Rows differ as if these were so many.
    """

    index: int
    working: float = 1.0
    masked: float
    changed: float
    wanted: float
    idle: float = 0.0
    varying: float = 0.0


@dataclass(frozen=True, slots=True)
class Reads:
    """What a look reads of each row.

    Attributes:
        tokens: columns that are computed, padding included; a mean where positions are drawn.
        seen: positions that each of them looks at; what is not computed is kept.
        writes: whether they are kept in turn, also where they are written over what was kept of the same positions.
        chance: probability that there is anything to read; otherwise the look costs no forward.
        forgotten: of what is written, columns that are given up again behind the look.
    """

    tokens: float
    seen: int
    writes: bool
    chance: float = 1.0
    forgotten: int = 0


class Sampler:
    """A frozen, keyword-only dataclass derived from this; what is given here suits most.

    Attributes:
        depends_on_values: whether the number of forwards follows from what the model says.
        revises: whether decided positions may become masks again; then a block lasts `num_steps` steps, however few
            masks are left, and nothing in it is final before.
        keeps_drawn: whether it asks how probable decided tokens were when they were drawn.
        reads_confidence: whether it looks at probabilities, so that `MaskedDiffusion.confidence` means something.
        exact: whether, at one position a step, samples follow the model's own one-position conditionals: so where the
            choice of positions does not look at the drawn values.
        chooses_blindly: whether `chosen_before` says all positions, so that logits are wanted of these alone.
    """

    depends_on_values: ClassVar[bool] = False
    revises: ClassVar[bool] = False
    reads_confidence: ClassVar[bool] = False
    exact: ClassVar[bool] = False

    @property
    def chooses_blindly(self) -> bool:
        return False

    @property
    def keeps_drawn(self) -> bool:
        return False

    def check(self, *, canvas_len: int, num_blocks: int) -> None:
        """Raise ValueError for settings that do not fit such a canvas."""

    def num_steps(self, step: Step) -> list[int] | None:
        """Steps that each row's block takes, where that is fixed; needed when `revises`."""
        return None

    def num_chosen(self, step: Step) -> list[int] | None:
        """Positions of each row that become tokens at this step, where the host knows it without asking the device."""
        return None

    def chosen_before(self, step: Step) -> Tensor | None:
        """Positions [B, W] that become tokens at this step, where that is known without the model; else None.

        Then only these are looked at.
        """
        return None

    def choose(self, step: Step, guess: Guess) -> Tensor:
        """Positions [B, W], masked ones, that become tokens; at least one of each row, unless `revises`."""
        raise NotImplementedError

    def remask(self, step: Step, guess: Guess) -> Tensor | None:
        """Decided positions [B, W] (open, not masked) that become masks again after this step; None: none."""
        return None

    def times(self, step: Step) -> Tensor | None:
        """Time [B] in (0, 1] at which the step's forward sees the canvas, for time-conditioned models; None: the share
        of the block's open positions that is masked.
        """
        return None

    def looks(self, stretch: Stretch) -> Iterator[Look]:
        """The looks at such a block; not asked where `depends_on_values`."""
        raise NotImplementedError

    def outline(self, output_len: int) -> Outline | None:
        """What is known of a run over a whole canvas without a cache before it is made."""
        return None


class Cache(Protocol):
    """A frozen, keyword-only dataclass."""

    exact: ClassVar[bool]

    def check(self, model: NetworkConfig, *, block_len: int | None) -> None:
        """Raise ValueError when it cannot serve such a model, or such blocks."""
        ...

    def open(self, model: Model, canvas: Canvas) -> Reader: ...

    def reads(self, model: NetworkConfig, stretch: Stretch, look: Look, *, rows: int) -> Reads:
        """What a look at such a block reads when so many rows take part."""
        ...


class Reader(Protocol):
    """A cache at work on one batch.

    Attributes:
        forwards, positions: forwards run, and positions pushed through the model (padding not counted), since they were
            last set to 0; the decoder does that when it reports them.
    """

    forwards: int
    positions: int

    def begin(self, block: Block) -> None:
        """A block begins."""
        ...

    def logits(self, block: Block, rows: Sequence[int] | None, wanted_BW: Tensor, time_B: Tensor | None) -> Tensor:
        """Logits [M, V] at the wanted positions of the block, row-major.

        Args:
            rows: the rows looked at, ascending; `wanted_BW` has only these. None: all.
            time_B: what a time-conditioned model is told.
        """
        ...

    def state(self) -> Callable[[], StateBytes] | None:
        """What the event carries: bytes kept, when asked; None when nothing is kept."""
        ...
