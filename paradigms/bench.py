"""The main path: what happens to one cell in one round, read from top to bottom.

    load -> warm up -> timed repeats, again if something else ran -> memory pass -> scores -> records

Timing and memory are separate passes, since watching allocations slows the work down. What was timed is what is scored
and kept, of the first quiet attempt. A run that would take longer than `measure.extrapolate_over_s` is timed in a few
places and summed.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

import torch

import paradigms
from paradigms.cell import Cell
from paradigms.data.cache import cache_folder
from paradigms.data.splits import Corpus
from paradigms.data.stream import token_stream
from paradigms.data.tokenizers import StreamDecoder, Tokenizer
from paradigms.decoding.native import NativeParadigm
from paradigms.measure.attempts import until_quiet
from paradigms.measure.calibration import peak_columns
from paradigms.measure.clock import clock_for
from paradigms.measure.energy import EnergyMeter
from paradigms.measure.environment import keep_freed_memory, machine, machine_line, set_threads, versions
from paradigms.measure.extrapolation import FEWEST_EVENTS, Extrapolation, events_at, extrapolate, places
from paradigms.measure.ledger import Ledger, work_columns
from paradigms.measure.memory import peak_memory
from paradigms.measure.noise import NoiseReader
from paradigms.measure.products import products_s
from paradigms.measure.recording import Recording
from paradigms.measure.timeline import record
from paradigms.measure.unevenness import unevenness
from paradigms.measure.warmup import Warmup, warm_up
from paradigms.measure.weight_reads import WeightReads
from paradigms.models.execution import Prepared, execute, keep_compiled
from paradigms.paradigm import Event, Outline, Paradigm, Request, StateBytes
from paradigms.requests import instance_of, make_requests
from paradigms.scores import heldout_columns, judge, score, score_answer, stretches
from paradigms.training.printed import Printed
from paradigms.weights import Weights, load_corpus
from paradigms.work import BatchShape, ForwardShape

# Until the benchmark is ready to run: in the process that units are forked from, so paid once a sweep.
IMPORT_S = time.perf_counter() - paradigms.import_started

Tables = dict[str, list[dict[str, Any]]]


def run_unit(cell: Cell, round_index: int) -> tuple[dict[str, Any], Tables]:
    """Measure a cell once.

    Returns:
        Observations for the `runs` table, and the rows of the other tables; see `paradigms.records`.
    """
    device = torch_device(cell.device.name)
    set_threads(cell.device.threads)
    keeps_freed_memory = keep_freed_memory()

    started = time.perf_counter()
    weights, model = _weights(cell, device)
    corpus = load_corpus(cell.corpus)
    paradigm = NativeParadigm(model, cell.decoder, weights.tokenizer)
    requests = partial(make_requests, cell, round_index, corpus=corpus, tokenizer=weights.tokenizer)
    load_s = time.perf_counter() - started

    clock = clock_for(device, cell.measure.timeline)
    at_start = Prepared.of(model)
    warm_up_once = partial(warm_up, paradigm, partial(requests, 0), clock=clock, num_events=cell.measure.warmup_events)
    warmup = warm_up_once(max_warmups=cell.measure.max_warmups)
    after_warmup = Prepared.of(model)
    outline = _outline_of_long_run(cell, paradigm, warmup)
    energy = EnergyMeter(device)

    def measure_once() -> _Timed:
        if outline is not None:
            return _Timed(
                [],
                extrapolate(paradigm, requests(0), outline, clock=clock),
                after_warmup,
                dict.fromkeys(energy.COLUMNS),
            )
        warm, recordings = after_warmup, []
        while not recordings or Prepared.of(model).compile_s > warm.compile_s:  # what compiled meanwhile is not timed
            warm = Prepared.of(model)
            energy.before()
            recordings = _timed_repeats(cell, paradigm, requests, weights.tokenizer, clock)
            joules = energy.after(sum(len(row.token_ids) for recording in recordings for row in recording.rows))
        return _Timed(recordings, None, warm, joules)

    timed, readings = until_quiet(
        measure_once,
        NoiseReader(device),
        retries=cell.measure.contended_retries,
        wall_s=lambda timed: timed.wall_s,
        uneven=lambda timed: unevenness(timed.recordings),
        ready=partial(warm_up_once, max_warmups=1),
    )
    recordings, extrapolation, warm = timed.recordings, timed.extrapolation, timed.warm

    run = {
        **_facts(cell, weights, corpus, paradigm, device),
        **readings,
        **timed.energy,
        "keeps_freed_memory": keeps_freed_memory,
        "import_s": IMPORT_S,
        "load_s": load_s,
        "compile_s": warm.compile_s - at_start.compile_s,
        "eager_share": warm.eager_share(Prepared.of(model)),
        "warmup_s": warmup.seconds - (after_warmup.compile_s - at_start.compile_s),
        "num_warmups": warmup.num_runs,
        "warmup_steady": warmup.steady,
        "steady_s": extrapolation.spent_s if extrapolation else sum(recording.wall_s for recording in recordings),
        "num_repeats": len(recordings),
        "extrapolated": extrapolation is not None,
        "forwards_timed": extrapolation.forwards_timed if extrapolation else None,
    }
    if cell.measure.memory and round_index == 0:
        run |= _memory_pass(cell, paradigm, requests(0), device, outline)
    if "ledger" not in run:
        run |= _planned_work(cell, paradigm, recordings)
    run |= _tokens(cell, recordings, weights.tokenizer)
    if cell.measure.products:
        run["products_s"] = products_s(weights.model)
    if cell.measure.quality:
        run |= heldout_columns(weights, corpus)
        if round_index == 0:
            run |= paradigm.quality_columns(requests(0))
    run |= peak_columns(run, threads=cell.device.threads, dtype=cell.device.dtype)
    tables = _tables(cell, weights, corpus, recordings)
    if extrapolation is not None:
        tables["requests"] = [{"repeat": 0, **columns} for columns in extrapolation.request_rows()]
    return run, tables


def prepare(cell: Cell) -> None:
    """Do once what the units of a checkpoint share, before any clock runs: train, score held-out text, fill caches."""
    set_threads(cell.device.threads)
    corpus = load_corpus(cell.corpus)
    if cell.train.source == "random":  # drawn in an instant, where and when they are used
        if cell.workload.prompts == "heldout":
            token_stream(corpus, cell.tokenizer.load(corpus), "heldout")
        return
    weights = cell.train.load(cell.wanted, report=Printed(str(cell.paradigm["name"])))
    if cell.workload.prompts == "heldout":
        token_stream(corpus, weights.tokenizer, "heldout")
    if cell.measure.quality:
        if corpus.task is None:
            judge(corpus)
        heldout_columns(weights, corpus)


def torch_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


@dataclass(frozen=True, slots=True)
class _Timed:
    """One attempt: its repeats, or the run that was not made whole; what was prepared ahead of it; its energy."""

    recordings: list[Recording]
    extrapolation: Extrapolation | None
    warm: Prepared
    energy: dict[str, Any]

    @property
    def wall_s(self) -> float:
        """Seconds of a run: the mean over repeats."""
        if self.extrapolation is not None:
            return self.extrapolation.wall_s
        return fmean(recording.wall_s for recording in self.recordings)


def _timed_repeats(cell: Cell, paradigm: Paradigm, requests: Any, tokenizer: Tokenizer, clock: Any) -> list[Recording]:
    """At least min_repeats runs, then more until min_time_s have passed or max_repeats are done."""
    decoder = partial(StreamDecoder, tokenizer) if cell.measure.timeline == "delivered" else None
    recordings: list[Recording] = []
    while len(recordings) < cell.measure.max_repeats:
        enough = sum(recording.wall_s for recording in recordings) >= cell.measure.min_time_s
        if len(recordings) >= cell.measure.min_repeats and enough:
            break
        batch = requests(len(recordings))
        recordings.append(record(paradigm, batch, clock=clock, timeline=cell.measure.timeline, stream_decoder=decoder))
    return recordings


_ready: list[tuple[Any, Weights, Any]] = []  # the last weights of this process, what asked for them, how they are run


def _weights(cell: Cell, device: torch.device) -> tuple[Weights, Any]:
    """Weights on the device, in the cell's dtype, and the model that runs them as the cell wants it; units that share a
    process share them (sweep.units_per_process).
    """
    asked = (cell.train, cell.wanted, cell.device)
    if not _ready or _ready[0][0] != asked:
        _ready.clear()
        weights = cell.train.load(cell.wanted, report=lambda what, done, total: None)
        weights.model.to(device=device, dtype=getattr(torch, cell.device.dtype)).eval().requires_grad_(False)
        keep_compiled(cache_folder() / "inductor")
        _ready.append((asked, weights, execute(weights.model, cell.device.execution)))
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what the units before left behind
    return _ready[0][1:]


def _outline_of_long_run(cell: Cell, paradigm: NativeParadigm, warmup: Warmup) -> Outline | None:
    """The outline of a run that would take too long; None when it is to be made whole.

    So is one whose course nobody knows beforehand, and one of hardly more forwards than would be timed.
    """
    limit_s = cell.measure.extrapolate_over_s
    outline = None if limit_s is None else paradigm.outline(cell.workload.output_len)
    if limit_s is None or outline is None or outline.num_events < FEWEST_EVENTS:
        return None
    return outline if warmup.estimate_s(outline.num_events) > limit_s else None


def _memory_pass(
    cell: Cell, paradigm: NativeParadigm, requests: Sequence[Request], device: torch.device, outline: Outline | None
) -> dict[str, Any]:
    """The same work once more, watched: peak memory, the state at its largest, forwards, the experts that are touched.

    Of a run that is not made whole (`outline`), its beginning and its last steps. A long prefill gets to those, so it
    is run before memory is watched.
    """
    states: list[StateBytes] = []
    reads, ledger = WeightReads(cell.model), Ledger()
    if outline is None:
        watched = paradigm
        if cell.decoder.engine == "native":
            watched = NativeParadigm(ledger.noting(paradigm.model), paradigm.decoder, paradigm.vocabulary)
        peaks = [_watch(watched, ledger.of(reads.of(watched.run(requests))), states, device)]
    else:
        peaks = []
        for place in (places(outline)[0], places(outline)[-1])[: 2 if outline.grows else 1]:
            with closing(events_at(paradigm, requests, place)) as events:
                if place.moved:
                    next(events)
                peaks.append(_watch(paradigm, reads.of(events), states, device))
    largest = max(states, key=lambda state: state.used, default=None)
    length = cell.num_positions - 1  # the last token is never read back
    itemsize = paradigm.model.dtype.itemsize
    kv_dtype = getattr(cell.decoder, "kv_dtype", None)  # how keys and values are stored, where a decoder can choose
    formula = cell.model.state_bytes(batch_size=len(requests), length=length, itemsize=itemsize, kv_dtype=kv_dtype)
    if cell.decoder.engine != "native" and cell.model.recurrent:
        formula = None  # others keep recurrent states in a layout of their own
    if not cell.model.causal:
        formula = None  # how much of a canvas is kept is up to the decoder's cache; analysis/laws.py says it
    return {
        **{name: max(filter(None, (peak[name] for peak in peaks)), default=None) for name in peaks[0]},
        **reads.columns(itemsize),
        "state_used_bytes": largest.used if largest else 0,
        "state_allocated_bytes": max((state.allocated for state in states), default=0),
        "state_formula_bytes": formula if largest else 0,
        **(_work(cell, paradigm, "observed", ledger.shapes, reads.experts_touched) if ledger.shapes else {}),
    }


def _planned_work(cell: Cell, paradigm: NativeParadigm, recordings: Sequence[Recording]) -> dict[str, Any]:
    """What the run asked of the machine by the decoder's own account, where nobody noted it: of texts of fixed length.

    How fast a text became final, where the text decides, is taken from the first repeat.
    """
    work, pace = cell.workload, None
    if work.num_gaps or work.stop != "length" or work.prompts == "task":  # of which part may be given or drafted
        return {"ledger": None}
    if cell.decoder.depends_on_values:
        pace = work.output_len / fmean(sum(row.nfe.values()) for row in recordings[0].rows)
    batch = BatchShape(rows=work.batch_size, prompt_len=work.prompt_len, output_len=work.output_len)
    shapes = cell.decoder.forwards(cell.model, batch, tokens_per_forward=pace)
    return _work(cell, paradigm, "formula", shapes)


def _work(
    cell: Cell,
    paradigm: NativeParadigm,
    ledger: str,
    shapes: Iterable[ForwardShape],
    experts_touched: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Forwards, operations and bytes of one repeat; `ledger` says where the forwards are from."""
    columns = work_columns(
        cell.model,
        shapes,
        itemsize=paradigm.model.dtype.itemsize,
        kv_dtype=getattr(cell.decoder, "kv_dtype", None),
        experts_touched=experts_touched,
    )
    return {"ledger": ledger, **columns}


def _tokens(cell: Cell, recordings: Sequence[Recording], tokenizer: Tokenizer) -> dict[str, int | None]:
    """Tokens of one repeat, all rows together. Effective are those up to the first end of text, which a natural stop
    would have committed; of a run that was not made whole the text is not known.
    """
    eos_id = tokenizer.eos_id
    if not recordings:
        requested = cell.workload.batch_size * cell.workload.output_len
        return {"requested_tokens": requested, "committed_tokens": requested, "effective_tokens": None}
    texts = recordings[0].token_ids
    requested = sum(row.request.max_new_tokens for row in recordings[0].rows)  # what is given is not asked for
    effective = [min(len(text), [*text, eos_id].index(eos_id) + 1) for text in texts]
    return {
        "requested_tokens": requested,
        "committed_tokens": sum(map(len, texts)),
        "effective_tokens": sum(effective),
    }


def _watch(
    paradigm: NativeParadigm, events: Iterator[Event], states: list[StateBytes], device: torch.device
) -> dict[str, int | None]:
    """Peaks of memory while the events come; the states that they carry are added to `states`."""
    tensors = paradigm.describe()["execution"] == "eager"
    with peak_memory(device, base=paradigm.weights_read(), tensors=tensors) as peaks:
        for event in events:
            if event.state is not None:
                states.append(event.state())
    return peaks.columns()


def _facts(
    cell: Cell, weights: Weights, corpus: Corpus, paradigm: NativeParadigm, device: torch.device
) -> dict[str, Any]:
    """What the figures of this unit stand on."""
    installed, facts, card = versions(), machine(), weights.card
    return {
        **paradigm.describe(),
        "parameters": paradigm.parameters,
        "weight_bytes": paradigm.weight_bytes,
        "device": device.type,
        "checkpoint_tokens": _kept_at(card) if card else None,
        "checkpoint_tokenizer": weights.tokenizer.sha256,
        "corpus_sha256": corpus.sha256,
        "corpus_is_zoo_corpus": card["corpus"]["sha256"] == corpus.sha256 if card else None,
        "machine": machine_line(),
        "cpu": facts["cpu"],
        "gpu": facts["gpus"][0] if facts["gpus"] else None,
        **{f"{name.replace('-', '_')}_version": version for name, version in installed.items()},
    }


def _tables(cell: Cell, weights: Weights, corpus: Corpus, recordings: Sequence[Recording]) -> Tables:
    """Rows of the child tables of one unit."""
    tables: Tables = {"requests": [], "samples": [], "tokens": [], "training": []}
    task = corpus.task if cell.workload.prompts == "task" else None
    scorer = judge(corpus) if cell.measure.quality and task is None else None
    for repeat, recording in enumerate(recordings):
        for row, columns in zip(recording.rows, recording.request_rows(), strict=True):
            text = weights.tokenizer.decode(row.token_ids)
            scores = score(weights.tokenizer, scorer, row.request, row.token_ids) if scorer else {}
            if task is not None:
                scores = score_answer(
                    weights.tokenizer, instance_of(task, row.request), row.request, row.token_ids, task
                )
            tables["requests"].append({"repeat": repeat, **columns, **scores})
            tables["samples"].append(
                {
                    "repeat": repeat,
                    "row": columns["row"],
                    "request_id": row.request.id,
                    "seed": row.request.seed,
                    "prompt_ids": list(row.request.prompt),
                    "token_ids": list(row.token_ids),
                    "text": text,
                    **_in_place(weights.tokenizer, row.request, row.token_ids),
                }
            )
        if cell.measure.tokens:
            tables["tokens"] += [{"repeat": repeat, **columns} for columns in recording.token_rows()]
    tables["training"] = _training_rows(cell, weights)
    return tables


def _in_place(tokenizer: Tokenizer, request: Request, tokens: Sequence[int]) -> dict[str, Any]:
    """Of a request with text given in its canvas: the canvas, null at open positions, and its text when filled."""
    if request.canvas is None:
        return {}
    filled = [token for _, stretch in stretches(request, tokens) for token in stretch]
    return {"canvas_ids": list(request.canvas), "text_in_place": tokenizer.decode(filled)}


def _kept_at(card: Mapping[str, Any]) -> int:
    """Training tokens that the kept weights have seen: those until the best validation, not the whole budget."""
    return next(point["tokens"] for point in card["curve"] if point["step"] == card["best_step"])


def _training_rows(cell: Cell, weights: Weights) -> list[dict[str, Any]]:
    """The loss curve of the checkpoint, as the report draws it."""
    card = weights.card
    if not card:
        return []
    tokens_an_epoch = card["tokens_seen"] / card["epochs"] if card["epochs"] else None  # None: every batch is new
    return [
        {
            "checkpoint": weights.checkpoint,
            "paradigm": cell.paradigm["name"],
            "epoch": point["tokens"] / tokens_an_epoch if tokens_an_epoch else None,
            "peak_rss_bytes": card["peak_bytes"],
            "is_bound": cell.model.noise is not None,
            "train_bytes_per_token": card.get("train_bytes_per_token"),  # newer than the zoo
            **point,
        }
        for point in card["curve"]
    ]
