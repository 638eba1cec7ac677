"""What a sweep generated, cell by cell, as texts that can be scored; and held-out text of equal lengths beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import analysis
from paradigms import zoo
from paradigms.build import build
from paradigms.cli import compose, explain
from paradigms.data.splits import Corpus
from paradigms.data.stream import prompt_offsets, token_stream
from paradigms.data.tokenizers import Tokenizer
from paradigms.paradigm import Request
from paradigms.plan import PlannedCell, cells_of
from paradigms.quality.external import Text
from paradigms.quality.novelty import TrainingText
from paradigms.quality.sample_scores import Generation
from paradigms.records import content_hash
from paradigms.scores import stretches
from paradigms.training.checkpoint import load_tokenizer
from paradigms.weights import CHECKPOINTS, load_corpus
from paradigms.workload import Workload

HELD_OUT = "held-out text"


@dataclass(frozen=True, eq=False)
class Material:
    """What the texts of a cell are made of, and held against."""

    corpus: Corpus
    tokenizer: Tokenizer

    @cached_property
    def training(self) -> TrainingText:
        return TrainingText.cached((text.encode() for text in self.corpus.documents["train"]), name=self.corpus.sha256)

    @property
    def name(self) -> str:
        return f"{self.corpus.sha256[:16]}-{self.tokenizer.sha256[:16]}"


@dataclass(frozen=True, eq=False)
class Group:
    """The texts of a cell, or of the reference for cells of one work.

    Attributes:
        name: for people.
        key: of the cell; of a reference, a name that no cell has.
        machine: that generated; None of a reference.
        factors: of the cell's config, flat.
        at: (key, repeat, row) of each text, as the `samples` table has them.
    """

    name: str
    key: str
    machine: str | None
    factors: Mapping[str, Any]
    material: Material
    work: Workload
    generations: list[Generation]
    at: list[tuple[str, int, int]]
    is_reference: bool = False


def cells(
    folder: Path, *, max_samples: int | None, overrides: Sequence[str], say: Callable[[str], None]
) -> Iterator[Group]:
    """The texts of each cell; a request that was run again with the same seed is the same text, and counts once.

    Args:
        max_samples: of a cell, at most; None takes all.
        overrides: hydra's, where the folder does not say how its corpus is made.
        say: told of a cell that has no texts to score, and why.

    Raises:
        ValueError: a corpus or tokenizer that is not that of the records.
    """
    frames = analysis.load(folder)
    samples = frames.samples
    if not len(samples):
        return
    wanted = ["key", "repeat", "row", "finish_reason", "requested_tokens"]
    samples = samples.merge(frames.requests.reindex(columns=wanted), on=["key", "repeat", "row"], how="left")
    planned = cells_of(folder)
    materials: dict[str, Material] = {}
    units = frames.ok.sort_values("round", kind="stable")
    names = _names(units)
    for cell, runs in units.groupby("cell", sort=False):
        run = runs.iloc[0]
        rows = samples.merge(runs[["key", "round"]], on="key").sort_values(["round", "repeat", "row"], kind="stable")
        rows = rows.drop_duplicates(["request_id", "seed"])
        if max_samples is not None:
            rows = rows.head(max_samples)
        if not len(rows):
            continue
        if (prompts := run.get("workload.prompts")) != "heldout":
            say(f"{names[cell]}: left out, workload.prompts={prompts} (a task has its checker, random ids no text)")
            continue
        material = _material(run, planned, overrides, materials)
        work = _work(run)
        yield Group(
            name=names[cell],
            key=str(run["cell_key"]),
            machine=str(run["machine_id"]),
            factors={str(name): run[name] for name in run.index if "." in str(name)},
            material=material,
            work=work,
            generations=[_generation(row, material.tokenizer, work) for _, row in rows.iterrows()],
            at=[(str(row["key"]), int(row["repeat"]), int(row["row"])) for _, row in rows.iterrows()],
        )


def _generation(row: pd.Series, tokenizer: Tokenizer, work: Workload) -> Generation:
    canvas = row.get("canvas_ids")
    request = Request(
        id=str(row["request_id"]),
        prompt=tuple(row["prompt_ids"]),
        max_new_tokens=work.output_len,
        canvas=tuple(canvas) if isinstance(canvas, list) else None,
    )
    tokens = tuple(row["token_ids"])
    truncated = work.stop == "natural" and row["finish_reason"] == "length"
    return Generation(tokens, in_place(request, tokens, tokenizer), truncated)


def in_place(request: Request, tokens: Sequence[int], tokenizer: Tokenizer) -> Text:
    """The bytes of prompt, output and what is given, and which of them are output."""
    data, is_output = tokenizer.decode_bytes(request.prompt), []
    is_output += [False] * len(data)
    for is_open, stretch in stretches(request, tokens):
        piece = tokenizer.decode_bytes(stretch)
        data += piece
        is_output += [is_open] * len(piece)
    return Text(data, np.array(is_output, bool))


def _work(run: pd.Series) -> Workload:
    def whole(name: str) -> int:
        value = run.get(f"workload.{name}")
        return 0 if value is None or pd.isna(value) else int(value)

    return Workload(
        prompt_len=whole("prompt_len"),
        output_len=whole("output_len"),
        num_gaps=whole("num_gaps"),
        given_len=whole("given_len"),
        seed=whole("seed"),
        stop=str(run.get("workload.stop")),
    )


def _material(
    run: pd.Series, planned: Mapping[str, PlannedCell], overrides: Sequence[str], known: dict[str, Material]
) -> Material:
    """Corpus and tokenizer of a unit, checked against the hashes that it recorded."""
    name = f"{run.get('corpus_sha256')} {run.get('checkpoint_tokenizer')}"
    if name in known:
        return known[name]
    cell = planned.get(str(run["cell_key"]))
    if cell is None or overrides:
        try:
            config = compose(overrides)
        except Exception as error:
            raise ValueError(explain(error)) from error
    else:
        config = cell.config
    corpus = load_corpus(build(config["corpus"], "corpus"))
    if corpus.sha256 != run["corpus_sha256"]:
        raise ValueError(
            f"corpus {corpus.name!r} is another text here ({corpus.sha256[:12]}) than that of the records "
            f"({str(run['corpus_sha256'])[:12]}): use the Python and the files that they were made with, or name the "
            "corpus by overrides (corpus=...)"
        )
    asked_for = any(override.startswith("tokenizer") for override in overrides)
    known[name] = Material(corpus, _tokenizer(build(config["tokenizer"], "tokenizer"), corpus, run, asked_for))
    return known[name]


def _tokenizer(config: Any, corpus: Corpus, run: pd.Series, asked_for: bool) -> Tokenizer:
    """The tokenizer of the records: by the config, of the zoo, or beside the checkpoint; that asked for, or none."""
    wanted = run.get("checkpoint_tokenizer")
    if asked_for and isinstance(wanted, str) and (given := config.load(corpus)).sha256 != wanted:
        raise ValueError(
            f"the tokenizer that was asked for ({given.sha256[:12]}) did not write the texts of these records "
            f"({wanted[:12]} did); leave tokenizer=... out, and it is looked for in the zoo and beside the checkpoint"
        )
    makers: list[Callable[[], Tokenizer]] = [lambda: config.load(corpus)]
    makers += [lambda name=name: load_tokenizer(zoo.folder(name)) for name in zoo.names()]
    makers.append(lambda: load_tokenizer(CHECKPOINTS / str(run["checkpoint"])))
    for make in makers:
        try:
            tokenizer = make()
        except (ValueError, OSError):
            continue
        if not isinstance(wanted, str) or tokenizer.sha256 == wanted:
            return tokenizer
    raise ValueError(
        f"the tokenizer of the records ({str(wanted)[:12]}) is neither that of the config, nor in the zoo, nor in "
        f"{CHECKPOINTS / str(run['checkpoint'])}; bring the checkpoint's folder there"
    )


def references(cells: Sequence[Group]) -> Iterator[Group]:
    """For cells of one work and text: what really follows the prompts that they were asked, and as many more that are
    drawn like these, if there are so many. Texts that end by themselves are cut where these end.
    """
    shapes: dict[tuple[str, Workload], list[Group]] = {}
    for cell in cells:
        shapes.setdefault((cell.material.name, cell.work), []).append(cell)
    for (name, work), alike in shapes.items():
        material, most = alike[0].material, max(len(cell.generations) for cell in alike)
        key = f"reference-{content_hash([name, dataclasses.asdict(work), most])}"
        generations = list(islice(_true_texts(work, material, 4 * most), 2 * most))
        if not generations:
            continue
        yield Group(
            name=HELD_OUT if len(shapes) == 1 else f"{HELD_OUT}, {work.prompt_len} + {work.output_len} tokens",
            key=key,
            machine=None,
            factors={},
            material=material,
            work=work,
            generations=generations,
            at=[(key, 0, row) for row in range(len(generations))],
            is_reference=True,
        )


def _true_texts(work: Workload, material: Material, num_places: int) -> Iterator[Generation]:
    """Held-out text from the places that `requests.make_requests` takes its prompts from, in the same order; none from
    those where it breaks off within a text.
    """
    tokenizer = material.tokenizer
    stream = token_stream(material.corpus, tokenizer, "heldout")
    ids = {"bos_id": tokenizer.bos_id, "eos_id": tokenizer.eos_id}
    for offset in prompt_offsets(stream, prompt_len=work.text_len, count=num_places, seed=work.seed, **ids):
        text = [tokenizer.bos_id, *stream[offset : offset + work.total_len - 1].tolist()]
        found = _true_text(text, work, tokenizer)
        if len(text) == work.total_len or (work.stop == "natural" and not found.truncated):
            yield found


def _true_text(text: list[int], work: Workload, tokenizer: Tokenizer) -> Generation:
    prompt, rest = text[: work.prompt_len], text[work.prompt_len :]
    canvas = work.canvas(rest)
    output = [token for token, given in zip(rest, canvas or [None] * len(rest), strict=True) if given is None]
    ended = work.stop == "natural" and tokenizer.eos_id in output
    if ended:
        output = output[: output.index(tokenizer.eos_id) + 1]
    request = Request(id="reference", prompt=tuple(prompt), max_new_tokens=work.output_len, canvas=canvas)
    return Generation(tuple(output), in_place(request, output, tokenizer), work.stop == "natural" and not ended)


def _names(units: pd.DataFrame) -> dict[Any, str]:
    """A name for each cell: its label, and the factors in which cells of that label differ."""
    cells = units.drop_duplicates("cell")
    names = {}
    for label, group in cells.groupby("paradigm.label", sort=False):
        factors = [str(name) for name in group if "." in str(name)]
        factors = [name for name in factors if not name.startswith(("paradigm.", "sweep."))]
        differing = [name for name in factors if len({repr(value) for value in group[name]}) > 1]
        for _, run in group.iterrows():
            told = [f"{name.rpartition('.')[2]} {run[name]}" for name in differing]
            names[run["cell"]] = ", ".join([str(label), *told])
    return names
