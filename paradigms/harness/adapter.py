"""A cell of the suite behind the interface of lm-eval: likelihoods of answers and of texts, and generation.

**Likelihoods** come from `quality.answers`: exact for causal models, the bound of the answer alone for denoisers, whose
masks follow from a seed. lm-eval also asks whether the answer is the greedy one; nobody knows that of a denoiser, whose
greedy answer depends on its decoder, and it is told no.

**Rolling likelihoods** are lm-eval's: the first window stands behind begin-of-text, each later one behind the last
token before it, the last one behind as much as fits; every token is scored once, and only what a window scores is
masked. A window holds as many tokens as the model has positions, context included, or as many as it was trained on.
A causal model would have room for one token more, which it need not read; `max_length` is what `hf` must be told to do
the same.

**Generation** is the cell's decoder at the temperature that the task asks for; what it is built for (sampler, cache,
blocks, steps) stays as configured. A canvas has max_gen_toks positions and is cut at end-of-text or a stop string.
Draws follow from workload.seed and the context, so that a question is answered alike whatever is asked beside it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from paradigms.bench import torch_device
from paradigms.cell import Cell
from paradigms.decoding.native import Decoder, NativeParadigm
from paradigms.decoding.sampling import Sampling
from paradigms.harness.text import BEGINS, Generation, encode_context, encode_pair, text_of
from paradigms.measure.clock import clock_for
from paradigms.measure.environment import set_threads
from paradigms.measure.timeline import record
from paradigms.models.execution import execute
from paradigms.paradigm import Request
from paradigms.quality.answers import AnswerLikelihood, Pair, answer_likelihoods
from paradigms.training.loop import Report
from paradigms.weights import Weights


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the config of a cell does not say.

    Attributes:
        num_masks: of each answer, for denoisers.
        mask_seed: what they follow from, together with the context.
        begin: what every context begins with; see `text`.
    """

    num_masks: int = 128
    mask_seed: int = 0
    begin: str = "text"

    def __post_init__(self) -> None:
        if self.num_masks < 1 or self.mask_seed < 0:
            raise ValueError(
                f"--masks={self.num_masks} must be at least 1, and --mask-seed={self.mask_seed} at least 0"
            )
        if self.begin not in BEGINS:
            raise ValueError(f"--begin={self.begin} is unknown; it is one of {', '.join(BEGINS)}")


@dataclass(frozen=True, kw_only=True)
class Scored:
    """A likelihood that lm-eval asked for.

    Attributes:
        task, doc_id, kind: what it belongs to, and the method that was asked.
        nats, nats_se, is_bound, is_greedy: see `quality.answers`; of a rolling one, sums over its windows.
        num_tokens: that were scored.
        num_cut: tokens that the context lost at its left.
        joined: a token reaches over the joint of context and answer.
        has_context: False of an answer that is asked by itself, as `acc_mutual_info` does beside the others.
    """

    task: str
    doc_id: int
    kind: str
    nats: float
    nats_se: float | None
    is_bound: bool
    is_greedy: bool | None
    num_tokens: int
    num_cut: int = 0
    joined: bool = False
    has_context: bool = True


@dataclass(frozen=True, kw_only=True)
class Generated:
    """A text that lm-eval asked for.

    Attributes:
        task, doc_id: what it belongs to.
        num_tokens: committed, end-of-text and stop strings included.
        finish_reason: see `paradigm.FINISH_REASONS`.
        nfe: forwards until the text ended.
        num_cut: tokens that the context lost at its left.
        temperature: that of the draws; None where the decoder has rules of its own.
    """

    task: str
    doc_id: int
    num_tokens: int
    finish_reason: str
    nfe: int
    num_cut: int
    temperature: float | None


class ParadigmsLM(LM):
    """A paradigm as lm-eval sees a model.

    Attributes:
        max_length: tokens that the model reads of one text, the last of an answer not counted: lm-eval's word.
        scored, generated: what was asked so far, in order.
    """

    def __init__(self, cell: Cell, weights: Weights, model: Any, *, settings: Settings, report: Report) -> None:
        """See `open_cell`, which loads what belongs to a cell."""
        super().__init__()
        self.cell, self.weights, self.settings = cell, weights, settings
        self._model, self._report = model, report
        trained_len = cell.train.trained_len(cell.wanted)
        self.max_positions = min(cell.model.max_positions, trained_len or cell.model.max_positions)
        self.max_length = self.max_positions - 1
        self._clock = clock_for(weights.model.device, "device")
        self.scored: list[Scored] = []
        self.generated: list[Generated] = []

    @property
    def tokenizer_name(self) -> str:
        """Identity of the tokenizer, for lm-eval's cache of requests."""
        return f"paradigms-{self.weights.tokenizer.sha256[:16]}-{self.settings.begin}"

    def loglikelihood(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """ln p of each answer behind its context, or the bound of it; and whether it is the greedy one.

        Raises:
            ValueError: an answer without tokens or too long, or a model under uniform noise.
        """
        pairs = [
            encode_pair(
                self.weights.tokenizer,
                *_arguments(request),
                begin=self.settings.begin,
                max_positions=self.max_positions,
                name=_name(request),
            )
            for request in requests
        ]
        found = self._likelihoods([(pair.prompt, pair.answer) for pair in pairs])
        self.scored += [
            Scored(
                **_place(request),
                kind="loglikelihood",
                **dataclasses.asdict(one),
                num_cut=pair.num_cut,
                joined=pair.joined,
                has_context=bool(_arguments(request)[0]),
            )
            for request, pair, one in zip(requests, pairs, found, strict=True)
        ]
        return [(-one.nats, bool(one.is_greedy)) for one in found]

    def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
        """ln p of each text, or the bound of it; a text without tokens has 0."""
        windows = [self._windows(_arguments(request)[0]) for request in requests]
        parts = iter(self._likelihoods([window for own in windows for window in own]))
        answers = []
        for request, own in zip(requests, windows, strict=True):
            found = list(islice(parts, len(own)))
            nats = sum(one.nats for one in found)
            self.scored.append(
                Scored(
                    **_place(request),
                    kind="loglikelihood_rolling",
                    nats=nats,
                    nats_se=_root_of_squares([one.nats_se for one in found]),
                    is_bound=any(one.is_bound for one in found),
                    is_greedy=None,
                    num_tokens=sum(one.num_tokens for one in found),
                    has_context=False,
                )
            )
            answers.append(-nats)
        return answers

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """The text behind each context, before any stop string.

        Raises:
            ValueError: settings that the decoder cannot have, or so many tokens that no context fits.
        """
        asked = [Generation.of(_arguments(request)[1], name=_name(request)) for request in requests]
        prompts = [self._prompt(request, how) for request, how in zip(requests, asked, strict=True)]
        texts: dict[int, str] = {}
        rows: dict[int, Generated] = {}
        seeds = self._seeds([prompt for prompt, _ in prompts])
        for how in dict.fromkeys(asked):
            decoder, temperature = self._decoder(how)
            paradigm = NativeParadigm(self._model, decoder, self.weights.tokenizer)
            numbers = [n for n, own in enumerate(asked) if own == how]
            numbers.sort(key=lambda n: -len(prompts[n][0]))
            for start in range(0, len(numbers), self.cell.workload.batch_size):
                batch = numbers[start : start + self.cell.workload.batch_size]
                wanted = [
                    Request(
                        id=f"{_name(requests[n])}/{n}",
                        prompt=prompts[n][0],
                        max_new_tokens=how.max_new_tokens,
                        seed=seeds[n],
                        ignore_eos=False,
                        stop_strings=how.until,
                    )
                    for n in batch
                ]
                recording = record(paradigm, wanted, clock=self._clock)
                for n, row in zip(batch, recording.rows, strict=True):
                    texts[n] = text_of(self.weights.tokenizer, row.token_ids, how)
                    rows[n] = Generated(
                        **_place(requests[n]),
                        num_tokens=len(row.token_ids),
                        finish_reason=row.finish_reason,
                        nfe=sum(row.nfe.values()),
                        num_cut=prompts[n][1],
                        temperature=temperature,
                    )
                self._report("texts", len(texts), len(requests))
        self.generated += [rows[n] for n in range(len(requests))]
        return [texts[n] for n in range(len(requests))]

    def _likelihoods(self, pairs: Sequence[Pair]) -> list[AnswerLikelihood]:
        if self.cell.model.noise == "uniform":
            raise ValueError(
                "the likelihood of a text is not computed under uniform noise (model.noise=uniform); ask such a model "
                "tasks of output_type generate_until only"
            )
        return answer_likelihoods(
            self.weights.model,
            pairs,
            mask_id=self.weights.tokenizer.mask_id,
            num_masks=self.settings.num_masks,
            seed=self.settings.mask_seed,
            progress=lambda done, total: self._report("likelihoods", done, total),
        )

    def _windows(self, text: str) -> list[Pair]:
        windows = get_rolling_token_windows(
            token_list=self.weights.tokenizer.encode(text),
            prefix_token=self.weights.tokenizer.bos_id,
            max_seq_len=self.max_length,
            context_len=1,
        )
        return [make_disjoint_window(window) for window in windows]

    def _prompt(self, request: Instance, how: Generation) -> tuple[tuple[int, ...], int]:
        most = self.max_length - how.max_new_tokens
        if most < 1:
            raise ValueError(
                f"{_name(request)}: generation_kwargs.max_gen_toks={how.max_new_tokens} leaves no room for a context "
                f"in the {self.max_length} tokens that the model takes; ask for fewer"
            )
        return encode_context(self.weights.tokenizer, _arguments(request)[0], begin=self.settings.begin, most=most)

    def _decoder(self, how: Generation) -> tuple[Decoder, float | None]:
        """The cell's decoder as a task wants it, and the temperature of its draws; None where its rules are its own."""
        decoder: Any = self.cell.decoder
        wanted = {"temperature": how.temperature, "top_k": how.top_k, "top_p": how.top_p}
        temperature: float | None = how.temperature
        if isinstance(decoder, Sampling):
            decoder = dataclasses.replace(decoder, **wanted)
        elif isinstance(sampler := getattr(decoder, "sampler", None), Sampling):
            decoder = dataclasses.replace(decoder, sampler=dataclasses.replace(sampler, **wanted))
        elif how.temperature:
            raise ValueError(
                f"generation_kwargs.temperature={how.temperature} asks for draws, and the decoder of paradigm="
                f"{self.cell.paradigm['name']} has rules of its own for them; leave do_sample and temperature out"
            )
        else:
            temperature = None
        try:
            decoder.check(self.cell.model, output_len=how.max_new_tokens)
        except ValueError as error:  # which speaks of the workload, that nobody has set here
            said = str(error).replace("workload.output_len", "generation_kwargs.max_gen_toks")
            raise ValueError(said) from error
        return decoder, temperature

    def _seeds(self, prompts: Sequence[tuple[int, ...]]) -> list[int]:
        """By the prompt, and how often it was asked before."""
        before: Counter[tuple[int, ...]] = Counter()
        seeds = []
        for prompt in prompts:
            said = f"{self.cell.workload.seed} {before[prompt]} {prompt}"
            seeds.append(int.from_bytes(hashlib.blake2b(said.encode(), digest_size=7).digest(), "little"))
            before[prompt] += 1
        return seeds


def open_cell(cell: Cell, settings: Settings, report: Report) -> ParadigmsLM:
    """Load the weights of a cell that was checked, onto its device and in its dtype.

    Raises:
        ValueError: random weights, or none to be had.
    """
    if cell.train.source == "random":
        raise ValueError(
            "train=random has nothing to say about values, and every figure of lm-eval is about them: use trained "
            "weights (train=zoo, quick, full, checkpoint or pretrained)"
        )
    set_threads(cell.device.threads)
    weights = cell.train.load(cell.wanted, report=report)
    device = torch_device(cell.device.name)
    weights.model.to(device=device, dtype=getattr(torch, cell.device.dtype)).eval().requires_grad_(False)
    model = execute(weights.model, cell.device.execution)
    return ParadigmsLM(cell, weights, model, settings=settings, report=report)


def _name(request: Instance) -> str:
    place = _place(request)
    return f"{place['task']}, document {place['doc_id']}, request {request.idx}"


def _arguments(request: Instance) -> tuple[Any, ...]:
    """(context, answer), (text,) or (context, settings)."""
    return request.args


def _place(request: Instance) -> dict[str, Any]:
    return {"task": str(request.task_name), "doc_id": -1 if request.doc_id is None else int(request.doc_id)}


def _root_of_squares(errors: Sequence[float | None]) -> float | None:
    """Standard error of a sum; None where one is not known."""
    known = [error for error in errors if error is not None]
    return math.sqrt(sum(error**2 for error in known)) if len(known) == len(errors) else None
