"""Exposure bias against every prefix: errors that can be enumerated, that build on each other, and that do not."""

from __future__ import annotations

import dataclasses
import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
from data.processes.source_models import SourceModel

from paradigms import exposure as command
from paradigms.data.processes.agreement import Agreement
from paradigms.data.processes.hidden_markov import HiddenMarkov
from paradigms.data.processes.markov import Markov
from paradigms.data.symbols import SymbolTokenizer
from paradigms.data.tokenizers import EOS_ID, MASK_ID
from paradigms.decoding.autoregressive import Autoregressive
from paradigms.exposure import Errors, Interval, errors, exposure, write


def chain(rows, length) -> Markov:
    """A Markov chain of two letters by its rows."""
    process = Markov(order=1, alphabet=2, document_len=length)
    process.__dict__["rows_CA"] = np.array(rows, float)
    return process


def enumerated(source: Markov, model: Markov, walker: Markov) -> np.ndarray:
    """Mean KL(source || model) at each position behind the prefixes of a walker, prefix by prefix [T]."""
    found = np.zeros(source.document_len)
    for t in range(source.document_len):
        for prefix in itertools.product("ab", repeat=t):
            text = "".join(prefix)
            chance = math.prod(math.exp(walker.next_log_probabilities(text[:k])["ab".index(text[k])]) for k in range(t))
            log_p, log_q = (each.next_log_probabilities(text) for each in (source, model))
            found[t] += chance * (np.exp(log_p) * (log_p - log_q)).sum()
    return found


SOURCE = chain([[0.9, 0.1], [0.3, 0.7]], 8)
MODEL = chain([[0.8, 0.2], [0.1, 0.9]], 8)
# Stays with a, where the model is nearly right; having strayed to b, the model is wrong and hardly comes back.
TRAP = chain([[0.999, 0.001], [0.95, 0.05]], 32)
TRAPPED = chain([[0.99, 0.01], [0.005, 0.995]], 32)


def starting_at_a(process: Markov) -> Markov:
    """A chain whose first letter is a, instead of a stationary one."""
    changed = dataclasses.replace(process)
    changed.__dict__["rows_CA"] = process.rows_CA
    emission = process.emission_SA.copy()
    emission[0] = (1 - 1e-12, 1e-12)
    changed.__dict__["emission_SA"] = emission
    return changed


def measured(source, model, num=4000, seed=0):
    texts = [
        walker.sample(np.random.default_rng([seed, k]), num, source.document_len)
        for k, walker in enumerate((source, model))
    ]
    return exposure(*(errors(source, SourceModel(model), letters) for letters in texts))


def test_errors_behind_all_prefixes_have_the_mean_of_the_enumeration():
    every = np.array(list(itertools.product(range(2), repeat=8)))
    kl_NT = errors(SOURCE, SourceModel(MODEL), every).kl_NT
    for walker in (SOURCE, MODEL):
        chance_N1 = np.exp(walker.log_likelihoods(every).sum(1))[:, None]
        np.testing.assert_allclose((chance_N1 * kl_NT).sum(0), enumerated(SOURCE, MODEL, walker), rtol=1e-9)


def test_total_variation_counts_what_is_said_that_is_no_letter():
    model = SourceModel(SOURCE)
    plain = model.forward

    def leaking(tokens_BT, *args, **told):
        logits = plain(tokens_BT, *args, **told)
        logits[..., EOS_ID] = math.log(0.25)  # beside letters that sum up to 1: a fifth of the mass
        return logits

    model.forward = leaking  # type: ignore[method-assign]
    found = errors(SOURCE, model, SOURCE.sample(np.random.default_rng(0), 5, 8))
    np.testing.assert_allclose(found.tv_NT, 0.2, rtol=1e-9)
    np.testing.assert_allclose(found.kl_NT, math.log(1.25), rtol=1e-9)


def test_what_no_decoder_says_has_no_share_of_the_mass():
    model = SourceModel(SOURCE)
    plain = model.forward

    def masking(tokens_BT, *args, **told):
        logits = plain(tokens_BT, *args, **told)
        logits[..., MASK_ID] = math.log(0.25)
        return logits

    model.forward = masking  # type: ignore[method-assign]
    found = errors(SOURCE, model, SOURCE.sample(np.random.default_rng(0), 5, 8))
    np.testing.assert_allclose(found.tv_NT, 0, atol=1e-9)
    np.testing.assert_allclose(found.kl_NT, 0, atol=1e-9)


def test_curves_and_sums_hold_the_enumeration_within_their_intervals():
    found = measured(SOURCE, MODEL)
    true, own = (enumerated(SOURCE, MODEL, walker) for walker in (SOURCE, MODEL))
    assert (abs(own - true)[1:] > 0.005).all(), "or the two could not be told apart"
    for stretch in found.stretches:
        here, until = slice(stretch.first - 1, stretch.last), slice(0, stretch.last)
        for got, expected in (
            (stretch.true_nats, true[here].mean()),
            (stretch.own_nats, own[here].mean()),
            (stretch.ratio, own[here].mean() / true[here].mean()),
            (stretch.sum_true_nats, true[until].sum()),
            (stretch.sum_own_nats, own[until].sum()),
            (stretch.excess, own[until].sum() / true[until].sum() - 1),
        ):
            reach = (got.high - got.low) / 2
            assert abs(got.value - expected) < 2 * reach + 1e-9, "twice the reach of 95 %"
    assert found.growth_own.value == pytest.approx(math.log2(own.sum() / own[:4].sum()), abs=0.05)
    assert (found.num_true, found.num_own, found.stretches[-1].num_own) == (4000, 4000, 4000)


def test_intervals_hold_as_often_as_they_say():
    own = enumerated(SOURCE, MODEL, MODEL).sum()
    held = []
    for seed in range(60):
        got = measured(SOURCE, MODEL, num=60, seed=seed).stretches[-1].sum_own_nats
        held.append(got.low <= own <= got.high)
    assert 50 <= sum(held) <= 60  # 95 % of 60 are 57; a binomial one is below 50 once in 10,000


def test_errors_that_build_on_errors_grow_faster_than_the_length():
    """At most quadratically, as 2204.01171 bounds it."""
    source, model = starting_at_a(TRAP), starting_at_a(TRAPPED)
    found = measured(source, model, num=1500)
    last = found.stretches[-1]
    assert found.accumulates and last.excess.low > 1
    assert found.growth_own.low > 1.3 and found.growth_own.high < 2.1
    assert abs(found.growth_true.value - 1) < 0.5
    eps, regret = last.sum_true_nats.value / 32, last.sum_own_nats.value
    assert 32 * eps < regret


def test_errors_that_are_everywhere_alike_do_not():
    """The control: a wrong die is as wrong behind its own throws."""
    found = measured(chain([[0.7, 0.3]] * 2, 16), chain([[0.5, 0.5]] * 2, 16), num=400)
    assert found.accumulates is False
    for stretch in found.stretches:
        assert stretch.excess.value == pytest.approx(0, abs=1e-9)
        assert stretch.ratio.value == pytest.approx(1) and stretch.ratio_tv.value == pytest.approx(1)
    assert found.growth_own.value == pytest.approx(1) and found.growth_true.value == pytest.approx(1)


@pytest.mark.parametrize(
    "process",
    [
        SOURCE,
        HiddenMarkov(states=3, alphabet=3, document_len=8),
        Agreement(numbers=2, colours=1, distractors=1, max_depth=2, document_len=8),
    ],
    ids=lambda process: process.name,
)
def test_the_source_as_a_model_has_no_errors(process):
    found = measured(process, process, num=50)
    assert found.accumulates is None
    for stretch in found.stretches:
        assert max(abs(stretch.true_nats.value), abs(stretch.own_nats.value)) < 1e-9
        assert math.isnan(stretch.ratio.value) and str(stretch.ratio) == "–"
    assert "no error to speak of" in command.table(found)


def test_texts_that_end_early_count_up_to_there():
    letters = np.array([[0, 1, 0, 0, 1, 1, 0, 1], [0, 1, -1, -1, -1, -1, -1, -1], [-1] * 8])
    found = errors(SOURCE, SourceModel(MODEL), letters)
    assert (~np.isnan(found.kl_NT)).sum(1).tolist() == [8, 3, 1]
    assert (found.kl_NT[1, :3] == found.kl_NT[0, :3]).all()
    curves = exposure(found, found)
    assert [stretch.num_own for stretch in curves.stretches] == [3, 2, 1, 1]
    assert curves.stretches[1].own_nats.value == pytest.approx(np.nanmean(found.kl_NT[:, 1:3], 0).mean())


def test_positions_that_no_text_reaches_have_no_figure():
    here = Errors(kl_NT=np.full((3, 4), 0.5), tv_NT=np.full((3, 4), 0.5))
    gone = Errors(kl_NT=np.array([[0.5, 0.5, np.nan, np.nan]] * 3), tv_NT=np.full((3, 4), 0.5))
    found = exposure(here, gone)
    assert found.stretches[0].own_nats == Interval(0.5, 0.5, 0.5)
    assert math.isnan(found.stretches[-1].own_nats.value) and found.accumulates is False


def test_own_texts_are_drawn_by_the_decoder():
    """The source, decoded as a model: its letters are distributed as the source's."""
    process = SOURCE
    cell = SimpleNamespace(decoder=Autoregressive(cache="none"), workload=SimpleNamespace(seed=0))
    model, tokenizer = SourceModel(process), SymbolTokenizer(process.letters, "")
    found = write(cell, model, tokenizer, process, 300)  # type: ignore[arg-type]
    assert (found.another_length, found.broken, len(found)) == (0, 0, 300)
    again = write(cell, model, tokenizer, process, 100)  # type: ignore[arg-type]
    np.testing.assert_array_equal(again.letters_NT, found.letters_NT[:100])
    share = (found.letters_NT == 0).mean(1)
    exact = process.gram_probabilities(1, 8)[0]
    assert abs(share.mean() - exact) < 4 * share.std() / math.sqrt(300)


TINY = (
    "corpus=markov",
    "corpus.num_train_documents=40",
    "corpus.num_validation_documents=10",
    "corpus.num_heldout_documents=30",
    "corpus.document_len=12",
    "model.d_model=32",
    "model.num_blocks=1",
    "model.target_parameters=null",
    "train.num_tokens=1200",
    "train.validation_windows=4",
    "train.num_validations=2",
    "device.name=cpu",
)


def test_the_command(home, capsys):
    assert command.main([*TINY, "--texts", "20"]) == 0
    printed = capsys.readouterr().out
    blocks = printed.split("positions | own texts")[1:]
    assert len(blocks) == 2 and all("markov, order 2" in printed for _ in blocks)
    for block in blocks:
        assert [line.split(" | ")[0] for line in block.splitlines()[2:6]] == [
            "| 1",
            "| 2 to 3",
            "| 4 to 7",
            "| 8 to 12",
        ]
        assert "20 true and 20 own texts" in block


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["paradigm=diffusion"], "paradigm=diffusion writes in no order"),
        (["paradigm=ar", "--texts", "31"], "--texts=31"),
        (["paradigm=ar", "--texts", "1"], "--texts=1"),
        (["paradigm=arr"], "paradigm=arr is unknown"),
        (["corpus=stdlib_docs"], "corpus=stdlib_docs is no known process"),
        (["task=mqar"], "task=mqar is no known process"),
        (["paradigm=ar", "corpus.alphabet=99"], "corpus.alphabet=99"),
    ],
    ids=["no order", "too many", "too few", "unknown", "plain text", "task", "impossible"],
)
def test_bad_input(home, capsys, arguments, message):
    assert command.main([*TINY, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_plain_text_is_no_process(home, capsys):
    asked = ["experiment=side_by_side", "paradigm=ar", "train=quick", "workload.output_len=16"]
    assert command.main(asked) == 2
    assert "no known process" in capsys.readouterr().err
    with pytest.raises(ValueError, match="tokenizer=symbols"):
        command.check_letters(SymbolTokenizer("xyz", ""), SOURCE)
