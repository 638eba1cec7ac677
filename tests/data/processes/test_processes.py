"""Known processes against brute force: every document of a few letters, every hidden path, every stack."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from data.processes.source_models import tempered
from scipy.stats import chi2

from paradigms.build import build
from paradigms.cli import planned_cells
from paradigms.data.pairs import PairRows
from paradigms.data.processes.agreement import Agreement
from paradigms.data.processes.hidden_markov import HiddenMarkov
from paradigms.data.processes.markov import Markov
from paradigms.data.processes.process import Estimated, Process
from paradigms.data.symbols import FIRST_SYMBOL_ID, Symbols

SMALL = {"num_train_documents": 30, "num_validation_documents": 10, "num_heldout_documents": 20}
PROCESSES = {
    "markov 1": Markov(order=1, alphabet=3, document_len=5, **SMALL),
    "markov 2": Markov(order=2, alphabet=3, document_len=5, **SMALL),
    "markov 3": Markov(order=3, alphabet=2, document_len=6, **SMALL),
    "hidden_markov": HiddenMarkov(states=3, alphabet=3, document_len=5, concentration=0.5, stay=0.4, **SMALL),
    "agreement": Agreement(numbers=2, colours=1, distractors=1, max_depth=2, document_len=5, **SMALL),
}
each = pytest.mark.parametrize("process", PROCESSES.values(), ids=PROCESSES)


def documents(process: Process, length: int | None = None) -> np.ndarray:
    """Every document there is."""
    length = process.document_len if length is None else length
    return np.array(list(itertools.product(range(len(process.letters)), repeat=length)))


def probabilities(process: Process, length: int | None = None) -> np.ndarray:
    """Of all of them, by the process."""
    return np.exp(process.log_likelihoods(documents(process, length)).sum(1))


def oracle(process: Process, letters) -> float:
    """Probability of a document, without any line of what is tested but the tables it was drawn from."""
    if isinstance(process, Markov):
        return _of_chain(process, letters)
    if isinstance(process, HiddenMarkov):
        return _of_paths(process, letters)
    assert isinstance(process, Agreement)
    return _of_stack(process, letters)


def _of_chain(process: Markov, letters) -> float:
    """π of the first k letters by solving π M = π, then a row a letter; marginals of π where there are fewer."""
    A, k = process.alphabet, process.order
    contexts = list(itertools.product(range(A), repeat=k))
    matrix = np.zeros((len(contexts), len(contexts)))
    for i, context in enumerate(contexts):
        for a in range(A):
            matrix[i, contexts.index((*context[1:], a))] += process.rows_CA[i, a]
    values, vectors = np.linalg.eig(matrix.T)
    vector = np.real(vectors[:, np.argmin(abs(values - 1))])
    stationary = dict(zip(contexts, vector / vector.sum(), strict=True))
    found = sum(p for context, p in stationary.items() if context[: len(letters)] == tuple(letters[:k]))
    for t in range(k, len(letters)):
        found *= process.rows_CA[contexts.index(tuple(letters[t - k : t])), letters[t]]
    return found


def _of_paths(process: HiddenMarkov, letters) -> float:
    moves, emission = process.transition_SS, process.emission_SA
    values, vectors = np.linalg.eig(moves.T)
    start = np.real(vectors[:, np.argmin(abs(values - 1))])
    start = start / start.sum()
    total = 0.0
    for path in itertools.product(range(process.states), repeat=len(letters)):
        p = start[path[0]] * emission[path[0], letters[0]]
        for (left, right), letter in zip(itertools.pairwise(path), letters[1:], strict=True):
            p *= moves[left, right] * emission[right, letter]
        total += p
    return total


def _of_stack(process: Agreement, letters) -> float:
    names, stack, p = process.letters, [], 1.0
    for letter in (names[number] for number in letters):
        opens = process.open_share if len(stack) < process.max_depth else 0.0
        closes = process.close_share if stack else 0.0
        if letter.isupper():
            p *= opens / process.kinds
            stack.append(letter)
        elif letter < "n":
            p *= closes if stack and stack[-1] == letter.upper() else 0.0
            stack = stack[:-1]
        else:
            p *= (1 - opens - closes) / process.distractors
    return p


@each
def test_likelihoods_are_those_of_brute_force(process):
    found = probabilities(process)
    assert found.sum() == pytest.approx(1, abs=1e-12)
    np.testing.assert_allclose(found, [oracle(process, letters) for letters in documents(process)], atol=1e-12)


@each
def test_next_letter_probabilities_follow_from_likelihoods(process):
    shorter, longer = probabilities(process, 3), probabilities(process, 4).reshape(-1, len(process.letters))
    for letters, p, row_A in zip(documents(process, 3), shorter, longer, strict=True):
        if p > 0:
            got = np.exp(process.next_log_probabilities(process.texts(letters[None])[0]))
            np.testing.assert_allclose(got, row_A / p, atol=1e-12)
    first = np.exp(process.next_log_probabilities(""))
    np.testing.assert_allclose(first, probabilities(process, 1), atol=1e-12)


@each
def test_what_stands_behind_a_text_changes_nothing_before(process):
    letters = documents(process)[:40]
    cut = np.where(np.arange(process.document_len) < 3, letters, -1)
    np.testing.assert_array_equal(process.log_likelihoods(letters)[:, :3], process.log_likelihoods(cut)[:, :3])


@each
def test_frequencies_are_those_of_all_documents(process):
    every, p = documents(process), probabilities(process)
    A, T = len(process.letters), process.document_len
    for n in (1, 2, 3):
        expected = np.zeros(A**n)
        for start in range(T - n + 1):
            np.add.at(expected, every[:, start : start + n] @ A ** np.arange(n - 1, -1, -1), p / (T - n + 1))
        np.testing.assert_allclose(process.gram_probabilities(n, T), expected, atol=1e-12)
    for distance in (1, 2, T - 1):
        expected = np.zeros((A, A))
        for start in range(T - distance):
            np.add.at(expected, (every[:, start], every[:, start + distance]), p / (T - distance))
        np.testing.assert_allclose(process.pair_probabilities(distance, T), expected, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in PROCESSES if name != "agreement"])
def test_documents_begin_in_the_stationary_distribution(name):
    process = PROCESSES[name]
    letters_TA = process.masses(40) @ process.emission_SA
    np.testing.assert_allclose(letters_TA, np.tile(letters_TA[0], (40, 1)), atol=1e-11)


def test_a_grammar_does_not():
    """The control: no clause is open at first."""
    letters_TA = PROCESSES["agreement"].masses(40) @ PROCESSES["agreement"].emission_SA
    assert abs(letters_TA[0] - letters_TA[-1]).max() > 0.04


@each
def test_entropy_of_a_document(process):
    p = probabilities(process)
    exact = -(p[p > 0] * np.log2(p[p > 0])).sum() / process.document_len
    found = process.entropy_bits
    if isinstance(process, HiddenMarkov):
        assert 0 < found.se < 0.01 and abs(found.value - exact) < 4 * found.se
    else:
        assert found == Estimated(pytest.approx(exact, rel=1e-12))


@pytest.mark.parametrize("name", ["markov 1", "markov 2", "markov 3", "agreement"])
def test_entropy_rate_of_a_source_whose_state_is_known(name):
    """The entropy that one more letter adds far from the beginning."""
    process = PROCESSES[name]
    longer, shorter = (
        dataclasses.replace(process, document_len=length).entropy_bits.value * length for length in (801, 800)
    )
    assert process.entropy_rate_bits == Estimated(pytest.approx(longer - shorter, rel=1e-9))


def test_entropy_rate_of_a_hidden_chain_lies_between_its_bounds():
    """H(x_n | x_<n, first state) ≤ rate ≤ H(x_n | x_<n), by every document."""
    process = PROCESSES["hidden_markov"]

    def entropy(start_S, length):
        changed = dataclasses.replace(process)
        changed.__dict__["start_S"] = start_S
        p = probabilities(changed, length)
        return -(p * np.log2(p)).sum()

    n = 7
    high = entropy(process.start_S, n) - entropy(process.start_S, n - 1)
    states = np.eye(process.states)
    low = sum(w * (entropy(s, n) - entropy(s, n - 1)) for w, s in zip(process.start_S, states, strict=True))
    found = process.entropy_rate_bits
    assert low < high < low + 0.02
    assert low - 4 * found.se < found.value < high + 4 * found.se and found.se < 0.005


def test_a_hidden_chain_whose_letters_tell_the_state_is_a_markov_chain():
    chain = PROCESSES["markov 1"]
    hidden = HiddenMarkov(states=3, alphabet=3, document_len=5, stay=0.0)
    hidden.__dict__["_rows"] = (chain.rows_CA, np.eye(3))
    np.testing.assert_allclose(probabilities(hidden), probabilities(chain), atol=1e-12)
    assert abs(hidden.entropy_rate_bits.value - chain.entropy_rate_bits.value) < 4 * hidden.entropy_rate_bits.se


@each
def test_samples_are_distributed_as_they_should(process):
    p = probabilities(process)
    places = len(process.letters) ** np.arange(process.document_len - 1, -1, -1)

    def chance(letters_NT) -> float:
        counts = np.bincount(letters_NT @ places, minlength=len(p))
        assert not counts[p == 0].any(), "impossible documents are never drawn"
        often = p * len(letters_NT) >= 5
        observed = np.append(counts[often], counts[~often].sum())
        expected = np.append(p[often], p[~often].sum()) * len(letters_NT)
        kept = expected > 0
        statistic = ((observed[kept] - expected[kept]) ** 2 / expected[kept]).sum()
        return float(chi2.sf(statistic, kept.sum() - 1))

    source = np.random.default_rng(5)
    assert chance(process.sample(source, 20_000, process.document_len)) > 1e-3
    assert chance(tempered(process, source, 20_000, 0.9)) < 1e-6, "the control: a sharper source is seen"


def test_an_order_matters():
    """A chain of order 2 is no chain of order 1 with the same pairs."""
    process = Markov(order=2, alphabet=3, document_len=40)
    pairs = process.pair_probabilities(1, 40)
    rows = pairs / pairs.sum(1, keepdims=True)
    of_pairs = -(pairs * np.log2(rows)).sum()
    assert process.entropy_rate_bits.value < of_pairs - 0.05


def test_agreements_by_hand():
    process = Agreement(numbers=2, colours=1, distractors=2, max_depth=2, document_len=9)
    assert process.letters == ("A", "B", "a", "b", "n", "o")

    def found(text):
        return list(process.agreements(process.indices([text])[0]))

    assert found("AnBobonan") == [(2, True), (7, True)]
    assert found("AnBobonbn") == [(2, True), (7, False)]
    assert found("aAnaannnn") == [(2, True)], "nothing is open for the first and the last"
    assert found("ABABbannn") == [(3, True), (5, True)], "clauses too deep change nothing"
    p = np.exp(process.log_likelihoods(process.indices(["aAnaannnn", "ABABbannn"])))
    assert (p[0] == 0).tolist() == [True, False, False, False, True, False, False, False, False]
    assert (p[1] == 0).tolist() == [False, False, True, True, False, False, False, False, False]


@each
def test_a_corpus_of_documents(process):
    process = dataclasses.replace(process, document_len=60)
    corpus = process.load()
    texts = [text for split in ("train", "validation", "heldout") for text in corpus.documents[split]]
    assert [len(corpus.documents[split]) for split in ("train", "validation", "heldout")] == [30, 10, 20]
    assert len(set(texts)) == 60 and {len(text) for text in texts} == {60}
    assert set("".join(texts)) <= set(process.letters)
    assert corpus.num_bytes["heldout"] == 20 * 60 and corpus.symbols == process.letters
    assert process.load() == corpus, "the same each time"
    more = dataclasses.replace(process, num_train_documents=40).load()
    assert more.documents["heldout"] == corpus.documents["heldout"] and more.sha256 != corpus.sha256
    other = dataclasses.replace(process, seed=1).load()
    assert not set(other.documents["heldout"]) & set(corpus.documents["heldout"])


@each
def test_a_document_is_a_row_of_its_own(process):
    process = dataclasses.replace(process, document_len=60)
    corpus = process.load()
    tokenizer = Symbols(vocab_size=process.vocab_size).load(corpus)
    rows = PairRows.of(corpus, tokenizer, "heldout")
    rows.check(process.row_tokens, "")
    assert rows.longest == process.row_tokens == 62
    windows = rows.windows(process.row_tokens)
    assert (windows.tokens_NT[:, 0] == 0).all() and (windows.tokens_NT[:, -1] == 1).all()
    assert windows.scored_NT[:, 1:].all() and (windows.num_bytes_N(tokenizer.token_bytes) == 60).all()
    letters_NT = windows.tokens_NT[:, 1:-1] - FIRST_SYMBOL_ID
    np.testing.assert_array_equal(letters_NT, process.indices(corpus.documents["heldout"]))
    tokens, scored = rows.batch(seed=0, step=0, length=process.row_tokens, num_rows=4)
    assert scored[:, 1:].all() and tokens.shape == (4, 62)


def test_a_source_that_repeats_itself_is_refused():
    with pytest.raises(ValueError, match=r"corpus\.document_len=5 had been drawn before"):
        dataclasses.replace(PROCESSES["markov 1"], num_train_documents=5000).load()


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (Markov, {"order": 4}, r"corpus\.order=4"),
        (Markov, {"alphabet": 1}, r"corpus\.alphabet=1"),
        (Markov, {"alphabet": 20, "order": 3}, "4096 contexts"),
        (Markov, {"concentration": 0.0}, r"corpus\.concentration=0\.0"),
        (Markov, {"document_len": 0}, r"corpus\.document_len=0"),
        (Markov, {"seed": -1}, r"corpus\.seed=-1"),
        (HiddenMarkov, {"states": 0}, r"corpus\.states=0"),
        (HiddenMarkov, {"alphabet": 27}, r"corpus\.alphabet=27"),
        (HiddenMarkov, {"stay": 1.0}, r"corpus\.stay=1\.0"),
        (Agreement, {"numbers": 7, "colours": 2}, r"corpus\.numbers=7"),
        (Agreement, {"distractors": 0}, r"corpus\.distractors=0"),
        (Agreement, {"max_depth": 9}, r"corpus\.max_depth=9"),
        (Agreement, {"open_share": 0.5, "close_share": 0.5}, r"corpus\.open_share=0\.5"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, dict) else None,
)
def test_bad_parameters(kind, changes, message):
    with pytest.raises(ValueError, match=message):
        kind(**changes)


def test_letters_that_are_none():
    with pytest.raises(ValueError, match="'z' is no letter of markov"):
        PROCESSES["markov 1"].next_log_probabilities("az")


def test_figures_of_several_texts():
    assert Estimated.mean(np.array([1.0, 2.0, 3.0])) == Estimated(2.0, 1 / math.sqrt(3), 3)
    found = Estimated.ratio(np.array([2.0, 4.0, 9.0]), np.array([1.0, 2.0, 3.0]))
    rest = [2 - 2.5, 4 - 5, 9 - 7.5]
    assert found.value == 2.5 and found.se == pytest.approx(math.sqrt(1.5 * sum(r * r for r in rest)) / 6)
    assert math.isnan(Estimated.ratio(np.zeros(2), np.zeros(2)).value)


def test_the_experiment_plans_cells_that_fit():
    _, cells = planned_cells(["experiment=processes"])
    assert len(cells) == 9
    for planned in cells:
        cell = build(planned.config)
        cell.check()
        assert isinstance(cell.corpus, Process)
        assert cell.train.longest == cell.corpus.row_tokens == cell.workload.total_len == cell.model.max_positions
        assert cell.tokenizer.vocab_size == cell.corpus.vocab_size
