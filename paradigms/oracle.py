"""`python -m paradigms.oracle FOLDER`: what cells on known processes wrote and learnt, held against the source.

Reads the records of a sweep (experiment=processes), writes `oracle.md`, `oracle.csv` and `oracle_positions.csv` beside
them and prints the first. `paradigms.quality.oracle` says what each figure is. Excess bits are paired document by
document where the weights of the records are at hand (the sweep's plan, and the same code); elsewhere they are the
recorded bits per byte less the source's for the same documents, whose interval is wider.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from scipy import stats

from paradigms.bench import torch_device
from paradigms.build import build
from paradigms.cell import Cell
from paradigms.cli import exit_code
from paradigms.data.pairs import PairRows
from paradigms.data.processes.agreement import Agreement
from paradigms.data.processes.hidden_markov import HiddenMarkov
from paradigms.data.processes.markov import Markov
from paradigms.data.processes.process import Estimated, Process
from paradigms.data.splits import Corpus
from paradigms.data.stream import EvaluationWindows
from paradigms.data.symbols import SymbolTokenizer
from paradigms.heldout import NUM_MASKS
from paradigms.measure.environment import set_threads
from paradigms.plan import PlannedCell, cells_of
from paradigms.quality.by_position import PositionBits, column_nats, in_buckets
from paradigms.quality.oracle import Compared, Excess, Texts, TrueBits, compare, excess_of, source_nats, true_bits
from paradigms.records import read_table, write_whole
from paradigms.training.printed import Printed
from paradigms.weights import Weights, load_corpus

PROCESSES: tuple[type[Process], ...] = (Markov, HiddenMarkov, Agreement)
LEVEL = 0.95
LEGEND = (
    "Excess: what held-out documents cost the model more than the source, 0 is ideal; ≤: of a bound; ‡: not paired by "
    "document. Texts: what generated letters cost the source, whose entropy is ideal, not less. [ ]: 95 % over "
    "documents or texts. n-grams: total variation from the source's frequencies, and the range of 39 sets of as many "
    "texts drawn from it, between which one more such set lies in 95 % of all cases; *: outside, as one such figure in "
    "20 is by chance."
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A cell, all its rounds together.

    Attributes:
        texts: what it wrote.
        statistics: see `quality.oracle.compare`.
        excess: of its model; None of a cell whose quality was not measured and whose weights are not at hand.
        paired: whether the excess was taken document by document.
        positions, source_positions: bits by position of the model and of the source for the same documents.
    """

    cell: str
    paradigm: str
    process: Process
    parameters: int | None
    texts: Texts
    bits: TrueBits
    statistics: Mapping[str, Compared]
    excess: Excess | None
    paired: bool
    positions: Sequence[PositionBits] = ()
    source_positions: Sequence[PositionBits] = ()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m paradigms.oracle", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("folder", type=Path, help="of a sweep, such as runs/processes")
    options = parser.parse_args(arguments)

    def run() -> None:
        rows = measure(options.folder)
        written = report(rows)
        write_whole(options.folder / "oracle.md", written + "\n")
        write_whole(options.folder / "oracle.csv", _csv(map(columns, rows)))
        write_whole(
            options.folder / "oracle_positions.csv", _csv(line for row in rows for line in position_columns(row))
        )
        print(written)

    return exit_code(run)


def measure(folder: Path) -> list[Row]:
    """A row for every cell of the folder whose corpus is a known process.

    Raises:
        ValueError: there is none, or one that wrote no texts of its own from nothing, letter by letter.
    """
    if not folder.is_dir():
        raise ValueError(f"no folder {folder}; give that of a sweep, as of experiment=processes: runs/processes")
    runs: dict[str, dict[int, dict[str, Any]]] = {}
    for run in sorted(read_table(folder, "runs"), key=lambda run: str(run.get("started_at"))):
        if run.get("status") == "ok" and process_of(run) is not None:
            runs.setdefault(run["cell_key"], {})[run["round"]] = run  # the latest of a round
    if not runs:
        raise ValueError(f"{folder} has no cell of a known process; run one, as in experiment=processes")
    wanted = {run["key"] for rounds in runs.values() for run in rounds.values()}
    tokens: dict[str, list[list[int]]] = {}
    for sample in read_table(folder, "samples"):
        if sample["key"] in wanted:
            tokens.setdefault(sample["key"], []).append(sample["token_ids"])
    planned = cells_of(folder)
    return [
        _row(list(rounds.values()), tokens, planned.get(cell_key))
        for cell_key, rounds in sorted(runs.items(), key=lambda item: next(iter(item[1].values()))["cell"])
    ]


def process_of(run: Mapping[str, Any]) -> Process | None:
    """The process of a record, which names the parameters of its corpus and not its kind; no two kinds share them."""
    given = {key.removeprefix("corpus."): value for key, value in run.items() if key.startswith("corpus.")}
    for kind in PROCESSES:
        if {field.name for field in fields(kind)} == set(given):
            return kind(**given)
    return None


def _row(runs: Sequence[dict[str, Any]], tokens: Mapping[str, list[list[int]]], planned: PlannedCell | None) -> Row:
    run, process = runs[0], process_of(runs[0])
    assert process is not None
    name = run["cell"]
    tokenizer = SymbolTokenizer(process.letters, "")
    if run.get("checkpoint_tokenizer") != tokenizer.sha256:
        raise ValueError(f"{name}: its texts are not written letter by letter; run it with tokenizer=symbols")
    if run.get("workload.prompt_len") != 1:
        raise ValueError(
            f"{name}: its texts go on from prompts, workload.prompt_len={run.get('workload.prompt_len')}; with "
            "1, begin-of-text alone, they are the model's own"
        )
    written = [ids for each in runs for ids in tokens.get(each["key"], ())]
    if not written:
        raise ValueError(f"{name} has no samples in its records; copy the shards samples-*.jsonl too")
    corpus = load_corpus(process)
    if run.get("corpus_sha256") != corpus.sha256:
        raise ValueError(f"{name}: its documents were drawn by other code than this; run it again")
    texts = Texts.read(written, process, eos_id=tokenizer.eos_id)
    excess, paired, positions, of_source = _of_model(run, process, corpus, tokenizer, planned)
    return Row(
        cell=name,
        paradigm=run["paradigm.name"],
        process=process,
        parameters=run.get("parameters"),
        texts=texts,
        bits=true_bits(process, texts.letters_NT),
        statistics=compare(process, texts),
        excess=excess,
        paired=paired,
        positions=positions,
        source_positions=of_source,
    )


def _of_model(
    run: Mapping[str, Any],
    process: Process,
    corpus: Corpus,
    tokenizer: SymbolTokenizer,
    planned: PlannedCell | None,
) -> tuple[Excess | None, bool, list[PositionBits], list[PositionBits]]:
    """Excess, whether it is paired, bits by position of model and source."""
    windows = heldout_rows(process, corpus, tokenizer)
    of_source = in_buckets(source_nats(process, windows), windows, tokenizer.token_bytes, is_bound=False)
    weights = _weights(run, planned)
    if weights is None:
        return recorded_excess(run, process, windows), False, [], of_source
    nats_NT, is_bound = column_nats(weights.model, windows, mask_id=tokenizer.mask_id, num_masks=NUM_MASKS)
    positions = in_buckets(nats_NT, windows, tokenizer.token_bytes, is_bound=is_bound)
    return excess_of(process, nats_NT, windows, is_bound=is_bound), True, positions, of_source


def heldout_rows(process: Process, corpus: Corpus, tokenizer: SymbolTokenizer) -> EvaluationWindows:
    """All held-out documents, a row each."""
    return PairRows.of(corpus, tokenizer, "heldout").windows(process.row_tokens)


def _weights(run: Mapping[str, Any], planned: PlannedCell | None) -> Weights | None:
    """The weights of a record, on their device; None where the cell is not known, or they would be others now."""
    if planned is None:
        return None
    cell: Cell = build(planned.config)
    if cell.checkpoint_id() != run["checkpoint"]:
        return None
    set_threads(cell.device.threads)
    weights = cell.train.load(cell.wanted, report=Printed(planned.name))
    dtype = getattr(torch, cell.device.dtype)
    weights.model.to(device=torch_device(cell.device.name), dtype=dtype).eval().requires_grad_(False)
    return weights


def recorded_excess(run: Mapping[str, Any], process: Process, windows: EvaluationWindows) -> Excess | None:
    """From the bits per byte of a record, which are those of the same rows; their error is not less by the pairing."""
    bits = run.get("bits_per_byte")
    if bits is None:
        return None
    true = float(source_nats(process, windows).sum() / math.log(2) / (process.document_len * len(windows.tokens_NT)))
    se = run.get("bits_per_byte_se")
    return Excess(
        bits=Estimated(bits - true, math.nan if se is None else se, len(windows.tokens_NT)),
        model_bits=bits,
        true_bits=true,
        is_bound=bool(run.get("bits_per_byte_is_bound")),
    )


def interval(estimated: Estimated) -> tuple[float, float]:
    """Where the figure lies at 95 %, by Student's t over the texts behind it; NaN where its error is not known."""
    if estimated.se == 0:
        return estimated.value, estimated.value
    if not estimated.count > 1:
        return math.nan, math.nan
    reach = float(stats.t.ppf((1 + LEVEL) / 2, estimated.count - 1)) * estimated.se
    return estimated.value - reach, estimated.value + reach


# ------------------------------------------------------------ what is shown


def report(rows: Sequence[Row]) -> str:
    """Markdown: cells, long range, positions."""
    grams = sorted({name for row in rows for name in row.statistics if name.startswith("grams_")})
    parts = [
        _markdown(
            ["cell", "excess, bits a letter", "texts, bits a letter", "entropy of the source"]
            + [f"{name.removeprefix('grams_')}-grams off by" for name in grams]
            + ["texts", "of another length", "broken", "impossible letters"],
            [_cells(row, grams) for row in rows],
        ),
        LEGEND,
        *_long_range(rows),
        *_positions(rows),
    ]
    return "\n\n".join(parts)


def _cells(row: Row, grams: Sequence[str]) -> list[str]:
    excess = "–"
    if row.excess is not None:
        excess = f"{'≤ ' * row.excess.is_bound}{_with_interval(row.excess.bits)}{'' if row.paired else ' ‡'}"
    return [
        row.cell,
        excess,
        _with_interval(row.bits.bits),
        _with_interval(row.process.entropy_bits),
        *(_compared(row.statistics.get(name)) for name in grams),
        f"{len(row.texts)}",
        f"{row.texts.another_length}",
        f"{row.texts.broken}",
        f"{row.bits.impossible.value:.2%}",
    ]


def _long_range(rows: Sequence[Row]) -> Iterator[str]:
    for kind, words in (
        ("information", "Mutual information of letters so far apart, bits"),
        ("closings", "Clauses a text that close so far from their beginning (or up to the next figure)"),
        ("kept", "Share of them that agree"),
    ):
        names = {name: int(name.rpartition("_")[2]) for row in rows for name in row.statistics if name.startswith(kind)}
        having = [row for row in rows if names.keys() & row.statistics.keys()]
        ordered = sorted(names, key=lambda name: names[name])
        if having:
            yield f"{words}; the range of 39 sets of the source, *: outside:"
            yield _markdown(
                ["cell", *(str(names[name]) for name in ordered)],
                [[row.cell, *(_compared(row.statistics.get(name)) for name in ordered)] for row in having],
            )


def _positions(rows: Sequence[Row]) -> Iterator[str]:
    having = [row for row in rows if row.positions]
    for length in sorted({row.process.document_len for row in having}):
        alike = [row for row in having if row.process.document_len == length]
        lines = []
        for row in alike:
            pairs = list(zip(row.positions, row.source_positions, strict=True))
            lines.append([row.cell, *(f"{'≤ ' * own.is_bound}{_bits(own)} ({_bits(true)})" for own, true in pairs)])
        columns = [f"{p.first} to {p.last}" if p.first < p.last else f"{p.first}" for p in alike[0].positions]
        yield "Bits a letter by column (the source's for the same documents):"
        yield _markdown(["cell", *columns], lines)


def _bits(position: PositionBits) -> str:
    return f"{position.bits_per_byte.value:.3f} ± {position.bits_per_byte.se:.3f}"


def _compared(found: Compared | None) -> str:
    if found is None:
        return "–"
    value = "–" if math.isnan(found.value) else f"{found.value:.3g}"
    between = "–" if math.isnan(found.low) else f"{found.low:.3g}, {found.high:.3g}"
    return f"{value}{'' if found.as_the_source else '*'} [{between}]"


def _with_interval(estimated: Estimated) -> str:
    low, high = interval(estimated)
    if math.isnan(low) or low == high:
        return f"{estimated.value:.3f}"
    return f"{estimated.value:.3f} [{low:.3f}, {high:.3f}]"


def _markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    ruled = ["---", *("---:" for _ in head[1:])]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ruled, *lines))


def columns(row: Row) -> dict[str, Any]:
    """A line of oracle.csv."""
    found: dict[str, Any] = {
        "cell": row.cell,
        "paradigm": row.paradigm,
        "process": row.process.name,
        "parameters": row.parameters,
        "document_len": row.process.document_len,
        "texts": len(row.texts),
        "texts_of_another_length": row.texts.another_length,
        "texts_broken": row.texts.broken,
    }
    figures = {
        "text_bits": row.bits.bits,
        "impossible_share": row.bits.impossible,
        "source_entropy_bits": row.process.entropy_bits,
        "source_entropy_rate_bits": row.process.entropy_rate_bits,
    }
    if row.excess is not None:
        figures["excess_bits"] = row.excess.bits
        found |= {"excess_is_bound": row.excess.is_bound, "excess_is_paired": row.paired}
    for name, figure in figures.items():
        low, high = interval(figure)
        found |= {name: figure.value, f"{name}_low": low, f"{name}_high": high}
    for name, compared in row.statistics.items():
        found |= {
            name: compared.value,
            f"{name}_source_mean": compared.mean,
            f"{name}_source_low": compared.low,
            f"{name}_source_high": compared.high,
            f"{name}_exact": compared.exact,
        }
    return found


def position_columns(row: Row) -> Iterator[dict[str, Any]]:
    """Lines of oracle_positions.csv, one a stretch of columns."""
    for own, true in zip(row.positions, row.source_positions, strict=bool(row.positions)):
        yield {
            "cell": row.cell,
            "paradigm": row.paradigm,
            "first": own.first,
            "last": own.last,
            "bits_per_byte": own.bits_per_byte.value,
            "bits_per_byte_se": own.bits_per_byte.se,
            "is_bound": own.is_bound,
            "source_bits_per_byte": true.bits_per_byte.value,
            "source_bits_per_byte_se": true.bits_per_byte.se,
            "tokens": own.num_tokens,
            "bytes": own.num_bytes,
        }


def _csv(lines: Iterable[Mapping[str, Any]]) -> str:
    rows = list(lines)
    names = list(dict.fromkeys(name for row in rows for name in row))
    file = io.StringIO()
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    for row in rows:  # what is not known stays empty
        empty = {name for name, value in row.items() if isinstance(value, float) and math.isnan(value)}
        writer.writerow({name: "" if name in empty else value for name, value in row.items()})
    return file.getvalue()


if __name__ == "__main__":
    raise SystemExit(main())
