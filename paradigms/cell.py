"""A cell: one paradigm, one workload, one machine setting; everything that decides its figures.

Built from the composed config, and checked against itself before anything is loaded: a sweep of a hundred cells finds
its impossible ones in a second, not after an hour.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from paradigms.data.symbols import Symbols
from paradigms.data.tasks.task import Task
from paradigms.decoding.native import Decoder
from paradigms.heldout import WINDOW_LEN
from paradigms.measure.environment import gpu_names, usable_cores
from paradigms.models.config import ModelConfig
from paradigms.models.execution import missing
from paradigms.models.network import NetworkConfig
from paradigms.paradigm import Request
from paradigms.weights import CorpusConfig, TokenizerConfig, Wanted, WeightSource, load_corpus
from paradigms.workload import EXECUTIONS, Device, Measure, Workload


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What is measured.

    Attributes:
        paradigm: its short name and its label in figures.
        model, decoder, train: the network, what drives it, and where its weights come from.
        workload, measure, device: the work, how it is measured, where it runs.
        corpus, tokenizer: the text.
    """

    paradigm: dict[str, Any]
    model: NetworkConfig
    decoder: Decoder
    train: WeightSource
    workload: Workload
    measure: Measure
    device: Device
    corpus: CorpusConfig
    tokenizer: TokenizerConfig

    @property
    def wanted(self) -> Wanted:
        return Wanted(self.model, self.corpus, self.tokenizer, self.device.name)

    def checkpoint_id(self) -> str:
        """Identity of the weights, part of the unit's key."""
        return self.train.checkpoint_id(self.wanted)

    @property
    def num_positions(self) -> int:
        """Positions that the model has for one request: prompt and canvas, and what a decoder puts before them."""
        work = self.workload
        of_decoder = getattr(self.decoder, "num_positions", None)
        if of_decoder is None:
            return work.total_len
        canvas = work.canvas((0,) * work.canvas_len)
        return of_decoder(Request(id="", prompt=(0,) * work.prompt_len, max_new_tokens=work.output_len, canvas=canvas))

    def check(self) -> None:
        """Find what cannot work, before any weight or text is loaded.

        Raises:
            ValueError: an impossible combination, with the values and what to change.
        """
        work = self.workload
        if set(self.paradigm) != {"name", "label"}:
            raise ValueError(f"paradigm={self.paradigm!r} must have a name and a label; choose one of conf/paradigm")
        self.decoder.check(self.model, output_len=work.output_len)
        if self.model.vocab_size != self.tokenizer.vocab_size:
            raise ValueError(
                f"model.vocab_size={self.model.vocab_size} does not fit "
                f"tokenizer.vocab_size={self.tokenizer.vocab_size}; "
                "leave model.vocab_size out, it follows the tokenizer"
            )
        self._check_task(work)
        self._check_gaps(work)
        self._check_ends(work)
        if self.num_positions > self.model.max_positions:
            given = f", and the text given behind {work.num_gaps} gaps," if work.num_gaps else ""
            raise ValueError(
                f"workload.prompt_len={work.prompt_len} + workload.output_len={work.output_len}{given} is "
                f"{self.num_positions} positions; the model has model.max_positions={self.model.max_positions}: ask "
                "for less, or raise it, with weights that know such lengths (train=full with longer train.lengths) or "
                "random ones"
            )
        if self.device.name == "cuda" and not gpu_names():
            raise ValueError("device.name=cuda, but this machine shows no NVIDIA GPU; use device=cpu or device=auto")
        if self.device.threads > usable_cores():
            raise ValueError(
                f"device.threads={self.device.threads} is more than the {usable_cores()} cores that this "
                "process may use"
            )
        if self.measure.extrapolate_over_s is not None and work.stop != "length":
            raise ValueError(
                f"workload.stop={work.stop} ends where the text ends, which nobody can extrapolate; "
                "use workload=fixed_length, or measure.extrapolate_over_s=null"
            )
        if self.measure.products and not (isinstance(self.model, ModelConfig) and self.model.experts is None):
            raise ValueError(
                "measure.products=true times the matrices that every token meets, which a native model without routed "
                "experts can tell; set measure.products=false"
            )
        self._check_execution()
        self._check_values(work)
        if not isinstance(self.corpus, Task) and getattr(self.corpus, "check", None):  # a task judges answers with it
            self.corpus.check()  # type: ignore[attr-defined]
        if getattr(self.tokenizer, "check", None):
            needs_bytes = self.measure.quality or self.measure.timeline == "delivered"
            self.tokenizer.check(needs_text=work.prompts == "heldout", needs_bytes=needs_bytes)  # type: ignore[attr-defined]

    def _check_task(self, work: Workload) -> None:
        """A task and its workload go together, and no instance is asked twice."""
        task = self.corpus if isinstance(self.corpus, Task) else None
        symbols = isinstance(self.tokenizer, Symbols)
        if work.prompts != "task":
            if task is not None and work.prompts == "heldout":
                raise ValueError(f"corpus={task.name} is a task and has no text to go on from; use workload=task")
            return
        if task is None or not symbols:
            raise ValueError(
                "workload=task asks the instances of a task, one token a symbol: choose one of them, as in "
                "task=star_graph, which sets corpus, tokenizer and workload"
            )
        for name, wanted in (("prompt_len", task.prompt_tokens), ("output_len", task.output_tokens)):
            if getattr(work, name) != wanted:
                raise ValueError(
                    f"workload.{name}={getattr(work, name)}, but {task.title} has {wanted} tokens; leave it out"
                )
        if work.stop_strings:
            raise ValueError(
                f"workload.stop_strings={list(work.stop_strings)} end texts, and an answer of workload=task ends at "
                "end-of-text alone; leave it out"
            )
        asked = work.batch_size * self.measure.max_repeats * self.measure.rounds
        if asked > task.num_heldout:
            raise ValueError(
                f"workload.batch_size={work.batch_size} x measure.max_repeats={self.measure.max_repeats} x "
                f"measure.rounds={self.measure.rounds} are {asked} instances, and corpus.num_heldout="
                f"{task.num_heldout}: ask for fewer, or hold out more"
            )
        if work.planted:
            self._check_plants(task, work)
        if work.planted and not getattr(self.decoder, "takes_drafts", False):
            raise ValueError(
                f"workload.planted={work.planted} puts tokens at the answer's beginning, which paradigm="
                f"{self.paradigm['name']} cannot go on from; use decoder=autoregressive or masked_diffusion"
            )

    def _check_plants(self, task: Task, work: Workload) -> None:
        """As many symbols can be planted in every answer, and something is left to say of it."""
        held_out = load_corpus(task).task
        assert isinstance(held_out, Task)
        shortest = min(len(instance.answer) - len(instance.given) for instance in held_out.heldout)
        if work.planted >= shortest:
            raise ValueError(
                f"workload.planted={work.planted} leaves nothing to say of some answer of {task.title}, whose "
                f"shortest has {shortest} symbols: plant fewer, or none (workload.planted=0), or make answers longer"
            )
        if work.plant == "wrong":
            for instance in held_out.heldout:
                task.planted(instance, work.planted, random.Random(0))

    def _check_gaps(self, work: Workload) -> None:
        """What gaps, of the workload or of a task's answers, ask of a decoder, and what has no use without them."""
        of_task = getattr(self.corpus, "num_gaps", 0) if work.prompts == "task" else 0
        if (work.num_gaps or of_task) and not getattr(self.decoder, "infills", False):
            gaps = f"corpus.num_gaps={of_task}" if of_task else f"workload.num_gaps={work.num_gaps}"
            raise ValueError(
                f"{gaps} gives text behind gaps, and paradigm={self.paradigm['name']} can "
                "only go on from a prompt; use decoder=autoregressive or masked_diffusion, or workload=fixed_length"
            )
        if work.num_gaps and self.measure.extrapolate_over_s is not None:
            raise ValueError(
                f"workload.num_gaps={work.num_gaps} is not extrapolated, since what is given makes steps unequal; set "
                "measure.extrapolate_over_s=null"
            )
        infilling = getattr(self.decoder, "infilling", "suffix_first")
        if not (work.num_gaps or of_task) and infilling != "suffix_first":
            raise ValueError(
                f"decoder.infilling={infilling} says how gaps are filled, and workload.num_gaps=0 has none; use "
                "workload=infilling, or leave decoder.infilling=suffix_first"
            )

    def _check_ends(self, work: Workload) -> None:
        """What a decoder does with end-of-text must have an effect, and must leave the workload an end."""
        eos = getattr(self.decoder, "eos", None)
        if eos == "early" and work.stop != "natural":
            raise ValueError(
                f"decoder.eos=early ends a text where it says so, and workload.stop={work.stop} does not let it; use "
                "workload=natural_stop, or decoder.eos=free"
            )
        if eos == "suppressed" and work.stop == "natural" and not work.stop_strings:
            raise ValueError(
                "decoder.eos=suppressed never says end-of-text, which workload.stop=natural waits for; use "
                "workload=fixed_length, decoder.eos=free or early, or workload.stop_strings"
            )

    def _check_execution(self) -> None:
        """What this machine, decoder and model can run otherwise than operator by operator."""
        execution = self.device.execution
        possible = getattr(self.decoder, "executions", EXECUTIONS)  # decoders say so where it is not all
        if self.decoder.engine == "native" and not isinstance(self.model, ModelConfig):
            possible = ("eager",)
        if execution not in possible:
            raise ValueError(
                f"device.execution={execution} is not possible for paradigm={self.paradigm['name']}; "
                f"it can run {' or '.join(possible)}, and all paradigms of a comparison should run alike"
            )
        lacking = missing(execution, has_cuda=self.device.name != "cpu" and bool(gpu_names()))
        if lacking:
            raise ValueError(lacking)

    def _check_values(self, work: Workload) -> None:
        """What needs trained weights, and how long a text they were trained for."""
        if self.measure.quality and self.model.noise == "uniform":
            raise ValueError(
                "measure.quality=true needs the likelihood of held-out text, which is not computed under uniform noise "
                "(model.noise=uniform); set measure.quality=false"
            )
        if self.train.source == "random":
            has_experts = getattr(self.model, "experts", None) is not None
            dependent = {
                "measure.quality=true scores what the model writes": self.measure.quality,
                f"workload.stop={work.stop} ends where the text ends": work.stop != "length",
                "this decoder's work depends on the tokens that come out": self.decoder.depends_on_values,
                "a router that has learnt nothing sends tokens to all experts alike, a trained one does not "
                "(workload.prompts=random takes that as it is)": has_experts and work.prompts != "random",
            }
            reasons = [reason for reason, applies in dependent.items() if applies]
            if reasons:
                raise ValueError(
                    f"train=random has nothing to say about values: {'; '.join(reasons)}. "
                    "Use measure=latency workload=fixed_length, or trained weights (train=zoo, quick or full)"
                )
            return
        trained_len = self.train.trained_len(self.wanted)
        if not self.measure.quality or trained_len is None:
            return
        lengths = {"prompt and output": self.num_positions}
        if not getattr(self.corpus, "scores_answers", False):  # whose held-out rows are as long as those of training
            lengths["a held-out window"] = WINDOW_LEN + 1
        for what, length in lengths.items():
            if length > trained_len:
                raise ValueError(
                    f"{length} positions ({what}) are more than the {trained_len} that the model was trained on, so "
                    "its quality there says nothing: shorten the workload, train on longer texts (train.lengths), or "
                    "set measure.quality=false"
                )
