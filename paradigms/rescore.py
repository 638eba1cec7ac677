"""`python -m paradigms.rescore FOLDER`: quality of what a sweep generated, by metrics that cost too much beside it.

Reads the records of a sweep and scores each text of its ok units, all rounds of a cell together:

- generative perplexity under an external scorer (`--scorer smollm2`, or any causal model of transformers), and entropy;
- diversity within and among texts, repetition, and what stands in the training text already;
- MAUVE against held-out text, with its ceiling: what really follows the prompts that were asked.

The same is done to that held-out text itself, the ideal, which stands in the table as a line of its own.

Written into the sweep's records: `scores-<shard>.jsonl`, a line a text, and `set_scores-<shard>.jsonl`, a line a cell;
and `quality.csv` into its folder. What was scored by the same scorer and the same code is not scored again, so Ctrl-C
is safe. A folder without plan/ (a published one) says nothing of how its corpus is made: give overrides as for
`python -m paradigms`, such as corpus=stdlib_docs.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import math
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from paradigms.bench import torch_device
from paradigms.cli import exit_code
from paradigms.generated import Group, cells, references
from paradigms.measure.environment import gpu_names
from paradigms.measure.imported_code import imported_code_hash
from paradigms.progress import Progress, count, progress, shown
from paradigms.quality import mauve
from paradigms.quality.external import ExternalScorer
from paradigms.quality.sample_scores import sample_columns, set_columns
from paradigms.records import RecordWriter, content_hash, write_whole

SCORES, SET_SCORES, TABLE = "scores", "set_scores", "quality.csv"
CODE = ("paradigms.quality.sample_scores", "paradigms.quality.mauve")
FORMAT = 2  # of what this module itself makes of the records; another number scores everything again
CHUNK = 32  # texts that are scored, and written, at once
COLUMNS = {  # of the table that is printed: name -> (column, factor, digits)
    "texts": ("samples", 1, 0),
    "truncated": ("truncated", 1, 0),
    "rejected": ("external_rejected", 1, 0),
    "gen. perplexity": ("generative_perplexity", 1, 2),
    "bits / byte": ("external_bits_per_byte", 1, 3),
    "scorer's entropy": ("external_token_entropy_nats", 1, 3),
    "token entropy": ("token_entropy_nats", 1, 3),
    "distinct-2 of the set": ("set_distinct_2", 1, 3),
    "self-BLEU": ("self_bleu", 1, 3),
    "rep-4": ("rep_4", 1, 3),
    "MAUVE": ("mauve", 1, 3),
    "its ceiling": ("mauve_ceiling", 1, 3),
    "longest match, bytes": ("longest_match_bytes", 1, 1),
    "32-byte grams seen, %": ("seen_share", 100, 1),
}


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is to be computed.

    Attributes:
        reference: whether held-out text is scored beside, and is what MAUVE compares with.
        max_samples: of a cell, at most; None takes all.
        overrides: hydra's, where the folder does not say how its corpus is made.
    """

    scorer: str | None = None
    reference: bool = True
    novelty: bool = True
    max_samples: int | None = None
    device: str = "auto"
    overrides: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.max_samples is not None and self.max_samples < 1:
            raise ValueError(f"--max-samples {self.max_samples} must be at least 1")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m paradigms.rescore", description=(__doc__ or "").partition(": ")[2].partition("\n\n")[0]
    )
    parser.add_argument("folder", type=Path, help="of a sweep, such as runs/temperatures")
    parser.add_argument("--scorer", help="smollm2 (after `make smollm2`), a folder of transformers, or a hub name")
    parser.add_argument("--reference", choices=("heldout", "none"), default="heldout", help="what is the ideal")
    parser.add_argument("--max-samples", type=int, help="texts of a cell (default: all)")
    parser.add_argument("--no-novelty", action="store_true", help="do not look into the training text")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="of the scorer")
    parser.add_argument("overrides", nargs="*", help="hydra overrides, such as corpus=stdlib_docs")
    given = parser.parse_intermixed_args(arguments)

    def run() -> None:
        options = Options(
            scorer=given.scorer,
            reference=given.reference == "heldout",
            novelty=not given.no_novelty,
            max_samples=given.max_samples,
            device=given.device,
            overrides=tuple(given.overrides),
        )
        display = progress()
        try:
            print(rescore(given.folder, options, display))
        finally:
            display.close()

    again = "interrupted; the same command goes on with what is not scored yet"
    return exit_code(run, interrupted=again)


def rescore(folder: Path, options: Options, display: Progress) -> str:
    """Score the texts of a sweep, write what was found, and return it as a Markdown table.

    Raises:
        ValueError: no texts to score, a corpus or tokenizer that is not that of the records, an impossible scorer.
    """
    scorer = None
    if options.device == "cuda" and not gpu_names():
        raise ValueError("--device cuda, but this machine shows no NVIDIA GPU; use --device cpu, or auto")
    if options.scorer is not None:
        scorer = ExternalScorer.load(options.scorer, device=torch_device(options.device))
    found = cells(folder, max_samples=options.max_samples, overrides=options.overrides, say=display.say)
    groups = sorted(found, key=lambda group: group.name)
    if not groups:
        raise ValueError(f"no texts to score in {shown(folder)}: no ok unit that goes on from held-out text has any")
    if options.reference:
        groups += references(groups)
    writer = RecordWriter(folder, f"rescore-{uuid.uuid4().hex[:12]}")
    scored = _scored(folder, groups, scorer, options, writer, display)
    sets = _set_scored(folder, groups, scored, scorer, options, writer, display)
    rows = [{"name": group.name, **found} for group, found in zip(groups, sets, strict=True)]
    factors = _varying([group for group in groups if not group.is_reference])
    _write_csv(
        folder / TABLE,
        [
            {name: value for name, value in row.items() if name != "scored_at"}
            | {name: group.factors.get(name) for name in factors}
            for group, row in zip(groups, rows, strict=True)
        ],
    )
    return "\n".join([_table(rows), "", *_notes(rows, scorer), f"written: {shown(folder / TABLE)}"])


# ---------------------------------------------------------------- scoring


def _scored(
    folder: Path,
    groups: Sequence[Group],
    scorer: ExternalScorer | None,
    options: Options,
    writer: RecordWriter,
    display: Progress,
) -> list[list[dict[str, Any]]]:
    """A record a text for each group; those that are there already are taken."""
    known = {}
    for row in _records(folder, SCORES):
        known[row["scores_id"], row["key"], row["repeat"], row["row"]] = row
    identities = [_identity(group, scorer, options) for group in groups]
    to_do = [
        [n for n, at in enumerate(group.at) if (identity, *at) not in known]
        for group, identity in zip(groups, identities, strict=True)
    ]
    display.stage("score texts", sum(-(-len(numbers) // CHUNK) for numbers in to_do))
    left, started, done = sum(map(len, to_do)), time.perf_counter(), 0
    for group, identity, numbers in zip(groups, identities, to_do, strict=True):
        training = group.material.training if options.novelty and numbers else None
        numbers.sort(key=lambda n, group=group: len(group.generations[n].text.data))  # little is then padded
        for start in range(0, len(numbers), CHUNK):
            chunk = numbers[start : start + CHUNK]
            began = time.perf_counter()
            display.start(group.name, (began - started) / done * left if done else None)
            external: list[dict[str, Any]] = [{} for _ in chunk]
            if scorer is not None:
                external = [one.columns() for one in scorer.score([group.generations[n].text for n in chunk])]
            rows, said = [], _said(scorer, options)
            for n, columns in zip(chunk, external, strict=True):
                key, repeat, row = group.at[n]
                rows.append(
                    {
                        **{"key": key, "repeat": repeat, "row": row, "scores_id": identity, "cell_key": group.key},
                        **said,
                        **sample_columns(group.generations[n], training),
                        **columns,
                    }
                )
            writer._append(SCORES, rows)
            known |= {(identity, row["key"], row["repeat"], row["row"]): row for row in rows}
            left, done = left - len(chunk), done + len(chunk)
            display.done(group.name, time.perf_counter() - began)
    return [[known[identity, *at] for at in group.at] for group, identity in zip(groups, identities, strict=True)]


def _set_scored(
    folder: Path,
    groups: Sequence[Group],
    scored: Sequence[Sequence[Mapping[str, Any]]],
    scorer: ExternalScorer | None,
    options: Options,
    writer: RecordWriter,
    display: Progress,
) -> list[dict[str, Any]]:
    """A record a group; those of exactly these texts that are there already are taken."""
    known = {row["set_id"]: row for row in _records(folder, SET_SCORES)}
    references = {(group.material.name, group.work): group for group in groups if group.is_reference}
    features: dict[str, np.ndarray] = {}
    found: list[dict[str, Any]] = []
    display.stage("score sets", len(groups))
    for group, rows in zip(groups, scored, strict=True):
        display.start(group.name)
        reference = references.get((group.material.name, group.work))
        identity = content_hash(
            [_identity(group, scorer, options), group.at, reference and reference.key, find_spec("mauve") is not None]
        )
        if identity not in known:
            number = max(1, len(rows) // 2) if group.is_reference else len(rows)  # as many as a cell has
            columns = set_columns(group.generations[:number], rows[:number])
            if reference is not None and not group.is_reference:
                columns |= _mauve(group, reference, scorer, features)
            record = {
                **{"key": group.key, "cell_key": group.key, "set_id": identity, "is_reference": group.is_reference},
                **{"reference_key": None if reference is None else reference.key},
                **{"name": group.name, "machine_id": group.machine},
                **_said(scorer, options),
                **columns,
            }
            writer._append(SET_SCORES, [record])
            known[identity] = dict(sorted(record.items()))  # as it is read again
        found.append(known[identity])
        display.done(group.name, 0.0)
    return found


def _mauve(
    group: Group, reference: Group, scorer: ExternalScorer | None, known: dict[str, np.ndarray]
) -> dict[str, Any]:
    """MAUVE of a cell; why there is none, where there is none."""
    about = {"mauve_features": "byte grams" if scorer is None else "scorer", "mauve_problem": None}
    if reference.key not in known:
        known[reference.key] = _features(reference, scorer)
    points_NE, reference_NE = _features(group, scorer), known[reference.key]
    about["mauve_left_out"] = int(np.isnan(points_NE).any(1).sum())
    try:
        points_NE, reference_NE = (side[~np.isnan(side).any(1)] for side in (points_NE, reference_NE))
        return about | mauve.compare(points_NE, reference_NE).columns()
    except ValueError as error:
        return about | {"mauve_problem": str(error)}


def _features(group: Group, scorer: ExternalScorer | None) -> np.ndarray:
    if scorer is not None:
        return scorer.features([generation.text for generation in group.generations])
    return mauve.byte_gram_features([generation.output for generation in group.generations])


def _identity(group: Group, scorer: ExternalScorer | None, options: Options) -> str:
    """Of how texts are scored; equal where a figure may be taken again."""
    return content_hash([_scored_by(scorer, options), group.material.name])


def _scored_by(scorer: ExternalScorer | None, options: Options) -> str:
    """Of the way of scoring, whatever the text; figures of two ways do not compare."""
    return content_hash(
        {
            "scorer": None if scorer is None else scorer.identity,
            "novelty": options.novelty,
            "code": [imported_code_hash(*CODE), FORMAT],
        }
    )


def _said(scorer: ExternalScorer | None, options: Options) -> dict[str, Any]:
    """Who scored, and when, for the records."""
    return {
        "scored_by": _scored_by(scorer, options),
        "scorer": None if scorer is None else scorer.name,
        "scored_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _records(folder: Path, table: str) -> Iterator[dict[str, Any]]:
    """Records of one of our tables; lines that a crash cut off are made again."""
    for path in sorted((folder / "records").glob(f"{table}-*.jsonl")):
        for line in path.read_bytes().splitlines():
            with contextlib.suppress(ValueError):
                yield json.loads(line)


# ---------------------------------------------------------------- what people read


def _varying(groups: Sequence[Group]) -> list[str]:
    """Factors that differ between cells."""
    names = dict.fromkeys(name for group in groups for name in group.factors)
    return [name for name in names if len({repr(group.factors.get(name)) for group in groups}) > 1]


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    shown_columns = {
        head: spec for head, spec in COLUMNS.items() if any(_number(row.get(spec[0])) is not None for row in rows)
    }
    lines = [f"| | {' | '.join(shown_columns)} |", "|---|" + "---:|" * len(shown_columns)]
    for row in rows:
        cells = [_cell(row, *spec) for spec in shown_columns.values()]
        lines.append(f"| {row['name']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(row: Mapping[str, Any], column: str, factor: float, digits: int) -> str:
    value, low, high = (_number(row.get(f"{column}{end}")) for end in ("", "_low", "_high"))
    if value is None:
        return ""
    text = f"{value * factor:.{digits}f}"
    if low is None or high is None:
        return text
    return f"{text} [{low * factor:.{digits}f}, {high * factor:.{digits}f}]"


def _number(value: Any) -> float | None:
    return None if value is None or isinstance(value, str | dict | list) or math.isnan(value) else float(value)


def _notes(rows: Sequence[Mapping[str, Any]], scorer: ExternalScorer | None) -> list[str]:
    """What the table cannot say in a number."""
    notes = [
        f"{row['name']}: {count(int(number), 'text')} rejected, {reason}"
        for row in rows
        for reason, number in (row.get("external_rejected_reasons") or {}).items()
        if number
    ]
    problems = {str(row["mauve_problem"]) for row in rows if row.get("mauve_problem")}
    if len({row["samples"] for row in rows}) > 1:
        problems.add("self-BLEU and distinct-n depend on the number of texts, which differs here: use --max-samples")
    judged = "no external scorer (--scorer)" if scorer is None else f"external scorer: {scorer.name}"
    return [*notes, *sorted(problems), f"{judged}; intervals of 95 % over texts; compare equal lengths only"]


def _write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    file = io.StringIO()
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, file.getvalue())


if __name__ == "__main__":
    raise SystemExit(main())
