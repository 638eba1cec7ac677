"""`python -m paradigms.exposure`: what a model's own mistakes do to it, where the truth is known.

A causal model is trained on true prefixes and writes behind its own. Under a known process the error of its next-letter
distribution q is known behind any prefix w, KL(p(·|w) || q(·|w)) of the source's p. With l positions, and texts of the
source (true) and of the model (own), in nats:

    e_true(t), e_own(t)     mean error at position t behind true and own prefixes of t − 1 letters
    EB-C(t)                 e_own(t) / e_true(t), here by KL and by total variation        (1905.10617)
    R(l) = Σ e_own(t)       accumulated regret over own prefixes; Σ e_true(t) = l ε(l) over true ones
    excess(l)               R(l) / (l ε(l)) − 1, 0 where errors do not build on errors      (2204.01171)
    growth                  log2 R(l) / R(l/2): 1 is linear; beside it that of Σ e_true(t), since some positions are
                            harder than others behind true prefixes too

Takes overrides like `python -m paradigms`, after those of experiment=processes: `python -m paradigms.exposure
paradigm=ar,ssm corpus=markov`. True prefixes are held-out documents; own ones are drawn as the cell's decoder draws.
A text of the model that ends too early, or breaks off with a token that is no letter, counts up to there: later
positions rest on the texts that are left, whose number is shown. Intervals hold 95 %: a bootstrap over texts.

Dimension letters: N texts, T positions, A letters, V tokens, B rows of a batch, W resamples.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from paradigms.bench import torch_device
from paradigms.build import build
from paradigms.cell import Cell
from paradigms.cli import exit_code, planned_cells
from paradigms.data.processes.process import Process
from paradigms.data.symbols import FIRST_SYMBOL_ID, SymbolTokenizer
from paradigms.data.tokenizers import BOS_ID, MASK_ID, Tokenizer
from paradigms.decoding.native import NativeParadigm
from paradigms.measure.clock import clock_for
from paradigms.measure.environment import set_threads
from paradigms.measure.timeline import record
from paradigms.models.stack import Model
from paradigms.paradigm import Request
from paradigms.quality.by_position import buckets
from paradigms.quality.oracle import NO_LETTER, Texts
from paradigms.training.printed import Printed
from paradigms.weights import load_corpus

DEFAULTS = {"experiment": "processes", "paradigm": "ar,ssm"}
PROCESSES = {"markov", "hidden_markov", "agreement"}
NUM_RESAMPLES = 1000
BATCH_SIZE = 64
NOTHING = 1e-9  # nats: an error below this is rounding, and ratios of such mean nothing
COLUMNS = (
    "positions",
    "own texts",
    "e_true, nats",
    "e_own, nats",
    "own / true",
    "own / true, TV",
    "Σ e_true",
    "Σ e_own",
    "excess",
)


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Of a model's next-letter distributions, behind each prefix of texts.

    Attributes:
        kl_NT: KL(source || model) in nats, NaN behind a text's end.
        tv_NT: total variation.
    """

    kl_NT: np.ndarray
    tv_NT: np.ndarray


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with the range that holds it in 95 % of all resamples; NaN where it means nothing."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return "–" if np.isnan(self.value) else f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Positions `first` to `last`, counted from 1.

    Attributes:
        num_own: texts of the model that reach its last position.
        true_nats, own_nats: mean error at a position of it.
        ratio, ratio_tv: own over true, by KL and by total variation.
        sum_true_nats, sum_own_nats: errors from the first position of all to its last.
        excess: of the latter over the former, less 1.
    """

    first: int
    last: int
    num_own: int
    true_nats: Interval
    own_nats: Interval
    ratio: Interval
    ratio_tv: Interval
    sum_true_nats: Interval
    sum_own_nats: Interval
    excess: Interval


@dataclass(frozen=True, kw_only=True)
class Exposure:
    """Attributes:
    num_true, num_own: texts.
    growth_true, growth_own: log2 of what the second half of the positions makes of the sum of the first.
    """

    num_true: int
    num_own: int
    stretches: tuple[Stretch, ...]
    growth_true: Interval
    growth_own: Interval

    @property
    def accumulates(self) -> bool | None:
        """Whether errors build on errors, at 95 %, as far as texts reach; None where there is no error."""
        known = [stretch.excess for stretch in self.stretches if not np.isnan(stretch.excess.value)]
        return known[-1].low > NOTHING if known else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m paradigms.exposure", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--texts", type=int, default=200, help="texts of the source and of each model (default 200)")
    parser.add_argument("overrides", nargs="*", help="hydra overrides, such as corpus=markov paradigm=ar,ssm")
    options, unknown = parser.parse_known_args(arguments)

    def run() -> None:
        for cell in cells([*options.overrides, *unknown]):
            found = measure(cell, num_texts=options.texts)
            print(f"{cell.paradigm['label']}: {source_of(cell).title}\n\n{table(found)}\n", flush=True)

    return exit_code(run)


def cells(overrides: Sequence[str]) -> list[Cell]:
    """The cells that are asked for, causal models of known processes.

    Raises:
        ValueError: bad overrides, or a cell of another kind.
    """
    for override in overrides:
        group, _, names = override.partition("=")
        if group == "task" or (group == "corpus" and not set(names.split(",")) <= PROCESSES):
            raise ValueError(f"{override} is no known process; choose corpus=markov, hidden_markov or agreement")
    given = {override.partition("=")[0].lstrip("+") for override in overrides}
    defaults = [f"{key}={value}" for key, value in DEFAULTS.items() if key not in given]
    found: list[Cell] = [build(planned.config) for planned in planned_cells([*defaults, *overrides])[1]]
    for cell in found:
        name = cell.paradigm["name"]
        if not isinstance(cell.corpus, Process):
            raise ValueError("the corpus is no known process; choose corpus=markov, hidden_markov or agreement")
        if not cell.model.causal:
            raise ValueError(
                f"paradigm={name} writes in no order, so its texts have no prefixes; choose causal ones, as in "
                "paradigm=ar,ssm"
            )
        if cell.train.source == "random":
            raise ValueError("train=random has learnt nothing whose errors could tell; use train=quick or full")
    return found


def source_of(cell: Cell) -> Process:
    """The known process of a cell."""
    assert isinstance(cell.corpus, Process), "`cells` refuses others"
    return cell.corpus


def measure(cell: Cell, *, num_texts: int) -> Exposure:
    """Errors of a cell's model behind true and own prefixes.

    Raises:
        ValueError: too few texts for intervals, or more than are held out; weights of another tokenizer.
    """
    process = source_of(cell)
    if not 2 <= num_texts <= process.num_heldout_documents:
        raise ValueError(
            f"--texts={num_texts} must be at least 2 and at most corpus.num_heldout_documents="
            f"{process.num_heldout_documents}"
        )
    set_threads(cell.device.threads)
    device = torch_device(cell.device.name)
    weights = cell.train.load(cell.wanted, report=Printed(str(cell.paradigm["name"])))
    check_letters(weights.tokenizer, process)
    model = weights.model.to(device=device, dtype=getattr(torch, cell.device.dtype)).eval().requires_grad_(False)
    true_NT = process.indices(load_corpus(process).documents["heldout"][:num_texts])
    own = write(cell, model, weights.tokenizer, process, num_texts)
    return exposure(errors(process, model, true_NT), errors(process, model, own.letters_NT))


def check_letters(tokenizer: Tokenizer, process: Process) -> None:
    """Raise ValueError unless each letter of the process is one token."""
    if not isinstance(tokenizer, SymbolTokenizer) or tokenizer.symbols != process.letters:
        raise ValueError(
            f"{process.title} is read letter by letter: use tokenizer=symbols, and weights trained with it"
        )


def write(cell: Cell, model: Model, tokenizer: Any, process: Process, num_texts: int) -> Texts:
    """Texts of the model from nothing, as long as the source's documents."""
    paradigm = NativeParadigm(model, cell.decoder, tokenizer)
    requests = [
        Request(
            id=str(index),
            prompt=(BOS_ID,),
            max_new_tokens=process.document_len,
            seed=cell.workload.seed * 1_000_003 + index,
        )
        for index in range(num_texts)
    ]
    tokens: list[Sequence[int]] = []
    for start in range(0, num_texts, BATCH_SIZE):
        batch = requests[start : start + BATCH_SIZE]
        tokens += record(paradigm, batch, clock=clock_for(model.device, "device")).token_ids
    return Texts.read(tokens, process, eos_id=tokenizer.eos_id)


@torch.inference_mode()
def errors(process: Process, model: Model, letters_NT: np.ndarray) -> Errors:
    """Of a causal model, behind every prefix of texts, the empty one included; −1 stands behind a text's end."""
    N, T = letters_NT.shape
    kl_NT, tv_NT = np.full((N, T), np.nan), np.full((N, T), np.nan)
    for start in range(0, N, BATCH_SIZE):
        rows = slice(start, start + BATCH_SIZE)
        letters_BT = letters_NT[rows]
        tokens_BT = np.full(letters_BT.shape, BOS_ID, np.int64)
        tokens_BT[:, 1:] = np.maximum(letters_BT[:, :-1], 0) + FIRST_SYMBOL_ID
        read_BT = torch.from_numpy(tokens_BT).to(model.device)
        logits_MV = model.logits_where(read_BT, torch.ones_like(read_BT, dtype=torch.bool)).double()
        logits_MV[:, MASK_ID] = -torch.inf
        log_q_BTV = logits_MV.log_softmax(-1).view(*tokens_BT.shape, -1).cpu().numpy()
        log_p_BTA = process.log_probabilities(letters_BT)
        reached_BT = np.ones(letters_BT.shape, bool)
        reached_BT[:, 1:] = letters_BT[:, :-1] != NO_LETTER
        kl_NT[rows] = np.where(reached_BT, _kl(log_p_BTA, log_q_BTV[..., FIRST_SYMBOL_ID:]), np.nan)
        tv_NT[rows] = np.where(reached_BT, _tv(log_p_BTA, log_q_BTV), np.nan)
    return Errors(kl_NT=kl_NT, tv_NT=tv_NT)


def _kl(log_p_XA: np.ndarray, log_q_XA: np.ndarray) -> np.ndarray:
    p_XA = np.exp(log_p_XA)
    ratio_XA = np.subtract(log_p_XA, log_q_XA, out=np.zeros_like(p_XA), where=p_XA > 0)
    return (p_XA * ratio_XA).sum(-1)


def _tv(log_p_XA: np.ndarray, log_q_XV: np.ndarray) -> np.ndarray:
    q_XV = np.exp(log_q_XV)
    others_X = q_XV[..., :FIRST_SYMBOL_ID].sum(-1)
    return (np.abs(np.exp(log_p_XA) - q_XV[..., FIRST_SYMBOL_ID:]).sum(-1) + others_X) / 2


def exposure(true: Errors, own: Errors, *, seed: int = 0) -> Exposure:
    """Curves, sums and growth, with intervals over texts; the texts of the two are independent of each other."""
    source = np.random.default_rng([seed, 0x6578706F])
    e_true_WT, tv_true_WT = _curves(true, source)
    e_own_WT, tv_own_WT = _curves(own, source)
    T = e_true_WT.shape[1]
    stretches = []
    for first, last in buckets(T):
        here, until = slice(first - 1, last), slice(0, last)
        sum_true_W, sum_own_W = e_true_WT[:, until].sum(1), e_own_WT[:, until].sum(1)
        stretches.append(
            Stretch(
                first=first,
                last=last,
                num_own=int((~np.isnan(own.kl_NT[:, last - 1])).sum()),
                true_nats=_interval(e_true_WT[:, here].mean(1)),
                own_nats=_interval(e_own_WT[:, here].mean(1)),
                ratio=_interval(_over(e_own_WT[:, here].mean(1), e_true_WT[:, here].mean(1))),
                ratio_tv=_interval(_over(tv_own_WT[:, here].mean(1), tv_true_WT[:, here].mean(1))),
                sum_true_nats=_interval(sum_true_W),
                sum_own_nats=_interval(sum_own_W),
                excess=_interval(_over(sum_own_W, sum_true_W) - 1),
            )
        )
    return Exposure(
        num_true=len(true.kl_NT),
        num_own=len(own.kl_NT),
        stretches=tuple(stretches),
        growth_true=_growth(e_true_WT),
        growth_own=_growth(e_own_WT),
    )


def _curves(errors: Errors, source: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Mean errors by position of all texts (row 0) and of resamples, KL and total variation [1 + W, T]; NaN at
    positions that no text reaches.
    """
    N = len(errors.kl_NT)
    weight_WN = np.concatenate([np.ones((1, N)), source.multinomial(N, np.full(N, 1 / N), NUM_RESAMPLES)])
    reached_NT = ~np.isnan(errors.kl_NT)
    count_WT = weight_WN @ reached_NT
    with np.errstate(invalid="ignore"):
        kl_WT, tv_WT = (
            weight_WN @ np.where(reached_NT, error_NT, 0.0) / count_WT for error_NT in (errors.kl_NT, errors.tv_NT)
        )
    return kl_WT, tv_WT


def _over(above_W: np.ndarray, below_W: np.ndarray) -> np.ndarray:
    """Ratios, NaN where there is no error below."""
    return np.divide(above_W, below_W, out=np.full(len(below_W), np.nan), where=below_W > NOTHING)


def _growth(error_WT: np.ndarray) -> Interval:
    half = error_WT.shape[1] // 2
    first_W, whole_W = error_WT[:, :half].sum(1), error_WT[:, : 2 * half].sum(1)
    return _interval(np.log2(np.maximum(_over(whole_W, first_W), NOTHING)))


def _interval(values_W: np.ndarray) -> Interval:
    """Of all texts in row 0, between the outer 2.5 % of the resamples."""
    known = values_W[1:][~np.isnan(values_W[1:])]
    if np.isnan(values_W[0]) or not len(known):
        return Interval(np.nan, np.nan, np.nan)
    low, high = np.percentile(known, (2.5, 97.5))
    return Interval(float(values_W[0]), float(min(low, values_W[0])), float(max(high, values_W[0])))


def table(found: Exposure) -> str:
    """Markdown, and what it comes to."""
    lines = [" | ".join(COLUMNS), " | ".join("---:" for _ in COLUMNS)]
    for stretch in found.stretches:
        places = f"{stretch.first}" if stretch.first == stretch.last else f"{stretch.first} to {stretch.last}"
        excess = (
            "–"
            if np.isnan(stretch.excess.value)
            else f"{stretch.excess.value:+.1%} [{stretch.excess.low:+.1%}, {stretch.excess.high:+.1%}]"
        )
        cells = (
            places,
            f"{stretch.num_own}",
            f"{stretch.true_nats}",
            f"{stretch.own_nats}",
            f"{stretch.ratio}",
            f"{stretch.ratio_tv}",
            f"{stretch.sum_true_nats}",
            f"{stretch.sum_own_nats}",
            excess,
        )
        lines.append(" | ".join(cells))
    verdict = {
        None: "no error to speak of",
        True: "errors build on errors: the excess is above 0",
        False: "no sign that errors build on errors: the interval of the excess holds 0, or lies below",
    }[found.accumulates]
    return "\n".join(
        [
            *(f"| {line} |" for line in lines),
            "",
            f"{found.num_true} true and {found.num_own} own texts, 95 % intervals over texts; {verdict}.",
            f"Growth of the sum (1: linear): own {found.growth_own}, true {found.growth_true}.",
        ]
    )


if __name__ == "__main__":
    raise SystemExit(main())
