"""What is asked of a paradigm, and how it is measured: the two config groups that every paradigm shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

STOPS = ("length", "natural")
PROMPTS = ("heldout", "random", "task")
MOST_RETRIES = 2  # of a contended unit: then it is kept, and marked
PLANTS = ("wrong", "right")
TIMELINES = ("device", "delivered")
EXECUTIONS = ("eager", "compile", "cuda_graph")


def _at_least(name: str, value: float, low: float) -> None:
    if value < low:
        raise ValueError(f"{name}={value} is too small; it must be at least {low}")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}={value!r} is unknown; it is one of {', '.join(allowed)}")


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The work of a cell, equal for every paradigm.

    Attributes:
        prompt_len: prompt tokens, begin-of-text included.
        output_len: tokens to generate, in all gaps together.
        num_gaps: gaps to fill, of equal length or nearly so, each with text behind it that is given; 0 is a text that
            goes on from its prompt.
        given_len: tokens of true text behind each gap.
        batch_size: requests that run as one batch.
        prompts: `heldout` cuts prompts from the held-out text, `random` draws uniform token ids, `task` takes the
            held-out instances of a task (the corpus), one after the other; prompt_len and output_len are then those of
            its longest instance.
        planted: symbols at the answer's beginning that are made wrong; they stand there from the start, and only a
            decoder that revises what it has decided can change them (prompts=task only).
        plant: `wrong`, or `right`: the control, which says how often a decoder revises what needs no revision.
        stop: `length` ignores EOS and commits exactly output_len; `natural` ends at EOS or a stop string.
        stop_strings: only with stop=natural.
        seed: prompts and every draw follow from it.
    """

    prompt_len: int = 64
    output_len: int = 128
    num_gaps: int = 0
    given_len: int = 0
    batch_size: int = 1
    prompts: str = "heldout"
    stop: str = "length"
    stop_strings: tuple[str, ...] = ()
    seed: int = 0
    planted: int = 0
    plant: str = "wrong"

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop_strings", tuple(self.stop_strings))
        for name in ("prompt_len", "output_len", "batch_size"):
            _at_least(f"workload.{name}", getattr(self, name), 1)
        for name in ("seed", "num_gaps", "given_len", "planted"):
            _at_least(f"workload.{name}", getattr(self, name), 0)
        _one_of("workload.prompts", self.prompts, PROMPTS)
        _one_of("workload.stop", self.stop, STOPS)
        _one_of("workload.plant", self.plant, PLANTS)
        if self.plant != "wrong" and not self.planted:
            raise ValueError(
                f"workload.plant={self.plant} says what is planted, and workload.planted=0 plants nothing; set "
                "workload.planted, or leave workload.plant out"
            )
        if self.stop_strings and self.stop != "natural":
            raise ValueError("workload.stop_strings needs workload.stop=natural; a fixed length ignores them")
        if any(not string for string in self.stop_strings):
            raise ValueError("workload.stop_strings contains an empty string, which every text contains")
        if self.planted and (self.prompts != "task" or self.planted >= self.output_len):
            raise ValueError(
                f"workload.planted={self.planted} makes the first symbols of a task's answer wrong: it needs "
                f"workload=task, and fewer than workload.output_len={self.output_len}"
            )
        self._check_gaps()

    def _check_gaps(self) -> None:
        if (self.num_gaps > 0) != (self.given_len > 0):
            raise ValueError(
                f"workload.num_gaps={self.num_gaps} with workload.given_len={self.given_len}: a gap has text "
                "behind it that is given; set both, or neither"
            )
        if self.num_gaps > self.output_len:
            raise ValueError(
                f"workload.num_gaps={self.num_gaps} is more than the workload.output_len={self.output_len} tokens that "
                "fill them"
            )
        if self.num_gaps and self.stop != "length":
            raise ValueError(
                f"workload.num_gaps={self.num_gaps} needs workload.stop=length: a text does not end where more of it "
                "is given"
            )

    @property
    def canvas_len(self) -> int:
        """Positions behind the prompt: generated and given ones."""
        return self.output_len + self.num_gaps * self.given_len

    @property
    def total_len(self) -> int:
        """Positions of prompt and canvas."""
        return self.prompt_len + self.canvas_len

    @property
    def text_len(self) -> int:
        """Tokens of the text that a request is cut from: the prompt, and with it what is given behind gaps."""
        return self.total_len if self.num_gaps else self.prompt_len

    def canvas(self, text: Sequence[int]) -> tuple[int | None, ...] | None:
        """What a request's canvas holds, None at open positions; None when nothing is given.

        Args:
            text: the true text behind the prompt, `canvas_len` tokens.
        """
        if not self.num_gaps:
            return None
        canvas: list[int | None] = []
        for gap in range(self.num_gaps):
            canvas += [None] * ((gap + 1) * self.output_len // self.num_gaps - gap * self.output_len // self.num_gaps)
            canvas += text[len(canvas) : len(canvas) + self.given_len]
        return tuple(canvas)


@dataclass(frozen=True, kw_only=True)
class Measure:
    """How a cell is measured.

    Attributes:
        rounds: units of the cell; rounds of all cells are interleaved so that drift hits all alike.
        min_repeats, max_repeats, min_time_s: timed repeats in a unit: at least min_repeats, then until min_time_s have
            passed.
        contended_retries: a unit that was timed beside something else is timed again, at most so often; the first quiet
            attempt is kept, or the quietest, never the fastest. 0 keeps what comes.
        warmup_events: events of the real work that one warm-up run consumes before it is closed.
        max_warmups: warm-up runs at most; fewer when two in a row agree within 10 %.
        timeline: `device` records times and reads tokens at the end; `delivered` copies and detokenises as a server
            must.
        memory: a separate pass for peak memory in the first round.
        tokens: also write the per-token table.
        quality: score what was generated, and the model on held-out text.
        products: also time the bare matrix products of one token, which a decode step cannot undercut.
        extrapolate_over_s: a batch that would take longer, by the steps of the warm-up, is not run: its first forward
            and eight others are timed, the rest is summed, and the unit is marked `extrapolated`. None runs all.
    """

    rounds: int = 3
    min_repeats: int = 1
    max_repeats: int = 5
    min_time_s: float = 0.5
    contended_retries: int = 2
    warmup_events: int = 8
    max_warmups: int = 5
    timeline: str = "device"
    memory: bool = True
    tokens: bool = False
    quality: bool = True
    products: bool = False
    extrapolate_over_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("rounds", "min_repeats", "max_repeats", "warmup_events", "max_warmups"):
            _at_least(f"measure.{name}", getattr(self, name), 1)
        for name in ("min_time_s", "contended_retries"):
            _at_least(f"measure.{name}", getattr(self, name), 0)
        if self.contended_retries > MOST_RETRIES:
            raise ValueError(f"measure.contended_retries={self.contended_retries} must be at most {MOST_RETRIES}")
        _one_of("measure.timeline", self.timeline, TIMELINES)
        if self.max_repeats < self.min_repeats:
            raise ValueError(f"measure.max_repeats={self.max_repeats} is below min_repeats={self.min_repeats}")
        if self.extrapolate_over_s is not None:
            self._check_extrapolation(self.extrapolate_over_s)

    def _check_extrapolation(self, seconds: float) -> None:
        """What an extrapolated run cannot have: texts, tokens and their deliveries."""
        if seconds <= 0:
            raise ValueError(f"measure.extrapolate_over_s={seconds} must be above 0, or null to run everything")
        wanted = {
            "measure.quality=true": self.quality,
            "measure.tokens=true": self.tokens,
            "measure.timeline=delivered": self.timeline == "delivered",
        }
        if asked := [name for name, on in wanted.items() if on]:
            raise ValueError(
                f"measure.extrapolate_over_s={seconds} leaves texts unfinished, and {' and '.join(asked)} needs them: "
                "turn that off, or set measure.extrapolate_over_s=null"
            )


@dataclass(frozen=True, kw_only=True)
class Device:
    """Where a cell runs.

    Attributes:
        name: `auto` (CUDA when there is one), `cpu` or `cuda`.
        threads: intra-op CPU threads; a factor, since the best number depends on model and machine.
        dtype: of weights and activations.
        execution: `eager` runs operator by operator, `compile` what torch.compile makes of it, `cuda_graph` recordings
            of steps; `models.execution` says what that changes for each kind of forward.
    """

    name: str = "auto"
    threads: int = 1
    dtype: str = "float32"
    execution: str = "eager"

    def __post_init__(self) -> None:
        _one_of("device.name", self.name, ("auto", "cpu", "cuda"))
        _one_of("device.dtype", self.dtype, ("float32", "float64", "bfloat16"))
        _at_least("device.threads", self.threads, 1)
        _one_of("device.execution", self.execution, EXECUTIONS)
