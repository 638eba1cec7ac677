"""Quality with an oracle: at its ideal for the source itself, off it for what is spoiled; and its command."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from data.processes.source_models import SourceDenoiser, SourceModel, shuffled, tempered
from scipy.stats import binom

from paradigms import bench, oracle
from paradigms.build import build
from paradigms.cell import Cell
from paradigms.cli import planned_cells
from paradigms.data.pairs import PairRows
from paradigms.data.processes.agreement import Agreement
from paradigms.data.processes.hidden_markov import HiddenMarkov
from paradigms.data.processes.markov import Markov
from paradigms.data.processes.process import Estimated
from paradigms.data.symbols import SymbolTokenizer
from paradigms.heldout import heldout_likelihood
from paradigms.plan import Plan
from paradigms.quality.oracle import (
    NO_LETTER,
    Compared,
    Texts,
    closings,
    compare,
    excess_bits,
    gram_distance,
    mutual_information_bits,
    pair_counts,
    true_bits,
)
from paradigms.records import RecordWriter, canonical_json

FEW = {"num_train_documents": 40, "num_validation_documents": 10, "num_heldout_documents": 60}
PROCESSES = {
    "markov": Markov(order=2, alphabet=4, document_len=24, **FEW),
    "hidden_markov": HiddenMarkov(states=4, alphabet=4, document_len=24, **FEW),
    "agreement": Agreement(
        numbers=2, colours=1, distractors=2, max_depth=2, document_len=24, open_share=0.25, close_share=0.25, **FEW
    ),
}
each = pytest.mark.parametrize("process", PROCESSES.values(), ids=PROCESSES)


def texts_of(letters_NT) -> Texts:
    return Texts(letters_NT=letters_NT, another_length=0, broken=0)


def off(process, letters_NT) -> set[str]:
    """Kinds of statistics that see that these texts are not the source's, and the true bits if they do."""
    found = {
        name.partition("_")[0]
        for name, each in compare(process, texts_of(letters_NT)).items()
        if not each.as_the_source
    }
    bits = true_bits(process, letters_NT)
    entropy = process.entropy_bits
    if abs(bits.bits.value - entropy.value) > 4 * math.hypot(bits.bits.se, entropy.se) or bits.impossible.value > 0:
        found.add("bits")
    return found


# ---------------------------------------------------------------- by hand


def test_texts_end_at_end_of_text_or_where_they_break():
    process = PROCESSES["markov"]
    whole = [3 + t % 4 for t in range(24)]
    texts = Texts.read([[*whole, 1], whole, [*whole, 5, 5], [3, 4, 1, 5], [3, 0, 5], []], process, eos_id=1)
    assert (texts.letters_NT != -1).sum(1).tolist() == [24, 24, 24, 2, 1, 0]
    assert (texts.another_length, texts.broken, len(texts)) == (4, 1, 6)
    assert texts.letters_NT[3].tolist() == [0, 1, *[-1] * 22]


def test_gram_distance_by_hand():
    letters = np.array([[0, 1, 1, -1], [1, 0, -1, -1]])
    assert gram_distance(letters, 1, np.array([0.5, 0.5])) == pytest.approx(0.1)
    pairs = np.array([0.25, 0.25, 0.25, 0.25])  # 01 11 10 are there once each
    assert gram_distance(letters, 2, pairs) == pytest.approx((0.25 + 3 * (1 / 3 - 1 / 4)) / 2)
    assert math.isnan(gram_distance(np.full((2, 4), -1), 2, pairs))


def test_mutual_information_by_hand():
    letters = np.array([[0, 1, 0, 1], [1, 0, 1, -1]])
    assert pair_counts(letters, 2, 2).tolist() == [[1, 0], [0, 2]]
    assert mutual_information_bits(np.array([[1, 0], [0, 1]])) == pytest.approx(1)
    assert mutual_information_bits(np.outer([0.3, 0.7], [0.6, 0.4])) == pytest.approx(0, abs=1e-12)
    assert math.isnan(mutual_information_bits(np.zeros((2, 2))))


def test_closings_by_hand():
    process = Agreement(numbers=2, colours=1, distractors=2, max_depth=2, document_len=9)
    letters = process.indices(["AnBobonan", "AnBobonbn"])
    assert closings(process, letters) == {(1, 1): (0, 0), (2, 3): (2, 2), (4, 7): (2, 1), (8, 8): (0, 0)}


def test_true_bits_tell_impossible_letters_apart():
    process = Agreement(numbers=2, colours=1, distractors=2, max_depth=2, document_len=3)
    letters = np.array([process.indices(["Ana"])[0], [*process.indices(["Ab"])[0], -1]])
    found = true_bits(process, letters)
    p = [0.075, 0.35, 0.15, 0.075]  # A, then n within a clause, then a; A again
    assert found.bits.value == pytest.approx(-np.log2(p).sum() / 4)
    assert found.impossible.value == pytest.approx(1 / 5)


@pytest.mark.parametrize(
    ("value", "low", "expected"),
    [(0.5, 0.4, True), (0.39, 0.4, False), (math.nan, math.nan, True), (math.nan, 0.4, False), (0.5, math.nan, False)],
)
def test_what_counts_as_the_source(value, low, expected):
    assert Compared(value=value, mean=0.5, low=low, high=0.6).as_the_source is expected


# ---------------------------------------------------------------- at the ideal, and off it


@each
def test_texts_of_the_source_are_as_the_source_in_95_of_100_cases(process):
    """39 sets are drawn for each of 40; the ranges hold as often as they say, for each statistic."""
    inside: dict[str, list[bool]] = {}
    near = []
    for trial in range(40):
        letters = process.sample(np.random.default_rng([9, trial]), 30, process.document_len)
        for name, found in compare(process, texts_of(letters), seed=trial).items():
            inside.setdefault(name, []).append(found.as_the_source)
        bits, entropy = true_bits(process, letters).bits, process.entropy_bits
        near.append(abs(bits.value - entropy.value) < 2.05 * math.hypot(bits.se, entropy.se))
    least = binom.ppf(1e-4, 40, 0.95)
    assert sum(near) >= least
    assert {name: sum(held) for name, held in inside.items() if sum(held) < least} == {}


def test_short_texts_are_held_against_sets_that_are_as_short():
    """A quarter of the letters: frequencies are as far off as those of so few letters of the source."""
    process = PROCESSES["markov"]
    letters = process.sample(np.random.default_rng(6), 60, process.document_len)
    whole = compare(process, texts_of(letters))
    short = compare(process, texts_of(np.where(np.arange(process.document_len) < 6, letters, NO_LETTER)))
    for name in ("grams_1", "grams_2", "grams_3"):
        assert short[name].as_the_source and short[name].mean > 1.2 * whole[name].mean, name


@each
def test_spoiled_sources_are_seen(process):
    source = np.random.default_rng(11)
    letters = process.sample(source, 300, process.document_len)
    assert "bits" not in off(process, letters)
    cold = off(process, tempered(process, source, 300, 0.5))
    assert {"bits", "grams"} <= cold
    mixed = shuffled(letters, source)
    assert {"grams", "information"} <= off(process, mixed)
    assert "bits" in off(process, mixed) or process.name == "hidden_markov", (
        "whose letters alone tell little of the next"
    )
    assert compare(process, texts_of(mixed))["grams_1"].value == compare(process, texts_of(letters))["grams_1"].value
    repeated = np.tile(letters[:1], (300, 1))
    assert "grams" in off(process, repeated)


def test_a_wrong_order_is_seen_by_what_is_longer_than_it():
    process = PROCESSES["markov"]
    pairs = process.pair_probabilities(1, 24)
    shorter = dataclasses.replace(process, order=1)
    shorter.__dict__["rows_CA"] = pairs / pairs.sum(1, keepdims=True)
    found = compare(process, texts_of(shorter.sample(np.random.default_rng(2), 400, 24)))
    assert found["grams_1"].as_the_source and found["grams_2"].value < 2 * found["grams_2"].high
    assert not found["grams_3"].as_the_source and found["grams_3"].value > 1.5 * found["grams_3"].high


def test_broken_agreement_is_seen_by_agreements_alone():
    """Closing words of any kind where one stands: as many of each, as often, as far away."""
    process = PROCESSES["agreement"]
    letters = process.sample(np.random.default_rng(4), 300, 24)
    closes = (letters >= 2) & (letters < 4)
    swapped = np.where(closes, np.random.default_rng(5).integers(2, 4, letters.shape), letters)
    found = compare(process, texts_of(swapped))
    often = {
        name.rpartition("_")[2] for name, each in found.items() if name.startswith("closings") and each.value > 0.3
    }
    kept = [found[f"kept_{distance}"] for distance in often]
    assert len(kept) > 1 and all(0.3 < each.value < 0.7 and not each.as_the_source for each in kept)
    assert [n for n, _ in closings(process, swapped).values()] == [n for n, _ in closings(process, letters).values()]
    assert true_bits(process, swapped).impossible.value > 0.05


# ---------------------------------------------------------------- excess


def rows(process, count=None):
    tokenizer = SymbolTokenizer(process.letters, "")
    return PairRows.of(process.load(), tokenizer, "heldout").windows(process.row_tokens, count=count)


@each
def test_the_source_as_a_model_has_no_excess(process):
    found = excess_bits(process, SourceModel(process), rows(process), mask_id=2)
    assert abs(found.bits.value) < 1e-9 and found.bits.se < 1e-9 and not found.is_bound
    assert found.model_bits == pytest.approx(found.true_bits)
    assert abs(found.true_bits - process.entropy_bits.value) < 0.2


@each
def test_the_source_as_a_denoiser_has_none_within_its_interval(process):
    found = excess_bits(process, SourceDenoiser(process), rows(process), mask_id=2, num_masks=8)
    assert found.is_bound and abs(found.bits.value) < 4 * found.bits.se < 0.2


@each
def test_a_sharper_model_has_the_excess_that_it_must(process):
    """KL of the source from itself at temperature 1/2, worked out along the documents themselves."""
    windows = rows(process)
    found = excess_bits(process, SourceModel(process, temperature=0.5), windows, mask_id=2)
    log_p = process.log_probabilities(windows.tokens_NT[:, 1:-1] - 3)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_q = 2 * log_p - np.log(np.exp(2 * log_p).sum(-1, keepdims=True))
        own = np.take_along_axis(log_p - log_q, (windows.tokens_NT[:, 1:-1] - 3)[..., None], -1)[..., 0]
    per_text = own.sum(1) / math.log(2) / process.document_len
    assert found.bits.value == pytest.approx(per_text.mean(), rel=1e-6)
    assert found.bits.se == pytest.approx(per_text.std(ddof=1) / math.sqrt(60), rel=1e-6)
    assert found.bits.value > 4 * found.bits.se


# ---------------------------------------------------------------- the command


TINY = (
    "experiment=processes",
    "corpus.num_train_documents=40",
    "corpus.num_validation_documents=10",
    "corpus.num_heldout_documents=30",
    "corpus.document_len=16",
    "model.d_model=16",
    "model.num_blocks=1",
    "model.target_parameters=null",
    "train.num_tokens=1200",
    "train.validation_windows=4",
    "train.num_validations=2",
    "workload.batch_size=6",
    "measure.min_repeats=2",
    "measure.max_repeats=2",
    "measure.max_warmups=1",
    "device.name=cpu",
)


@pytest.fixture(scope="module")
def swept(home, tmp_path_factory) -> Path:
    """A folder as a sweep leaves it: the plan, and the records of two paradigms on two processes."""
    folder = tmp_path_factory.mktemp("processes")
    _, cells = planned_cells([*TINY, "corpus=markov,agreement", "paradigm=ar,diffusion"])
    plan = Plan(
        sweep="processes", folder=str(folder), runner="", preparer="", unit_timeout_s=None, prepare_timeout_s=None,
        cells=tuple(cells), units=tuple((index, 0) for index in range(len(cells))),
    )  # fmt: skip
    plan.save(folder / "plan" / "prepare-measure-0.json")
    writer = RecordWriter(folder, "here")
    for planned in cells:
        cell: Cell = build(planned.config)
        observed, tables = json.loads(canonical_json(bench.run_unit(cell, 0)))
        about = {"key": f"unit of {planned.key}", "cell_key": planned.key, "cell": planned.name, "round": 0}
        rest = {"status": "ok", "started_at": "now", "checkpoint": cell.checkpoint_id()}
        samples = [{"key": about["key"], **row} for row in tables["samples"]]
        writer.write_unit({**planned.factors, **about, **observed, **rest}, samples=samples)
    return folder


@pytest.mark.slow
def test_the_command_on_a_sweep(swept, capsys):
    assert oracle.main([str(swept)]) == 0
    printed = capsys.readouterr().out
    assert (swept / "oracle.md").read_text().strip() in printed
    with open(swept / "oracle.csv", newline="") as file:
        lines = {line["cell"]: line for line in csv.DictReader(file)}
    assert set(lines) == {
        f"{name}, corpus={corpus}" for name in ("ar", "diffusion") for corpus in ("markov", "agreement")
    }
    for name, line in lines.items():
        assert int(line["texts"]) == 12 and line["excess_is_paired"] == "True"
        assert line["excess_is_bound"] == str(name.startswith("diffusion"))
        assert float(line["excess_bits_low"]) < float(line["excess_bits"]) < float(line["excess_bits_high"])
        assert float(line["excess_bits"]) > 0.1, "a few steps teach little"
        assert ("kept_1" in line and line["closings_1_source_mean"] != "") == ("agreement" in name)
    with open(swept / "oracle_positions.csv", newline="") as file:
        assert (
            sum(line["cell"] == "ar, corpus=markov" for line in csv.DictReader(file)) == 5
        )  # 1, 2-3, 4-7, 8-15, 16-17


@pytest.mark.slow
def test_the_excess_is_that_of_the_recorded_likelihood(swept):
    """Paired with weights, or from the records alone: the same figure, a wider interval."""
    paired = {row.cell: row for row in oracle.measure(swept)}
    for run in oracle.read_table(swept, "runs"):
        process = oracle.process_of(run)
        assert process is not None
        alone = oracle.recorded_excess(
            run, process, oracle.heldout_rows(process, process.load(), SymbolTokenizer(process.letters, ""))
        )
        row = paired[run["cell"]]
        assert alone is not None and row.excess is not None and row.paired
        assert alone.bits.value == pytest.approx(row.excess.bits.value, abs=1e-5)
        assert alone.is_bound == row.excess.is_bound


def test_without_the_plan_the_records_are_enough(swept, tmp_path):
    (tmp_path / "records").mkdir()
    for file in (swept / "records").iterdir():
        (tmp_path / "records" / file.name).write_bytes(file.read_bytes())
    rows = oracle.measure(tmp_path)
    assert len(rows) == 4 and not any(row.paired or row.positions for row in rows)
    assert oracle.report(rows).count("‡") == 4 + 1  # and the legend


def test_likelihood_of_the_main_path_is_over_the_same_rows(home):
    _, (planned,) = planned_cells([*TINY, "corpus=markov", "paradigm=ar"])
    cell: Cell = build(planned.config)
    weights = cell.train.load(cell.wanted, report=lambda what, done, total: None)
    corpus = cell.corpus.load()
    found = heldout_likelihood(weights, corpus)
    windows = oracle.heldout_rows(cell.corpus, corpus, weights.tokenizer)  # type: ignore[arg-type]
    mine = excess_bits(cell.corpus, weights.model, windows, mask_id=2)  # type: ignore[arg-type]
    assert found.num_bytes == 30 * 16 and found.bits_per_byte == pytest.approx(mine.model_bits, rel=1e-6)


def test_folders_that_hold_nothing_to_judge(swept, tmp_path, capsys):
    assert oracle.main([str(tmp_path / "nowhere")]) == 2
    assert "no folder" in capsys.readouterr().err
    assert oracle.main([str(tmp_path)]) == 2
    assert "no cell of a known process" in capsys.readouterr().err
    runs = list(oracle.read_table(swept, "runs"))
    for changes, message in (
        ({"checkpoint_tokenizer": "another"}, "use tokenizer=symbols|run it with tokenizer=symbols"),
        ({"workload.prompt_len": 9}, r"workload\.prompt_len=9"),
        ({"corpus_sha256": "another"}, "run it again"),
        ({"key": "nobody's"}, "no samples"),
    ):
        folder = tmp_path / next(iter(changes))
        writer = RecordWriter(folder, "here")
        samples = [row for row in oracle.read_table(swept, "samples") if row["key"] == runs[0]["key"]]
        writer.write_unit({**runs[0], **changes}, samples=samples)
        with pytest.raises(ValueError, match=message):
            oracle.measure(folder)


def test_an_interval_is_students():
    low, high = oracle.interval(Estimated(1.0, 0.1, 5))
    assert (low, high) == (pytest.approx(1 - 0.2776445), pytest.approx(1 + 0.2776445))
    assert oracle.interval(Estimated(1.0)) == (1.0, 1.0)
    assert all(map(math.isnan, oracle.interval(Estimated(1.0, math.nan, 1))))


def test_no_two_processes_have_parameters_of_the_same_names():
    names = [frozenset(field.name for field in dataclasses.fields(kind)) for kind in oracle.PROCESSES]
    assert len(set(names)) == len(names)
